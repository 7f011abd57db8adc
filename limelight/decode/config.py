"""All settings of decoding. The defaults are the paper's (section 6.1)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from limelight.config import Count, Fraction, config_class
from limelight.errors import UserError

_BeamSize = Annotated[int, Field(ge=1, le=1000)]
_Weight = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Precision = Literal["auto", "float32", "bfloat16", "float64", "int8"]
_EngineName = Literal["auto", "torch", "ctranslate2"]


@config_class
class DecodeConfig:
    """The paper: beam 4 with length penalty 0.6, at most 50 tokens more than the input has."""

    RENAMED: ClassVar[dict[str, str]] = {
        "no_repeat": "no_repeat_ngram",
        "groups": "beam_groups",
        "extra_tokens": "max_extra_tokens",
    }

    beam: _BeamSize = 4  # 1: greedy, always the most likely token
    length_penalty: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.6  # alpha
    beam_groups: _BeamSize = 1  # diverse beam search: groups that avoid each other's tokens
    diversity: _Weight = 0.5  # penalty for a token that another group chose
    max_extra_tokens: Count = 50  # output length minus input length, at most
    max_tokens: Count = 0  # of the output, at most; 0: off, except 200 for `write`

    temperature: _Weight = 0.0  # above 0: sample, without a beam
    top_k: Count = 0  # sample from this many most likely tokens; 0: all
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0  # nucleus
    min_p: Fraction = 0.0  # relative to the most likely token; less likely ones are dropped
    seed: Count = 1  # of sampling
    guidance: _Weight = 1.0  # draw: how far to lean towards the caption; 1: not beyond it

    precision: Precision = "auto"  # int8: CPU only, with CTranslate2: faster, not exact
    engine: _EngineName = "auto"  # what decodes on a CPU; auto: CTranslate2 for int8, else torch
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = 1.0  # above 1
    no_repeat_ngram: Annotated[int, Field(ge=0, le=100)] = 0  # length; 0: off

    def __post_init__(self) -> None:
        if self.beam % self.beam_groups:
            raise UserError(
                f"beam_groups={self.beam_groups} does not divide beam={self.beam}: "
                "all groups have the same size"
            )
