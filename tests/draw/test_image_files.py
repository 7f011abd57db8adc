"""Any folder of images with captions: what cannot be used is counted, named, never decoded."""

import io
import json
import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import limelight
from limelight.draw import image_files
from limelight.draw.check import check_pictures, show_pictures
from limelight.draw.examples import PictureFiles
from limelight.draw.image_files import ImageStats, captioned, on_white, read_picture
from limelight.errors import UserError
from limelight.recipe import load_recipe
from limelight.training.console import Report
from limelight.workflows.evaluate import score_run
from limelight.workflows.train import train
from tests.tasks.conftest import DRAWS

COLOURS = {"red": (220, 30, 40), "green": (30, 160, 60), "blue": (40, 70, 220)}


def write(folder, name, mode="RGB", size=(40, 30), colour="red", text=""):
    picture = Image.new("RGB", size, COLOURS[colour]).convert(mode)
    picture.save(folder / name)
    if text:
        (folder / name).with_suffix(".txt").write_text(text)
    return folder / name


def declared(width, height):
    """A PNG of a few bytes that says it is this large."""
    body = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + body
    data = struct.pack(">I", len(body)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + data + struct.pack(">I", 0) + b"IDAT" + b"\0" * 4


def read_all(folder):
    stats = ImageStats()
    found = [(one, read_picture(one, 32, stats)) for one in captioned(folder, stats)]
    return {one[0]: pixels for one, pixels in found if pixels is not None}, stats


def faulty(folder):
    """Of every fault one, and what is said of it."""
    noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    contents = {
        "cut.png": (buffer.getvalue()[:2000], "truncated"),
        "bomb.png": (declared(60_000, 60_000), "too large"),
        "wide.png": (declared(20_000, 10), "too large"),
        "text.png": (b"this is no picture", "not readable as a picture"),
        "script.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "not readable as a picture"),
        "empty.png": (b"", "not readable as a picture"),
    }
    for name, (data, _) in contents.items():
        (folder / name).write_bytes(data)
        (folder / name).with_suffix(".txt").write_text("a red field")
    Image.new("CMYK", (8, 8)).save(folder / "print.jpg")
    (folder / "print.txt").write_text("a red field")
    write(folder, "alone.png")
    (folder / "orphan.txt").write_text("a red field")
    write(folder, "bytes.png")
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\xfd")
    os.symlink(folder / "good.png", folder / "link.png")
    (folder / "link.txt").write_text("a red field")
    return {name: why for name, (_, why) in contents.items()} | {
        "print.jpg": "not RGB",
        "alone.png": "without a .txt",
        "orphan.txt": "captions without a picture",
        "bytes.png": "with an unreadable .txt",
        "link.png": "not a plain file",
    }


def test_every_fault_is_counted_and_named(tmp_path):
    write(tmp_path, "good.png", text="a red field")
    wanted = faulty(tmp_path)
    used, stats = read_all(tmp_path)
    assert used.keys() == {"good.png"}
    found = {name.split(",")[0]: why for why, names in stats.rejected.items() for name in names}
    assert found == wanted


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("decoded")

    monkeypatch.setattr(Image.Image, "convert", refuse)
    (tmp_path / "wide.png").write_bytes(declared(20_000, 10))
    (tmp_path / "wide.txt").write_text("a field")
    assert read_all(tmp_path)[1].rejected == {"too large": ["wide.png, 20000 x 10"]}
    monkeypatch.setattr(image_files, "_LARGEST_FILE", 10)
    assert read_all(tmp_path)[1].rejected == {"too large": ["wide.png"]}


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1"])
def test_pictures_of_other_modes_become_rgb(tmp_path, mode):
    write(tmp_path, "a.png", mode, (32, 32), "green", "a field")
    used, _ = read_all(tmp_path)
    with Image.open(tmp_path / "a.png") as image:
        wanted = np.asarray(image.convert("RGB"))
    assert np.array_equal(on_white(used["a.png"]), wanted)


def test_transparent_pixels_become_white():
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0, 0] = (200, 0, 0, 255)
    shown = on_white(pixels)
    assert shown[0, 0].tolist() == [200, 0, 0]
    assert shown[1, 1].tolist() == [255, 255, 255]


def test_a_list_names_pictures_inside_of_its_folder_alone(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    write(inner, "a.png")
    write(tmp_path, "b.png")
    rows = [
        {"image": "a.png", "caption": "a red field"},
        {"image": "../b.png", "caption": "no"},
        {"image": str(inner / "a.png"), "caption": "no"},
        {"image": "none.png", "caption": "no"},
        {"image": "x" * 5000, "caption": "no"},
        {"image": 3, "caption": "no"},
    ]
    lines = [*map(json.dumps, rows), "{", "[" * 100_000]
    (inner / "captions.jsonl").write_text("\n".join(lines))
    used, stats = read_all(inner)
    assert used.keys() == {"a.png"}
    counts = {why: len(names) for why, names in stats.rejected.items()}
    assert counts == {
        "outside of the folder": 2,
        "with no file of that name": 2,
        'not {"image": ..., "caption": ...}': 3,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Fields of colours, each of its own shade; a few files are bad."""
    path = tmp_path_factory.mktemp("pictures")
    for i in range(90):
        name = list(COLOURS)[i % 3]
        shade = tuple(min(255, value + i) for value in COLOURS[name])
        Image.new("RGB", (16 + i % 5, 20), shade).save(path / f"{i}.png")
        (path / f"{i}.txt").write_text(f"A {name} field, number {i}!")
    (path / "broken.png").write_bytes(b"no")
    (path / "broken.txt").write_text("a red field")
    return path


def files_of(folder, **changes):
    settings = {"data.train": (str(folder),), **changes}
    recipe = load_recipe("captioned-images", settings)
    return PictureFiles(recipe, torch.device("cpu"), Report(silent=True))


def test_equal_pictures_are_held_out_together(folder, tmp_path):
    files = files_of(folder, **{"data.hold_out": 0.2})
    counts = {split: files.count(split) for split in ("train", "valid", "test")}
    assert sum(counts.values()) == 90
    assert min(counts.values()) >= 8
    for name, caption in (("a", "one caption"), ("b", "another"), ("c", "a third")):
        write(tmp_path, f"{name}.png", text=caption)
    several = files_of(tmp_path, **{"data.hold_out": 0.01})
    assert several.count("train") == 3  # by its pixels, whatever the caption says
    again = files_of(folder, **{"data.hold_out": 0.2})
    assert again.captions == files.captions
    assert again.fingerprint == files.fingerprint != several.fingerprint


def test_a_folder_trains_and_draws(folder, tmp_path):
    few = {**DRAWS, "data.train": (str(folder),), "train.batch_tokens": 960, "images.batch": 8}
    few |= {"tokenizer.vocab": 300, "data.hold_out": 0.1, "images.caption_tokens": 32}
    assert train("captioned-images", tmp_path / "run", few, silent=True) == 0
    loaded = limelight.load(tmp_path / "run", device="cpu")
    assert loaded.draw("a red field").pixels.shape == (1, 32, 32, 3)
    scores = score_run(tmp_path / "run", silent=True)
    assert scores["mse"] > 0
    assert "drawn" not in scores  # no checker reads these


def test_too_many_bad_files_are_refused(tmp_path):
    write(tmp_path, "good.png", text="a red field")
    faulty(tmp_path)
    with pytest.raises(UserError, match=r"11 of 12 pictures cannot be used: .*bomb\.png"):
        files_of(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data.train": ()}, "name the pictures: --data.train FOLDER"),
        ({"data.train": ("nowhere",)}, "nowhere: name a folder of pictures"),
    ],
)
def test_missing_pictures_are_a_sentence(changes, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        train("captioned-images", tmp_path / "run", changes, silent=True)
    assert not (tmp_path / "run" / "run.json").exists()


def test_data_check_says_what_a_training_would_read(folder):
    changes = {"data.train": (str(folder),), "data.hold_out": 0.2}
    report = check_pictures(load_recipe("captioned-images", changes))
    assert sum(report["pictures"].values()) == 90
    assert report["unusable"] == {"not readable as a picture": ["broken.png"]}
    shown = Console(record=True, width=200, file=io.StringIO())
    show_pictures(report, shown)
    assert "1 not readable as a picture: broken.png" in shown.export_text(clear=False)
    show_pictures(check_pictures(load_recipe("shapes")), shown)
    assert "train 227, valid 18, test 31" in shown.export_text()  # of 24 * 23 / 2


def test_data_check_lists_what_a_training_would_refuse(tmp_path):
    write(tmp_path, "good.png", text="a red field")
    faulty(tmp_path)
    recipe = load_recipe("captioned-images", {"data.train": (str(tmp_path),)})
    report = check_pictures(recipe)
    assert sum(report["pictures"].values()) == 1
    assert sum(map(len, report["unusable"].values())) == 11


def test_captions_that_are_too_long_are_cut_and_named(folder, capsys):
    recipe = load_recipe(
        "captioned-images", {"data.train": (str(folder),), "images.caption_tokens": 3}
    )
    files = PictureFiles(recipe, torch.device("cpu"), Report())
    tokenizer = limelight.load("draw", device="cpu").tokenizer
    _, captions, _ = files.batch("train", 0, 0, np.arange(4), tokenizer)
    assert captions.shape == (4, 3)
    assert "captions have over 3 tokens and are cut" in " ".join(capsys.readouterr().err.split())
