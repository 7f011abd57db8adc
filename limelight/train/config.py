"""How a model is trained, as data. The defaults are the paper's (section 5)."""

from typing import Annotated, Literal

from pydantic import Field

from limelight.errors import UserError
from limelight.settings import Count, Fraction, Positive, table

Steps = Annotated[int, Field(ge=1, le=10**9)]


@table
class TrainConfig:
    """The paper: Adam, its own schedule, label smoothing, batches of 25,000 tokens on each side."""

    steps: Steps = 100_000
    batch_tokens: Annotated[int, Field(ge=1, le=10**8)] | Literal["auto"] = 25_000  # on each side
    accumulate: Annotated[int, Field(ge=1, le=10**4)] = 1  # batches to one step
    seed: Count = 1

    schedule: Literal["paper", "inverse-sqrt", "cosine", "linear", "wsd"] = "paper"
    learning_rate: Positive = 1.0  # the peak; for the paper's schedule a factor
    warmup: Count = 4000
    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    eps: Positive = 1e-9
    weight_decay: Fraction = 0.0
    clip: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 0.0  # of the norm; 0: none
    label_smoothing: Fraction = 0.1

    average: Count = 5  # the last checkpoints, averaged at the end; 0: none
    checkpoint_every: Steps = 1000
    validate_every: Steps = 1000

    mask_rate: Fraction = 0.15  # encoder-only: of all tokens, asked for
    whole_words: bool = False  # encoder-only: hide words and not pieces

    def __post_init__(self) -> None:
        if self.warmup >= self.steps and self.schedule in ("cosine", "linear", "wsd"):
            raise UserError(
                f"warmup={self.warmup} leaves nothing of steps={self.steps} "
                f"for schedule={self.schedule!r}: shorten it"
            )
