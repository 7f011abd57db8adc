"""Scenes of emoji: read from a package, composed where the caption says, pairs held out."""

import io
import itertools
import json
import tarfile
from hashlib import sha256

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import limelight
from limelight.data import registry
from limelight.draw.emoji import EmojiWorld, distinct
from limelight.draw.examples import open_pictures
from limelight.draw.scenes import RELATIONS
from limelight.errors import UserError
from limelight.recipe import load_recipe
from limelight.training.console import Report
from limelight.workflows.train import train
from tests.tasks.conftest import DRAWS

FILE = "images/emoji-datasource-twitter-16.0.0.tgz"
SILENT = Report(silent=True)
CPU = torch.device("cpu")
NAMES = ["apple", "ball", "boat", "bread", "car", "cat", "crown", "cup", "fish", "horse"]
NAMES += ["hot dog", "ice cream", "key", "lamp", "pencil", "sheep", "shoe", "snail", "sock", "tree"]
COLOURS = list(itertools.product((0, 128, 255), repeat=3))[: len(NAMES)]


def sprite(number):
    """A square of its colour, the rest transparent."""
    image = Image.new("RGBA", (64, 64))
    ImageDraw.Draw(image).rectangle((1, 1, 62, 62), COLOURS[number])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def entry(name, image, **other):
    known = {"category": "Objects", "subcategory": "tool"}
    return {"name": name.upper(), "image": image, **known, **other}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """An archive like that of emoji-datasource-twitter: a twin, and what is no thing, among all."""
    path = tmp_path_factory.mktemp("own") / FILE
    path.parent.mkdir()
    pictures = {f"{i}.png": sprite(i) for i in range(len(NAMES))}
    listed = [entry(name, f"{i}.png") for i, name in enumerate(NAMES)]
    listed += [
        entry("twin", "0.png"),
        entry("smile", "1.png", category="Smileys & Emotion"),
        entry("rain", "2.png", subcategory="sky & weather"),
        entry("no picture", "missing.png"),
        entry("a name of many words", "3.png"),
    ]
    members = {"emoji.json": json.dumps(listed).encode()}
    members |= {f"img/twitter/64/{name}": content for name, content in pictures.items()}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture(scope="module")
def world(package):
    return EmojiWorld(32, CPU, package, SILENT)


def scenes_of(world, split, rows=300):
    return world.sampler.sample(split, rows, torch.Generator().manual_seed(1))


def test_things_are_read_and_of_equal_pictures_one(world):
    assert world.names == NAMES
    assert len(distinct(torch.rand(3, 4, 64, 64).repeat(2, 1, 1, 1))) <= 3


def test_pairs_are_held_out(world):
    pairs = {
        split: {frozenset(pair) for pair in found.tolist()}
        for split, found in world.sampler.first_two.items()
    }
    assert sum(map(len, pairs.values())) == len(NAMES) * (len(NAMES) - 1) // 2
    assert not pairs["train"] & (pairs["valid"] | pairs["test"])
    scenes = scenes_of(world, "train")
    two = scenes.count[:, 1] > 0
    met = {frozenset(kinds) for kinds in scenes.kind[two, :2].tolist()}
    assert met
    assert met <= pairs["train"]


def test_objects_are_drawn_where_the_relation_says(world):
    """Each object has its colour: its centre of mass is compared with that of the other."""
    scenes = scenes_of(world, "test")
    pictures = world.render(scenes)
    assert pictures.shape == (300, 3, 32, 32)
    assert 0 <= pictures.min() <= pictures.max() <= 1
    rows, columns = torch.arange(32.0)[:, None], torch.arange(32.0)
    for i, picture in enumerate(pictures):
        kinds = scenes.kind[i, :2].tolist()
        colours = [torch.tensor(COLOURS[kind]) / 255 for kind in kinds]
        near = [((picture - c[:, None, None]).abs().sum(0) < 0.15).float() for c in colours]
        assert min(float(one.sum()) for one in near) > 10
        (y1, x1), (y2, x2) = (
            [float((one * axis).sum() / one.sum()) for axis in (rows, columns)] for one in near
        )
        relation = RELATIONS[int(scenes.relation[i, 0])]
        ahead = {"left of": x2 - x1, "right of": x1 - x2, "above": y2 - y1, "below": y1 - y2}
        assert ahead[relation] > 3, (relation, kinds)


def test_a_caption_names_what_is_in_the_picture(world):
    scenes = scenes_of(world, "test", 50)
    words = world.wording.describe(scenes, torch.Generator().manual_seed(1)).words
    for row, kinds in zip(words.tolist(), scenes.kind[:, :2].tolist(), strict=True):
        text = " ".join(world.wording.words[word] for word in row if word)
        for kind in kinds:
            assert NAMES[kind].split()[-1] in text


def test_the_corpus_is_found_and_trained_on_by_its_name(package, tmp_path, monkeypatch):
    monkeypatch.setenv("LIMELIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LIMELIGHT_DATA", str(package.parents[1]))
    recipe = load_recipe("emoji-scenes")
    with pytest.raises(UserError, match=r"16\.0\.0\.tgz is not the file of this corpus"):
        open_pictures(recipe, CPU, SILENT)
    digest = sha256(package.read_bytes()).hexdigest()
    monkeypatch.setattr(registry, "SHA256", {**registry.SHA256, FILE: digest})
    assert open_pictures(recipe, CPU, SILENT).world.names == NAMES
    few = {**DRAWS, "train.batch_tokens": 960, "tokenizer.vocab": 400, "train.cuda_graphs": False}
    assert train("emoji-scenes", tmp_path / "run", few, silent=True) == 0
    assert limelight.load(tmp_path / "run", device="cpu").draw("a cat").pixels.shape[1:] == (
        32,
        32,
        3,
    )


def test_an_own_archive_takes_the_place_of_the_corpus(package):
    recipe = load_recipe("emoji-scenes", {"data.train": (str(package),)})
    assert (recipe.data.name, recipe.data.scenes) == ("", "emoji")
    assert open_pictures(recipe, CPU, SILENT).world.names == NAMES


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_another_archive_is_refused_with_a_sentence(tmp_path, content):
    path = tmp_path / "other.tgz"
    if content is None:  # an archive of something else
        with tarfile.open(path, "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("package/readme.md"))
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"other\.tgz is not the archive of emoji-datasource"):
        EmojiWorld(32, CPU, path, SILENT)


def test_the_smallest_pictures_keep_their_colour(world):
    """Shrinking counts colour where it is seen: no dark rim of transparent pixels."""
    for small in world.sprites:
        shown = small[:, 3] > 0.5
        for number, (pixels, seen) in enumerate(zip(small[:, :3], shown, strict=True)):
            expected = np.array(COLOURS[number])[:, None] / 255
            assert np.abs(pixels[:, seen].numpy() - expected).max() < 0.02
