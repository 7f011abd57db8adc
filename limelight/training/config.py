"""How a model is trained, as data. The defaults are the paper's (section 5)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from limelight.config import Count, Fraction, Positive, check_extended, config_class
from limelight.errors import UserError, unknown_name
from limelight.run.loggers import LOGGERS

_Steps = Annotated[int, Field(ge=1, le=10**9)]
_Thousand = Annotated[int, Field(ge=0, le=1000)]
_NonNegative = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


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

    steps: _Steps = 100_000  # optimizer steps
    batch_tokens: Annotated[int, Field(ge=1, le=10**8)] | Literal["auto"] = 25_000  # on each side
    pack: Annotated[int, Field(ge=0, le=2**20)] = 0  # encoder-decoder: tokens of a row of pairs
    grad_accumulation: Annotated[int, Field(ge=1, le=10**4)] = 1  # batches per optimizer step
    seed: Count = 1  # of everything: first weights, order of the data, dropout

    optimizer: Literal["adam", "muon"] = "adam"  # muon: for the matrices of layers
    schedule: Literal["paper", "inverse-sqrt", "cosine", "linear", "wsd"] = "paper"  # of the lr
    learning_rate: Positive = 1.0  # the peak; for the paper's schedule a factor
    warmup: Count = 4000  # steps in which the learning rate rises
    beta1: Fraction = 0.9  # Adam: decay of the mean gradient
    beta2: Fraction = 0.98  # Adam: decay of the mean squared gradient
    eps: Positive = 1e-9  # Adam: added to the denominator
    weight_decay: Fraction = 0.0  # of matrices; norms and biases do not decay
    clip_grad_norm: _NonNegative = 0.0  # the largest norm of all gradients together; 0: no clipping
    label_smoothing: Fraction = 0.1  # spread over all tokens (section 5.4)
    class_weights: bool = False  # classifier: the rarer a class, the more its texts count
    bpe_dropout: Fraction = 0.0  # share of merges that are undone in training texts; 0: none
    rdrop_alpha: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.0  # R-Drop; 0: off

    average_checkpoints: _Thousand = 5  # average the last checkpoints (section 6.1); 0: do not
    ema: Fraction = 0.0  # decay of an exponential moving average of the weights; 0: none
    checkpoint_every: _Steps = 1000  # steps
    keep_checkpoints: Annotated[int, Field(ge=1, le=1000)] = 2  # besides those to be averaged
    validate_every: _Steps = 1000  # steps
    patience: Count = 0  # validations without improvement before stopping; 0: never
    metric: str = "loss"  # must improve: loss, perplexity, accuracy, or the task's own
    log_every: _Steps = 10  # steps
    log_to: tuple[str, ...] = ()  # beside log.jsonl: "tensorboard", "wandb", "mlflow"

    max_unusable: Annotated[float, Field(ge=0, le=1)] = 0.5  # share of the lines; more: refused
    mask_rate: Fraction = 0.15  # encoder-only: share of the tokens to predict
    whole_word_masking: bool = False  # encoder-only: mask words instead of pieces
    objective: str = ""  # one that --extend adds, instead of the family's own
    freeze: tuple[str, ...] = ()  # parts that are not trained, as "encoder" or "source.tokens"
    lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0  # with --from: train adapters; 0: weights
    lora_alpha: Positive = 16.0  # adapters are multiplied by lora_alpha / lora_rank

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # auto: CUDA, MPS or CPU
    # auto: bfloat16 where it pays; fp8: bfloat16, and wide products and the classifier in 8 bits
    precision: Literal["auto", "float32", "bfloat16", "float64", "fp8"] = "auto"
    compile: bool = False  # costs a minute or two at the start, and on a GPU twice the memory
    cuda_graphs: bool = False  # capture steps as CUDA graphs (one GPU): much faster if small
    master_weights: bool = False  # bfloat16: cast weights once a step, the optimizer has float32
    offload_optimizer: bool = False  # keep the optimizer's state, and move the weights, on the CPU
    activation_checkpointing: Literal["off", "layer", "selective"] = "off"  # recompute activations
    fsdp: bool = False  # several devices: shard weights, gradients and optimizer state
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1  # devices that divide each layer
    data_workers: Annotated[int, Field(ge=0, le=64)] = 0  # processes that prepare batches

    @property
    def sharded(self) -> bool:
        """Whether no process has all of the weights."""
        return self.fsdp or self.tensor_parallel > 1

    def __post_init__(self) -> None:
        for name in self.log_to:
            if name not in LOGGERS:
                raise unknown_name("logger", name, LOGGERS)
        check_extended(self, "objective", [""])
        for name in ("master_weights", "offload_optimizer"):
            if getattr(self, name) and self.sharded:
                raise UserError(
                    f"{name}=true is for one device, and fsdp and tensor_parallel shard the "
                    f"optimizer's state already: set --train.{name.replace('_', '-')} false"
                )
        if self.optimizer == "muon" and self.sharded:
            raise UserError(
                "optimizer='muon' needs whole matrices, and fsdp and tensor_parallel divide them: "
                "set --train.optimizer adam"
            )
        if self.cuda_graphs and self.offload_optimizer:
            raise UserError(
                "offload_optimizer=true moves weights on the CPU, and cuda_graphs=true captures "
                "whole steps on the GPU: choose one of them"
            )
        if self.cuda_graphs and self.activation_checkpointing != "off":
            raise UserError(
                f"activation_checkpointing={self.activation_checkpointing!r} saves and restores "
                "random states, which a captured step cannot: set --train.cuda-graphs false"
            )
        if self.warmup >= self.steps and self.schedule in ("cosine", "linear", "wsd"):
            raise UserError(
                f"warmup={self.warmup} leaves nothing of steps={self.steps} "
                f"for schedule={self.schedule!r}: shorten it"
            )
