"""Hugging Face's GPT-2, BERT, Marian and Llama, built small and random, say what ours say."""

import pytest
import torch
import transformers as hf

from limelight.model import ModelConfig, build
from tests.against.copying import compare, load, randomise, rename

V, D, HEADS, LAYERS, D_FF, LENGTH = 31, 16, 4, 2, 24, 9


def config(family, **changes):
    sizes = {
        "vocab": V,
        "d_model": D,
        "heads": HEADS,
        "layers": LAYERS,
        "d_ff": D_FF,
        "max_len": 20,
    }
    return ModelConfig(family=family, **{**sizes, **changes})


def tokens():
    text = torch.randint(1, V, (3, LENGTH))  # 0 is their padding, for which they drop gradients
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5], [7]])
    return text, real


def gpt2_mapping(theirs):
    """Their matrices are turned (Conv1D), and query, key and value are one."""
    ours = rename(
        theirs,
        {"transformer.wte.": "target.tokens.", "transformer.wpe.": "target.positions."}
        | {"transformer.ln_f.": "decoder.norm."},
    )
    for i in range(LAYERS):
        old, new = f"transformer.h.{i}.", f"decoder.layers.{i}."
        ours |= rename(
            theirs,
            {
                f"{old}ln_1.": f"{new}self_residual.norm.",
                f"{old}ln_2.": f"{new}feed_forward_residual.norm.",
                f"{old}attn.c_proj.": f"{new}self_attention.output.",
                f"{old}mlp.c_fc.": f"{new}feed_forward.inner.",
                f"{old}mlp.c_proj.": f"{new}feed_forward.outer.",
            },
        )
        for kind in ("weight", "bias"):
            parts = theirs[f"{old}attn.c_attn.{kind}"].chunk(3, dim=-1)
            for part, value in zip(("query", "key", "value"), parts, strict=True):
                ours[f"{new}self_attention.{part}.{kind}"] = value
    turned = (".output.weight", ".inner.weight", ".outer.weight")
    turned += (".query.weight", ".key.weight", ".value.weight")
    return {name: v.T if name.endswith(turned) else v for name, v in ours.items()}


def gpt2():
    sizes = {"n_embd": D, "n_head": HEADS, "n_layer": LAYERS, "n_inner": D_FF, "n_positions": 20}
    theirs = randomise(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=V, **sizes)))
    ours = build(
        config("decoder-only", norm_order="pre", positions="learned", activation="gelu-tanh")
    ).double()
    load(ours.eval(), theirs, gpt2_mapping)
    return ours, theirs


def test_gpt2():
    ours, theirs = gpt2()
    text, _ = tokens()
    compare(ours, theirs, ours(text), theirs(text).logits, gpt2_mapping)


def test_gpt2_padded_on_the_left():
    ours, theirs = gpt2()
    text, right = tokens()
    real = right.flip(1)
    places = (real.cumsum(1) - 1).clamp(min=0)
    expected = theirs(text, attention_mask=real.long(), position_ids=places).logits
    kept = real[..., None]
    compare(ours, theirs, ours(text, real) * kept, expected * kept, gpt2_mapping)


def interleaved(matrix):
    """Their rotary pairs are (j, j + K/2), ours (2j, 2j + 1): reorder the rows of each head."""
    size = D // HEADS
    order = torch.arange(size).view(2, size // 2).T.flatten()
    return matrix.view(-1, size, *matrix.shape[1:])[:, order].reshape(matrix.shape)


def llama_mapping(theirs):
    ours = rename(theirs, {"model.embed_tokens.": "target.tokens.", "model.norm.": "decoder.norm."})
    ours |= rename(theirs, {"lm_head.": "classifier."})
    for i in range(LAYERS):
        old, new = f"model.layers.{i}.", f"decoder.layers.{i}."
        ours |= rename(
            theirs,
            {
                f"{old}input_layernorm.": f"{new}self_residual.norm.",
                f"{old}post_attention_layernorm.": f"{new}feed_forward_residual.norm.",
                f"{old}self_attn.q_proj.": f"{new}self_attention.query.",
                f"{old}self_attn.k_proj.": f"{new}self_attention.key.",
                f"{old}self_attn.v_proj.": f"{new}self_attention.value.",
                f"{old}self_attn.o_proj.": f"{new}self_attention.output.",
                f"{old}mlp.gate_proj.": f"{new}feed_forward.gate.",
                f"{old}mlp.up_proj.": f"{new}feed_forward.inner.",
                f"{old}mlp.down_proj.": f"{new}feed_forward.outer.",
            },
        )
    turning = (".query.weight", ".key.weight")
    return {name: interleaved(v) if name.endswith(turning) else v for name, v in ours.items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_llama(kv_heads, tied):
    theirs = randomise(
        hf.LlamaForCausalLM(
            hf.LlamaConfig(
                vocab_size=V,
                hidden_size=D,
                num_attention_heads=HEADS,
                num_key_value_heads=kv_heads,
                num_hidden_layers=LAYERS,
                intermediate_size=D_FF,
                max_position_embeddings=20,
                rms_norm_eps=1e-6,
                tie_word_embeddings=tied,
            )
        )
    )
    ours = build(
        config(
            "decoder-only",
            norm_order="pre",
            norm="rms",
            norm_eps=1e-6,
            positions="rotary",
            activation="swiglu",
            kv_heads=kv_heads,
            bias=False,
            tied=tied,
        )
    ).double()
    load(ours.eval(), theirs, llama_mapping)
    text, _ = tokens()
    compare(ours, theirs, ours(text), theirs(text).logits, llama_mapping)


BERT_LAYER = {
    "attention.self.query.": "self_attention.query.",
    "attention.self.key.": "self_attention.key.",
    "attention.self.value.": "self_attention.value.",
    "attention.output.dense.": "self_attention.output.",
    "attention.output.LayerNorm.": "self_residual.norm.",
    "intermediate.dense.": "feed_forward.inner.",
    "output.dense.": "feed_forward.outer.",
    "output.LayerNorm.": "feed_forward_residual.norm.",
}


def bert_mapping(theirs):
    names = {
        "bert.embeddings.word_embeddings.": "source.tokens.",
        "bert.embeddings.position_embeddings.": "source.positions.",
        "bert.embeddings.token_type_embeddings.": "source.segments.",
        "bert.embeddings.LayerNorm.": "source.norm.",
        "cls.predictions.transform.dense.": "masked_head.inner.",
        "cls.predictions.transform.LayerNorm.": "masked_head.norm.",
        "cls.predictions.bias": "masked_head.classifier.bias",
        "classifier.": "text_head.classifier.",
        "cls.seq_relationship.": "pair_head.classifier.",
    }
    names["bert.pooler.dense."] = (
        "text_head.inner." if "classifier.weight" in theirs else "pair_head.inner."
    )
    for i in range(LAYERS):
        for old, new in BERT_LAYER.items():
            names[f"bert.encoder.layer.{i}.{old}"] = f"encoder.layers.{i}.{new}"
    return rename(theirs, names)


BERT = hf.BertConfig(
    vocab_size=V,
    hidden_size=D,
    num_attention_heads=HEADS,
    num_hidden_layers=LAYERS,
    intermediate_size=D_FF,
    max_position_embeddings=20,
    num_labels=3,
)


def bert(**changes):
    return build(
        config("encoder-only", positions="learned", activation="gelu", norm_eps=1e-12, **changes)
    ).double()


def test_bert_fills_and_relates():
    theirs = randomise(hf.BertForPreTraining(BERT))
    ours = bert(sentence_pairs=True)
    load(ours.eval(), theirs, bert_mapping)
    text, real = tokens()
    segments = torch.randint(2, text.shape)
    expected = theirs(text, attention_mask=real.long(), token_type_ids=segments)
    states = ours.encode(text, segments, real)
    related = expected.seq_relationship_logits
    a = torch.cat(
        [ours.masked_head(states)[real].flatten(), ours.next_sentence(states, real).flatten()]
    )
    b = torch.cat([expected.prediction_logits[real].flatten(), related.flatten()])
    compare(ours, theirs, a, b, bert_mapping)


def test_bert_classifies():
    theirs = randomise(hf.BertForSequenceClassification(BERT))
    ours = bert(classes=3)
    load(ours.eval(), theirs, bert_mapping)
    text, real = tokens()
    expected = theirs(text, attention_mask=real.long()).logits
    compare(ours, theirs, ours(text, None, real), expected, bert_mapping)


HALVES = torch.arange(D).view(2, D // 2).T.flatten()  # ours (2j, 2j + 1) from theirs (j, j + D/2)


def marian_mapping(theirs):
    """Their waves are all sines, then all cosines; ours alternate, as the paper's do.

    So the numbers of every D-wide vector are reordered: in what reads them and in what writes them.
    """
    layer = {
        "self_attn.q_proj.": "self_attention.query.",
        "self_attn.k_proj.": "self_attention.key.",
        "self_attn.v_proj.": "self_attention.value.",
        "self_attn.out_proj.": "self_attention.output.",
        "self_attn_layer_norm.": "self_residual.norm.",
        "encoder_attn.q_proj.": "cross_attention.query.",
        "encoder_attn.k_proj.": "cross_attention.key.",
        "encoder_attn.v_proj.": "cross_attention.value.",
        "encoder_attn.out_proj.": "cross_attention.output.",
        "encoder_attn_layer_norm.": "cross_residual.norm.",
        "fc1.": "feed_forward.inner.",
        "fc2.": "feed_forward.outer.",
        "final_layer_norm.": "feed_forward_residual.norm.",
    }
    names = {"model.shared.": "target.tokens.", "final_logits_bias": "classifier.bias"}
    for side in ("encoder", "decoder"):
        for i in range(LAYERS):
            for old, new in layer.items():
                names[f"model.{side}.layers.{i}.{old}"] = f"{side}.layers.{i}.{new}"
    ours = rename(theirs, names)
    reads = ("tokens.weight", "query.weight", "key.weight", "value.weight", "inner.weight")
    writes = (".output.weight", ".output.bias", ".outer.weight", ".outer.bias")
    writes += ("norm.weight", "norm.bias")
    for name, value in ours.items():
        if name.endswith(reads):
            ours[name] = value[:, HALVES]
        elif name.endswith(writes):
            ours[name] = value[HALVES]
    ours["source.tokens.weight"] = ours["target.tokens.weight"]
    return ours


@pytest.mark.parametrize(("theirs_says", "ours_says"), [("swish", "silu"), ("relu", "relu")])
def test_marian(theirs_says, ours_says):
    theirs = hf.MarianMTModel(
        hf.MarianConfig(
            vocab_size=V,
            d_model=D,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=D_FF,
            decoder_ffn_dim=D_FF,
            max_position_embeddings=20,
            scale_embedding=True,
            activation_function=theirs_says,
            pad_token_id=0,
        )
    )
    waves = {n: p.clone() for n, p in theirs.named_parameters() if "embed_positions" in n}
    randomise(theirs)
    with torch.no_grad():
        for name, value in waves.items():  # these are constants that they keep as parameters
            theirs.get_parameter(name).copy_(value)
        theirs.final_logits_bias.copy_(torch.randn(1, V))

    ours = build(config("encoder-decoder", activation=ours_says)).double().eval()
    bias = {"final_logits_bias": theirs.final_logits_bias[0]}
    load(ours, theirs, lambda values: marian_mapping(values | bias))
    source, real = tokens()
    target, _ = tokens()
    expected = theirs(source, attention_mask=real.long(), decoder_input_ids=target).logits
    ours.classifier.bias.requires_grad_(False)  # theirs is a constant
    compare(ours, theirs, ours(source, target, real), expected, marian_mapping)
