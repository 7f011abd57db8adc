"""Overrides of a recipe: by value or as text, checked like the recipe itself."""

from dataclasses import replace

import pydantic
import pytest

from limelight.config import broken_rule, expected_types, is_type_error
from limelight.errors import UserError
from limelight.recipe import load_recipe, parse_overrides, recipe_names, with_overrides

TEXTS = {
    "train.steps=500": ("train.steps", 500),
    "train.batch-tokens=auto": ("train.batch_tokens", "auto"),
    "train.label_smoothing=0.2": ("train.label_smoothing", 0.2),
    "model.tied=false": ("model.tied", False),
    "data.tag=5": ("data.tag", "5"),  # text stays text
    "data.separator=a = b": ("data.separator", "a = b"),
    "data.corpora=[]": ("data.corpora", []),
    "decode.no-repeat=2": ("decode.no_repeat", 2),  # an old name stays, to be warned of
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_read_once(text):
    name, value = TEXTS[text]
    assert parse_overrides([text]) == {name: value}
    assert type(parse_overrides([text])[name]) is type(value)


def test_several_texts():
    texts = ["data.train=a", "train.steps=1", "data.train=5", "train.steps=2"]
    assert parse_overrides(texts) == {"data.train": ("a", "5"), "train.steps": 2}


@pytest.mark.parametrize("name", recipe_names())
def test_values_and_texts_say_the_same_to_a_file_and_to_a_recipe(name):
    values = {"train.steps": 900_000, "decode.beam": 2, "train.batch-tokens": 64}
    texts = [f"{key}={value}" for key, value in values.items()]
    recipe = load_recipe(name)
    expected = replace(
        recipe,
        train=replace(recipe.train, steps=900_000, batch_tokens=64),
        decode=replace(recipe.decode, beam=2),
    )
    for overrides in (values, texts, tuple(texts), iter(texts)):
        assert load_recipe(name, overrides) == expected
    for overrides in (values, texts):
        assert with_overrides(recipe, overrides) == expected
    assert with_overrides(recipe, {}) == recipe == load_recipe(name)


def test_lists_may_be_given_as_lists():
    recipe = load_recipe("multi30k-en-de", {"data.name": ""})
    changed = with_overrides(recipe, {"data.train": ["a.en", "a.de"]})
    assert changed.data.train == ("a.en", "a.de")


WRONG = [
    ({"trian.steps": 5}, "there is no table 'trian': did you mean 'train'?"),
    ({"train.stepps": 5}, r"\[train\] there is no setting 'stepps': did you mean 'steps'?"),
    ({"steps": 5}, "'steps' is not a setting: write table.setting"),
    ({"train.steps": "5"}, r"\[train\] steps='5' must be a whole number"),
    ({"train.steps": -1}, r"\[train\] steps=-1 is out of range: should be 1 or more"),
    ({"model.heads": 7}, r"\[model\] heads=7 does not divide"),
    ({"tokenizer.vocab": 10**6}, "the tokenizer may learn 1000000 tokens, but the model knows"),
    ({"tokenizer.kind": "uncased"}, "knows no capitals"),
    ("train.steps=5", r"is a str, and no list of them: write \['train.steps=5'\]"),
]


@pytest.mark.parametrize(("overrides", "sentence"), WRONG, ids=[str(wrong) for wrong, _ in WRONG])
def test_wrong_overrides_are_rejected_with_the_recipes_name(overrides, sentence):
    recipe = load_recipe("reverse")
    with pytest.raises(UserError, match=f"^reverse: .*{sentence}"):
        with_overrides(recipe, overrides)
    if "tokenizer.vocab" not in overrides:  # in the file, the model follows its tokenizer
        with pytest.raises(UserError, match=f"^reverse: .*{sentence}"):
            load_recipe("reverse", overrides)


class Asked(pydantic.BaseModel):
    """A request of the service, whose errors are described by the same functions."""

    model_config = pydantic.ConfigDict(strict=True)
    count: int | list[int] = pydantic.Field(1)
    share: float = pydantic.Field(0.5, ge=0, lt=2.0)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"count": "x"}, "a whole number or a list"),
        ({"share": None}, "a number"),
        ({"share": 2.0}, "should be below 2"),
        ({"share": -1}, "should be 0 or more"),
    ],
)
def test_errors_of_requests_are_described_in_the_same_words(values, sentence):
    with pytest.raises(pydantic.ValidationError) as found:
        Asked(**values)
    errors = found.value.errors()
    typed = all(map(is_type_error, errors))
    assert (expected_types(errors) if typed else broken_rule(errors[0])) == sentence
