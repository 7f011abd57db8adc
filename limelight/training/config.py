"""How a model is trained, as data. The defaults are the paper's (section 5)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from limelight.config import Count, Fraction, Positive, config_class
from limelight.errors import UserError

_Steps = Annotated[int, Field(ge=1, le=10**9)]


@config_class
class TrainConfig:
    """The paper: Adam, its own schedule, label smoothing, batches of 25,000 tokens on each side."""

    RENAMED: ClassVar[dict[str, str]] = {
        "agreement": "rdrop_alpha",
        "repeat": "cuda_graphs",
        "shard": "fsdp",
        "accumulate": "grad_accumulation",
        "clip": "clip_grad_norm",
        "average": "average_checkpoints",
        "keep": "keep_checkpoints",
        "workers": "data_workers",
        "whole_words": "whole_word_masking",
    }

    steps: _Steps = 100_000  # how often the weights move
    batch_tokens: Annotated[int, Field(ge=1, le=10**8)] | Literal["auto"] = 25_000  # on each side
    grad_accumulation: Annotated[int, Field(ge=1, le=10**4)] = 1  # batches to one step
    seed: Count = 1  # of everything: first weights, order of the data, dropout

    schedule: Literal["paper", "inverse-sqrt", "cosine", "linear", "wsd"] = "paper"  # of the rate
    learning_rate: Positive = 1.0  # the peak; for the paper's schedule a factor
    warmup: Count = 4000  # steps in which the rate rises
    beta1: Fraction = 0.9  # Adam: how much of the mean gradient is kept each step
    beta2: Fraction = 0.98  # and of the mean square
    eps: Positive = 1e-9  # added where Adam divides
    weight_decay: Fraction = 0.0  # of matrices; norms and biases do not decay
    clip_grad_norm: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = (
        0.0  # of the norm; 0: none
    )
    label_smoothing: Fraction = 0.1  # shared out over all tokens (section 5.4)
    rdrop_alpha: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.0  # R-Drop's alpha

    average_checkpoints: Annotated[int, Field(ge=0, le=1000)] = (
        5  # the last checkpoints, averaged; 0: none
    )
    ema: Fraction = 0.0  # a running average of the weights, this much of it kept each step; 0: none
    checkpoint_every: _Steps = 1000  # steps
    keep_checkpoints: Annotated[int, Field(ge=1, le=1000)] = (
        2  # checkpoints, besides those to be averaged
    )
    validate_every: _Steps = 1000  # steps
    patience: Count = 0  # validations without improvement before stopping; 0: never
    metric: str = "loss"  # that shall improve: loss, perplexity, accuracy, or the task's own
    log_every: _Steps = 10  # steps

    mask_rate: Fraction = 0.15  # encoder-only: of all tokens, asked for
    whole_word_masking: bool = False  # encoder-only: hide words and not pieces
    freeze: tuple[str, ...] = ()  # parts that stay as they are, as "encoder" or "source.tokens"

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # the best there is
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"  # bfloat16 where it pays
    compile: bool = False  # costs a minute or two at the start, and on a GPU twice the memory
    cuda_graphs: bool = (
        False  # on a GPU, record steps and repeat them: small models are much faster
    )
    fsdp: bool = False  # many devices: share the weights out too, for models that fit on none
    data_workers: Annotated[int, Field(ge=0, le=64)] = 0  # processes that make batches

    def __post_init__(self) -> None:
        if self.warmup >= self.steps and self.schedule in ("cosine", "linear", "wsd"):
            raise UserError(
                f"warmup={self.warmup} leaves nothing of steps={self.steps} "
                f"for schedule={self.schedule!r}: shorten it"
            )
