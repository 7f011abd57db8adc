"""Scenes are endless, balanced and reproducible, and their held-out combinations stay held out."""

from collections import Counter
from itertools import combinations

import pytest
import torch

import limelight
from limelight.draw.captions import normalize
from limelight.draw.checker import connected_regions, judge, read_objects
from limelight.draw.examples import seeded
from limelight.draw.shapes import NAMES, ShapeWorld

CPU = torch.device("cpu")
WORLD = ShapeWorld(32, CPU)


def scenes_of(split, rows=600, world=WORLD, seed=1):
    generator = seeded(CPU, seed, split)
    scenes = world.sampler.sample(split, rows, generator)
    return scenes, world.wording.describe(scenes, generator)


def pairs_of(scenes):
    """All unordered pairs of kinds that occur together in a scene."""
    found = set()
    for kinds, counts in zip(scenes.kind.tolist(), scenes.count.tolist(), strict=True):
        there = sorted(kind for kind, count in zip(kinds, counts, strict=True) if count)
        found |= set(combinations(there, 2))
    return found


def held_out(split):
    return {tuple(sorted(pair)) for pair in WORLD.sampler.first_two[split].tolist()}


def test_held_out_combinations_never_occur_in_training_pictures():
    trained = pairs_of(scenes_of("train", 20_000)[0])
    assert trained == held_out("train")  # all of them, and no other
    assert not trained & (held_out("valid") | held_out("test"))
    assert not held_out("valid") & held_out("test")
    assert 20 <= len(held_out("test")) <= 45


@pytest.mark.parametrize("split", ["valid", "test"])
def test_every_scene_of_a_measured_split_has_a_combination_of_its_own(split):
    scenes, _ = scenes_of(split, 500)
    for row in range(500):
        one = {
            tuple(sorted(p))
            for p in combinations(scenes.kind[row][scenes.count[row] > 0].tolist(), 2)
        }
        assert one & held_out(split)
    if split == "valid":
        assert not pairs_of(scenes) & held_out("test")


def test_roles_are_balanced():
    """As often first as second: whatever a model learns of roles it must learn from the words."""
    scenes, _ = scenes_of("train", 20_000)
    pairs = scenes.count[:, 1] > 0
    first, second = (torch.bincount(scenes.kind[pairs, i], minlength=len(NAMES)) for i in (0, 1))
    assert ((first - second).abs() < 0.25 * first).all()


def test_the_checker_reads_true_scenes():
    """And a control: the same pictures judged by the scenes of their neighbours are wrong."""
    for split in ("train", "test"):
        scenes, captions = scenes_of(split, 300)
        found = read_objects(WORLD.render(scenes))
        verdicts = judge(scenes, captions.sized, found)
        assert sum(v.exact for v in verdicts) >= 0.99 * len(verdicts)
        assert sum(v.right for v in verdicts) >= 0.99 * sum(v.objects for v in verdicts)
        shifted = judge(scenes, captions.sized, [*found[1:], found[0]])
        assert sum(v.exact for v in shifted) < 0.05 * len(shifted)


def test_the_bundled_image_tokenizer_keeps_what_the_checker_reads():
    """Shapes and colours of at least 98% of the objects, and at least 98% of the relations."""
    tokenizer = limelight.load("draw", device="cpu").image_tokenizer
    scenes, captions = scenes_of("test", 600)
    rebuilt = tokenizer.decode(tokenizer.encode(WORLD.render(scenes)))
    verdicts = judge(scenes, captions.sized, read_objects(rebuilt))
    assert sum(v.right for v in verdicts) >= 0.98 * sum(v.objects for v in verdicts)
    assert sum(v.relations_right for v in verdicts) >= 0.98 * sum(v.relations for v in verdicts)


def test_each_fault_is_seen_by_the_checker():
    """A picture mirrored breaks left and right, and nothing else."""
    scenes, captions = scenes_of("test", 200, ShapeWorld(32, CPU, objects=2))
    picture = WORLD.render(scenes)
    sideways = scenes.relation[:, 0] < 2
    for verdict, breaks in zip(
        judge(scenes, captions.sized, read_objects(picture.flip(-1))), sideways, strict=True
    ):
        assert verdict.right == verdict.objects == 2
        assert verdict.relations_right == int(not breaks)
    pale = judge(scenes, captions.sized, read_objects(1 - 0.5 * (1 - picture)))
    assert sum(v.right for v in pale) < 0.4 * sum(v.objects for v in pale)  # other colours


def test_connected_regions_agree_with_a_search():
    mask = torch.rand(4, 9, 9, generator=torch.Generator().manual_seed(3)) < 0.5
    labels = connected_regions(mask)
    for picture, found in zip(mask, labels, strict=True):
        open_, regions = {tuple(p) for p in picture.nonzero().tolist()}, []
        while open_:
            todo, region = [open_.pop()], set()
            while todo:
                y, x = todo.pop()
                region.add((y, x))
                for near in {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & open_:
                    open_.remove(near)
                    todo.append(near)
            regions.append(region)
        ours = {
            n: {tuple(p) for p in (found == n).nonzero().tolist()}
            for n in found.unique().tolist()
            if n
        }
        assert sorted(map(sorted, ours.values())) == sorted(map(sorted, regions))


def test_captions_say_what_the_scene_has():
    scenes, captions = scenes_of("train", 400)
    texts = WORLD.wording.text(captions.words)
    assert len(set(texts)) > 350
    assert max(len(text.split()) for text in texts) <= WORLD.wording.longest == 24
    for row, text in enumerate(texts):
        assert text == normalize(text)
        words = Counter(text.split())
        for kind, count in zip(scenes.kind[row].tolist(), scenes.count[row].tolist(), strict=True):
            assert not count or words[NAMES[kind].split()[0]]
        assert not {"a"} & {
            a
            for a, b in zip(text.split(), text.split()[1:], strict=False)
            if a == "a" and b[0] in "aeio"
        }
        several = max(scenes.count[row].tolist())
        assert (several > 1) == bool({"two", "three"} & words.keys())


@pytest.mark.parametrize("size", [32, 64])
def test_a_larger_picture_shows_the_same(size):
    scenes, captions = scenes_of("test", 100)
    world = ShapeWorld(size, CPU)
    verdicts = judge(scenes, captions.sized, read_objects(world.render(scenes)))
    assert sum(v.exact for v in verdicts) >= 98
