"""Folders that somebody made to do harm: refused with a sentence, nothing executed or written."""

import json
import shutil
import struct

import pytest

import limelight
from limelight.errors import UserError
from limelight.interop.import_model import import_model
from tests.interop.samples import hub_folder, theirs

PAYLOAD = "import pathlib; pathlib.Path('executed').write_text('1')"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return hub_folder(tmp_path_factory.mktemp("hub") / "hub", theirs("llama", 2), "llama")


@pytest.fixture
def folder(honest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(honest, tmp_path / "hub")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def config(**changes):
    return lambda folder: edit(folder / "config.json", **changes)


def tokenizer(**changes):
    return lambda folder: edit(folder / "tokenizer.json", **changes)


def raw(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def traversal(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "../../../etc/passwd.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def own_code(folder):
    (folder / "modeling.py").write_text(PAYLOAD)
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling.Model"})


def truncated(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def overlong_header(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")


def huge_tensor(folder):
    header = {"x": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + b"\0\0\0\0"
    (folder / "model.safetensors").write_bytes(data)


def pickled(folder):
    """A pickle under the name of weights: its bytes would run a command when unpickled."""
    data = b"cos\nsystem\n(S'touch executed'\ntR."
    (folder / "model.safetensors").write_bytes(data)


def a_pipe(folder):
    import os

    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def template(text):
    return lambda folder: edit(folder / "tokenizer_config.json", chat_template=text)


REGEX = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10_000}
DEEP: dict = {"type": "Sequence", "normalizers": []}
for _ in range(50):
    DEEP = {"type": "Sequence", "normalizers": [DEEP]}
CASES = {
    "traversal in the index": (traversal, "is not a weights file"),
    "code of its own": (own_code, "auto_map asks to run code"),
    "an unknown option": (config(secret_scale=2.0), "the option secret_scale is unknown"),
    "an unknown kind": (config(model_type="evil"), "model_type='evil' is not supported"),
    "an option that is not at rest": (config(use_sliding_window=True), "use_sliding_window=True"),
    "absurd width": (config(hidden_size=2**20, intermediate_size=2**22), "describes .* parameters"),
    "absurd depth": (config(num_hidden_layers=10**9), "layers=1000000000 is out of range"),
    "a negative size": (config(vocab_size=-5), "vocab_size=-5 must be a positive number"),
    "a text for a size": (config(num_attention_heads="4"), "num_attention_heads='4' must be"),
    "NaN in the config": (raw("config.json", b'{"rms_norm_eps": NaN}'), "NaN is no number"),
    "an unknown rope": (
        config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}),
        "rope scaling 'yarn' is not supported",
    ),
    "endless nesting": (raw("config.json", b"[" * 100_000), "is not JSON"),
    "a config that is a pipe": (a_pipe, "has no config.json|not a plain file|no model of a format"),
    "a truncated file": (truncated, "cannot be read"),
    "an overlong header": (overlong_header, "its header is too large"),
    "a tensor of an exabyte": (huge_tensor, "cannot be read"),
    "a pickle": (pickled, "header is too large|cannot be read"),
    "a pattern that backtracks": (
        tokenizer(pre_tokenizer=REGEX),
        r"the pattern '\(a\+\)\+\$' is unknown, and is not run",
    ),
    "a normalizer that explodes": (tokenizer(normalizer=GROWING), "is put into every text"),
    "normalizers without end": (tokenizer(normalizer=DEEP), "not what it should be"),
    "a damaged table of characters": (
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}),
        "table of characters is damaged",
    ),
    "ids beyond the model": (
        tokenizer(model={"type": "BPE", "vocab": {"a": 0, "b": 9_000_000}, "merges": []}),
        "ids reach|cannot be read",
    ),
    "a tokenizer that is no object": (raw("tokenizer.json", b"[]"), "no tokenizer"),
    "a template that reaches out": (
        template("{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        "chat template",
    ),
    "a template that loops": (
        template("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"),
        "loops without end",
    ),
    "a template that loops over texts": (
        template("{% for a in 'xxxxxxxxxxxxxxxxxxxx' %}" * 9 + "{% endfor %}" * 9),
        "loops without end",
    ),
    "a template of macros": (
        template(
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
            "{{ f(60) }}"
        ),
        "loops without end",
    ),
    "a template that calls itself": (
        template("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        "calls itself without end",
    ),
    **{
        f"a template that grows by {grown}": (
            template(
                "{% set n = namespace(a='xx') %}{% for i in range(60) %}{% set n.a = "
                + grown
                + " %}{% endfor %}"
            ),
            "writes without end",
        )
        for grown in ("n.a ~ n.a", "n.a + n.a", "n.a|replace('x', 'xxx')", "[n.a, n.a]|join")
    },
    "a template of a growing list": (
        template(
            "{% set n = namespace(a=[1]) %}"
            "{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}"
        ),
        "writes without end",
    ),
    **{
        f"a template that nests in {nested}": (
            template(
                "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = "
                + nested
                + " %}{% endfor %}{{ n.a }}"
            ),
            "writes without end",
        )
        for nested in ("[n.a, n.a]", "(n.a, n.a)", "{'a': n.a, 'b': n.a}", "dict(a=n.a, b=n.a)")
    },
    "a template that nests namespaces": (
        template("{% set n = namespace() %}{% set n.a = namespace(b=n) %}{{ n.a }}"),
        "has a namespace where a value belongs",
    ),
    "a template that collects": (
        template(
            "{% set n = namespace(a='x') %}{% for i in range(60) %}"
            "{% set n.a %}{{ n.a }}{{ n.a }}{% endset %}{% endfor %}"
        ),
        "writes without end",
    ),
    "a template that indents": (
        template(
            "{% set n = namespace(a=[0] + range(9000)|list) %}"
            "{% for i in range(200) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a|tojson(16) }}"
        ),
        "writes without end",
    ),
    "a template of powers": (template("{{ 999999 ** 999999 }}"), "multiplies"),
    "a template of batches": (
        template("{{ [1]|batch(10**9, 0)|list }}"),
        "No filter named 'batch'",
    ),
    "a template that rounds": (template("{{ 1.5|round(10**9) }}"), "No filter named 'round'"),
    "a template of bytes of a number": (
        template("{% set a = 1 %}{{ a.to_bytes(1000000000) }}"),
        "access to attribute 'to_bytes'",
    ),
    "a template that translates": (
        template("{{ 'aaaa'.translate({97: 'b'}) }}"),
        "access to attribute 'translate'",
    ),
    "a template of a long date": (
        template("{{ strftime_now(range(99)|join) }}"),
        "asks for a date",
    ),
    "a template of a million letters": (template("a" * 200_000), "has 200,000 characters"),
    "a template that widens a text": (
        template("{{ 'a'.center(1000000000) }}"),
        "does not accept this: access to attribute 'center'",
    ),
    "a template that multiplies": (template("{{ 'a' * 10**9 }}"), "multiplies"),
    "a template of another language": (template("{% for %}"), "cannot be read"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_a_sentence(case, folder, tmp_path):
    change, sentence = CASES[case]
    change(folder)
    with pytest.raises(UserError, match=sentence):
        import_model(folder, tmp_path / "run")
    assert not (tmp_path / "executed").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub"]


def test_the_honest_folder_is_not_refused(folder, tmp_path):
    """The control of all of these."""
    import_model(folder, tmp_path / "run")
    assert limelight.load(tmp_path / "run").write("the", max_tokens=2) is not None


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("special_tokens.json", b'{"format": 1, "target": {"files": {"../x": ""}}}', "no name of"),
        ("special_tokens.json", b'{"format": 2}', "another format"),
        ("special_tokens.json", b'{"format": 1, "target": 3}', "not what an import writes"),
        ("tokenizer.json", b"{}", "has changed"),
        ("imported.json", b'{"pooling": "sum", "max_tokens": 0}', "not what an import writes"),
        ("imported.json", b"[]", "not what an import writes"),
    ],
)
def test_a_run_folder_that_was_edited_is_refused(name, data, sentence, folder, tmp_path):
    import_model(folder, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(data)
    with pytest.raises(UserError, match="has changed since"):
        limelight.load(tmp_path / "run")
    edit(tmp_path / "run" / "run.json", sha256={})
    with pytest.raises(UserError, match=sentence):
        limelight.load(tmp_path / "run")
