"""CTranslate2: a model and its search in C++, on CPUs (`pip install limelight[fast]`).

It computes in float32, with the same result as torch, or in int8. Its search is its own, so it is
no `StepModel`: `CTranslate2Search` gets requests and returns hypotheses. Beams are ranked by our
length penalty, as its own is another formula. Token ids are its words, so that the tokenizer stays
ours.

A setting of the model that is not listed here must have its default: another value is refused, and
never computed wrongly. Only files that this user's own process wrote are loaded (`_saved`).
"""

import json
import os
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from hashlib import sha256
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn

from limelight.decode.accel.changes import Snapshot, unknown_part
from limelight.decode.beam import length_penalty
from limelight.decode.config import DecodeConfig
from limelight.decode.generate import TokenEvent
from limelight.decode.request import DAMAGED, Hypothesis, Request
from limelight.errors import UserError
from limelight.files import cache_folder
from limelight.model import ModelConfig
from limelight.model.attention import Attention
from limelight.model.decoder_only import DecoderOnly
from limelight.model.encoder_decoder import EncoderDecoder
from limelight.model.layers import Layer
from limelight.model.stack import Classifier, Embedding, Stack
from limelight.run.atomic import commit, remove_atomically
from limelight.run.weights import hash_weights

_INSTALL = "pip install limelight[fast]"
_OLDEST = (4, 8, 1)  # earlier ones can be crashed by a file
_FORMAT = 1  # of what is written here: a new number makes old files unused
_KEPT = 8  # converted models in the user's cache
_MOMENT = 0.0005  # seconds between two looks at a search
# Our beam has K texts, finished or not. CTranslate2 continues K unfinished ones until it has K
# finished ones, or a few more: 0, 1, 2. With beam 5 en-de then translates 295, 299, 299 of 300
# everyday sentences as torch does. Of 150 captions, unlike its training data, it translates 139,
# 141, 142 so, and 4, 5, 7 to something that scores higher. Two more take 7% longer.
_MORE = 2
_ACTIVATIONS = {  # ours: CTranslate2's name
    "relu": "RELU",
    "gelu": "GELU",
    "gelu-tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
}
_KNOWN: dict[str, Iterable[Any]] = {  # settings, and the values that CTranslate2 has too
    "family": ("encoder-decoder", "decoder-only"),
    "norm_order": ("post", "pre"),
    "norm": ("layer", "rms"),
    "positions": ("sinusoidal", "learned", "rotary"),
    "activation": _ACTIVATIONS,
    "rotary_scaling": ("none", "linear"),
    "embedding_scale": ("auto", "on", "off"),
    **dict.fromkeys(("bias", "qkv_bias", "qk_norm"), (True, False)),
}
_ANY = {  # settings of any value: sizes, which weights show as they are, and what training reads
    *("vocab", "source_vocab", "layers", "decoder_layers", "d_model", "d_ff", "heads", "kv_heads"),
    *("head_dim", "max_len", "norm_eps", "tied", "dropout", "attention_dropout", "mask"),
    *("rotary_base", "rotary_factor", "rotary_low", "rotary_high", "rotary_length"),
}


def require_package() -> Any:
    """The package `ctranslate2`; a sentence if it is missing or too old."""
    try:
        import ctranslate2
    except ImportError:
        raise UserError(
            f"precision='int8' and engine='ctranslate2' need CTranslate2: {_INSTALL}"
        ) from None
    found = tuple(int(part) for part in ctranslate2.__version__.split(".")[:3] if part.isdigit())
    if found < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise UserError(
            f"CTranslate2 {ctranslate2.__version__} is too old, {oldest} is needed: {_INSTALL}"
        )
    return ctranslate2


def unknown_in_model(model: Any) -> str:
    """The first part or setting of a model that CTranslate2 cannot compute, in words."""
    if type(model) not in (EncoderDecoder, DecoderOnly):
        return f"family={model.config.family!r}"
    if part := unknown_part(model):
        return part
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"weights in {str(weight.dtype).removeprefix('torch.')} on {weight.device.type}"
    for field in fields(model.config):
        value = getattr(model.config, field.name)
        known = value in _KNOWN.get(field.name, (field.default,))
        if field.name not in _ANY and not known:
            return f"{field.name}={value!r}"
    return ""


def unknown_in_requests(
    requests: Sequence[Request], config: DecodeConfig, model: ModelConfig
) -> str:
    """The first setting of the search that CTranslate2 has not, or has otherwise, in words."""
    for name in ("temperature", "repetition_penalty", "no_repeat_ngram", "beam_groups"):
        if (value := getattr(config, name)) != getattr(DecodeConfig, name):
            return f"{name}={value}"
    if 2 * config.beam > model.vocab:
        return f"beam={config.beam} with a vocabulary of {model.vocab}"
    for request in requests:
        if request.include or request.exclude or request.needs_leading_space:
            return "words to include or to exclude, or a prefix that ends with a space"
        if request.top:
            return "the most likely tokens at every position"
        if max(len(request.source), len(request.prompt) + request.limit) > model.max_len:
            return f"a text that is longer than max_len={model.max_len}"
    return ""


class CTranslate2Model:
    """A model in CTranslate2, and its requests in CTranslate2's words."""

    def __init__(self, model: EncoderDecoder | DecoderOnly, end: int, precision: str) -> None:
        package = require_package()
        self.has_source = isinstance(model, EncoderDecoder)
        self.end, self.snapshot = end, Snapshot(model)
        self.names = _ids(max(model.config.vocab, model.config.num_source_tokens))
        make = package.Translator if self.has_source else package.Generator
        with _saved(model, end, precision) as folder:
            threads = {"inter_threads": 1, "intra_threads": torch.get_num_threads()}
            self.engine = make(str(folder), device="cpu", compute_type=precision, **threads)

    def words(self, rows: Iterable[Sequence[int]]) -> list[list[str]]:
        return [[self.names[token] for token in row] for row in rows]

    def launch(
        self,
        requests: Sequence[Request],
        beam: int = 1,
        watch: Callable[[Any], bool] | None = None,
    ) -> list[Any]:
        """Begin to search texts for requests with equally long prompts: a future for each.

        All of them may become as long as the longest: whoever reads them looks at their limits.
        """
        limit = max(request.limit for request in requests)
        prompts = self.words(request.prompt for request in requests)
        wanted = beam + _MORE if beam > 1 else 1
        options: dict[str, Any] = {"beam_size": beam, "num_hypotheses": wanted}
        options |= {"patience": wanted / beam, "length_penalty": 0}  # its scores are sums
        options |= {"return_scores": True, "return_end_token": True, "asynchronous": True}
        options |= {"callback": watch} if watch else {}
        if not self.has_source:
            options |= {"max_length": limit, "min_length": 0, "include_prompt_in_result": False}
            return list(self.engine.generate_batch(prompts, **options))
        options |= {"max_decoding_length": limit + len(prompts[0]) - 1, "min_decoding_length": 0}
        sources = self.words(request.source for request in requests)
        return list(self.engine.translate_batch(sources, prompts, max_input_length=0, **options))

    def read(self, request: Request, result: Any) -> list[tuple[list[str], float]]:
        """The texts of a result in CTranslate2's words, and their log-probabilities."""
        if not self.has_source:
            return [*zip(result.sequences, result.scores, strict=True)]
        given = len(request.prompt) - 1  # a forced beginning is part of the text
        pairs = zip(result.hypotheses, result.scores, strict=True)
        return [(text[given:], total) for text, total in pairs]

    def score(self, requests: Sequence[Request], texts: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of every token of these texts."""
        pairs = zip(requests, texts, strict=True)
        rows = self.words([*request.prompt, *text] for request, text in pairs)
        if self.has_source:  # it adds an end token itself
            sources = self.words(request.source for request in requests)
            found = self.engine.score_batch(sources, rows, max_input_length=0)
        else:
            found = self.engine.score_batch(rows)
        return [
            list(each.log_probs[len(request.prompt) - 1 :][: len(text)])
            for each, request, text in zip(found, requests, texts, strict=True)
        ]

    def stream(self, request: Request) -> Iterator[TokenEvent]:
        """Greedy search for one request, token by token."""
        steps, closed = SimpleQueue[Any](), False

        def watch(step: Any) -> bool:
            steps.put(step)
            return closed

        (result,) = self.launch([request], watch=watch)
        try:
            while not (result.done() and steps.empty()):
                with suppress(Empty):
                    step = steps.get(timeout=0.05)
                    yield TokenEvent(0, step.token_id, step.log_prob)
        finally:
            closed = True


class CTranslate2Search:
    """Requests that are searched together, greedily or with beams; a `BeamSearch` to its users.

    If `logprobs` is false, hypotheses have the sum of their log-probabilities and no more: to know
    each of them takes a second pass over the text, a tenth of the time.
    """

    def __init__(
        self,
        model: CTranslate2Model,
        requests: Sequence[Request],
        config: DecodeConfig,
        nbest: int = 1,
        logprobs: bool = True,
    ) -> None:
        if not 1 <= nbest <= config.beam:
            raise UserError(f"nbest={nbest} of a beam of {config.beam}: ask for 1 to {config.beam}")
        self.model, self.requests, self.config = model, requests, config
        self.nbest, self.logprobs = nbest, logprobs
        self.alpha = config.length_penalty if config.beam > 1 else 0.0
        self.found: list[list[Hypothesis]] = [[] for _ in requests]
        self.trees: list[Any] = [[] for _ in requests]  # it keeps none
        self.running: list[tuple[list[int], list[Any]]] = []
        self.launch(range(len(requests)), lambda request: len(request.prompt))

    def launch(self, rows: Iterable[int], alike: Callable[[Request], Any]) -> None:
        """Begin with these requests, those that are alike together."""
        groups: dict[Any, list[int]] = defaultdict(list)
        for row in rows:
            groups[alike(self.requests[row])].append(row)
        for group in groups.values():
            given = [self.requests[row] for row in group]
            self.running.append((group, self.model.launch(given, self.config.beam)))

    def step(self) -> bool:
        """Whether there is anything left to do; waits for a moment."""
        if not all(result.done() for _, results in self.running for result in results):
            time.sleep(_MOMENT)
            return True
        return self.collect()

    def run(self) -> list[list[Hypothesis]]:
        """For each request the best texts that were found, the best first."""
        while self.collect():
            pass
        return self.found

    def stop(self, row: int) -> None:
        """Cancel one; it ends with the others of its batch."""

    def best_of(self, row: int) -> list[Hypothesis]:
        return self.found[row]

    def collect(self) -> bool:
        """Read results; texts that became longer than their own limit are searched again."""
        running, self.running, again = self.running, [], []
        for rows, results in running:
            for row, result in zip(rows, results, strict=True):
                request = self.requests[row]
                texts = self.model.read(request, result.result())
                if max(len(text) for text, _ in texts) > request.limit:
                    again.append(row)
                else:
                    self.found[row] = self.best(texts)
        self.launch(again, lambda request: (len(request.prompt), request.limit))
        if not self.running and self.logprobs:
            self.add_logprobs()
        return bool(self.running)

    def best(self, texts: list[tuple[list[str], float]]) -> list[Hypothesis]:
        """The best texts by our length penalty."""
        penalized = ((total / length_penalty(len(text), self.alpha)) for text, total in texts)
        scored = zip(penalized, texts, strict=True)
        ranked = sorted(scored, key=lambda each: -each[0])[: self.nbest]
        return [self.hypothesis(text, score, total) for score, (text, total) in ranked]

    def hypothesis(self, text: list[str], score: float, total: float) -> Hypothesis:
        tokens = [int(word) for word in text]
        ended = tokens[-1:] == [self.model.end]
        return Hypothesis(tokens[:-1] if ended else tokens, [], ended, score, total)

    def add_logprobs(self) -> None:
        pairs = [(self.requests[row], h) for row, some in enumerate(self.found) for h in some]
        texts = [[*h.tokens, *[self.model.end] * h.ended] for _, h in pairs]
        numbers = self.model.score([request for request, _ in pairs], texts)
        for (_, hypothesis), logprobs in zip(pairs, numbers, strict=True):
            hypothesis.logprobs.extend(logprobs)


@contextmanager
def _saved(model: EncoderDecoder | DecoderOnly, end: int, precision: str) -> Iterator[Path]:
    """The model in CTranslate2's files: written now, or by this user before.

    They lie in the user's own cache and not beside the weights: a run folder may come from anybody,
    and CTranslate2 is no program to open a stranger's file with. They are named by the weights, all
    their bytes are compared with their hashes, and files that are damaged are written anew. Where
    the cache is not private or cannot be written to, a temporary folder serves this process alone.
    """
    write = partial(save, model, end=end, precision=precision)
    cache = cache_folder() / "ctranslate2"
    folder = cache / _hash_of(model, end, precision)
    kept = False
    with suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(cache):
            commit(folder, write)  # leaves what is there, if it is not damaged
            os.utime(folder)
            _prune(cache)
            kept = True
    if kept:
        yield folder
        return
    with TemporaryDirectory(prefix="limelight-") as temporary:
        write(Path(temporary))
        yield Path(temporary)


def _is_private(folder: Path) -> bool:
    """Whether nobody but this user can have put files into a folder."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return False
    if sys.platform == "win32":  # a user's cache folder is private there
        return True
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _prune(cache: Path) -> None:
    """Delete all but the latest models, and what processes left that were killed."""
    entries = sorted(cache.iterdir(), key=lambda path: -path.lstat().st_mtime)
    for old in entries[_KEPT:]:
        remove_atomically(old)


def _hash_of(model: nn.Module, end: int, precision: str) -> str:
    """A name for all that the files depend on."""
    facts = [_FORMAT, require_package().__version__, precision, end, repr(model.config)]
    return sha256(json.dumps([*facts, hash_weights(model)]).encode()).hexdigest()


def save(
    model: EncoderDecoder | DecoderOnly,
    folder: Path,
    *,
    end: int,
    precision: str,
    vocabularies: tuple[list[str], list[str]] | None = None,
    start: int | None = None,
) -> None:
    """Write a model that `unknown_in_model` does not object to, as CTranslate2 reads it.

    Without the words of source and target, ids are its words; without a start token, a prompt
    brings its own.
    """
    if not all(weight.isfinite().all() for weight in model.parameters()):
        raise UserError(DAMAGED)  # CTranslate2 would write something
    specs = require_package().specs
    config = model.config
    sources, words = vocabularies or (_ids(config.num_source_tokens), _ids(config.vocab))
    with torch.no_grad():
        decoder = _decoder_spec(specs, model)
        if isinstance(model, EncoderDecoder):
            spec = specs.TransformerSpec(_encoder_spec(specs, model), decoder)
            spec.register_source_vocabulary(sources)
            spec.register_target_vocabulary(words)
            spec.config.decoder_start_token = None if start is None else words[start]
        else:
            spec = specs.TransformerDecoderModelSpec(decoder)
            spec.register_vocabulary(words)
    spec.config.eos_token, spec.config.layer_norm_epsilon = words[end], config.norm_eps
    spec.config.bos_token = spec.config.unk_token = words[0]  # never used: all words are known
    spec.validate()
    spec.optimize(quantization=precision)
    spec.save(str(folder))


def _ids(count: int) -> list[str]:
    return [str(token) for token in range(count)]


def _stack_options(specs: Any, config: ModelConfig) -> dict[str, Any]:
    rotary: dict[str, Any] = {}
    if config.positions == "rotary":
        rotary = {"rotary_dim": 0, "rotary_base": config.rotary_base}  # 0: all of a head
    if config.rotary_scaling == "linear":
        linear = specs.attention_spec.RotaryScalingType.Linear
        rotary |= {"rotary_scaling_type": linear, "rotary_scaling_factor": config.rotary_factor}
    return {
        "pre_norm": config.norm_order == "pre",
        "activation": specs.Activation[_ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rms",
        "num_heads_kv": None if config.num_kv_heads == config.heads else config.num_kv_heads,
        "head_dim": config.head_dim or None,
        "qk_norm": config.qk_norm,
        **rotary,
    }


def _encoder_spec(specs: Any, model: EncoderDecoder) -> Any:
    config, stack = model.config, model.encoder
    spec = specs.TransformerEncoderSpec(
        len(stack.layers), config.heads, **_stack_options(specs, config)
    )
    if config.positions == "rotary":  # as its decoder's specification does
        del spec.position_encodings
    _fill_embedding(spec, spec.embeddings[0], model.source, config)
    _fill_stack(spec, stack)
    return spec


def _decoder_spec(specs: Any, model: EncoderDecoder | DecoderOnly) -> Any:
    config, stack = model.config, model.decoder
    spec = specs.TransformerDecoderSpec(
        *(len(stack.layers), config.heads),
        with_encoder_attention=isinstance(model, EncoderDecoder),
        **_stack_options(specs, config),
    )
    _fill_embedding(spec, spec.embeddings, model.target, config)
    _fill_stack(spec, stack)
    _fill_linear(spec.projection, model.classifier)
    return spec


def _fill_embedding(spec: Any, table: Any, embedding: Embedding, config: ModelConfig) -> None:
    table.weight = embedding.tokens.weight.clone()  # its rounding to int8 is done in place
    spec.scale_embeddings = embedding.scale != 1
    if embedding.positions is not None:
        positions = embedding.positions(torch.arange(config.max_len), torch.float32)
        spec.position_encodings.encodings = positions.clone()


def _fill_stack(spec: Any, stack: Stack) -> None:
    if not isinstance(stack.norm, nn.Identity):
        _fill_norm(spec.layer_norm, stack.norm)
    for each, layer in zip(spec.layer, cast(Iterable[Layer], stack.layers), strict=True):
        own, inner = layer.self_attention, layer.feed_forward
        _fill_linear(each.self_attention.linear[0], own.query, own.key, own.value)
        _fill_linear(each.self_attention.linear[1], own.output)
        _fill_norm(each.self_attention.layer_norm, layer.self_residual.norm)
        if own.query_norm is not None and own.key_norm is not None:
            _fill_norm(each.self_attention.q_norm, own.query_norm)
            _fill_norm(each.self_attention.k_norm, own.key_norm)
        if hasattr(layer, "cross_attention"):
            _fill_cross_attention(each.attention, layer.cross_attention)
            _fill_norm(each.attention.layer_norm, layer.cross_residual.norm)
        if inner.gate is None:
            _fill_linear(each.ffn.linear_0, inner.inner)
        else:
            _fill_linear(each.ffn.linear_0, inner.gate)
            _fill_linear(each.ffn.linear_0_noact, inner.inner)
        _fill_linear(each.ffn.linear_1, inner.outer)
        _fill_norm(each.ffn.layer_norm, layer.feed_forward_residual.norm)


def _fill_cross_attention(spec: Any, attention: Attention) -> None:
    _fill_linear(spec.linear[0], attention.query)
    _fill_linear(spec.linear[1], attention.key, attention.value)
    _fill_linear(spec.linear[2], attention.output)


def _fill_linear(spec: Any, *parts: nn.Linear | Classifier) -> None:
    """Layers that read the same states become one."""
    spec.weight = torch.cat([part.weight.detach() for part in parts])
    biases: list[Tensor] = [part.bias.detach() for part in parts if part.bias is not None]
    if biases:
        spec.bias = torch.cat(biases)


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    weights = dict(norm.named_parameters())
    spec.gamma = weights["weight"].detach().clone()
    if "bias" in weights:
        spec.beta = weights["bias"].detach().clone()
