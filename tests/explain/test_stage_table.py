"""The table of stages is the only one: the walk, the map and the manifest follow it."""

import pytest

from limelight.explain.render.serialize import manifest
from limelight.explain.stage_table import STAGES, walk_of
from limelight.explain.stages import BUILDERS
from tests.explain.samples import KINDS
from tests.explain.test_truth import traced


def test_every_stage_of_the_table_can_be_made():
    assert list(BUILDERS) == list(STAGES)


@pytest.mark.parametrize(
    ("family", "count"), [("encoder-decoder", 18), ("decoder-only", 15), ("encoder-only", 14)]
)
def test_a_family_walks_through_its_own_stages(family, count):
    names = walk_of(family)
    assert len(names) == count
    assert [name for name in STAGES if name in names] == names
    assert all(STAGES[name].section and STAGES[name].label for name in names)


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_has_a_row_for_each_stage_of_the_trace(kind):
    facts = manifest(traced(kind))
    assert [stage["name"] for stage in facts["stages"]] == facts["stops"]
    for stage in facts["stages"]:
        assert facts["source" if stage["side"] == "encoder" else "target"]["ids"]
        assert set(stage["scope"]) <= {"layer", "head", "word", "words"}
