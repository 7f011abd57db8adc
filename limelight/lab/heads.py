"""What do the heads of a model attend to, and what is each worth?

The model reads 150 of its validation texts, at most 6,000 tokens (--quick: 50 and 2,000); where
they are not at hand, bundled sentences and its own answers. Measured is the mean share of attention
on the previous, the same and the next token, on special tokens (start, end, separator, tags), on
the token after an earlier copy of this one (induction), and, while a token is written, on the
source token that belongs to it by IBM Model 1 (aligned). Each is the mean over positions that have
such a token, so they overlap. Then each head is switched off once: the rise of the loss, in nats
per token. Names are those of `explain --change`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from limelight.data.batching import EpochPlan
from limelight.data.config import DataConfig
from limelight.data.corpora import corpora_for_split, read_split
from limelight.data.datasets import Seq2SeqBatch
from limelight.data.registry import resolve
from limelight.data.tokenizer import Tokenizer
from limelight.errors import UserError
from limelight.explain.interventions import applied, parse
from limelight.lab.alignment import Model1, fit
from limelight.lab.experiment import Findings, Measurements, Panel, Subject, Values
from limelight.lab.subject import spread_out, tokenize
from limelight.loading import LoadedModel, load
from limelight.model.taps import Recorder, matching, taps
from limelight.tasks.translate import Constraints
from limelight.training.objectives import LossModule

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
    rows, sizes = spread_out(plan.usable, sentences), plan.examples.lengths.sum(axis=1)
    rows = rows[: max(1, int((sizes[rows].cumsum() <= 40 * sentences).sum()))]
    parts = np.array_split(rows[np.argsort(sizes[rows])], -(-int(sizes[rows].sum()) // 1000))
    batches = EpochPlan(plan, 0, [part for part in parts if len(part)])
    aligned = None
    if loaded.recipe.model.family == "encoder-decoder":
        known = np.union1d(rows, plan.usable[:2000])  # more pairs than are read: a better table
        source, target = tokenized.stores["valid"].columns
        aligned = fit([(source[i], target[i]) for i in known], loaded.recipe.model.vocab)
    return _Read(loaded, [batches[i] for i in range(len(batches))], texts, aligned)


def _bundled(loaded: LoadedModel, subject: Subject) -> DataConfig:
    """Bundled sentences in a file, with the model's own answers as targets or labels."""
    greetings = resolve(DataConfig(name="greetings"))
    lines = [example[0] for example in read_split(greetings, "valid")]
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


class _Attention(NamedTuple):
    queries: Tensor  # the tokens that attend, B T; in cross-attention those to be written
    keys: Tensor  # the tokens that are attended to, B S
    pairs: Tensor  # which of both count, B T S
    kinds: dict[str, Tensor]  # where each kind of key is, seen from each query: B T S


def _attentions(read: _Read, batch: Any) -> dict[str, _Attention]:
    """What there is to attend to, for each part of the model that has heads."""
    tokenizer = read.loaded.tokenizer
    special = torch.zeros(read.loaded.recipe.model.vocab, dtype=torch.bool)
    special[list(tokenizer.special_ids)] = True
    special[tokenizer.mask] = False

    def own(tokens: Tensor, real: Tensor | None, causal: bool) -> _Attention:
        real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        pairs = real[:, :, None] & real[:, None, :]
        pairs = pairs.tril() if causal else pairs
        return _Attention(tokens, tokens, pairs, positions_of(tokens, special))

    if not isinstance(batch, Seq2SeqBatch):
        real = getattr(batch, "real", None)
        if hasattr(batch, "labels"):
            return {"encoder self": own(batch.tokens, real, False)}
        real = None if real is None else real[:, 1:]
        return {"decoder self": own(batch.tokens[:, :-1], real, True)}
    encoder = own(batch.source, batch.source_real, False)
    decoder = own(batch.target[:, :-1], batch.target_real[:, 1:], True)
    found = {"encoder self": encoder, "decoder self": decoder}
    if read.aligned is not None:
        kinds = {"special": special[batch.source][:, None, :]}
        kinds["aligned"] = _aligned(batch, read.aligned)
        pairs = batch.target_real[:, 1:, None] & encoder.pairs.any(dim=1)[:, None, :]
        found["decoder cross"] = _Attention(batch.target[:, 1:], batch.source, pairs, kinds)
    return found


@torch.no_grad()
def _shares(reading: _Reading, names: list[str]) -> dict[str, Any]:
    """All shares, of "encoder.0.self@1" and of "encoder.0.self uniform", and the best examples."""
    read = reading()
    sums: dict[tuple[str, str], Tensor] = {}
    examples: dict[tuple[str, str], tuple[float, str]] = {}
    for batch in read.batches:
        with Recorder(read.loaded.model, [f"{name}.weights" for name in names]) as recorder:
            LossModule(read.loaded.model).eval()(batch)
        seen = _attentions(read, batch)
        for name in names:
            own = seen[_stack_of(name)]
            uniform = own.pairs / own.pairs.sum(dim=2, keepdim=True).clamp(min=1)
            weights = torch.cat([recorder[f"{name}.weights"], uniform[:, None]], dim=1)  # B H+1 T S
            for kind, anywhere in own.kinds.items():
                where = anywhere & own.pairs
                found = weights * where[:, None]
                counted = torch.cat([found.sum(dim=(0, 2, 3)), where.any(dim=2).sum()[None]])
                sums[name, kind] = sums.get((name, kind), 0) + counted
                for head in range(1, weights.size(1)):
                    key = f"{name}@{head}", kind
                    clearest = _example(read.loaded.tokenizer, own, found[:, head - 1])
                    examples[key] = max(examples.get(key, clearest), clearest, key=itemgetter(0))
    shares: dict[str, dict[str, float]] = {}
    for (name, kind), total in sums.items():
        *heads, count = total.tolist()
        labels = [*(f"{name}@{i}" for i in range(1, len(heads))), f"{name} uniform"]
        for label, share in zip(labels, heads, strict=True) if count else ():
            shares.setdefault(label, {})[kind] = share / count
    best = {kind: examples[head, kind] for kind, head in best_heads(shares).items()}
    said = {kind: text for kind, (most, text) in best.items() if most}
    return {"texts": read.texts, "shares": shares, "examples": said}


def _stack_of(name: str) -> str:
    """Of "encoder.0.self" the "encoder self"."""
    return " ".join(name.split(".")[::2])


def best_heads(shares: _Shares) -> dict[str, str]:
    """For each kind the head with the largest share."""
    heads = {name: own for name, own in shares.items() if "@" in name}
    kinds = [kind for kind in KINDS if any(kind in own for own in heads.values())]
    return {kind: max(heads, key=lambda name: heads[name].get(kind, -1.0)) for kind in kinds}


def _example(tokenizer: Tokenizer, own: _Attention, onto: Tensor) -> tuple[float, str]:
    """Where a head attends the most, seen from a token of text: how much, and the words."""
    special = torch.isin(own.queries, torch.tensor(sorted(tokenizer.special_ids)))
    onto = onto * ~special[:, :, None]
    row, query, key = np.unravel_index(int(onto.argmax()), onto.shape)
    most = float(onto[row, query, key])
    at, on = tokenizer.pieces([int(own.queries[row, query]), int(own.keys[row, key])])
    text = tokenizer.decode(own.keys[row, max(0, key - 10) : key + 10].tolist())
    return most, f"{most:.0%} from {at!r} on {on!r} in {text!r}"


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


def findings(values: Values) -> Findings:
    """The best head of each kind with an example, and which heads matter."""
    shares = values["shares"]["shares"]
    rises = {key.removeprefix("without "): own for key, own in values.items() if key != "shares"}
    heads = {f"{name}@{head}": x for name, own in rises.items() for head, x in enumerate(own, 1)}
    rows = [
        [name, *(f"{shares[name][k]:.0%}" if k in shares[name] else "" for k in KINDS), f"{x:+.3f}"]
        for name, x in heads.items()
    ]
    sentences = [f"The model read {values['shares']['texts']}."]
    for kind, name in best_heads(shares).items():
        uniform = shares[f"{name.split('@')[0]} uniform"][kind]
        example = values["shares"]["examples"].get(kind, "none from a token of text")
        sentences.append(
            f"{kind}: most in {name}, {shares[name][kind]:.0%} of its attention (uniform attention "
            f"has {uniform:.0%}); the clearest case: {example}."
        )
    most = max(heads, key=lambda name: heads[name])
    few = sum(rise < 0.01 for rise in heads.values())
    sentences.append(
        f"The most valuable head is {most}: without it the loss rises by {heads[most]:.3f} nats "
        f"per token. {few} of {len(heads)} heads are worth less than 0.01 each."
    )
    return Findings(_panels(shares, rises), sentences, [["head", *KINDS, "off: loss"], *rows])


def _panels(shares: _Shares, rises: Mapping[str, list[float]]) -> list[Panel]:
    """The shares of all heads by kind, and what each head is worth by attention."""
    by_kind: dict[str, dict[float, list[float]]] = {}
    for name, own in shares.items():
        stack = "uniform" if "@" not in name else _stack_of(name.split("@")[0])
        for kind, share in own.items():
            by_kind.setdefault(stack, {}).setdefault(KINDS.index(kind), []).append(share)
    worth: dict[str, dict[float, list[float]]] = {}
    for i, name in enumerate(rises):
        worth.setdefault(_stack_of(name), {})[i] = rises[name]
    return [
        Panel("kind", "share of a head's attention", by_kind, limits=(-0.02, 1.02), names=KINDS),
        Panel("attention", "rise of the loss without a head (nats)", worth, names=list(rises)),
    ]
