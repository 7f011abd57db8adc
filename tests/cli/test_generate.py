"""The commands for trained models, as a person and as a program meet them."""

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from limelight.cli.generate import translate
from limelight.cli.parser import read_arguments
from limelight.data.progress import counting
from limelight.tasks.fill import FillCandidate, FilledText

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "limelight"]
COMMANDS = ("translate", "chat", "write", "fill", "classify", "embed", "score")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}


# What is asked for


@pytest.mark.parametrize("name", ["reverse", "gpt", "lstm"])
def test_python_and_the_shell_say_the_same(limelight, model, run, name):
    texts = ["a b", "x y z", "", "q"]
    said = [model(name).translate(text).text for text in texts]
    assert limelight("translate", run(name), *texts) == (0, said, "")
    lines = "\n".join(texts).encode()
    assert limelight("translate", run(name), stdin=lines) == (0, said, "")
    drawn = model(name).translate("a b", temperature=1.5, seed=3).text
    settings = ("--temperature", "1.5", "--seed", "3")
    assert limelight("translate", run(name), "a b", *settings)[1] == [drawn]
    best = model(name).translate("a b", nbest=3).outputs
    shown = [f"{output.score:.4f}\t{output.text}" for output in best]
    assert limelight("translate", run(name), "a b", "--nbest", "3")[1] == shown


def test_text_to_text_says_the_same(limelight, model, run, tmp_path):
    reverse, name = model("reverse"), run("reverse")
    (tmp_path / "story.txt").write_text("b\nc\n")
    context = ("--context", tmp_path / "story.txt")
    answers = [reverse.ask(question, "b c").text for question in ("a", "d e")]
    assert limelight("ask", name, "a", "d e", *context) == (0, answers, "")
    assert limelight("ask", name, "a", stdin=b"b c")[1] == answers[:1]
    code, out, said = limelight("ask", name, "a " * 100, *context)
    assert (code, out) == (1, [""])
    assert "shorten the paragraph" in said
    assert limelight("paraphrase", name, "a")[1] == [reverse.paraphrase("a").text]
    assert limelight("summarise", name, "a b", "--json")[1][0].startswith('{"source": "a b", ')
    (tmp_path / "long.txt").write_text("abcdefgh. " * 20)
    code, out, said = limelight("summarise", name, "--document", tmp_path / "long.txt")
    assert (code, len(out)) == (0, 1)
    assert re.search(r"too long for the model, so summarised in \d+ parts, each alone", said)


def test_texts_that_are_read_in_part_are_counted(limelight, run):
    for name, command in (("classifier", "classify"), ("bert", "embed")):
        code, out, said = limelight(command, run(name), "the cat", "the cat sits here. " * 40)
        assert (code, len(out)) == (0, 2)
        assert "are longer than the model reads and were cut: 1" in said


def test_the_other_tasks_say_the_same_too(limelight, model, run):
    cat, dog = texts = "the cat sits here.", "the dog"
    answers = [
        limelight("classify", run("classifier"), *texts, "--json"),
        limelight("score", run("writer"), *texts, "--json"),
        limelight("embed", run("bert"), *texts),
    ]
    classes, scores, vectors = ([json.loads(line) for line in out] for _, out, _ in answers)
    for text, its, scored, vector in zip(texts, classes, scores, vectors, strict=True):
        assert its == pytest.approx(model("classifier").classify(text), abs=1e-5)
        assert scored["score"] == pytest.approx(model("writer").score(text).total, abs=1e-4)
        assert sum(scored["logprobs"]) == pytest.approx(scored["score"])
        assert scored["log_probability"] == scored["score"]
        assert vector == pytest.approx(model("bert").embed(text), abs=1e-5)
    assert limelight("write", run("writer"), dog, "--max-tokens", "9")[1] == [
        dog + model("writer").write(dog, max_tokens=9)
    ]
    stopped = limelight("write", run("writer"), "the cat", "--stop", " by ", "--json")[1]
    written = model("writer").write("the cat", [" by "])
    assert [json.loads(line) for line in stopped] == [{"prompt": "the cat", "text": written}]
    assert limelight("classify", run("classifier"), cat)[1][0].startswith("cat\t0.")
    assert (
        limelight("fill", run("bert"), "the ___ sits")[1][0]
        == model("bert").fill("the ___ sits").text
    )
    conversation = model("chat").chat()
    said = [conversation.reply(text) for text in ("hello", "a friend")]
    assert limelight("chat", run("chat"), "hello", "a friend")[1] == said
    assert limelight("chat", run("chat"), stdin=b"hello\na friend")[1] == said


def test_json_tells_all_that_is_known(limelight, run):
    _, lines, _ = limelight("translate", run("reverse"), "--json", "--nbest", "2", stdin=b"a b\n\n")
    told, nothing = map(json.loads, lines)
    assert (told["source"], told["text"], told["parts"]) == ("a b", "b a", 1)
    assert len(told["outputs"]) == 2
    fields = {"text", "score", "log_probability", "tokens", "logprobs"}
    assert set(told["outputs"][0]) == fields
    assert nothing == {"source": "", "text": "", "parts": 1, "outputs": []}
    _, (line,), _ = limelight("translate", run("reverse"), "a", "--alternatives", "--json")
    assert [place[0]["piece"] for place in json.loads(line)["alternatives"]] == ["a", "⟨end⟩"]
    _, (line,), _ = limelight("fill", run("bert"), "___ cat ___", "--json", "--count", "2")
    assert [len(blank) for blank in json.loads(line)["blanks"]] == [2, 2]


def test_a_log_probability_means_the_same_for_any_beam(limelight, run):
    found = {}
    for beam in ("1", "4"):
        options = ("e d c b a", "--beam", beam, "--json")
        (found[beam],) = json.loads(limelight("translate", run("reverse"), *options)[1][0])[
            "outputs"
        ]
    one, four = found["1"], found["4"]
    assert one["text"] == four["text"]  # so that the two can be compared
    assert one["log_probability"] == pytest.approx(four["log_probability"], abs=1e-4)
    assert one["score"] == one["log_probability"] < four["score"]  # the control: a score does not


def test_alternatives_stand_below_the_translation(limelight, run):
    _, lines, _ = limelight("translate", run("reverse"), "a b", "--alternatives")
    assert lines[0] == "b a"
    assert all(re.fullmatch(r"  (\S.* \d+%(   )?){3}", line) for line in lines[1:])
    assert len(lines) == 5


def test_wishes_tags_and_ensembles(limelight, run):
    assert limelight("translate", run("reverse"), "a b", "--prefix", "x")[1][0].startswith("x")
    wished = ("--include", "k", "--include", "q", "--exclude", "b", "--beam", "4")
    (text,) = limelight("translate", run("reverse"), *wished, "a b")[1]
    assert {"k", "q"} <= set(text)
    assert "b" not in text
    assert limelight("translate", run("tagged"), "a b", "--tag", "back")[0] == 0
    assert limelight("score", run("tagged"), "a\ta", "--tag", "same")[0] == 0
    assert limelight("chat", run("tagged"), "a", "--tag", "same")[0] == 0
    ensemble = ("--ensemble", run("other reverse"))
    assert limelight("translate", run("reverse"), "a b", *ensemble)[0] == 0


def test_a_glossary_is_a_file(limelight, run, tmp_path):
    (tmp_path / "terms.tsv").write_text("a\tx y\n")
    asked = ("translate", run("reverse"), "a b", "c d", "--beam", "4")
    asked += ("--glossary", tmp_path / "terms.tsv")
    code, (first, second), complaint = limelight(*asked)
    assert (code, "x y" in first, second, complaint) == (0, True, "d c", "")
    code, lines, complaint = limelight(*asked, "--decode.max-tokens", "2", "--json")
    assert (code, complaint) == (0, "limelight: text 1: of the glossary, not used: 'x y'\n")
    assert [json.loads(line).get("missing_terms") for line in lines] == [["x y"], None]


def test_alternatives_are_characters_where_several_tokens_spell_one(limelight):
    _, lines, _ = limelight("translate", "en-de", "Practice makes perfect.", "--alternatives")
    assert lines[0] == "Übung macht perfekt."
    assert "Ü¹/₂" in lines[1]
    assert lines[2].split()[0] == "Ü²/₂"
    assert "<9C>" not in "".join(lines)


def test_alternatives_are_those_of_the_translation_shown(limelight, run, model):
    """A larger n-best widens the beam, and may find another translation."""
    for text in ("a b c", "x y z w", "m n o p q"):
        options = ("--beam", "1", "--nbest", "4", "--alternatives", "--json")
        told = json.loads(limelight("translate", run("reverse"), text, *options)[1][0])
        tokens = told["outputs"][0]["tokens"]
        assert told["alternatives"][-1][0]["begin"].startswith(told["text"])
        for token, place in zip(tokens, told["alternatives"], strict=False):
            assert token in [choice["piece"] for choice in place]


def test_a_mark_at_the_beginning_of_a_file_is_no_text(limelight, run):
    marked = b"\xef\xbb\xbfa b\n\xef\xbb\xbfc\n"
    _, lines, _ = limelight("translate", run("reverse"), "--json", stdin=marked)
    assert [json.loads(line)["source"] for line in lines] == ["a b", "\ufeffc"]


def test_what_is_wrong_with_a_line_is_told_with_its_number(limelight, run):
    wish = ("--include", "x", "--beam", "2")
    long = "a b. " * 30
    code, lines, complaint = limelight(
        "translate", run("reverse"), *wish, "--json", stdin=f"a\n{long}\n".encode()
    )
    assert code == 1
    assert "limelight: line 2: this text is too long for the model and is" in complaint
    assert "translated in 3 parts" in complaint
    assert json.loads(lines[1])["source"] == long
    code, _, complaint = limelight("score", run("reverse"), stdin=b"a\ta\na\n")
    assert (code, "limelight: line 2: this model scores a source and" in complaint) == (1, True)
    code, _, complaint = limelight("score", run("reverse"), "a\ta", "b")
    assert (code, "limelight: text 2: this model scores a source" in complaint) == (1, True)


def test_candidates_can_be_seen(limelight, run, monkeypatch):
    filled = FilledText("a", ((FillCandidate("\n", 0.5), FillCandidate("b", 0.25)),))
    monkeypatch.setattr("limelight.loading.fill", lambda *_: filled)
    assert limelight("fill", run("bert"), "___")[1] == ["a", "  1: '\\n' 50.0%   b 25.0%"]


def test_a_long_text_is_said_to_be_in_parts(limelight, run):
    code, lines, complaint = limelight("translate", run("reverse"), "a b. " * 30)
    assert (code, len(lines)) == (0, 1)
    assert "limelight: too long for the model, so translated in 3 parts\n" in complaint
    *_, told = limelight("translate", run("reverse"), "a b. " * 30, "--alternatives")
    assert "translated in 3 parts, without alternatives\n" in told


def test_a_long_turn_is_said_to_be_read_in_part(limelight, run):
    code, lines, complaint = limelight("chat", run("chat"), "hello " * 300, "hello")
    assert (code, len(lines)) == (0, 2)
    assert complaint.count("limelight: too long for the model, so only its end was read\n") == 1


# Lines that are no texts

ODD = b"a b\n\n\xff\xfe\nc d\r\n\x00\n" + b"x" * 1_000_001 + b"\n  \nq r"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("translate", "reverse"),
        ("translate", "gpt"),
        ("chat", "reverse"),
        ("write", "writer"),
        ("classify", "classifier"),
        ("embed", "bert"),
        ("score", "rnn"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_one_line_out_for_one_line_in(limelight, run, command, name, as_json):
    options = ["--max-tokens", "3"] if command == "write" else []
    options += ["--json"] if as_json and command != "embed" else []
    code, lines, complaint = limelight(command, run(name), *options, stdin=ODD)
    assert code == 1
    assert len(lines) == 8
    assert "limelight: line 3: not UTF-8 (byte 1)\n" in complaint
    assert "limelight: line 6: longer than 1,000,000 bytes\n" in complaint
    assert complaint.endswith("limelight: lines that could not be answered: 2\n")
    if options[-1:] == ["--json"]:
        told = [json.loads(line) for line in lines]
        assert [i for i, facts in enumerate(told) if "problem" in facts] == [2, 5]
    elif command == "translate" and name == "reverse":
        assert [lines[i] for i in (0, 1, 2, 3, 5, 6, 7)] == ["b a", "", "", "d c", "", "", "r q"]


@pytest.mark.parametrize("data", [b"", b"\n \n\r\n"])
def test_a_file_without_text_is_named(limelight, run, tmp_path, data):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_bytes(data)
    a, b, c = (tmp_path / name for name in ("a.txt", "b.txt", "c.txt"))
    for options in ((), ("--json",), ("--output", tmp_path / "out.txt")):
        code, out, said = limelight("classify", run("classifier"), "--input", a, *options)
        assert (code, out) == (2, [""])
        assert said == f"limelight: {a} has no line with text: there is nothing to answer\n"
    code, out, said = limelight("search", run("bert"), "the cat", a, b)
    assert (code, out) == (2, [""])
    assert said == f"limelight: there is nothing to search: no line with text in {a}, {b}\n"
    c.write_bytes(data + b"the dog\n")
    assert limelight("search", run("bert"), "the cat", a, c)[0] == 0
    assert limelight("classify", run("classifier"), "--input", c)[0] == 0


@pytest.mark.parametrize("texts", [[""], [" \t"], ["the cat", ""]])
def test_an_empty_text_has_no_class(limelight, run, texts):
    code, out, said = limelight("classify", run("classifier"), *texts)
    assert (code, out) == (2, [""])
    assert said == "limelight: the text is empty: write one between the quotes\n"


def test_a_line_of_the_greatest_length_is_read(limelight, run):
    for end in (b"", b"\n", b"\r\n"):
        code, (line,), _ = limelight("classify", run("classifier"), stdin=b"x" * 1_000_000 + end)
        assert code == 0
        assert "\t" in line


@pytest.mark.parametrize("data", [b"", b"\n", b"a", b"\r\n\r\n"])
def test_the_last_line_needs_no_end(limelight, run, data):
    code, lines, complaint = limelight("translate", run("reverse"), stdin=data)
    assert (code, complaint) == (0, "")
    assert "\n".join(lines) == {b"": "", b"\n": "", b"a": "a", b"\r\n\r\n": "\n"}[data]


def test_what_looks_like_an_option_can_be_a_text(limelight, run):
    dashes = ("--", "-a", "--b")
    assert limelight("translate", run("reverse"), *dashes)[0] == 0
    assert len(limelight("translate", run("reverse"), "--decode.beam", "2", *dashes)[1]) == 2
    read = read_arguments("translate", translate, ["x", "--a.b", "1", "--", "--c.d"])
    assert read == {"run": "x", "set": ("a.b=1",), "text": ("--c.d",)}


# What is impossible


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--beam 0", "beam=0 is out of range"),
        ("--beam -1", "beam=-1 is out of range"),
        ("--beam nan", "--beam nan: not a whole number"),
        ("--beam 1000000", "beam=1000000 is out of range"),
        ("--temperature nan", "temperature=nan must be a finite number"),
        ("--temperature -1", "temperature=-1.0 is out of range"),
        ("--nbest 0", "nbest=0 is out of range"),
        ("--nbest 1000000000", "nbest=1000000000 is out of range"),
        ("--nbest 3 --temperature 1", "nbest=3 needs a beam"),
        ("--seed -1", "seed=-1 is out of range"),
        ("--decode.beem 3", "there is no setting 'beem': did you mean 'beam'?"),
        ("--decode.beam many", "beam='many' must be a whole number"),
        ("--decode.top-p 0", "top_p=0 is out of range"),
        ("--decode.beam_groups 3 --beam 4", "groups=3 does not divide beam=4"),
        ("--train.steps 3", "train.steps cannot be changed in a trained"),
        ("--tag german", "this model learned no tags"),
        ("--include x", "words that must appear need a beam"),
        ("--ensemble nowhere", "there is no run folder and no model 'nowhere'"),
        ("--beams 3", "translate has no option --beams: did you mean --beam?"),
    ],
)
def test_impossible_requests_are_answered_with_a_sentence(limelight, run, arguments, sentence):
    for given in (["a"], []):
        code, lines, complaint = limelight(
            "translate", run("reverse"), *given, *arguments.split(), stdin=b"a\n"
        )
        assert (code, lines) == (2, [""])
        assert sentence in re.sub(r"[\s│]+", " ", complaint)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_is_no_run_is_refused(limelight, tmp_path, command):
    for folder in (tmp_path, tmp_path / "nowhere", "reverse"):
        code, lines, complaint = limelight(command, folder, "a ___")
        assert (code, lines) == (2, [""])
        named = f"there is no run folder and no model {folder!r}"
        path = f"{folder} is not a run folder"
        assert complaint.startswith(f"limelight: {named if folder == 'reverse' else path}")
        assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "name"),
    [("translate", "bert"), ("write", "reverse"), ("classify", "bert"), ("fill", "gpt")],
)
def test_what_a_model_cannot_do_is_refused_before_anything_is_read(limelight, run, command, name):
    given = ["a ___"] if command == "fill" else []
    code, lines, complaint = limelight(command, run(name), *given)
    assert (code, lines) == (2, [""])
    assert complaint.startswith(f"limelight: this model cannot {command}: it is ")
    assert "so it can" in complaint


@pytest.mark.parametrize("given", [["the cat"], ["the cat", "--json"], []])
@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("rnn", "--temperature 0", "is not for a model with family='recurrent-decoder-only'"),
        ("writer", "--temperature 0.5", "does not know temperature=0.5: set engine to 'auto'"),
    ],
)
def test_an_engine_that_cannot_write_is_refused_before_anything_is_shown(
    limelight, run, name, settings, sentence, given
):
    words = [*given, "--engine", "ctranslate2", *settings.split()]
    code, lines, complaint = limelight("write", run(name), *words, stdin=b"the cat\n")
    assert (code, lines) == (2, [""])
    assert sentence in complaint


def test_a_prompt_that_an_engine_cannot_continue_is_not_shown(limelight):
    """Others can be continued, so it is refused only when it is read."""
    words = ["--engine", "ctranslate2", "--temperature", "0", "--decode.repetition-penalty", "1"]
    code, lines, complaint = limelight("write", "writer", "the cat ", *words)
    assert (code, lines) == (2, [""])
    assert "a prefix that ends with a space" in complaint
    code, lines, _ = limelight("write", "writer", "the cat", *words, "--max-tokens", "3")
    assert code == 0
    assert lines[0].startswith("the cat")


# Pipes


def start(*arguments, **options):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {**pipes, "env": ENVIRONMENT, **options}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], **options)


def test_each_line_is_answered_while_the_pipe_is_open(run):
    """Also where the terminal speaks nothing but ASCII."""
    ascii_only = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    with start("translate", run("reverse"), "--json", env=ascii_only) as process:
        for text in ("a b", "x y z", "ä", "q"):
            process.stdin.write(f"{text}\n".encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["source"] == text
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, b"", b"")


def test_a_reader_that_has_seen_enough_is_no_error(run):
    """Lines without end, of which one is wanted."""
    command = " ".join([*COMMAND, "translate", str(run("reverse"))])
    shell = f"yes 'a b' | {command} | head -1; exit ${{PIPESTATUS[1]}}"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, check=False, env=ENVIRONMENT, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"b a\n", b"")


def memory(process):
    """The most memory that a process has held so far, in kilobytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def translate_many(run, model, folder, count, early):
    """Lines through `translate`: all answered, in order, in the memory of the early ones."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    sources = [f"{one} {other}" for one in letters for other in letters]
    expected = [f"{done.text}\n".encode() for done in model.translate_all(sources)]
    file = folder / "lines.txt"
    with open(file, "w") as lines:
        lines.writelines(f"{sources[i % len(sources)]}\n" for i in range(count))
    memories, wrong, seen = [], 0, 0
    with open(file, "rb") as lines, start("translate", run, "--beam", "1", stdin=lines) as process:
        for line in process.stdout:
            wrong += line != expected[seen % len(sources)]
            seen += 1
            if seen in (early, count - 1):
                memories.append(memory(process))
    assert (seen, process.returncode) == (count, 0)
    assert wrong == 0
    assert memories[1] < 1.05 * memories[0]


def test_a_long_file_takes_no_more_memory_than_a_short_one(run, model, tmp_path):
    translate_many(run("reverse"), model("reverse"), tmp_path, 20_000, 2_000)


@pytest.mark.soak
def test_a_million_lines_take_no_more_memory_than_a_few(run, model, tmp_path):
    translate_many(run("reverse"), model("reverse"), tmp_path, 1_000_000, 20_000)


# At a terminal


def test_a_progress_bar_does_not_catch_what_is_printed(capsys):
    """As in `limelight translate RUN < in > out`, where only stderr is a terminal."""
    shown = Console(file=io.StringIO(), force_terminal=True)
    with counting("answered", shown) as progress:
        print("a text")
        progress(1)
    assert capsys.readouterr().out == "a text\n"
    assert "answered 1" in shown.file.getvalue()
    assert "a text" not in shown.file.getvalue()


class Terminal:
    """A person at a terminal, who waits for what appears there."""

    def __init__(self, *arguments):
        self.seen = ""
        self.pid, self.terminal = pty.fork()
        if not self.pid:
            os.execve(
                sys.executable, [*COMMAND, *map(str, arguments)], {**ENVIRONMENT, "TERM": "dumb"}
            )

    def type(self, text):
        os.write(self.terminal, text if isinstance(text, bytes) else text.encode())

    def wait_for(self, wanted):
        """What appeared up to this, which is gone then."""
        deadline = time.monotonic() + 60
        while wanted not in self.seen:
            assert select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0], (
                self.seen
            )
            try:
                self.seen += (
                    os.read(self.terminal, 4096).decode(errors="replace").replace("\r\n", "\n")
                )
            except OSError:  # it has left
                raise AssertionError(f"no {wanted!r} in {self.seen!r}") from None
        before, _, self.seen = self.seen.partition(wanted)
        return before

    def insist(self, key, wanted):
        """Press a key until something happens.

        A signal that comes the moment before Python begins to wait for a line is seen only when
        something else is typed.
        """
        for _ in range(30):
            self.type(key)
            if select.select([self.terminal], [], [], 2)[0]:
                return self.wait_for(wanted)
        raise AssertionError(f"no {wanted!r} in {self.seen!r}")

    def leave(self):
        """The exit code, when the program has left."""
        try:
            while os.read(self.terminal, 4096):
                pass
        except OSError:
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_conversation_at_the_terminal(run):
    terminal = Terminal("chat", run("chat"), "--beam", "1")
    assert "Ctrl-C stops an answer" in terminal.wait_for("\n> ")
    terminal.type("hello\n")
    assert terminal.wait_for("\n> ").split("\n")[-1] == "hello, who is there?"
    terminal.type(b"\xff\n")  # no character, and no reason to leave
    terminal.wait_for("\n> ")
    terminal.type("\n")  # nothing is said, nothing is answered
    terminal.wait_for("> ")
    terminal.type("/help\n")
    assert "there is no /help: /reset forgets everything" in terminal.wait_for("\n> ")
    terminal.type(" /RESET \n")
    terminal.wait_for("> ")
    terminal.type("hello\n")
    assert terminal.wait_for("\n> ").split("\n")[-1] == "hello, who is there?"
    terminal.type("half a line")
    terminal.wait_for("half a line")
    terminal.insist("\x03", "\n> ")  # Ctrl-C clears it
    terminal.type("/quit\n")
    assert terminal.leave() == 0


def test_an_answer_is_stopped_and_ctrl_d_leaves(run):
    terminal = Terminal("write", run("babbler"), "--max-tokens", "100000000")
    terminal.wait_for("\n> ")
    terminal.type("the\n")
    terminal.wait_for("the\nthe")  # echoed, and said again with what follows
    terminal.type("\x03")
    assert terminal.wait_for(" ...\n> ")
    terminal.type("\x04")
    assert terminal.leave() == 0


# Search


def test_a_search_prints_where_it_found_what_and_why(limelight, model, run, tmp_path, monkeypatch):
    monkeypatch.setenv("LIMELIGHT_CACHE", str(tmp_path / "cache"))
    lines = ["the cat sleeps here.", "the dog walks.", "cat " * 99, "the old man sits here."]
    file = tmp_path / "lines.txt"
    file.write_bytes("\n".join(lines).encode() + b"\n\xff\n")
    best = model("bert").search("a cat", [str(file)], 2)
    shown = [f"{match.score:.4f}\t{file}:{match.line}\t{match.text.strip()}" for match in best]
    code, out, err = limelight("search", run("bert"), "a cat", file, "--top", "2")
    assert (code, out) == (0, shown)
    assert "lines that are not UTF-8, and not searched: 1" in err
    assert "texts that are longer than the model reads and were cut: 1" in err
    near = limelight("search", run("bert"), "--near", lines[0], file, "--json", "--why")[1]
    found = [json.loads(line) for line in near]
    assert lines[0] not in {match["text"] for match in found}
    assert all(len(m["why"]["cosines"]) == len(m["why"]["query"]) for m in found)
    explained = limelight("search", run("bert"), "the dog", file, "--top", "1", "--why")[1]
    assert re.fullmatch(r"  the ~ \S+ -?\d\.\d\d   dog ~ \S+ -?\d\.\d\d", explained[1])
    inside = limelight("search", run("bert"), "a cat", file, "--index", tmp_path / "mine")
    assert inside[0] == 0
    assert list((tmp_path / "mine").glob("*/*/vectors.npy"))
