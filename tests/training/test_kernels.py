"""The kernels of a training step give what the plain way gives.

On a GPU they are compiled; elsewhere Triton interprets them, in float64 too.
"""

import math
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from limelight.model import ModelConfig, build
from limelight.model.attention import attention_mask, explicit_attention
from limelight.training import fast_layers
from limelight.training.loss import IGNORED, cross_entropy_chunk

pytest.importorskip("triton", reason="Triton is for Linux")

from limelight.training import layer_kernels
from limelight.training.loss_kernels import loss_of_rows, transposed
from limelight.training.optimizer_kernels import FusedAdamW

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISE = torch.float32 if DEVICE == "cuda" else torch.float64  # Triton has no products of 64 bits
CLOSE = {"rtol": 1e-4, "atol": 1e-4} if DEVICE == "cuda" else {"rtol": 1e-9, "atol": 1e-9}
SIZES = {"vocab": 13, "layers": 2, "d_model": 12, "d_ff": 8, "heads": 2, "max_len": 16}


def draw(*shape, kind=PRECISE):
    return torch.randn(*shape, dtype=kind, device=DEVICE, requires_grad=True)


def plain_attention(products, mask, heads, causal, scaling):
    if len(products) == 1:
        parts = products[0].chunk(3, dim=-1)
    else:
        parts = products[0], *products[1].chunk(2, dim=-1)
    q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in parts)
    return explicit_attention(q, k, v, mask, causal, 0.0, scaling).transpose(1, 2).flatten(2)


MASKS = ["none", "causal", "padding", "both", "texts"]


def mask_of(kind, lengths):
    """Rows of a batch as training masks them, and whether the look-ahead mask is left to attend."""
    rows, queries, keys = lengths
    real = torch.arange(keys) < torch.tensor([keys, keys // 2, 1])[:rows, None]
    if kind == "texts":  # several in a row, and a query sees those of its own
        here, there = (torch.arange(n) * 3 // n for n in (queries, keys))
        return (here[:, None] == there)[None, None].to(DEVICE), False
    masks = {"padding": attention_mask(real), "both": attention_mask(real, causal=True)}
    mask = masks.get(kind)
    return None if mask is None else mask.to(DEVICE), kind == "causal"


LENGTHS = [(3, 5, 5), (2, 1, 1), (2, 33, 33), (3, 4, 9), (2, 20, 3)]  # rows, queries, keys
MASKED = [  # only a text that attends to itself has a look-ahead mask
    (kind, lengths)
    for kind, lengths in product(MASKS, LENGTHS)
    if lengths[1] == lengths[2] or kind not in ("causal", "both")
]


@pytest.mark.parametrize("scaling", [True, False])
@pytest.mark.parametrize("d_head", [6, 16])
@pytest.mark.parametrize(("kind", "lengths"), MASKED)
def test_attention_is_written_out_attention(kind, d_head, lengths, scaling):
    rows, queries, keys = lengths
    torch.manual_seed(1)
    heads, width = 2, 2 * d_head
    alone = [draw(rows, queries, 3 * width)]
    products = (
        alone if queries == keys else [draw(rows, queries, width), draw(rows, keys, 2 * width)]
    )
    mask, causal = mask_of(kind, lengths)
    wanted = plain_attention(products, mask, heads, causal, scaling)
    scale = d_head**-0.5 if scaling else 1.0
    found = layer_kernels.attend(products, mask, heads, causal, scale)
    torch.testing.assert_close(found, wanted, **CLOSE)
    upstream = torch.randn_like(wanted)
    for one, other in zip(
        torch.autograd.grad(found, products, upstream),
        torch.autograd.grad(wanted, products, upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("width", [7, 32, 600])
def test_a_residual_is_dropout_sum_and_norm(width, p):
    torch.manual_seed(1)
    x, add, weight, bias = draw(3, 5, width), draw(3, 5, width), draw(width), draw(width)
    seed = torch.randint(2**63 - 1, (1,), device=DEVICE)
    found = layer_kernels.residual_norm(x, add, weight, bias, seed, 1e-5, p)[0]
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    kept = layer_kernels.residual_norm(zero, one, weight, bias, seed, 1e-5, p)[1]
    wanted = F.layer_norm(x + add * kept, (width,), weight, bias, 1e-5)
    torch.testing.assert_close(found, wanted, **CLOSE)
    upstream, inputs = torch.randn_like(x), (x, add, weight, bias)
    grads = torch.autograd.grad(found, inputs, upstream)
    for ours, theirs in zip(grads, torch.autograd.grad(wanted, inputs, upstream), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    assert kept[kept != 0].tolist() == pytest.approx([1 / (1 - p)] * int((kept != 0).sum()))
    assert ((grads[1] == 0) == (kept == 0)).all()


def kept(seed, p, rows=64, width=512):
    x, one = torch.zeros(rows, width, device=DEVICE), torch.ones(width, device=DEVICE)
    seed = torch.tensor([seed], device=DEVICE)
    return layer_kernels.residual_norm(x, x + 1, one, one, seed, 1e-5, p)[1] != 0


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_is_as_good_as_independent_draws(p):
    """Shares of what is kept, also of neighbours, rows and columns, and of two seeds together."""
    a, b = kept(2**40 + 7, p), kept(2**40 + 8, p)
    far = kept(2**41 + 7, p)
    assert torch.equal(a, kept(2**40 + 7, p))
    both = {
        "all": a,
        "neighbours": a[:, 1:] & a[:, :-1],
        "rows": a[1:] & a[:-1],
        "next seed": a & b,
        "far seed": a & far,
        "shifted": a[:, 1:] & b[:, :-1],
    }
    for name, mask in both.items():
        share = (1 - p) ** (1 if name == "all" else 2)
        error = math.sqrt(share * (1 - share) / mask.numel())
        assert mask.double().mean().item() == pytest.approx(share, abs=5 * error), name
    for along in (0, 1):
        count = a.double().sum(dim=along)
        spread = a.size(along) * p * (1 - p)
        assert count.var().item() == pytest.approx(spread, rel=8 / math.sqrt(len(count)))


def logits_and_grads(model, batch):
    model.zero_grad()
    logits = model(**batch)
    logits.square().sum().backward()
    return [logits.detach(), *(p.grad.clone() for p in model.parameters())]


CHANGES = [
    {},
    {"activation": "gelu", "positions": "learned"},
    {"norm_order": "pre"},
    {"positions": "rotary"},
    {"kv_heads": 1},
    {"norm": "rms"},
]


FAMILIES = ["encoder-decoder", "decoder-only", "encoder-only"]
WAYS = [(family, changes) for family in FAMILIES for changes in CHANGES]


@pytest.mark.parametrize(
    ("family", "changes"), [*WAYS, ("decoder-only", {"qk_norm": True})], ids=str
)
def test_a_model_with_kernels_is_the_model(family, changes, monkeypatch):
    torch.manual_seed(1)
    model = build(ModelConfig(family=family, **SIZES, dropout=0.0, **changes))
    model = model.to(DEVICE, PRECISE).train()
    tokens = torch.randint(5, 13, (3, 5), device=DEVICE)
    real = torch.arange(5, device=DEVICE) < torch.tensor([[5], [3], [1]], device=DEVICE)
    batch = {"tokens": tokens, "real": real}
    if family == "encoder-decoder":
        batch = {"source": tokens, "target": tokens[:, :4], "source_real": real}
    expected = logits_and_grads(model, batch)
    calls = []

    def counted(name):
        kernel = getattr(layer_kernels, name)
        return lambda *given: calls.append(name) or kernel(*given)

    counting = SimpleNamespace(**{name: counted(name) for name in ("attend", "residual_norm")})
    monkeypatch.setattr(fast_layers, "_OPERATORS", counting)
    fast_layers.use_kernels(model, 5)
    found = logits_and_grads(model, batch)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    attends = not changes.keys() & {"kv_heads", "qk_norm"}
    attends &= changes.get("positions") != "rotary"
    assert ("attend" in calls) == attends
    assert ("residual_norm" in calls) == (not changes.keys() & {"norm_order", "norm"})
    calls.clear()
    model.eval()
    torch.testing.assert_close(model(**batch), expected[0], **CLOSE)
    assert not calls  # decoding and validation are the model's own


@pytest.mark.parametrize(
    ("longest", "shared"), [(fast_layers.SHORT + 1, 232_448), (4, 65_536), (4, None)]
)
def test_what_a_kernel_has_no_room_for_is_left_to_others(longest, shared, monkeypatch):
    """A longer text, a GPU with less memory for a program, and one that does not say."""
    memory = SimpleNamespace(**({"shared_memory_per_block_optin": shared} if shared else {}))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    most = fast_layers.longest_for_kernels(torch.device("cuda"))
    assert most == (fast_layers.SHORT if longest > 4 else 0)
    model = build(ModelConfig(**SIZES, dropout=0.0)).to(DEVICE, PRECISE).train()
    fast_layers.use_kernels(model, longest, most)
    others = SimpleNamespace(
        attend=lambda *_: pytest.fail("a long text"), residual_norm=layer_kernels.residual_norm
    )
    monkeypatch.setattr(fast_layers, "_OPERATORS", others)
    tokens = torch.randint(5, 13, (2, 4), device=DEVICE)
    assert model(tokens, tokens).isfinite().all()


def twice(*args):
    return 2 * explicit_attention(*args)


class Norm(nn.LayerNorm):
    def forward(self, x):
        return 2 * super().forward(x)


def test_what_somebody_else_put_into_a_model_stays():
    """Each of these changes would be lost."""
    for change in ("attend", "project", "query", "forward", "norm"):
        torch.manual_seed(1)
        model = build(ModelConfig(**SIZES, dropout=0.0)).to(DEVICE, PRECISE).train()
        tokens = torch.randint(5, 13, (2, 4), device=DEVICE)
        plain = model(tokens, tokens)
        layer = model.decoder.layers[0]
        attention, residual = layer.cross_attention, layer.self_residual
        if change == "attend":
            attention.attend = twice
        elif change == "project":
            project = attention.project
            attention.project = lambda *args, own=project: [2 * part for part in own(*args)]
        elif change == "query":  # as LoRA does
            attention.query = nn.Sequential(attention.query, nn.Tanh())
            attention.query.out_features = SIZES["d_model"]
        elif change == "forward":
            residual.forward = lambda x, sublayer, own=residual.forward: 2 * own(x, sublayer)
        else:
            residual.norm = Norm(SIZES["d_model"]).to(DEVICE, PRECISE)
        expected = model(tokens, tokens)
        assert not torch.isclose(expected, plain).all(), change
        fast_layers.use_kernels(model, 4)
        torch.testing.assert_close(model(tokens, tokens), expected, **CLOSE, msg=change)


def test_a_sublayer_may_return_numbers_in_another_order_of_memory():
    torch.manual_seed(1)
    model = build(ModelConfig(**SIZES, dropout=0.0)).to(DEVICE, PRECISE).train()
    residual, x = model.decoder.layers[0].self_residual, draw(3, 5, SIZES["d_model"])

    def turned(states):
        return states.transpose(1, 2).contiguous().transpose(1, 2)

    assert not turned(x).is_contiguous()
    expected = residual(x, turned)
    fast_layers.use_kernels(model, 5)
    torch.testing.assert_close(residual(x, turned), expected, **CLOSE)


def test_dropout_of_layers_differs_and_is_that_of_the_seed():
    torch.manual_seed(1)
    model = build(ModelConfig(**SIZES, dropout=0.4)).to(DEVICE, PRECISE).train()
    fast_layers.use_kernels(model, 5)
    tokens = torch.randint(5, 13, (3, 5), device=DEVICE)
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(model(tokens, tokens))
    assert torch.equal(made[0], made[1])
    assert not torch.isclose(made[0], made[2]).any()


SHAPES = [(100, 50), (7,), (3, 3000), (2048,), (1, 1)]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.0, 0.98), (0.9, 0.0)])
def test_steps_of_adamw_are_torchs(betas, kind):
    torch.manual_seed(1)
    start = [torch.randn(*shape, device=DEVICE) for shape in SHAPES]
    weights = [nn.Parameter(x.to(kind)) for x in start]
    masters = {p: nn.Parameter(x.clone()) for p, x in zip(weights, start, strict=True)}
    plain = [nn.Parameter(x.double()) for x in start]
    ours, theirs = optimizer(masters.values(), betas), optimizer(plain, betas)
    fused = FusedAdamW(ours, masters)
    for step in range(6):
        finite = step != 2
        for p, other in zip(weights, plain, strict=True):
            grad = torch.randn_like(p) if not (step == 3 and p.dim() == 1) else None
            p.grad, other.grad = grad, None if grad is None else grad.double() * 0.5
        factor = torch.tensor(0.5, dtype=torch.float64, device=DEVICE)
        fused.step(factor, torch.tensor(finite, device=DEVICE))
        if finite:
            theirs.step()
    for p, other in zip(weights, plain, strict=True):
        master = masters[p]
        torch.testing.assert_close(master.double(), other, rtol=1e-5, atol=1e-6)
        # The interpreter cuts bfloat16 off where hardware rounds.
        within = {"rtol": 0.0, "atol": 0.0} if DEVICE == "cuda" else {"rtol": 0.008, "atol": 1e-6}
        torch.testing.assert_close(p.detach(), master.detach().to(kind), **within)
        for name, value in theirs.state[other].items():
            found = ours.state[master][name].double()
            torch.testing.assert_close(found, value.double(), rtol=1e-5, atol=1e-7)


def optimizer(weights, betas):
    weights = list(weights)
    groups = [
        {"params": [p for p in weights if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.01, betas=betas, eps=1e-9, foreach=True)


@pytest.mark.parametrize(
    ("smoothing", "vocab", "kind"),
    [*product([0.0, 0.1], [512, 5001], [torch.float32, torch.bfloat16])],
)
def test_a_kernel_of_the_loss_gives_what_torch_gives(smoothing, vocab, kind):
    torch.manual_seed(1)
    logits = (3 * torch.randn(17, vocab, device=DEVICE)).to(kind)
    labels = torch.randint(0, vocab, (17,), device=DEVICE)
    labels[::5] = IGNORED
    labels[1], labels[2] = logits[1].argmax(), 5
    logits[2, [5, 9]] = 2 * logits[2].max()  # the first of two is the most likely token
    sums, grad = cross_entropy_chunk(logits.clone(), labels, smoothing, True)
    only, nothing = loss_of_rows(logits.clone(), labels, smoothing, False)
    ours, ours_grad = loss_of_rows(logits.clone(), labels, smoothing, True)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 8e-3}[kind]
    torch.testing.assert_close(ours, sums, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(only, ours)
    torch.testing.assert_close(ours_grad, grad, rtol=tolerance, atol=tolerance)
    assert sums[2] >= 2
    assert nothing is None
    small = logits.to(torch.float8_e5m2)
    assert torch.equal(transposed(small).float(), small.float().t())
