"""What do heads attend to, and what is each of them worth?"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.data.batching import EpochPlan
from limelight.data.config import DataConfig
from limelight.data.corpora import corpora_for_split, read_split
from limelight.data.datasets import Seq2SeqBatch
from limelight.data.readers import LineStats
from limelight.data.registry import resolve
from limelight.errors import UserError
from limelight.explain.interventions import applied, parse
from limelight.lab.alignment import Model1, fit
from limelight.lab.experiment import Measurements, Subject, Values
from limelight.lab.report import new_figure, style_of
from limelight.lab.subject import tokenize
from limelight.loading import LoadedModel, load
from limelight.model.taps import Recorder, matching, taps
from limelight.tasks.translate import Constraints
from limelight.training.objectives import LossModule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "What do the heads of a model attend to, and what is each worth?"
SETTING = (
    "The model reads 150 of its validation texts, at most 6,000 tokens (--quick: 50 and 2,000); "
    "where they are not at hand, bundled sentences and its own answers. Measured is the mean share "
    "of attention on the previous, the same and the next token, on special tokens (start, end, "
    "separator, tags), on the token after an earlier copy of this one (induction), and, while a "
    "token is written, on the source token that belongs to it by IBM Model 1 (aligned). Each is "
    "the mean over positions that have such a token, so they overlap. Then each head is switched "
    "off once: the rise of the loss, in nats per token. Names are those of `explain --change`."
)
SECONDS = (18.0, 27.0)
KINDS = ("previous", "same", "next", "special", "induction", "aligned")


class _Read(NamedTuple):
    loaded: LoadedModel
    batches: list[Any]
    texts: str  # which they are
    aligned: Model1 | None


_Reading = Callable[[], _Read]
_Shares = Mapping[str, Mapping[str, float]]  # by head and kind


def measurements(quick: bool, subject: Subject) -> Measurements:
    """The shares of all heads, then for each attention the loss without each of its heads."""
    loaded = load(subject.name, device="cpu", precision="auto").full_precision
    if loaded.recipe.model.family.startswith("recurrent"):
        raise UserError(f"{subject.name} is recurrent and has no heads: name a Transformer")
    read = cache(partial(_read, loaded, subject, 50 if quick else 150))
    names = [name.removesuffix(".weights") for name in matching("*.weights", taps(loaded.model))]
    rises = {f"without {name}": partial(_rises, read, name) for name in names}
    return {"shares": partial(_shares, read, names), **rises}


def _read(loaded: LoadedModel, subject: Subject, sentences: int) -> _Read:
    texts = "its validation texts"
    try:
        data = resolve(loaded.recipe.data, "valid")
        if not corpora_for_split(data, "valid"):
            raise UserError("there is no validation split")
    except UserError:
        texts, data = "bundled sentences: its own are not here", _bundled(loaded, subject)
    tokenized = tokenize(loaded.recipe, data, loaded.tokenizer, ("valid",), loaded.classes)
    plan = replace(tokenized.batches("valid"), bucketed=False)
    if not len(plan.usable):
        raise UserError(f"no text fits the max_len of {subject.name}: nothing to read")
    spread = np.unique(np.linspace(0, len(plan.usable) - 1, sentences).astype(int))
    rows, sizes = plan.usable[spread], plan.examples.lengths.sum(axis=1)
    rows = rows[: max(1, int((sizes[rows].cumsum() <= 40 * sentences).sum()))]
    parts = np.array_split(rows[np.argsort(sizes[rows])], -(-int(sizes[rows].sum()) // 1000))
    batches = EpochPlan(plan, 0, [part for part in parts if len(part)])
    aligned = None
    if loaded.recipe.model.family == "encoder-decoder":
        known = np.union1d(rows, plan.usable[:2000])  # more pairs than are read: a better table
        columns = tokenized.stores["valid"].columns
        pairs = [(columns[0][i].astype(int), columns[1][i].astype(int)) for i in known]
        aligned = fit(pairs, loaded.recipe.model.vocab)
    return _Read(loaded, [batches[i] for i in range(len(batches))], texts, aligned)


def _bundled(loaded: LoadedModel, subject: Subject) -> DataConfig:
    """Bundled sentences in a file, with the model's own answers as targets or labels."""
    greetings = resolve(DataConfig(name="greetings"))
    lines = [example[0] for example in read_split(greetings, "valid", LineStats())]
    tag = loaded.default_tag or next(iter(loaded.tags), "")
    if "translate" in loaded.tasks:
        answers = loaded.translate_all(lines, constraints=Constraints(tag=tag), beam=1)
        lines = [f"{line}\t{answer.text}" for line, answer in zip(lines, answers, strict=True)]
    elif "classify" in loaded.tasks:
        lines = [f"{line}\t{next(iter(loaded.classify(line)))}" for line in lines]
    path = subject.folder / ("sentences.tsv" if "\t" in lines[0] else "sentences.txt")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    kind: Any = "pairs" if loaded.kind == "dialogues" else loaded.kind
    return DataConfig(kind=kind, valid=(str(path),), tag=tag)


def _sides(batch: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """The tokens that each stack reads, and which of them count: B T each."""
    if isinstance(batch, Seq2SeqBatch):
        target = batch.target[:, :-1], batch.target_real[:, 1:]
        return {
            "encoder": (batch.source, _real(batch.source, batch.source_real)),
            "decoder": target,
        }
    tokens, real = batch.tokens, _real(batch.tokens, getattr(batch, "real", None))
    if hasattr(batch, "labels"):
        return {"encoder": (tokens, real)}
    return {"decoder": (tokens[:, :-1], real[:, 1:])}


def _real(tokens: Tensor, real: Tensor | None) -> Tensor:
    return torch.ones_like(tokens, dtype=torch.bool) if real is None else real


def positions_of(tokens: Tensor, special: Tensor) -> dict[str, Tensor]:
    """Where each kind of token is, seen from each position of the same text: B T S."""
    index = torch.arange(tokens.size(1))
    distance = (index[None, :] - index[:, None]).expand(len(tokens), -1, -1)
    before = F.pad(tokens, (1, 0), value=-1)[:, :-1]
    return {
        "previous": distance == -1,
        "same": distance == 0,
        "next": distance == 1,
        "special": special[tokens][:, None, :].expand_as(distance),
        "induction": (before[:, None, :] == tokens[:, :, None]) & (distance <= 0),
    }


def _aligned(batch: Seq2SeqBatch, model: Model1) -> Tensor:
    """Where the source token is that the token to be written belongs to: B T S."""
    rows = zip(batch.source.numpy(), batch.target[:, 1:].numpy(), strict=True)
    chances = torch.stack([torch.from_numpy(model.of(*row)) for row in rows])
    return (chances == chances.amax(dim=2, keepdim=True)) & (chances > 0)


def _seen(read: _Read, batch: Any) -> dict[str, tuple[Tensor, dict[str, Tensor]]]:
    """For each attention the pairs that count, B T S, and where each kind is."""
    sides, special = _sides(batch), torch.zeros(read.loaded.recipe.model.vocab, dtype=torch.bool)
    special[: read.loaded.tokenizer.first_text_id] = True
    special[read.loaded.tokenizer.mask] = False
    found = {}
    for side, (tokens, real) in sides.items():
        pairs = real[:, :, None] & real[:, None, :]
        pairs = pairs.tril() if side == "decoder" else pairs
        found[f"{side} self"] = pairs, positions_of(tokens, special)
    if read.aligned is not None:
        (source, real), (_, written) = sides["encoder"], sides["decoder"]
        kinds = {"special": special[source][:, None, :], "aligned": _aligned(batch, read.aligned)}
        found["decoder cross"] = written[:, :, None] & real[:, None, :], kinds
    return found


@torch.no_grad()
def _passes(read: _Read, names: Iterable[str]) -> Iterator[tuple[Any, str, str, Tensor, Tensor]]:
    """For each batch, attention and kind the weights, B H T S, and the pairs of that kind, B T S.

    Behind the model's heads there is a uniform one, to compare with.
    """
    module = LossModule(read.loaded.model).eval()
    for batch in read.batches:
        with Recorder(read.loaded.model, [f"{name}.weights" for name in names]) as recorder:
            module(batch)
        seen = _seen(read, batch)
        for name in names:
            pairs, kinds = seen[" ".join(name.split(".")[::2])]
            uniform = pairs / pairs.sum(dim=2, keepdim=True).clamp(min=1)
            weights = torch.cat([recorder[f"{name}.weights"], uniform[:, None]], dim=1)
            for kind, where in kinds.items():
                yield batch, name, kind, weights, where & pairs


def _shares(reading: _Reading, names: list[str]) -> dict[str, Any]:
    """All shares, of "encoder.0.self@1" and of "encoder.0.self uniform", and the best examples."""
    read, sums = reading(), dict[tuple[str, str], Any]()
    for _, name, kind, weights, where in _passes(read, names):
        total, count = (weights * where[:, None]).sum(dim=(0, 2, 3)), where.any(dim=2).sum()
        sums[name, kind] = sums.get((name, kind), 0) + torch.cat([total, count[None]])
    shares: dict[str, dict[str, float]] = {}
    for (name, kind), found in sums.items():
        *own, uniform, count = found.tolist()
        heads = {f"{name}@{head}": share for head, share in enumerate(own, 1)}
        for head, share in {**heads, f"{name} uniform": uniform}.items() if count else ():
            shares.setdefault(head, {})[kind] = share / count
    return {"texts": read.texts, "shares": shares, "examples": _examples(read, shares)}


def best_heads(shares: _Shares) -> dict[str, str]:
    """For each kind the head with the largest share."""
    heads = {name: own for name, own in shares.items() if "@" in name}
    kinds = [kind for kind in KINDS if any(kind in own for own in heads.values())]
    return {kind: max(heads, key=lambda name: heads[name].get(kind, -1.0)) for kind in kinds}


def _examples(read: _Read, shares: _Shares) -> dict[str, str]:
    """Where the best head of each kind attends the most, seen from a token of text."""
    best = {kind: head.split("@") for kind, head in best_heads(shares).items()}
    found: dict[str, tuple[float, str]] = {}
    for batch, name, kind, weights, where in _passes(read, {name for name, _ in best.values()}):
        if best.get(kind, [""])[0] != name:
            continue
        stack, _, part = name.split(".")
        keys = _sides(batch)["encoder" if part == "cross" else stack][0]
        queries = batch.target[:, 1:] if part == "cross" else keys
        is_text = (queries >= read.loaded.tokenizer.first_text_id)[:, :, None]
        onto = weights[:, int(best[kind][1]) - 1] * (where & is_text)
        row, query, key = np.unravel_index(int(onto.argmax()), onto.shape)
        if (most := float(onto[row, query, key])) > found.get(kind, (0.0,))[0]:
            at, on = read.loaded.tokenizer.pieces([int(queries[row, query]), int(keys[row, key])])
            near = keys[row, max(0, key - 10) : key + 10].tolist()
            text = read.loaded.tokenizer.decode(near)
            found[kind] = most, f"{most:.0%} from {at!r} on {on!r} in {text!r}"
    return {kind: text for kind, (_, text) in found.items()}


def _rises(reading: _Reading, name: str) -> list[float]:
    """By how much the loss of a token rises without each head of an attention."""
    read = reading()
    before, model = _loss(read.batches, read.loaded.model), read.loaded.model
    rises = []
    for head in range(1, model.config.heads + 1):
        with applied(model, parse([f"{name}.weights@{head}=off"])) as changed:
            rises.append(_loss(read.batches, changed) - before)
    return rises


@torch.no_grad()
def _loss(batches: list[Any], model: Any) -> float:
    module = LossModule(model).eval()
    sums = [module(batch) for batch in batches]
    return float(sum(each.nll for each in sums) / sum(each.total for each in sums))


def _heads(values: Values) -> dict[str, tuple[dict[str, float], float]]:
    """The shares of each head, and the rise of the loss without it."""
    shares = values["shares"]["shares"]
    rises = [(key.removeprefix("without "), own) for key, own in values.items() if key != "shares"]
    heads = {f"{name}@{head}": rise for name, own in rises for head, rise in enumerate(own, 1)}
    return {name: (shares[name], rise) for name, rise in heads.items()}


def table(values: Values) -> list[list[str]]:
    """A row for each head."""
    rows = [
        [name, *(f"{own[kind]:.0%}" if kind in own else "" for kind in KINDS), f"{rise:+.3f}"]
        for name, (own, rise) in _heads(values).items()
    ]
    return [["head", *KINDS, "off: loss"], *rows]


def figure(values: Values) -> "Figure":
    """The shares of all heads by kind, and what each head is worth by attention."""
    drawn, (left, right) = new_figure(2)
    heads, shares = _heads(values), values["shares"]["shares"]
    attentions = list(dict.fromkeys(name.split("@")[0] for name in heads))
    stacks = list(dict.fromkeys(" ".join(name.split(".")[::2]) for name in attentions))
    for name in attentions:
        stack = " ".join(name.split(".")[::2])
        style, aside = {**style_of(stack), "linestyle": ""}, 0.2 * (stacks.index(stack) - 1)
        own = {head: both for head, both in heads.items() if head.startswith(name)}
        points = [
            (KINDS.index(k) + aside, x) for share, _ in own.values() for k, x in share.items()
        ]
        label = stack if ".0." in name else None
        left.plot(*zip(*points, strict=True), label=label, alpha=0.6, **style)
        for kind, share in shares[f"{name} uniform"].items():
            left.plot(KINDS.index(kind) + aside, share, "_", color="black", markersize=9)
        right.plot([attentions.index(name)] * len(own), [rise for _, rise in own.values()], **style)
    left.set_xticks(range(len(KINDS)), KINDS, rotation=30)
    left.set(ylabel="mean share of a head's attention", ylim=(-0.02, 1.02))
    left.set_title("one point for each head; black: uniform attention", fontsize=9)
    right.set_xticks(range(len(attentions)), attentions, rotation=60, fontsize=7)
    right.set(ylabel="rise of the loss (nats per token)")
    right.set_title("one head switched off at a time", fontsize=9)
    left.legend(fontsize=7)
    return drawn


def conclusion(values: Values) -> list[str]:
    """The best head of each kind with an example, and which heads matter."""
    heads, shares = _heads(values), values["shares"]["shares"]
    sentences = [f"The model read {values['shares']['texts']}."]
    for kind, name in best_heads(shares).items():
        uniform = shares[f"{name.split('@')[0]} uniform"][kind]
        example = values["shares"]["examples"].get(kind, "none from a token of text")
        sentences.append(
            f"{kind}: most in {name}, {shares[name][kind]:.0%} of its attention (uniform attention "
            f"has {uniform:.0%}); the clearest case: {example}."
        )
    most = max(heads, key=lambda name: heads[name][1])
    few = sum(rise < 0.01 for _, rise in heads.values())
    sentences.append(
        f"The most valuable head is {most}: without it the loss rises by {heads[most][1]:.3f} nats "
        f"per token. {few} of {len(heads)} heads are worth less than 0.01 each."
    )
    return sentences
