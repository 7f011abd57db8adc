"""The data doctor finds what was planted, and nothing in what is sound."""

import json
import random
import subprocess
from itertools import pairwise

import numpy as np
import pytest

from limelight.data.check import check, misaligned_blocks, plain
from limelight.data.config import DataConfig
from limelight.data.tokenizer import TokenizerConfig
from limelight.errors import UserError

SMALL = TokenizerConfig(kind="bpe", vocab=300)


def write(folder, split, rows):
    files = [folder / f"{split}.{side}" for side in ("en", "de")]
    for file, texts in zip(files, zip(*rows, strict=True), strict=True):
        file.write_text("".join(f"{text}\n" for text in texts))
    return tuple(map(str, files))


def sentence(draw, words):
    return " ".join(draw.choices(["ein", "Haus", "steht", "groß", "am", "Fluss", "und"], k=words))


def corpus(seed, count=300):
    draw = random.Random(seed)
    sizes = [draw.randint(3, 25) for _ in range(count)]
    return [
        (f"{seed} {i} {sentence(draw, n)}", sentence(draw, n + draw.randint(-1, 2)))
        for i, n in enumerate(sizes)
    ]


def test_a_sound_corpus_has_nothing_to_warn_of(tmp_path):
    data = DataConfig(
        train=write(
            tmp_path, "train", [(f"{chr(97 + i % 26)}{t}", s) for i, (s, t) in enumerate(corpus(1))]
        ),
    )
    report = check(data, SMALL, 512, 256)
    assert report["splits"]["train"]["tally"]["used"] == 300
    assert report["tokens"]["not_round_trip"] == 0
    assert 0 < report["tokens"]["padding"] < 0.2
    assert report["warnings"] == []


def test_twelve_planted_faults_are_counted_exactly(tmp_path):
    """Bad lines of six kinds, mended ones of two, duplicates of two, a leak, unequal files."""
    good = [
        (f"source {chr(97 + i % 26) * (i % 7 + 1)} {i // 26 * 'x'}", f"ziel {i}")
        for i in range(200)
    ]
    faults = [
        (b"", b"leer"),  # 1 empty source
        (b"leer", b" \t"),  # 2 blank target
        (b"\xff\xfe", b"a"),  # 3 invalid UTF-8
        (b"a", b"b\0c"),  # 4 NUL
        (b"x" * 600, b"lang"),  # 5 too long
        (b"kurz", b"y" * 600),  # 6 too long on the other side
        (b"with a return\r", b"mended"),  # 7 carriage return, mended
    ]
    lines = [(s.encode(), t.encode()) for s, t in good] + faults
    lines += [lines[0], lines[0]]  # 8 exact duplicates, two of them
    lines += [(lines[1][0].upper() + b"!", lines[1][1].upper())]  # 9 nearly a duplicate
    files = [tmp_path / "train.en", tmp_path / "train.de"]
    for side, file in enumerate(files):
        mark = b"\xef\xbb\xbf" if side == 0 else b""  # 10 byte-order mark, mended
        file.write_bytes(mark + b"\n".join(line[side] for line in lines) + b"\n")
    valid = write(
        tmp_path, "valid", [(good[5][0].title(), "x"), (good[5][0], "z"), ("completely new", "y")]
    )  # 11 leak, of one source in two spellings
    data = DataConfig(train=tuple(map(str, files)), valid=valid, max_chars=500)
    report = check(data, SMALL, 512, 256)
    train = report["splits"]["train"]
    assert train["tally"]["rejected"] == {"empty": 2, "invalid UTF-8": 1, "NUL": 1, "too long": 2}
    assert train["tally"]["repaired"] == {"carriage return": 1, "byte-order mark": 1}
    assert train["tally"]["read"] == len(lines) == train["tally"]["used"] + 6
    assert (train["duplicates"], train["near_duplicates"]) == (2, 1)
    assert report["leaks"] == {"valid in train": 1}
    leak = "1 different sources of valid are also in train (case, accents, digits, punctuation"
    assert any(warning.startswith(leak) for warning in report["warnings"])
    short = write(tmp_path, "short", good[:3])  # 12 not parallel
    with pytest.raises(UserError, match="cannot be parallel"):
        check(DataConfig(train=(str(files[0]), short[1])), SMALL, 512, 256)


def lengths(seed, count=2000):
    """Of a source and its translation: alike, with the noise that translations have."""
    draw = np.random.default_rng(seed)
    source = draw.lognormal(4, 0.5, count)
    return np.stack([source, source * draw.lognormal(0.1, 0.25, count)], axis=1).astype(int) + 1


def test_shifted_files_are_suspected_and_good_ones_are_not():
    found = wrong = 0
    for seed in range(100):
        good = lengths(seed)
        wrong += bool(misaligned_blocks(good))
        begin = seed * 15  # from the first line on, or from the middle
        bad = good.copy()
        bad[begin:-1, 1] = good[begin + 1 :, 1]
        found += bool(misaligned_blocks(bad))
    assert found >= 95
    assert wrong <= 1


def test_a_shifted_corpus_is_warned_of(tmp_path):
    rows = corpus(3, count=900)
    moved = [(s, t) for (s, _), (_, t) in pairwise(rows)]
    report = check(DataConfig(train=write(tmp_path, "train", moved)), SMALL, 512, 256)
    assert any("seems shifted by a line from about example 1" in w for w in report["warnings"])


def test_what_is_too_long_for_the_model_is_warned_of(tmp_path):
    rows = [*corpus(4, count=60), ("so " * 300, "ja " * 300)]
    report = check(DataConfig(train=write(tmp_path, "train", rows)), SMALL, 4096, 256)
    assert report["tokens"]["over_max_len"] == 1
    assert any("longer than the model's max_len" in warning for warning in report["warnings"])


def test_lengths_that_do_not_vary_prove_nothing():
    for source in range(1, 40):
        for target in range(1, 40):
            assert misaligned_blocks(np.full((500, 2), (source, target))) == []
    assert misaligned_blocks(lengths(0, count=30)) == []


def test_plain_texts_share_what_near_duplicates_share():
    assert plain("It's 5 o'clock!") == plain("its  o clock")
    assert plain("Café") == plain("cafe")
    assert plain("東京") != plain("大阪")
    assert plain("123") != plain("456")  # nothing but digits stays as it is


@pytest.fixture
def run(programs):
    def call(*arguments):
        command = [programs / "limelight", "data", "check", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return call


def test_the_command(run):
    told = run("reverse", "--data.toy-examples", "500")
    assert told.returncode == 0, told.stderr
    assert "500 read, 500 used" in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80
    report = json.loads(run("reverse", "--data.toy-examples", "500", "--json").stdout)
    assert report["splits"]["train"]["tally"]["used"] == 500
    assert report["leaks"] == {"valid in train": 0, "test in train": 0, "test in valid": 0}


def test_a_part_of_which_nothing_can_be_used_is_told_and_leaves_with_1(run, tmp_path):
    (tmp_path / "good.tsv").write_text("a\tb\n" * 20)
    (tmp_path / "bad.tsv").write_text("\tno source\n")
    files = ["--data.train", str(tmp_path / "good.tsv"), "--data.valid", str(tmp_path / "bad.tsv")]
    told = run("text-to-text", *files)
    assert told.returncode == 1, told.stderr
    assert "valid has no example that can be used" in told.stdout
    assert run("text-to-text", *files[:2], "--data.valid", files[1]).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gpt-small"], "names no data"),
        (["text-to-text", "--data.train", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["multi30k-en-de"], "LIMELIGHT_DATA"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(run, arguments, sentence, monkeypatch, tmp_path):
    monkeypatch.delenv("LIMELIGHT_DATA", raising=False)
    monkeypatch.setenv("LIMELIGHT_CACHE", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # where nobody listens
    done = run(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_decoder_only_model_reads_source_and_target_as_one_sequence(tmp_path):
    """Each side fits, both together do not; training leaves out as many."""
    rows = [*corpus(4, count=60), ("so " * 60, "ja " * 60)]
    data, longest = DataConfig(train=write(tmp_path, "train", rows)), 100
    sides = check(data, SMALL, 4096, longest)["tokens"]
    both = check(data, SMALL, 4096, longest, joined=True)["tokens"]
    assert (sides["over_max_len"], both["over_max_len"]) == (0, 1)
