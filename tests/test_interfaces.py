"""Weights, taps, run folders and the HTTP API are other people's ground: they only ever grow."""

import json

import pytest

from tests.interfaces import GOLDEN, lines, now

ADDED: dict[tuple[str, str], str] = {  # what was added since, by (part, name), and why
    ("routes", "GET /healthz"): "devices: where the workers of each model run",
    ("routes", "GET /readyz"): "devices, as /healthz",
    ("routes", "GET /api/model"): "device and precision of the model",
}


@pytest.fixture(scope="module")
def facts():
    return {tuple(json.loads(line)[:2]): json.loads(line)[2] for line in lines(now())}


def known():
    return {
        tuple(json.loads(line)[:2]): json.loads(line)[2] for line in GOLDEN.read_text().splitlines()
    }


def test_nothing_is_missing_and_additions_are_listed(facts):
    assert facts.keys() - known().keys() == {key for key in ADDED if key not in known()}
    assert known().keys() - facts.keys() == set()


@pytest.mark.parametrize("key", known(), ids=" ".join)
def test_interfaces_are_as_they_were(facts, key):
    if key in ADDED:
        assert facts[key] != known()[key], f"{key} did not change: take it off the list"
    else:
        assert facts[key] == known()[key]
