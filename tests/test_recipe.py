"""Recipes: what is shipped is right, what is wrong is said with its file and key."""

import pytest

from limelight.errors import UserError
from limelight.model import ModelConfig
from limelight.recipe import load_recipe, recipe_names


def test_what_is_shipped():
    paper = {"wmt14-en-de-base", "wmt14-en-de-big"}
    assert paper | {"gpt2-124m", "gpt3-175b", "bert-base", "reverse"} <= set(recipe_names())
    base, big = (load_recipe(name).model for name in sorted(paper))
    assert base == ModelConfig(vocab=37_000, d_ff=2048)
    assert (big.d_model, big.d_ff, big.heads, big.dropout) == (1024, 4096, 16, 0.3)


def test_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('about = "mine"\n[model]\nvocab = 100\nlayers = 2\n')
    recipe = load_recipe(str(file))
    assert (recipe.name, recipe.about, recipe.model.layers) == ("mine", "mine", 2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[model]\nvocab = \n", "line 2"),
        ("", r"there is no \[model\] table"),
        ("[modle]\nvocab = 1\n", "no key 'modle': did you mean 'model'"),
        ("model = 3", r"model must be a table, \[model\], and not 3"),
        (
            "[model]\nvocab = 10\nhaeds = 8",
            "no setting 'haeds': did you mean 'heads'",
        ),
        ("[model]\nvocab = 10\nlayers = 'six'", "layers='six' must be a whole number"),
        ("[model]\nvocab = 10\nlayers = -6", "layers=-6 is out of range"),
        ("[model]\nvocab = 10\nheads = 7", "heads=7 does not divide d_model=512"),
        ("[model]\nlayers = 6", "vocab is missing"),
        (
            "[model]\nvocab = 10\n[published]\nparameters = 'many'\nsource = 'me'",
            "parameters='many' must be a whole number",
        ),
        ("[model]\nvocab = 10\n[published]\nparams = 1", "did you mean 'parameters'"),
        (
            "[model]\nvocab = 10\n[published]\nparameters = true\nsource = ''",
            "parameters=True must",
        ),
        ("[model]\nvocab = 10\n[published]\nparameters = 1\nsource = 3", "source=3 must be text"),
        ("[model]\nvocab = " + "9" * 5000, "digits"),
        ("x = " + "[" * 5000, "recursion|nested"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path, text, sentence):
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=sentence) as error:
        load_recipe(str(file))
    assert str(error.value).startswith(str(file))


def test_a_byte_order_mark_does_no_harm(tmp_path):
    (tmp_path / "windows.toml").write_bytes(b"\xef\xbb\xbf[model]\r\nvocab = 10\r\n")
    assert load_recipe(str(tmp_path / "windows.toml")).model.vocab == 10


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the recipe x+: File name too long"):
        load_recipe("x" * 5000)
    with pytest.raises(UserError, match=r"cannot read the recipe .*nothing.toml: No such file"):
        load_recipe(str(tmp_path / "nothing.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match=r"cannot read the recipe .*: Is a directory"):
        load_recipe(str(tmp_path / "folder.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not a text file in UTF-8"):
        load_recipe(str(tmp_path / "binary.toml"))
    with pytest.raises(
        UserError, match="no recipe 'wmt14-en-de-bse': did you mean 'wmt14-en-de-base'"
    ):
        load_recipe("wmt14-en-de-bse")
