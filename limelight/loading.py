"""A trained model, ready to use: `limelight.load("runs/en-de").translate("A man sleeps.").text`."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, overload

import torch
from torch import Tensor, nn

from limelight.config import extensions_of, with_settings
from limelight.data.config import tags_of
from limelight.data.registry import with_registry_defaults
from limelight.data.tokenizer import Tokenizer
from limelight.decode.accel.changes import hand_out, keep_private, unknown_part
from limelight.decode.accel.ctranslate2 import require_package
from limelight.decode.config import DecodeConfig, Precision
from limelight.device import choose_device, choose_precision
from limelight.errors import UserError, unknown_name
from limelight.files import atomic_write
from limelight.model import AnyConfig, build_empty
from limelight.network import load_network
from limelight.recipe import Recipe, recipe_from_run, write_recipe
from limelight.run.atomic import commit, make_folder
from limelight.run.bundled_models import find_run
from limelight.run.folder import RunFolder, versions
from limelight.run.weights import WEIGHTS, name_of, write_tensors
from limelight.tasks.chat import Conversation
from limelight.tasks.classify import classify, word_effects
from limelight.tasks.embed import embed
from limelight.tasks.fill import FilledText, fill
from limelight.tasks.score import Scored, score
from limelight.tasks.search import Match, search
from limelight.tasks.text_model import TextModel, networks_of
from limelight.tasks.text_to_text import ask, paraphrase, summarise
from limelight.tasks.translate import NO_CONSTRAINTS, Constraints, Translation, translate
from limelight.tasks.write import refuse_beam, write
from limelight.training.lr_schedule import learning_rate

if TYPE_CHECKING:
    from limelight.draw.drawing import Drawer, Drawing
    from limelight.draw.explanation import ExplainedDrawing
    from limelight.explain.explanation import Explanation


@dataclass(kw_only=True, repr=False)
class LoadedModel(TextModel):
    """A trained model with its tokenizer and recipe.

    Settings given to its methods (`beam=1`, `temperature=0.8`) override the recipe's.
    """

    recipe: Recipe
    step: int = 0
    carried: Mapping[str, str] = field(default_factory=dict)  # files of an import, for runs from it
    image_tokenizer: Any = field(default=None, repr=False)  # of a model that draws
    _originals: Sequence[nn.Module] = ()  # the models, if `to` has rounded their weights
    _full_precision: "LoadedModel | None" = field(
        default=None, init=False, repr=False, compare=False
    )

    def __repr__(self) -> str:
        size = sum(p.numel() for p in networks_of(self)[0].parameters())
        where = f"step {self.step}, {self.precision} on {self.device}"
        return f"<{self.recipe.name}: {self.family}, {size:,} parameters, {where}>"

    @property
    def precision(self) -> str:
        """What it computes in: float32, bfloat16, float64 or int8."""
        dtype = next(networks_of(self)[0].parameters()).dtype
        return "int8" if self.int8 else str(dtype).removeprefix("torch.")

    @property
    def full_precision(self) -> "LoadedModel":
        """Itself; if its weights were rounded, the model as it was loaded, on the CPU.

        `to` keeps the original weights for this, 4 bytes for each parameter of a float32 model.
        """
        models = self._unrounded()
        if models == networks_of(self) and not self.int8:
            return self
        kept = self._full_precision
        if kept is None or networks_of(kept) != models:
            kept = replace(self, model=models[0], ensemble=models[1:], _originals=(), int8=False)
            self._full_precision = kept
        return kept

    def _unrounded(self) -> list[nn.Module]:
        """The models before `to` rounded them; as they are, if they were changed since."""
        models, before = networks_of(self), [*self._originals]
        same = len(models) == len(before) and all(map(_rounds_to, before, models))
        return before if same else models

    def settings(self, **changes: Any) -> DecodeConfig:
        """The recipe's [decode] settings with these changes."""
        for name in changes.keys() & Constraints.__dataclass_fields__.keys():
            value = f"constraints=Constraints({name}={changes[name]!r})"
            raise UserError(f"{name} is not a setting: write {value}")
        if wanted := changes.get("precision"):
            raise UserError(f"precision belongs to the model: write .to(precision={wanted!r})")
        return with_settings(self.decode, changes)

    def to(self, device: str = "auto", precision: Precision = "auto") -> "LoadedModel":
        """Move to a device; `auto` is a GPU in bfloat16 if there is one, else as it was trained.

        With int8 it computes on the CPU, with weights that CTranslate2 rounds to bytes.
        """
        if precision not in get_args(Precision):
            raise unknown_name("precision", precision, get_args(Precision))
        int8, before = precision == "int8", (self.device, self.precision)
        if int8:
            require_package()
        target = choose_device("cpu" if int8 else device)
        dtype = getattr(torch, choose_precision("float32" if int8 else precision, target))
        # Nothing has changed so far: a device or precision that is rejected leaves it as it was.
        models = self._unrounded()
        as_trained = target.type == "cpu" and precision == "auto"
        eps = [torch.finfo(next(model.parameters()).dtype).eps for model in models]
        rounds = not as_trained and torch.finfo(dtype).eps > min(eps)
        moved = copy.deepcopy(models) if rounds else models
        for model in moved:
            weight = next(model.parameters())
            place = weight.data_ptr()
            model.to(device=target, dtype=weight.dtype if as_trained else dtype)
            if weight.data_ptr() != place:  # a copy of this object may have it too
                hand_out(model)
        self.model, *self.ensemble = moved
        self._originals = models if rounds else ()
        self.int8 = int8
        if before != (self.device, self.precision):
            self._engine = self._full_precision = None
        return self

    @overload
    def translate(
        self, text: str, nbest: int = 1, constraints: Constraints | None = None, **settings: Any
    ) -> Translation: ...

    @overload
    def translate(
        self,
        text: Sequence[str],
        nbest: int = 1,
        constraints: Constraints | None = None,
        **settings: Any,
    ) -> list[Translation]: ...

    def translate(
        self,
        text: str | Sequence[str],
        nbest: int = 1,
        constraints: Constraints | None = None,
        **settings: Any,
    ) -> Translation | list[Translation]:
        """Translate a text, or each of a list; with a larger `nbest`, `outputs` has more.

        `tag`, `prefix`, `include` and `exclude` constrain it, as a `Constraints` does.
        """
        several, texts = _as_list(text)
        done = map(_raise_if_problem, self.translate_all(texts, nbest, constraints, **settings))
        return list(done) if several else next(done)

    def translate_all(
        self,
        texts: Iterable[str],
        nbest: int = 1,
        constraints: Constraints | None = None,
        **settings: Any,
    ) -> Iterator[Translation]:
        """Translate any number of texts, in order, as they are read."""
        named = Constraints.__dataclass_fields__.keys() & settings.keys()
        if named:
            given = {name: settings.pop(name) for name in named}
            constraints = replace(constraints or NO_CONSTRAINTS, **given)
        config = self.settings(**settings)
        return translate(self, texts, config, nbest, constraints or NO_CONSTRAINTS)

    def ask(self, question: str, context: str, **settings: Any) -> Translation:
        """The answer to a question about a paragraph; see `limelight.tasks.text_to_text`."""
        return _raise_if_problem(next(ask(self, [question], context, self.settings(**settings))))

    def paraphrase(self, text: str, **settings: Any) -> Translation:
        """A text in other words."""
        return _raise_if_problem(next(paraphrase(self, [text], self.settings(**settings))))

    def summarise(self, text: str, **settings: Any) -> Translation:
        """A summary; of a text that is too long, the summaries of its `parts`."""
        return _raise_if_problem(next(summarise(self, [text], self.settings(**settings))))

    def chat(self, tag: str = "", **settings: Any) -> Conversation:
        """A conversation: `.reply("Hi how are you")`."""
        return Conversation(self, self.settings(**settings), tag)

    def write(self, prompt: str = "", stops: Sequence[str] = (), **settings: Any) -> str:
        """Continue a text."""
        return "".join(self.stream(prompt, stops, **settings))

    def stream(self, prompt: str = "", stops: Sequence[str] = (), **settings: Any) -> Iterator[str]:
        """Continue a text, piece by piece as it is written."""
        refuse_beam(settings.get("beam"))
        return write(self, prompt, self.settings(**settings), stops)

    def draw(self, caption: str, n: int = 1, best_of: int = 1, **settings: Any) -> "Drawing":
        """Pictures for a caption: `.save("out.png")`. See `limelight.draw`."""
        return self.drawer().draw(caption, n, best_of, self.settings(**settings))

    def drawer(self) -> "Drawer":
        """What draws: also patch by patch, and with a view of each."""
        from limelight.draw.drawing import Drawer

        self.require("draw")
        images: Any = self.recipe.images
        return Drawer(self.model, self.tokenizer, self.image_tokenizer, images, self.device)

    def fill(self, text: str, count: int = 5) -> FilledText:
        """Fill in the blanks (___) of a text, with `count` candidates for each."""
        return fill(self, text, count)

    @overload
    def classify(self, text: str) -> dict[str, float]: ...

    @overload
    def classify(self, text: list[str] | tuple[str, ...]) -> list[dict[str, float]]: ...

    def classify(self, text: str | Sequence[str]) -> dict[str, float] | list[dict[str, float]]:
        """The probability of every class, the most likely first; of a list, for each text."""
        several, texts = _as_list(text)
        found = classify(self, texts)
        return list(found) if several else next(found)

    def word_effects(self, text: str) -> list[tuple[str, float]]:
        """What each word adds to the probability of the most likely class (leave-one-out)."""
        return word_effects(self, text)

    @overload
    def embed(self, text: str) -> list[float]: ...

    @overload
    def embed(self, text: list[str] | tuple[str, ...]) -> list[list[float]]: ...

    def embed(self, text: str | Sequence[str]) -> list[float] | list[list[float]]:
        """A unit vector, or one for each of a list; dot products say how similar texts are."""
        several, texts = _as_list(text)
        found = embed(self, texts)
        return list(found) if several else next(found)

    def search(
        self,
        query: str,
        files: Iterable[str],
        top: int = 10,
        *,
        near: bool = False,
        paragraphs: bool = False,
        index: str | Path | None = None,
    ) -> list[Match]:
        """The lines of files closest in meaning to a query, from an index that is kept on disk."""
        return search(self, query, files, top, near=near, paragraphs=paragraphs, index=index)

    def score(self, *text: str, tag: str = "") -> Scored:
        """The log-probability of a text, or of a target given a source."""
        return _raise_if_problem(next(score(self, [text], tag)))

    def explain(
        self,
        text: str,
        target: str | None = None,
        tag: str = "",
        change: Sequence[str] = (),
        **settings: Any,
    ) -> "Explanation":
        """Trace a text through the model in full precision; see `limelight.explain`.

        `change` is a list such as ["decoder.0.cross@3=off"]; the model itself stays as it is.
        """
        from limelight.explain.explanation import explain

        config = self.settings(**settings)
        if self.image_tokenizer is not None:
            raise UserError("this model draws: write explain_drawing(CAPTION)")
        return explain(self.full_precision, text, target, config, tag=tag, change=change)

    def explain_drawing(self, caption: str, **settings: Any) -> "ExplainedDrawing":
        """Draw one picture in full precision, with what each patch attended to."""
        from limelight.draw.explanation import explain_drawing

        return explain_drawing(self.full_precision.drawer(), caption, self.settings(**settings))


def _rounds_to(original: nn.Module, model: nn.Module) -> bool:
    exact, rounded = original.state_dict(), model.state_dict()
    if exact.keys() != rounded.keys() or unknown_part(model):
        return False
    return all(torch.equal(exact[name].to(value), value) for name, value in rounded.items())


def _as_list(text: str | Sequence[str]) -> tuple[bool, Iterable[str]]:
    """Whether there are several texts, and all of them."""
    several = isinstance(text, Iterable) and not isinstance(text, str | bytes)
    return several, cast(Iterable[str], text if several else [text])


Outcome = TypeVar("Outcome", Translation, Scored)


def _raise_if_problem(outcome: Outcome) -> Outcome:
    if outcome.problem:
        raise UserError(outcome.problem)
    return outcome


def load(
    path: str | Path,
    *others: str | Path,
    device: str = "auto",
    precision: Precision | None = None,
    step: int | None = None,
) -> LoadedModel:
    """Load a run folder, or a bundled model by its name. Nothing in a folder is ever executed.

    Several folders with the same tokenizer become an ensemble. The model computes on the best
    device there is, in `precision`, or else as its recipe's `decode.precision` says. `step` loads
    a checkpoint that the run has kept, also while it is training.
    """
    if others and step is not None:
        raise UserError(f"step={step} is a checkpoint of one run: load an ensemble without it")
    run = find_run(path)
    recipe = recipe_from_run(run)
    tokenizer, carried = load_tokenizer(run, recipe.model), run.import_files()
    classes = _read_classes(run, recipe.model)
    model, loaded_step = load_network(recipe, run, step)
    companions = [load(other, device="cpu", precision="auto") for other in others]
    for other, name in zip(companions, others, strict=True):
        if other.tokenizer.hash != tokenizer.hash:
            raise UserError(f"{name} has another tokenizer than {path}: no ensemble can be made")
    data = with_registry_defaults(recipe.data)
    loaded = LoadedModel(
        model=model.eval(),
        tokenizer=tokenizer,
        decode=recipe.decode,
        kind=data.kind,
        history=data.context_turns if data.kind == "dialogues" else 1,
        tags=tags_of(data),
        default_tag=data.tag,
        classes=classes,
        answer_share=_answer_share(run),
        learning_rate=_peak_rate(recipe),
        label_smoothing=recipe.train.label_smoothing,
        ensemble=[networks_of(other)[0] for other in companions],
        recipe=recipe,
        step=loaded_step,
        carried=carried,
        **_import_facts(run, carried),
        image_tokenizer=_image_tokenizer_of(run, recipe),
    )
    if template := carried.get("chat_template.jinja"):
        from limelight.interop.chat_template import prompt_of

        loaded.chat_prompt = prompt_of(template, tokenizer)
    if device == "auto" and recipe.decode.engine == "ctranslate2":
        device = "cpu"
    loaded.to(device, precision or recipe.decode.precision)
    keep_private(*networks_of(loaded), *loaded._originals)
    return loaded


def save_run(
    model: nn.Module,
    tokenizer: Tokenizer,
    recipe: Recipe,
    folder: str | Path,
    classes: Sequence[str] = (),
    step: int = 0,
) -> LoadedModel:
    """Make a run folder of a model that `build(recipe.model)` made and your own loop trained.

    Returns it loaded. `classes` are the names of a classifier's classes.
    """
    run, weights = RunFolder(Path(folder)), dict(model.named_parameters())
    if run.path.exists() and any(run.path.iterdir()):
        raise UserError(f"{run.path} is not empty: choose another folder")
    wanted = {name: tuple(p.shape) for name, p in build_empty(recipe.model).named_parameters()}
    for name in sorted(wanted.keys() | weights.keys()):
        if name not in weights or wanted.get(name) != tuple(weights[name].shape):
            raise UserError(f"{name} does not fit: the model is not what build(recipe.model) makes")
        if not torch.isfinite(weights[name]).all():
            raise UserError(f"{name} has numbers that are not finite: it is not saved")
    if len(tokenizer) > recipe.model.vocab:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, the model {recipe.model.vocab}"
        )
    make_folder(run.path)
    kept = replace(recipe, train=replace(recipe.train, lora_rank=0))  # these are all weights
    write_run(run, weights, tokenizer, kept, classes, step)
    return load(run.path)


def write_run(
    run: RunFolder,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    recipe: Recipe,
    classes: Sequence[str] = (),
    step: int = 0,
) -> None:
    """What makes a folder a run that can be loaded; anything else must be in it already."""
    for name, content in tokenizer.files.items():
        atomic_write(run.path / name, content)
    if classes:
        run.write_json("classes.json", list(classes))
    run.write_recipe(write_recipe(recipe))
    run.write_json("environment.json", {"versions": versions()})
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    commit(run.finished / name_of(step), lambda path: write_tensors(path / WEIGHTS, tensors))
    run.begin(recipe.name, extensions_of(recipe.model, recipe.train))


def load_tokenizer(run: RunFolder, config: AnyConfig) -> Tokenizer:
    """The tokenizer of a run folder: one of ours, or one that was imported."""
    if not run.is_imported:
        return Tokenizer.load(run.tokenizer, most=config.vocab)
    from limelight.interop import tokenizers as imported

    sources = getattr(config, "num_source_tokens", config.vocab)
    return imported.load_tokenizer(run.path, config.vocab, sources)


def _import_facts(run: RunFolder, carried: Mapping[str, str]) -> dict[str, Any]:
    """What is known of an imported model besides its recipe."""
    if "imported.json" not in carried:
        return {}
    facts = run.read_json("imported.json")
    found = {k: facts.get(k) for k in ("pooling", "max_tokens")} if isinstance(facts, dict) else {}
    longest = found.get("max_tokens")
    good = found.get("pooling") in ("", "mean", "first") and type(longest) is int and longest >= 0
    if not good:
        raise UserError(f"{run.path / 'imported.json'} is not what an import writes")
    return found


def _image_tokenizer_of(run: RunFolder, recipe: Recipe) -> nn.Module | None:
    if recipe.images is None:
        return None
    from limelight.draw.image_tokenizer import load_image_tokenizer

    return load_image_tokenizer(run, recipe.images)


def _peak_rate(recipe: Recipe) -> float:
    """The learning rate where the warm-up ends: the highest of every schedule."""
    return learning_rate(recipe.train, recipe.model.d_model, max(1, recipe.train.warmup))


def _answer_share(run: RunFolder) -> float:
    """As its training measured it; a half for a run that did not."""
    with suppress(UserError):  # nothing else here needs this file
        share = run.environment().get("answer_share")
        if isinstance(share, float) and 0 <= share <= 0.5:
            return share
    return 0.5


def _read_classes(run: RunFolder, config: AnyConfig) -> tuple[str, ...]:
    wanted = getattr(config, "classes", 0)
    if not wanted:
        return ()
    names, path = run.read_json("classes.json"), run.path / "classes.json"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} must be a list of names")
    if len(names) != wanted:
        raise UserError(f"{path} has {len(names)} names, not {wanted}")
    return tuple(names)
