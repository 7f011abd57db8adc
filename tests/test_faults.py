"""Planted faults: each is a slip that somebody has made before, and some test must catch it.

The package is copied, one line of the copy is changed, and the named tests run on the copy. If they
still pass, the tests are too weak, and this test fails.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent


class Fault(NamedTuple):
    slip: str
    file: str  # in limelight
    right: str  # occurs once in the file
    wrong: str
    tests: str  # in tests, with the ::name of the one that catches it


FAULTS = [
    Fault(
        "the base of rotary positions written into the code",
        "model/positions.py",
        "frequency = config.rotary_base **",
        "frequency = 10000.0 **",
        "model/test_reference.py::test_settings_of_published_models_equal_the_numpy_reference",
    ),
    Fault(
        "their rotary pairs read as ours",
        "interop/names.py",
        "lambda x: reorder(x, order), lambda x: reorder(x, inverse)",
        "lambda x: x, lambda x: x",
        "interop/test_huggingface.py::test_it_writes_the_tokens_that_transformers_generates",
    ),
    Fault(
        "a special token that a user types is read as one",
        "interop/coders.py",
        "self.core.encode_special_tokens = True",
        "self.core.encode_special_tokens = False",
        "interop/test_huggingface.py::test_a_text_never_spells_a_special_token",
    ),
    Fault(
        "equal texts of a batch are negatives",
        "training/objectives.py",
        "_equal_rows(batch.source) | _equal_rows(batch.target) | empty",
        "_equal_rows(batch.source) & empty",
        "training/test_objectives.py::test_a_text_finds_its_partner_among_those_of_the_batch",
    ),
    Fault(
        "an index keeps the vectors of other weights",
        "tasks/search.py",
        "hash_weights(trained.model)",
        "type(trained.model)",
        "tasks/test_search.py::test_other_weights_have_another_index",
    ),
    Fault(
        "training without the mask sees padding",
        "training/objectives.py",
        "batch.target_real[:, 1:]  # what has a label",
        "batch.target_real[:, :-1]",
        "training/test_objectives.py::test_training_without_the_mask_sees_no_padding_either",
    ),
    Fault(
        "padding reaches a recurrent cell's state",
        "model/ssru.py",
        "if mask is not None and update_cache is None:",
        "if False:",
        "model/test_ssru.py::test_padding_leaves_no_trace",
    ),
    Fault(
        "a recurrent cell's state left behind by select",
        "model/kv_cache.py",
        "self.states = [state[rows] for state in self.states]",
        "self.states = [state[: rows.numel()] for state in self.states]",
        "model/test_experiments.py::test_cached_equals_uncached",
    ),
    Fault(
        "look-ahead mask off by one",
        "model/attention.py",
        ".tril()",
        ".tril(1)",
        "model/test_look_ahead.py::test_the_explicit_path_does_not_look_ahead_either",
    ),
    Fault(
        "look-ahead mask forgotten in the decoder",
        "model/decoder_only.py",
        "positions, mask, causal and mask is None)",
        "positions, mask, False)",
        "model/test_look_ahead.py::test_no_look_ahead_in_one_pass",
    ),
    Fault(
        "scores not divided by sqrt(d_k)",
        "model/attention.py",
        "scores / math.sqrt(q.size(-1))",
        "scores",
        "model/test_attention.py::test_golden_numbers",
    ),
    Fault(
        "keys and values exchanged",
        "model/attention.py",
        "return self.split(self.key(states)), self.split(self.value(states))",
        "return self.split(self.value(states)), self.split(self.key(states))",
        "model/test_reference.py::test_logits_equal_the_numpy_reference",
    ),
    Fault(
        "cross-attention asks with the memory",
        "model/attention.py",
        "q = self.split(self.query(x))",
        "q = self.split(self.query(memory if isinstance(memory, Tensor) else x))",
        "model/test_attention.py::test_cross_attention_asks_with_x_and_answers_with_memory",
    ),
    Fault(
        "grouped heads dealt out in turn",
        "model/attention.py",
        "x.repeat_interleave(heads // x.size(1), dim=1)",
        "x.repeat(1, heads // x.size(1), 1, 1)",
        "model/test_attention.py::test_explicit_equals_fused_and_so_do_the_gradients",
    ),
    Fault(
        "heads concatenated without being turned back",
        "model/attention.py",
        "mixed.transpose(1, 2).flatten(2)",
        "mixed.reshape(x.shape)",
        "model/test_reference.py::test_logits_equal_the_numpy_reference",
    ),
    Fault(
        "attention dropout left on in use",
        "model/attention.py",
        "self.dropout if self.training else 0.0",
        "self.dropout",
        "model/test_attention.py::test_attention_dropout_is_for_training_only",
    ),
    Fault(
        "padding of the source seen by the encoder",
        "model/encoder_decoder.py",
        "        mask = None if source_real is None else attention_mask(source_real)\n",
        "        mask = None\n",
        "model/test_padding.py::test_padding_changes_neither_logits_nor_loss_nor_gradients",
    ),
    Fault(
        "padding of the source seen by cross-attention",
        "model/encoder_decoder.py",
        "        memory_mask = None if source_real is None else attention_mask(source_real)\n",
        "        memory_mask = None\n",
        "model/test_padding.py::test_padding_changes_neither_logits_nor_loss_nor_gradients",
    ),
    Fault(
        "padding counted as a position",
        "model/positions.py",
        "return (real.cumsum(dim=1) - 1).clamp(min=0)",
        "return torch.arange(tokens.size(1)).expand_as(tokens)",
        "model/test_positions.py::test_padding_takes_no_position",
    ),
    Fault(
        "padding counted in the mean",
        "model/encoder_only.py",
        "real.sum(dim=1, keepdim=True).clamp(min=1)",
        "real.size(1)",
        "model/test_padding.py::test_heads_for_pairs_and_pooling_ignore_padding",
    ),
    Fault(
        "sine and cosine exchanged",
        "model/positions.py",
        "torch.stack([angle.sin(), angle.cos()], dim=-1)",
        "torch.stack([angle.cos(), angle.sin()], dim=-1)",
        "model/test_positions.py::test_sinusoids_follow_the_formula",
    ),
    Fault(
        "keys not rotated",
        "model/attention.py",
        "q, k = rope(q), rope(k)",
        "q, k = rope(q), k",
        "model/test_reference.py::test_logits_equal_the_numpy_reference",
    ),
    Fault(
        "embedding not multiplied by sqrt(d_model)",
        "model/stack.py",
        "math.sqrt(config.d_model) if config.scales_embedding else 1.0",
        "1.0",
        "model/test_reference.py::test_logits_equal_the_numpy_reference",
    ),
    Fault(
        "residual connection lost",
        "model/layers.py",
        "total = x + output if self.residual else output",
        "total = output",
        "model/test_reference.py::test_logits_equal_the_numpy_reference",
    ),
    Fault(
        "norm orders exchanged",
        "model/layers.py",
        'config.norm_order == "post"',
        'config.norm_order == "pre"',
        "against/test_torch.py::test_encoder_layer",
    ),
    Fault(
        "last norm of a pre-norm stack forgotten",
        "model/stack.py",
        'make_norm(config) if config.norm_order == "pre" else nn.Identity()',
        "nn.Identity()",
        "model/test_reference.py::test_logits_equal_the_numpy_reference",
    ),
    Fault(
        "classifier not tied",
        "model/encoder_decoder.py",
        "self.classifier.weight = self.target.tokens.weight",
        "pass",
        "model/test_build.py::test_tied_tables_are_one_parameter_and_stay_one",
    ),
    Fault(
        "cache position off by one",
        "model/kv_cache.py",
        "self.positions = self.length[:, None]\n        if",
        "self.positions = self.length[:, None] - 1\n        if",
        "model/test_kv_cache.py::test_cached_equals_uncached_on_random_prompts",
    ),
    Fault(
        "cache hides a token from itself",
        "model/kv_cache.py",
        "slots <= self.positions[..., None]",
        "slots < self.positions[..., None]",
        "model/test_kv_cache.py::test_cached_equals_uncached_on_random_prompts",
    ),
    Fault(
        "cache counts the padding of a prompt",
        "model/kv_cache.py",
        "read = real.sum(dim=1)",
        "read = torch.full_like(self.length, count)",
        "model/test_kv_cache.py::test_cached_equals_uncached_on_random_prompts",
    ),
    Fault(
        "select leaves the lengths behind",
        "model/kv_cache.py",
        "self.length = self.length[rows]",
        "self.length = self.length[: len(rows)]",
        "model/test_kv_cache.py::test_select_reorders_repeats_and_drops_rows",
    ),
    Fault(
        "select leaves the source behind",
        "model/kv_cache.py",
        "self.memory = [(k[rows], v[rows]) for k, v in self.memory]",
        "self.memory = [(k[: len(rows)], v[: len(rows)]) for k, v in self.memory]",
        "model/test_kv_cache.py::test_select_reorders_repeats_and_drops_rows",
    ),
    Fault(
        "recurrent padding on the left read as text",
        "model/recurrent.py",
        "real.int().argsort(dim=1, descending=True, stable=True)",
        "torch.arange(x.size(1)).expand(x.shape[:2])",
        "model/test_padding.py::test_padding_changes_neither_logits_nor_loss_nor_gradients",
    ),
    Fault(
        "directions and layers of a recurrent encoder mixed up",
        "model/recurrent.py",
        "torch.cat([h[0::2], h[1::2]], dim=-1)",
        "torch.cat(h.chunk(2), dim=-1)",
        "model/test_reference.py::test_recurrent_logits_equal_the_numpy_reference",
    ),
    Fault(
        "additive attention that multiplies",
        "model/recurrent.py",
        "self.query(x)[:, :, None] + keys[:, None]",
        "self.query(x)[:, :, None] * keys[:, None]",
        "model/test_reference.py::test_recurrent_logits_equal_the_numpy_reference",
    ),
    Fault(
        "a recurrent row with nothing new reads its padding",
        "model/recurrent.py",
        "torch.where(some, new, old)",
        "new",
        "model/test_kv_cache.py::test_a_row_with_nothing_new_stays_where_it_was",
    ),
    Fault(
        "dropout on the residual sum",
        "model/layers.py",
        "total = x + output if self.residual else output",
        "total = self.dropout(x + sublayer(x if self.post else self.norm(x)))",
        "model/test_build.py::test_dropout_acts_on_each_sublayers_output_and_on_nothing_else",
    ),
    Fault(
        "no dropout on the embeddings",
        "model/stack.py",
        "return self.dropout(self.norm(x))",
        "return self.norm(x)",
        "model/test_build.py::test_dropout_acts_on_the_embeddings",
    ),
    Fault(
        "no dropout on explicit attention weights",
        "model/attention.py",
        "F.dropout(weights, dropout) @ v",
        "weights @ v",
        "model/test_attention.py::test_explicit_dropout_drops_weights",
    ),
    Fault(
        "a tap that shows another value than was used",
        "model/attention.py",
        'watch("scaled", scores / math.sqrt(q.size(-1)) if scaling else scores)',
        'watch("scaled", scores) / math.sqrt(q.size(-1))',
        "model/test_attention.py::test_every_step_is_what_it_says",
    ),
    Fault(
        "files of a checkpoint not synced",
        "run/atomic.py",
        "        sync(folder / name)\n",
        "",
        "run/test_power_cut.py::test_after_any_power_cut_the_old_or_the_new_is_found",
    ),
    Fault(
        "a checkpoint gets its name before its manifest",
        "run/atomic.py",
        "        write_manifest(unfinished)\n",
        "    write_manifest(folder)\n",
        "run/test_power_cut.py::test_after_any_power_cut_the_old_or_the_new_is_found",
    ),
    Fault(
        "hashes not compared",
        "run/atomic.py",
        "if sha256 != sha256_of(folder / name):",
        "if not sha256:",
        "run/test_atomic.py::test_500_damages_are_noticed_and_the_one_before_is_taken",
    ),
    Fault(
        "pruning takes the newest",
        "run/atomic.py",
        "    for folder in list_checkpoints(parent):\n        if valid <",
        "    for folder in reversed(list_checkpoints(parent)):\n        if valid <",
        "run/test_atomic.py::test_pruning_keeps_the_newest_whole_ones_and_those_to_spare",
    ),
    Fault(
        "lock not taken",
        "files.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(file, fcntl.LOCK_UN)",
        "run/test_atomic.py::test_a_second_process_is_refused_with_a_sentence",
    ),
    Fault(
        "a changed value loses its mask",
        "explain/interventions.py",
        "return torch.where(value == -math.inf, value, value * factor)",
        "return value * factor",
        "explain/test_interventions.py::test_a_mask_survives_zero_and_scaling",
    ),
    Fault(
        "decoding under a change answers from the cache",
        "explain/interventions.py",
        "eager.start, eager.step = plain.start, plain.step",
        "eager.start, eager.step = eager.start, eager.step",
        "explain/test_interventions.py::test_generation_under_a_change_is_the_plain_forward_pass",
    ),
]


@pytest.fixture(scope="module")
def warm() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch, and splits off a copy of itself for every fault."""
    script = ROOT / "tests" / "warm_pytest.py"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # Elsewhere than in the project, so that it cannot import what should come from a copy.
    with subprocess.Popen([sys.executable, "-P", script], text=True, cwd="/", **pipes) as process:
        yield process
        process.stdin.close()


def run_on_a_copy(
    warm: subprocess.Popen[str], folder: Path, tests: list[str], first_cases: bool = False
) -> tuple[int, str]:
    """The exit code of pytest, and what it prints."""
    options = ["-x", "-q", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider"]
    output = folder / "output.txt"
    asked = {"folder": str(folder), "output": str(output), "first_cases": first_cases}
    asked["arguments"] = [*options, *(f"tests/{test}" for test in tests)]
    print(json.dumps(asked), file=warm.stdin, flush=True)
    return int(warm.stdout.readline()), output.read_text()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy for all faults, so that Python compiles it once."""
    folder = tmp_path_factory.mktemp("copy")
    unneeded = shutil.ignore_patterns("models", "web", "browser", "serve", "__pycache__")
    for part in ("limelight", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=unneeded)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.slip for fault in FAULTS])
def test_a_planted_fault_is_caught(fault, warm, copy):
    original, file = (folder / "limelight" / fault.file for folder in (ROOT, copy))
    source = original.read_text()
    assert source.count(fault.right) == 1, "the fault no longer fits the source: plant it anew"
    file.write_text(source.replace(fault.right, fault.wrong))
    time = FAULTS.index(fault)  # of its own, by which Python knows that it must compile the file
    os.utime(file, (time, time))
    try:
        code, output = run_on_a_copy(warm, copy, [fault.tests])
    finally:
        shutil.copy2(original, file)
    assert code == 1, f"exit code {code}\n{output[-3000:]}"


def test_without_a_fault_the_copy_passes(warm, copy):
    """The control: otherwise every fault would seem caught.

    The first case of each test will do: all of them pass on the original, or fail under their name.
    """
    tests = sorted({fault.tests for fault in FAULTS})
    code, output = run_on_a_copy(warm, copy, tests, first_cases=True)
    assert code == 0, output[-3000:]
