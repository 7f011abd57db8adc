"""A trained model, ready to be used: `limelight.load(RUN)` gives one.

model = limelight.load("runs/en-de")
model.translate("A man sleeps.").text
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from limelight.config import with_settings
from limelight.data.config import tags_of
from limelight.data.registry import with_registry_defaults
from limelight.data.tokenizer import Tokenizer
from limelight.decode.config import DecodeConfig, Precision
from limelight.device import choose_device, choose_precision
from limelight.errors import OlderWeightsWarning, UserError
from limelight.model import AnyConfig, build
from limelight.recipe import Recipe, recipe_from_run
from limelight.run.bundled_models import find_run
from limelight.run.folder import RunFolder
from limelight.run.weights import WEIGHTS, read_weights, shapes_in, step_of
from limelight.tasks.chat import Conversation
from limelight.tasks.classify import classify, embed
from limelight.tasks.fill import FilledText, fill
from limelight.tasks.score import Scored, score
from limelight.tasks.text_model import TextModel
from limelight.tasks.translate import Constraints, Translation, translate
from limelight.tasks.write import refuse_beam, write

if TYPE_CHECKING:
    from limelight.explain.explanation import Explanation


@dataclass(kw_only=True)
class LoadedModel(TextModel):
    """A trained model with all that belongs to it.

    Settings that are given (`beam=1`, `temperature=0.8`) take the place of the recipe's.
    """

    recipe: Recipe
    step: int = 0

    def settings(self, **changes: Any) -> DecodeConfig:
        """How to write: the recipe's settings with these changes."""
        for name in changes.keys() & Constraints.__dataclass_fields__.keys():
            raise UserError(f"{name} is no setting: write wishes=Wishes({name}={changes[name]!r})")
        if "precision" in changes:  # of the model, and not of one text
            wanted = changes["precision"]
            raise UserError(f"precision is no setting of one text: write .to(precision={wanted!r})")
        return with_settings(self.decode, changes)

    def to(self, device: str = "auto", precision: Precision = "auto") -> "LoadedModel":
        """Move to a device: the best there is, and in bfloat16 if it is a GPU made for that.

        With int8 it stays on the CPU, and writes with weights rounded to bytes.
        """
        int8 = precision == "int8"
        place = choose_device("cpu" if int8 else device)
        plain: Any = "float32" if int8 else precision
        kind = getattr(torch, choose_precision(plain, place))
        # Now that all is known to be there: a refusal leaves it as it was.
        moves = place.type != "cpu" or precision != "auto"
        if moves or int8 != self.int8:
            vars(self).pop("engine", None)  # it was made for how the model was before
        self.int8 = int8
        for model in (self.model, *self.ensemble) if moves else ():
            model.to(place, kind)
        return self

    def translate(
        self, text: str, nbest: int = 1, wishes: Constraints | None = None, **settings: Any
    ) -> Translation:
        """A text's translation, with its score; with a larger `nbest` the next best too."""
        return _raise_if_problem(next(self.translate_all([text], nbest, wishes, **settings)))

    def translate_all(
        self,
        texts: Iterable[str],
        nbest: int = 1,
        wishes: Constraints | None = None,
        **settings: Any,
    ) -> Iterator[Translation]:
        """The same for any number of texts, in order."""
        return translate(self, texts, self.settings(**settings), nbest, wishes or Constraints())

    def chat(self, tag: str = "", **settings: Any) -> Conversation:
        """A conversation: `.reply("Hi how are you")`."""
        return Conversation(self, self.settings(**settings), tag)

    def write(self, prompt: str = "", stops: Sequence[str] = (), **settings: Any) -> str:
        """How a text goes on."""
        return "".join(self.stream(prompt, stops, **settings))

    def stream(self, prompt: str = "", stops: Sequence[str] = (), **settings: Any) -> Iterator[str]:
        """The same piece by piece, as it is written."""
        refuse_beam(settings.get("beam"))
        return write(self, prompt, self.settings(**settings), stops)

    def fill(self, text: str, count: int = 5) -> FilledText:
        """A text with its blanks (___) filled in, and what else could stand there."""
        return fill(self, text, count)

    def classify(self, text: str) -> dict[str, float]:
        """The probability of every class, the likeliest first."""
        return next(classify(self, [text]))

    def embed(self, text: str) -> list[float]:
        """A vector of length 1; the sum of the products of two says how alike their texts are."""
        return next(embed(self, [text]))

    def score(self, *text: str, tag: str = "") -> Scored:
        """How likely a text is; of a source and a target, the target."""
        return _raise_if_problem(next(score(self, [text], tag)))

    def explain(
        self, text: str, target: str | None = None, tag: str = "", **settings: Any
    ) -> "Explanation":
        """What happens to a text inside the model, step by step; see `limelight.explain`."""
        from limelight.explain.explanation import explain

        smoothing = self.recipe.train.label_smoothing
        config = self.settings(**settings)
        return explain(self, text, target, config, smoothing=smoothing, tag=tag)


Outcome = TypeVar("Outcome", Translation, Scored)


def _raise_if_problem(outcome: Outcome) -> Outcome:
    """What came of a single text, if something did."""
    if outcome.problem:
        raise UserError(outcome.problem)
    return outcome


def load(path: str | Path, *others: str | Path) -> LoadedModel:
    """The model of a run folder, or a bundled one by its name. Nothing in it is ever executed.

    Several folders are an ensemble: they write together, if they have the same tokenizer.
    """
    run = find_run(path)
    recipe = recipe_from_run(run)
    tokenizer = Tokenizer.load(run.tokenizer, most=recipe.model.vocab)
    classes = _read_classes(run, recipe.model)
    model, step = _newest_model(recipe.model, run)
    companions = [load(other) for other in others]
    for other, name in zip(companions, others, strict=True):
        if other.tokenizer.hash != tokenizer.hash:
            raise UserError(f"{name} has another tokenizer than {path}: no ensemble can be made")
    data = with_registry_defaults(recipe.data)
    return LoadedModel(
        model=model.eval(),
        tokenizer=tokenizer,
        decode=recipe.decode,
        kind=data.kind,
        history=data.context_turns if data.kind == "dialogues" else 1,
        tags=tags_of(data),
        default_tag=data.tag,
        classes=classes,
        ensemble=[other.model for other in companions],
        recipe=recipe,
        step=step,
    )


def _newest_model(config: AnyConfig, run: RunFolder) -> tuple[nn.Module, int]:
    """The model as it is now, and its step. What a trainer prunes meanwhile is asked for again."""
    while True:
        folder, passed_over = run.weights()
        try:
            model = _build_from(config, folder / WEIGHTS)
        except UserError:
            if folder.is_dir():
                raise
        else:
            if passed_over:
                used = f"{folder.parent.name}/{folder.name} is used"
                told = "; ".join([f"{run.path}: {passed_over[0]}", *passed_over[1:], used])
                warnings.warn(told, OlderWeightsWarning, stacklevel=1)  # once for each run
            return model, step_of(folder)


def _build_from(config: AnyConfig, path: Path) -> nn.Module:
    """A model with weights from a file, whose shapes are compared before anything is allocated."""
    found = shapes_in(path)
    if config.layers > len(found):  # even to count the tensors of a thousand layers takes a while
        raise UserError(f"{path} has {len(found)} tensors: too few for {config.layers} layers")
    with torch.device("meta"):
        wanted = {name: tuple(p.shape) for name, p in build(config).named_parameters()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{path} is not of this model: {name} is {found.get(name, 'missing')} in the file "
                f"and {wanted.get(name, 'missing')} in the model"
            )
    weights = read_weights(path)
    kind = reduce(torch.promote_types, (tensor.dtype for tensor in weights.values()))
    model = build(config).to(kind)  # as it was trained, to the last bit
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model


def _read_classes(run: RunFolder, config: AnyConfig) -> tuple[str, ...]:
    """The names of a classifier's classes."""
    wanted = getattr(config, "classes", 0)
    if not wanted:
        return ()
    names = run.read_json("classes.json")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{run.path / 'classes.json'} must be a list of names")
    if len(names) != wanted:
        raise UserError(f"{run.path / 'classes.json'} has {len(names)} names, not {wanted}")
    return tuple(names)
