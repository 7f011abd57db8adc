"""The numbers of the paper's Table 3, and variants; impossible ones are rejected."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from limelight.config import EXTENDED, Fraction, check_extended, config_class
from limelight.errors import UserError, unknown_name

# Bounds far beyond every published model, and far below what would overflow a size in bytes.
_Width = Annotated[int, Field(ge=1, le=2**20)]
_Vocab = Annotated[int, Field(ge=1, le=2**24)]
_Layers = Annotated[int, Field(ge=1, le=1000)]
_Heads = Annotated[int, Field(ge=1, le=4096)]
_OpenWidth = Annotated[int, Field(ge=0, le=2**22)]  # 0 leaves it open
_OpenVocab = Annotated[int, Field(ge=0, le=2**24)]
_OpenLayers = Annotated[int, Field(ge=0, le=1000)]
_Factor = Annotated[float, Field(ge=1, le=1e12, allow_inf_nan=False)]
_Base = Annotated[float, Field(gt=1, le=1e12, allow_inf_nan=False)]
_Norm = Literal["layer", "rms", "none"]  # of these three, `limelight.extend` can add others
_Positions = Literal["sinusoidal", "learned", "rotary", "none"]
_Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu"]
_EXPERIMENTS = {  # values that take a part of the paper's model away, to see what it is good for
    "positions": "none",
    "norm": "none",
    "scaling": False,
    "mask": False,
    "residual": False,
    "decoder_cell": "ssru",
}
_ONLY_OF = {  # settings that one family alone has
    "source_vocab": "encoder-decoder",
    "decoder_layers": "encoder-decoder",
    "decoder_cell": "encoder-decoder",
    "qk_norm": "decoder-only",
    "sentence_pairs": "encoder-only",
    "classes": "encoder-only",
}
_ROTARY = ("base", "scaling", "factor", "low", "high", "length")  # settings, after "rotary_"


@config_class
class ModelConfig:
    """A Transformer. The defaults are the paper's base model."""

    family: Literal["encoder-decoder", "decoder-only", "encoder-only"] = "encoder-decoder"
    vocab: _Vocab  # V: number of different tokens
    source_vocab: _OpenVocab = 0  # encoder-decoder: tokens of the source; 0 means `vocab`
    layers: _Layers = 6  # N, of the encoder and of the decoder
    decoder_layers: _OpenLayers = 0  # encoder-decoder: of the decoder; 0 means `layers`
    d_model: _Width = 512  # D: size of the vector of a token
    d_ff: _OpenWidth = 0  # inside the feed-forward layer; 0 means 4 * d_model
    heads: _Heads = 8  # H: attentions side by side
    kv_heads: _OpenWidth = 0  # G, heads of keys and values shared by queries; 0 means `heads`
    head_dim: _OpenWidth = 0  # K: size of a head; 0 means d_model / heads
    max_len: _Width = 512  # longest sequence: size of learned positions and of the KV cache

    norm_order: Literal["post", "pre"] = "post"  # post: the paper, BERT; pre: GPT-2, Llama
    norm: _Norm | str = "layer"  # rms: Llama; none: an experiment
    norm_eps: Fraction = 1e-5  # added where a norm divides
    positions: _Positions | str = "sinusoidal"  # none: an experiment
    rotary_base: _Base = 10000.0  # rotary: base of the angles; SmolLM2: 100000, Llama 3: 500000
    rotary_scaling: Literal["none", "linear", "llama3"] = "none"  # rotary: slower, for long texts
    rotary_factor: _Factor = 1.0  # rotary_scaling: how many times slower
    rotary_low: _Factor = 1.0  # llama3: fewer turns than this in rotary_length are slowed in full
    rotary_high: _Factor = 4.0  # llama3: more turns than this are left as they are
    rotary_length: _Width = 8192  # llama3: the length of the texts before scaling
    activation: _Activation | str = "relu"  # GPT-2: gelu-tanh
    bias: bool = True  # in the linear layers of attention and feed-forward
    qkv_bias: bool = False  # where bias is false: biases of queries, keys and values only (Qwen2)
    qk_norm: bool = False  # decoder-only: RMS norm of each head's queries and keys (Qwen3)
    # true means all: source, target and classifier; target means the last two; false means none.
    tied: bool | Literal["all", "target", "none"] = True  # which tables are one
    embedding_scale: Literal["auto", "on", "off"] = "auto"  # sqrt(d_model); auto: encoder-decoder
    dropout: Fraction = 0.1  # on every sub-layer's output and on the embeddings (section 5.4)
    attention_dropout: Fraction = 0.0  # on the attention weights; the paper has none
    scaling: bool = True  # divide attention scores by sqrt(d_k); false: an experiment
    mask: bool = True  # hide later tokens from a decoder; false: not in training, an experiment
    residual: bool = True  # add its input to each sub-layer's output; false: an experiment
    decoder_cell: Literal["attention", "ssru"] = "attention"  # ssru: recurrent, an experiment

    masked_head: bool = True  # encoder-only: false for a sentence encoder, which only embeds
    sentence_pairs: bool = False  # encoder-only: a head that predicts if sentences are neighbours
    classes: _OpenWidth = 0  # encoder-only: classify texts, instead of filling in masked tokens

    def __post_init__(self) -> None:
        for setting in ("activation", "norm", "positions"):
            own, _ = get_args(self.__dataclass_fields__[setting].type)
            check_extended(self, setting, get_args(own))
        if not self.head_dim and self.d_model % self.heads:
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
            given = f"d_model={self.d_model} over heads={self.heads}"
            given = f"head_dim={self.head_dim}" if self.head_dim else given
            raise UserError(
                f"rotary positions turn pairs of numbers, but {given} gives {self.d_head} per "
                "head: choose an even share"
            )
        self._check_rotary()
        self._check_sides()
        if self.qkv_bias and self.bias:
            raise UserError("qkv_bias=True is for bias=False: bias=True gives them to all layers")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError(
                f"sinusoidal positions come in pairs (sine, cosine), but d_model={self.d_model} "
                "is odd: choose an even d_model"
            )
        if self.family == "encoder-only" and not self.mask:
            raise UserError(
                "mask=False is for decoders: an encoder (family='encoder-only') masks no later "
                "tokens anyway"
            )
        if self.decoder_cell == "ssru" and not self.mask:
            raise UserError("decoder_cell='ssru' has nothing to mask: leave mask=True")
        if self.classes and self.sentence_pairs:
            raise UserError(
                f"classes={self.classes} replaces the pre-training heads, so sentence_pairs=True "
                "cannot be there too: choose one"
            )
        if self.classes == 1:
            raise UserError("classes=1 leaves nothing to decide: at least 2 are needed")

    def _changed(self, names: Iterable[str]) -> list[str]:
        """Those of these settings that do not have their default."""
        return [name for name in names if getattr(self, name) != getattr(ModelConfig, name)]

    def _check_rotary(self) -> None:
        changed = self._changed(f"rotary_{name}" for name in _ROTARY)
        if changed and self.positions != "rotary":
            name = changed[0]
            raise UserError(
                f"{name}={getattr(self, name)} is for positions='rotary', and this model has "
                f"positions={self.positions!r}"
            )
        if self.rotary_scaling == "none" and self.rotary_factor != 1:
            raise UserError(
                f"rotary_factor={self.rotary_factor} scales nothing: "
                "choose rotary_scaling='linear' or 'llama3'"
            )
        if self.rotary_scaling == "llama3" and self.rotary_low >= self.rotary_high:
            raise UserError(
                f"rotary_low={self.rotary_low} must be below rotary_high={self.rotary_high}"
            )

    def _check_sides(self) -> None:
        """Settings that one family alone has, and what the sides of an encoder-decoder share."""
        for name in self._changed(_ONLY_OF):
            if self.family != (family := _ONLY_OF[name]):
                raise UserError(
                    f"{name}={getattr(self, name)!r} belongs to family={family!r}, "
                    f"this is family={self.family!r}"
                )
        if self.tied == "target" and self.family != "encoder-decoder":
            raise UserError(
                "tied='target' belongs to family='encoder-decoder': "
                f"in family={self.family!r} choose 'all' or 'none'"
            )
        if self.tying == "all" and self.num_source_tokens != self.vocab:
            raise UserError(
                f"source_vocab={self.source_vocab} and vocab={self.vocab} cannot share one table: "
                "set tied to 'target' or 'none'"
            )
        if not self.masked_head and (self.family != "encoder-only" or self.sentence_pairs):
            raise UserError(
                "masked_head=False belongs to family='encoder-only' without sentence_pairs"
            )

    @property
    def d_head(self) -> int:
        """K = D / H, the paper's d_k = d_v, unless `head_dim` says otherwise."""
        return self.head_dim or self.d_model // self.heads

    @property
    def num_source_tokens(self) -> int:
        return self.source_vocab or self.vocab

    @property
    def num_decoder_layers(self) -> int:
        return self.decoder_layers or self.layers

    @property
    def tying(self) -> str:
        """Which tables are one: all, target (and classifier) or none."""
        return self.tied if isinstance(self.tied, str) else "all" if self.tied else "none"

    @property
    def scales_embedding(self) -> bool:
        """Whether embeddings are multiplied by sqrt(d_model), as the paper does."""
        if self.embedding_scale == "auto":
            return self.family == "encoder-decoder"
        return self.embedding_scale == "on"

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

    @property
    def extended(self) -> dict[str, str]:
        """The settings whose value an extension added."""
        names = ("activation", "norm", "positions")
        return {k: getattr(self, k) for k in names if getattr(self, k) in EXTENDED[k]}


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
