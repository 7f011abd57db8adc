"""Optional speed: `accelerate(model)` decodes like the model itself, only faster.

changes      whether a model can be accelerated, and still is the one that was
cpu          for CPUs: float32, float64
cuda         for NVIDIA GPUs
ctranslate2  for CPUs, where CTranslate2 is installed: int8, float32

Only `decode.engine`, `tasks.text_model` and `loading` import this package. An accelerator has a row
here, with a measured gain of 5% or more, or it is deleted. Gains are from LAB.md and
benchmarks/results: model S on one CPU thread, the base model and GPT-2 124M on an H200; HF is
Hugging Face's `generate`.

name, module               | device  condition              gain                             test
cpu model, kv_cache         CPU     float32, float64       1.8 x alone, 1.5 x in batches    simple
                                                           of 64, 2.0 x with beam 5
cpu linear, PackedLinear    CPU     as above               15 to 30% of each product        cpu
cpu folded_cross_attention  CPU     one short source       8 to 10% alone                   cpu
cpu huge_pages              CPU     Linux, 2 MB or more    5 to 10% alone, 7 to 20% with    cpu
                                                           beam 5
ctranslate2, its search     CPU     int8, or by choice     2.9 x float32 alone, 2.1 x in    ct2
                                                           batches of 64, 2.0 x with
                                                           beam 5; approximate in int8
cuda runner, graph_slot     CUDA    Transformer            13 x HF alone, 7 x in batches    cuda
                                                           of 64
cuda fused_model, kernels   CUDA    Triton                 24 x HF (GPT-2) alone, 12 x in   simple
                                                           batches of 64
cuda device_beam            CUDA    Triton, unconstrained, 3.1 x the search in Python       simple
                                    beam of 8 or fewer

The tests are tests/decode/test_*.py (ct2: test_ctranslate2); test_simple holds them equal to
`decode.simple`, the others to the model's own step.
"""

from functools import partial
from typing import Any

import torch

from limelight.decode.accel.changes import Snapshot, unknown_part
from limelight.decode.accel.cpu.model import for_cpu
from limelight.decode.accel.ctranslate2 import CTranslate2Model, unknown_in_model
from limelight.decode.accel.cuda.runner import CudaGraphModel, DeviceSearchModel
from limelight.decode.request import StepModel
from limelight.errors import UserError
from limelight.model import ModelConfig
from limelight.model.decoder_only import DecoderOnly
from limelight.model.encoder_decoder import EncoderDecoder


class Accelerated:
    """A model and its accelerators, which are made again when the model has changed."""

    def __init__(self, model: Any) -> None:
        self.original = model
        self.made: tuple[StepModel, Snapshot | None] | None = None
        self.converted: dict[str, CTranslate2Model] = {}  # by precision

    @property
    def model(self) -> StepModel:
        """What to decode with; each search asks once, and keeps it to its end."""
        if self.made is None or self.made[1] is None or not self.made[1].holds():
            with torch.inference_mode(False), torch.no_grad():  # it may be used later in any mode
                fast = accelerate(self.original)
                self.made = fast, None if fast is self.original else Snapshot(self.original)
        return self.made[0]

    def in_ctranslate2(self, end: int, precision: str) -> CTranslate2Model:
        """The model in CTranslate2; one that it cannot compute is refused."""
        there = self.converted.get(precision)
        if there is None or not there.snapshot.holds():
            if part := unknown_in_model(self.original):
                if precision == "int8":
                    raise UserError(f"int8 is not for a model with {part}: use float32")
                raise UserError(f"engine='ctranslate2' is not for a model with {part}: use torch")
            there = CTranslate2Model(self.original, end, precision)
            self.converted[precision] = there
        return there

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "made": None, "converted": {}}  # a copy of the model makes its own


def accelerate(model: Any) -> StepModel:
    """The fastest known way to decode with a model on its device; the model itself, if none is.

    It copies weights: `Accelerated` makes another when the model has changed.
    """
    transformer = type(model) in (EncoderDecoder, DecoderOnly)
    if transformer and (unknown_part(model) or _experiment(model.config)):
        plain: StepModel = model
        return plain
    if transformer and next(model.parameters()).device.type == "cuda":
        if model.config.qk_norm or model.config.rotary_scaling != "none":  # no kernel has these
            return CudaGraphModel(model)
        try:  # torch brings Triton on Linux with CUDA
            from limelight.decode.accel.cuda.fused_model import FusedModel, PagedSlot
        except ImportError:
            return CudaGraphModel(model)
        return DeviceSearchModel(model, partial(PagedSlot, FusedModel(model)))
    faster: StepModel = for_cpu(model)
    return faster


def _experiment(config: ModelConfig) -> bool:
    """Whether it has settings that only the model itself knows; `mask` is for training."""
    return bool(config.extended or config.experiments.keys() - {"mask"})
