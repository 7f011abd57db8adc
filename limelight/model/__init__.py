"""Batches become predictions: every family of Transformer from one set of blocks.

Read in this order:

config           the numbers of the paper's Table 3, and variants
attention        equation 1, explicit and fused, for every use
positions        sinusoidal, learned, rotary
ssru             a recurrent cell that can take the place of a decoder's self-attention
layers           Figure 1: a layer with its residual connections and norms
kv_cache         keys and values of the tokens so far
stack            N layers with an embedding and a classifier
encoder_decoder  the paper's model
decoder_only     GPT
encoder_only     BERT
recurrent        the networks that the paper replaced
taps             names for every value of the forward pass, and a recorder
count            parameters by part

Shape letters, the same in every file:
    B batch    T target or query positions    S source or key positions    V vocabulary    N layers
    D d_model  H heads    G heads of keys and values (G divides H)    K = D / H

Models hold parameters only. Caches are passed in; training, devices and tracing live outside.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from limelight.errors import UserError
from limelight.model.config import AnyConfig, ModelConfig, RecurrentConfig, model_config

if TYPE_CHECKING:
    from torch.nn import Module

__all__ = ["AnyConfig", "ModelConfig", "RecurrentConfig", "build", "build_empty", "model_config"]


def build(config: AnyConfig) -> "Module":
    """The model that a configuration describes, freshly initialised."""
    # Imported here, so that reading a configuration does not wait for torch.
    from limelight.model.decoder_only import DecoderOnly
    from limelight.model.encoder_decoder import EncoderDecoder
    from limelight.model.encoder_only import EncoderOnly
    from limelight.model.recurrent import RecurrentDecoderOnly, RecurrentEncoderDecoder

    families: dict[str, Callable[[Any], Module]] = {
        "encoder-decoder": EncoderDecoder,
        "decoder-only": DecoderOnly,
        "encoder-only": EncoderOnly,
        "recurrent-encoder-decoder": RecurrentEncoderDecoder,
        "recurrent-decoder-only": RecurrentDecoderOnly,
    }
    model = families[config.family](config)
    if any(True for _ in model.buffers()):
        raise UserError("a part that was added has a buffer: compute it in `forward` instead")
    return model


def build_empty(config: AnyConfig) -> "Module":
    """A model without numbers, on torch's device "meta": names and shapes."""
    from limelight.model.stack import without_numbers

    with without_numbers():
        return build(config)
