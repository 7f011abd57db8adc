"""The numbers of the paper's Table 3, and variants; impossible ones are rejected."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from limelight.config import Fraction, config_class
from limelight.errors import UserError, unknown_name

# Bounds far beyond every published model, and far below what would overflow a size in bytes.
_Width = Annotated[int, Field(ge=1, le=2**20)]
_Vocab = Annotated[int, Field(ge=1, le=2**24)]
_Layers = Annotated[int, Field(ge=1, le=1000)]
_Heads = Annotated[int, Field(ge=1, le=4096)]
_OpenWidth = Annotated[int, Field(ge=0, le=2**22)]  # 0 leaves it open
_EXPERIMENTS = {  # values that take a part of the paper's model away, to see what it is good for
    "positions": "none",
    "norm": "none",
    "scaling": False,
    "mask": False,
    "residual": False,
}


@config_class
class ModelConfig:
    """A Transformer. The defaults are the paper's base model."""

    family: Literal["encoder-decoder", "decoder-only", "encoder-only"] = "encoder-decoder"
    vocab: _Vocab  # V: number of different tokens
    layers: _Layers = 6  # N, of the encoder and of the decoder
    d_model: _Width = 512  # D: size of the vector of a token
    d_ff: _OpenWidth = 0  # inside the feed-forward layer; 0 means 4 * d_model
    heads: _Heads = 8  # H: attentions side by side
    kv_heads: _OpenWidth = 0  # G, heads of keys and values shared by queries; 0 means `heads`
    max_len: _Width = 512  # longest sequence: size of learned positions and of the KV cache

    norm_order: Literal["post", "pre"] = "post"  # post: the paper, BERT; pre: GPT-2, Llama
    norm: Literal["layer", "rms", "none"] = "layer"  # rms: Llama; none: an experiment
    norm_eps: Fraction = 1e-5  # added where a norm divides
    # GPT-2, BERT: learned; Llama: rotary; none: an experiment
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal"
    activation: Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu"] = "relu"  # GPT-2: gelu-tanh
    bias: bool = True  # in the linear layers of attention and feed-forward
    tied: bool = True  # one table for source, target and classifier
    dropout: Fraction = 0.1  # on every sub-layer's output and on the embeddings (section 5.4)
    attention_dropout: Fraction = 0.0  # on the attention weights; the paper has none
    scaling: bool = True  # divide attention scores by sqrt(d_k); false: an experiment
    mask: bool = True  # hide later tokens from a decoder; false: not in training, an experiment
    residual: bool = True  # add its input to each sub-layer's output; false: an experiment

    sentence_pairs: bool = False  # encoder-only: a head that predicts if sentences are neighbours
    classes: _OpenWidth = 0  # encoder-only: classify texts, instead of filling in masked tokens

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            fitting = [h for h in range(1, self.heads + 1) if self.d_model % h == 0]
            raise UserError(
                f"heads={self.heads} does not divide d_model={self.d_model}: "
                f"every head needs an equal share; {fitting[-1]} heads would fit"
            )
        if self.heads % self.num_kv_heads:
            raise UserError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}: "
                "every group of query heads shares one head of keys and values"
            )
        if self.positions == "rotary" and self.d_head % 2:
            raise UserError(
                f"rotary positions turn pairs of numbers, but d_model={self.d_model} over "
                f"heads={self.heads} gives {self.d_head} per head: choose an even share"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError(
                f"sinusoidal positions come in pairs (sine, cosine), but d_model={self.d_model} "
                "is odd: choose an even d_model"
            )
        if self.family != "encoder-only" and (self.sentence_pairs or self.classes):
            name = "sentence_pairs" if self.sentence_pairs else "classes"
            raise UserError(
                f"{name}={getattr(self, name)} belongs to family='encoder-only', "
                f"this is family={self.family!r}"
            )
        if self.family == "encoder-only" and not self.mask:
            raise UserError(
                "mask=False is for decoders: an encoder (family='encoder-only') masks no later "
                "tokens anyway"
            )
        if self.classes and self.sentence_pairs:
            raise UserError(
                f"classes={self.classes} replaces the pre-training heads, so sentence_pairs=True "
                "cannot be there too: choose one"
            )
        if self.classes == 1:
            raise UserError("classes=1 leaves nothing to decide: at least 2 are needed")

    @property
    def d_head(self) -> int:
        """K = D / H, the paper's d_k = d_v."""
        return self.d_model // self.heads

    @property
    def ffn_dim(self) -> int:
        """The width inside the feed-forward layer, the paper's d_ff."""
        return self.d_ff or 4 * self.d_model

    @property
    def num_kv_heads(self) -> int:
        """G: how many heads of keys and values there are."""
        return self.kv_heads or self.heads

    @property
    def experiments(self) -> dict[str, Any]:
        """The experimental settings that are in use."""
        return {k: v for k, v in _EXPERIMENTS.items() if getattr(self, k) == v}


@config_class
class RecurrentConfig:
    """What the paper replaced: a recurrent language model, or a recurrent encoder and decoder."""

    family: Literal["recurrent-encoder-decoder", "recurrent-decoder-only"]
    vocab: _Vocab  # V: number of different tokens
    layers: _Layers = 2  # of the encoder and of the decoder
    d_model: _Width = 512  # the width of embeddings and of the recurrent state
    cell: Literal["rnn", "lstm", "gru"] = "lstm"  # kind of recurrent cell
    attention: bool = True  # encoder-decoder: additive attention over the encoder's states
    max_len: Annotated[int, Field(ge=1, le=4096)] = 512  # longest sequence, read step by step
    tied: bool = True  # one table for source, target and classifier
    dropout: Fraction = 0.1  # on embeddings and states

    def __post_init__(self) -> None:
        if self.d_model % 2 and self.family == "recurrent-encoder-decoder":
            raise UserError(
                f"d_model={self.d_model} is odd: the encoder reads in both directions, "
                "each with half of d_model"
            )


AnyConfig = ModelConfig | RecurrentConfig
FAMILIES: dict[str, type[AnyConfig]] = {
    name: config
    for config in (ModelConfig, RecurrentConfig)
    for name in get_args(config.__dataclass_fields__["family"].type)
}


def model_config(**values: Any) -> AnyConfig:
    """The configuration of the family that `values` name."""
    family = values.get("family", "encoder-decoder")
    if str(family) not in FAMILIES:
        raise unknown_name("family", family, FAMILIES)
    return FAMILIES[family](**values)
