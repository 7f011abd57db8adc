"""`--train.batch-tokens auto`: as much as fits, and not more than is there."""

from dataclasses import replace

import pytest

from limelight.errors import UserError
from limelight.training.batch_size import (
    LARGEST_ON_CPU,
    SMALLEST,
    available_memory,
    find_max_batch_tokens,
    worst_case_batches,
)
from limelight.workflows import build
from tests.training.samples import tiny, train_in


@pytest.mark.parametrize(
    ("room", "size"),
    [(255, 128), (256, 256), (511, 256), (512, 409), (3000, 1638), (10**9, LARGEST_ON_CPU)],
)
def test_it_takes_a_fifth_less_than_fits_but_not_less_than_the_smallest(room, size):
    """128 is less than the smallest: nothing fits."""
    assert SMALLEST == 256
    assert find_max_batch_tokens(lambda tokens: tokens <= room, LARGEST_ON_CPU) == size


@pytest.mark.parametrize("room", [255, 256])
def test_a_machine_with_little_room_is_used_or_refused(tmp_path, monkeypatch, room):
    monkeypatch.setattr(build.batch_size, "available_memory", lambda: 2 * (room + 1))
    monkeypatch.setattr(build, "memory_of", lambda _, tokens: tokens)
    recipe = tiny(batch_tokens="auto")
    if room < SMALLEST:
        with pytest.raises(UserError, match="not even a batch of 256 tokens fits here"):
            train_in(tmp_path, recipe)
    else:
        assert train_in(tmp_path, recipe).config.batch_tokens == 256


def test_training_validation_and_the_recipe_have_the_size_that_was_found(tmp_path):
    trainer = train_in(tmp_path, tiny(batch_tokens="auto"))
    size = trainer.batches.batch_tokens
    assert size > SMALLEST
    assert trainer.valid.batch_tokens == trainer.config.batch_tokens == size
    assert f"batch_tokens = {size}\n" in (tmp_path / "recipe.toml").read_text()


def test_nothing_to_try_is_no_failure_of_the_trying(tmp_path):
    batches = train_in(tmp_path, tiny()).batches
    assert len(worst_case_batches(batches, 40)) == 2
    assert worst_case_batches(replace(batches, longest=1), 40) == []


def test_a_model_that_is_shared_out_is_not_tried_on_one_device(tmp_path):
    with pytest.raises(UserError, match="tries the full model on one device"):
        train_in(tmp_path, tiny(batch_tokens="auto", fsdp=True))


MEMORY = "MemTotal: 64 kB\nMemFree: 2 kB\nMemAvailable:      40 kB\nCached: 50 kB\n"


@pytest.mark.parametrize(
    ("limit", "text", "size"),
    [
        ("none", "", 40 * 1024),
        ("memory.max", "max", 40 * 1024),
        ("memory.max", "9000", 9000),
        ("memory/memory.limit_in_bytes", "9000", 9000),
        ("memory/memory.limit_in_bytes", str(2**62), 40 * 1024),
    ],
)
def test_memory_is_what_the_system_and_a_container_leave(tmp_path, limit, text, size):
    """What Linux keeps of files is given back when asked for, so it counts as free."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(MEMORY)
    file = tmp_path / "sys" / "fs" / "cgroup" / limit
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert available_memory(tmp_path) == size


def test_a_system_that_does_not_say_has_a_modest_memory(tmp_path):
    assert available_memory(tmp_path) == 4 * 10**9
