"""Requests of clients, as the worker handles them.

A job is a few sequences to generate, token by token or by beam search, and then work to do with
them; or it is work alone.
"""

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

import torch

from limelight.data.questions import ask_source
from limelight.data.tokenizer import Tokenizer
from limelight.decode.alternatives import alternatives
from limelight.decode.beam import Tree
from limelight.decode.config import DecodeConfig
from limelight.decode.detokenizer import IncrementalDetokenizer
from limelight.decode.generate import NO_BEAM
from limelight.decode.request import Hypothesis, Request
from limelight.errors import UserError
from limelight.explain.stages.embedding import nearest_tokens
from limelight.explain.trace import mean_weights
from limelight.explain.traced_text import TooLongError
from limelight.loading import LoadedModel
from limelight.model.taps import Recorder, taps
from limelight.serve.ipc import Message
from limelight.serve.worker import pictures, trace_cache
from limelight.serve.worker.sequences import CompletionSequence, Sequence, TextSequence, finite
from limelight.serve.worker.trace_cache import TraceCache, Work
from limelight.tasks import search, text_to_text
from limelight.tasks import translate as translation
from limelight.tasks.chat import Conversation, request_for_messages
from limelight.tasks.classify import classify
from limelight.tasks.embed import embed
from limelight.tasks.fill import fill
from limelight.tasks.score import score
from limelight.tasks.text_model import engine_of, networks_of
from limelight.tasks.write import Continuation, encode_prompt, refuse_beam

_PLAIN: Message = {"nbest": 1, "alternatives": 0, "alignment": False, "tree": False}
_BY_PARTS = ", or use /api/translate, which splits long texts"


@dataclass
class Job:
    """What one request of a client asks for."""

    result: Callable[["Job"], Work]  # what to do once all sequences are complete
    sequences: Several[Sequence] = ()
    stream: bool = False  # report every piece as it comes
    logprobs: bool = False  # and every token's log-probability
    nbest: int = 1
    keep_tree: bool = False  # of a beam search
    trees: list[Tree] = field(default_factory=list)
    left: int = 0  # sequences that are not complete


def job_for(loaded: LoadedModel, traces: TraceCache, message: Message, most: int) -> Job:
    """The job that a message asks for; an impossible one raises a `UserError`."""
    op = message["op"]
    if op == "trace":
        return Job(lambda _: traces.view(message))
    if op in _COMPUTING:
        model = traces.loaded if op in ("teacher", "next") else loaded
        return Job(_at_once(lambda _: _COMPUTING[op](model, message)))
    job = _GENERATING[op](loaded, message)
    if len(job.sequences) > most:
        raise UserError(
            f"the text is too long: it has {len(job.sequences)} parts, and {most} are allowed"
        )
    job.left = len(job.sequences)
    return job


def error_code(error: UserError) -> str:
    """The API's word for a user's error."""
    if isinstance(error, trace_cache.ExpiredError):
        return "trace_expired"
    return "too_long" if isinstance(error, TooLongError) else "invalid_request"


def uses_beam(config: DecodeConfig, nbest: int = 1) -> bool:
    """Whether these settings ask for a beam search."""
    return not config.temperature and (config.beam > 1 or nbest > 1)


def _config_of(loaded: LoadedModel, message: Message) -> DecodeConfig:
    return loaded.settings(**message.get("settings", {}))


def complete(loaded: LoadedModel, message: Message) -> Job:
    """Continue each prompt; a model that was trained on pairs answers it."""
    config, sequences = _config_of(loaded, message), list[Sequence]()
    writes = "write" in loaded.tasks
    for prompt in message["prompts"]:
        if not writes:
            _check_fits(loaded, config, prompt, message["tag"], "prompt", _BY_PARTS)
        for own in _with_seeds(config, message):
            if writes:
                loaded.refuse_tag(message["tag"])
                refuse_beam(message.get("settings", {}).get("beam"))
                continuation = Continuation(loaded, prompt, own, message["stop"])
                sequences.append(CompletionSequence(continuation, message["top"]))
            else:
                source = Conversation(loaded, own, message["tag"]).source([prompt])
                sequences.append(_answer(loaded, source, own, message))
    return _text_job(loaded, sequences, message)


def chat(loaded: LoadedModel, message: Message) -> Job:
    """The next turn of a conversation."""
    config = _config_of(loaded, message)
    if loaded.chat_prompt is not None:
        return _chat_by_template(loaded, config, message)
    turns = [" ".join(turn.split()) for turn in message["turns"]]
    _check_fits(loaded, config, turns[-1], message["tag"], "last turn")
    source = Conversation(loaded, config, message["tag"]).source(turns)
    configs = _with_seeds(config, message)
    return _text_job(loaded, [_answer(loaded, source, own, message) for own in configs], message)


def _with_seeds(config: DecodeConfig, message: Message) -> list[DecodeConfig]:
    return [replace(config, seed=config.seed + i) for i in range(message["n"])]


def _chat_by_template(loaded: LoadedModel, config: DecodeConfig, message: Message) -> Job:
    """A published chat model lays out a conversation in its own way, system messages included."""
    loaded.refuse_tag(message["tag"])
    refuse_beam(message.get("settings", {}).get("beam"))
    config = replace(config, beam=1, beam_groups=1)
    request, _ = request_for_messages(loaded, message["messages"], config)
    sequences = []
    for own in _with_seeds(config, message):
        asked = replace(request, seed=own.seed, top=message["top"])
        detokenizer = IncrementalDetokenizer(loaded.tokenizer, message["stop"])
        sequences.append(TextSequence(asked, own, detokenizer, keeps_spaces=True))
    return _text_job(loaded, sequences, message)


def _check_fits(
    loaded: LoadedModel, config: DecodeConfig, text: str, tag: str, name: str, hint: str = ""
) -> None:
    """Older turns may be dropped, but an answer to half a question would mislead."""
    count = len(loaded.tokenizer.encode(text))
    longest = translation.longest_source(loaded, config) - len(loaded.tag(tag))
    if count > longest:
        raise TooLongError(
            f"the {name} comes to {count} tokens, and the model reads {longest}: shorten it{hint}"
        )


def _answer(
    loaded: LoadedModel, source: list[int], config: DecodeConfig, message: Message
) -> TextSequence:
    if message["top"] and uses_beam(config):
        if message["settings"].get("beam"):
            raise UserError(
                f"a beam of {config.beam} does not report the most likely tokens: "
                "leave out beam, or set it to 1"
            )
        config = replace(config, beam=1, beam_groups=1)  # the recipe's, not the client's
    request = replace(translation.request_for(loaded, source, config), top=message["top"])
    detokenizer = IncrementalDetokenizer(loaded.tokenizer, message["stop"])
    return TextSequence(request, config, detokenizer)


def _text_job(loaded: LoadedModel, sequences: Several[Sequence], message: Message) -> Job:
    def work(job: Job) -> Message:
        texts = [sequence for sequence in job.sequences if isinstance(sequence, TextSequence)]
        return {"texts": [text.payload(loaded.tokenizer, job.logprobs) for text in texts]}

    return Job(_at_once(work), sequences, message["stream"], message["logprobs"])


def _at_once(work: Callable[[Job], Message]) -> Callable[[Job], Work]:
    def result(job: Job) -> Work:
        yield from ()
        with torch.inference_mode():
            return work(job)

    return result


def _translate(loaded: LoadedModel, message: Message) -> Job:
    config = translation.widen_beam(_config_of(loaded, message), message["nbest"])
    names = ("tag", "prefix", "include", "exclude", "glossary")
    constraints = translation.Constraints(**{n: message[n] for n in names if n in message})
    translation.check_glossary(constraints, config)
    texts = message["texts"]
    requests = [translation.requests_for(loaded, text, config, constraints) for text in texts]
    loaded.tag(constraints.tag)
    if constraints.include and not uses_beam(config):
        raise UserError(NO_BEAM)
    wanted = [name for name in ("alternatives", "alignment", "tree") if message[name]]
    if wanted and len(texts) > 1:
        raise UserError(f"{wanted[0]}: send one text at a time, not {len(texts)}")
    if wanted and len(requests[0]) != 1:
        raise UserError(f"{wanted[0]}: the text is too long to be read in one part; shorten it")
    if "tree" in wanted and not uses_beam(config, message["nbest"]):
        raise UserError("there is no tree without a beam: set beam to 2 or more")
    network = networks_of(loaded)[0]
    if "alignment" in wanted and not any(n.endswith("cross.weights") for n in taps(network)):
        raise UserError("this model has no attention from a translation to its source")

    def result(job: Job) -> Work:
        every, answers = iter(job.sequences), []
        for text, own in zip(texts, requests, strict=True):
            found = [part.hypotheses(loaded.tokenizer.end) for part in islice(every, len(own))]
            done = translation.translation_of(loaded, text, found, constraints)
            if message["op"] == "paraphrase":
                done = text_to_text.different_first(done)
            if done.problem:
                raise UserError(done.problem)
            outputs = [vars(output) for output in done.outputs]
            answers.append({"text": done.text, "parts": done.parts, "outputs": outputs})
            if done.missing_terms:
                answers[-1]["missing_terms"] = list(done.missing_terms)
        if wanted:
            yield from details(answers[0], found[0][0], job)
        return {"translations": answers}

    def details(answer: Message, best: Hypothesis, job: Job) -> Iterator[None]:
        (request,) = requests[0]
        if message["alternatives"]:
            answer["alternatives"] = positions = []
            written, count = translation.with_end(loaded, best), message["alternatives"]
            for choices in translation.choices_along(loaded, request, written, count):
                positions.append([asdict(choice) for choice in choices])
                yield
        if message["alignment"]:
            answer["alignment"] = _alignment(loaded, request, best)
            yield
        if message["tree"]:
            answer["tree"] = _tree_payload(loaded.tokenizer, job.trees[0])

    parts = [Sequence(request, config) for own in requests for request in own]
    return Job(result, parts, nbest=message["nbest"], keep_tree=message["tree"])


def _ask(loaded: LoadedModel, message: Message) -> Job:
    source = ask_source(*(" ".join(message[name].split()) for name in ("question", "context")))
    tag, config = text_to_text.tag_of(loaded, "ask"), _config_of(loaded, message)
    _check_fits(loaded, config, source, tag, "question with its context")
    return _translate(loaded, _PLAIN | message | {"texts": [source], "tag": tag})


def _paraphrase(loaded: LoadedModel, message: Message) -> Job:
    tag, config = text_to_text.tag_of(loaded, "paraphrase"), _config_of(loaded, message)
    nbest = 1 if config.temperature else config.beam
    return _translate(loaded, _PLAIN | message | {"tag": tag, "nbest": nbest})


def _summarise(loaded: LoadedModel, message: Message) -> Job:
    tag = text_to_text.tag_of(loaded, "summarise")
    return _translate(loaded, _PLAIN | message | {"tag": tag})


def _tree_payload(tokenizer: Tokenizer, tree: Tree) -> list[list[Message]]:
    sums, payload = dict[int, float](), []
    for step in tree:
        sums = {node.place: sums.get(node.parent, 0.0) + finite(node.logprob) for node in step}
        payload.append(
            [
                {**asdict(node), "piece": tokenizer.pieces([node.token])[0]}
                | {"logprob": finite(node.logprob), "score": finite(node.score)}
                | {"log_probability": sums[node.place]}
                for node in step
            ]
        )
    return payload


def _alignment(loaded: LoadedModel, request: Request, written: Hypothesis) -> Message:
    """Cross-attention weights, the mean of all layers and heads; tokens of a prefix come first."""
    source = torch.tensor([list(request.source)], device=loaded.device)
    target = torch.tensor([[*request.prompt, *written.tokens]], device=loaded.device)
    network = networks_of(loaded)[0]
    with torch.inference_mode(), Recorder(network, ["*cross.weights"]) as recorder:
        recorder.model(source, target)
        weights = mean_weights([value[0] for value in recorder.values.values()])  # T S
    pieces = loaded.tokenizer.pieces
    return {
        "source": pieces(request.source),
        "target": pieces(target[0, 1:].tolist()),
        "weights": [[round(w, 5) for w in row] for row in weights[:-1].tolist()],
    }


def _suggest(loaded: LoadedModel, message: Message) -> Message:
    limit = min(message["tokens"], max(1, loaded.max_len // 2))
    prompt, spaced = encode_prompt(loaded, message["text"])
    prompt = prompt[-max(1, loaded.max_len - limit) :]
    request = Request(prompt, limit, needs_leading_space=spaced)
    tokenizer, count = loaded.tokenizer, message["count"]
    (found,) = alternatives(engine_of(loaded).model, request, [], [0], count, tokenizer)
    suggestions = []
    for choice in found:
        text = tokenizer.decode([choice.token, *choice.rest.tokens])
        text = text.removeprefix(" ") if spaced else text
        own = choice.logprob + sum(choice.rest.logprobs)
        first = {"first_token_probability": math.exp(choice.logprob)}
        suggestions.append({"text": text, "probability": math.exp(own), **first})
    return {"suggestions": suggestions}


def _embed(loaded: LoadedModel, message: Message) -> Message:
    longest = loaded.max_len - 2  # a special token at each end
    lengths = list(map(len, loaded.tokenizer.encode_many(message["texts"])))
    read = sum(min(length, longest) for length in lengths)
    vectors = list(embed(loaded, message["texts"]))
    return {"vectors": vectors, "read": read, "left_out": sum(lengths) - read}


def _search(loaded: LoadedModel, message: Message) -> Message:
    query, texts, matches = message["query"], message["texts"], []
    for cosine, index in search.rank_texts(loaded, query, texts, message["top"]):
        match: Message = {"index": index, "score": cosine, "text": texts[index]}
        if message["why"]:
            match["why"] = list(_pairs(search.why(loaded, query, texts[index])))
        matches.append(match)
    return {"matches": matches}


def _pairs(similar: search.TokenSimilarity) -> Iterator[Message]:
    """Each token of a query with the closest one of a text, and where both stand."""
    for i, (j, (query, text, cosine)) in enumerate(zip(similar.closest, similar.best, strict=True)):
        pair: Message = {"query": query, "text": text, "cosine": cosine}
        yield pair | {"query_span": similar.query_spans[i], "text_span": similar.text_spans[j]}


def _score(loaded: LoadedModel, message: Message) -> Message:
    scores = []
    for scored in score(loaded, map(tuple, message["texts"]), message["tag"]):
        facts: Message = {"total": scored.total, "log_probability": scored.total}
        facts |= {"tokens": scored.tokens, "logprobs": scored.logprobs}
        scores.append({"problem": scored.problem} if scored.problem else facts)
    return {"scores": scores}


def _neighbours(loaded: LoadedModel, message: Message) -> Message:
    tokenizer, word, count = loaded.tokenizer, message["text"], message["count"]
    # The tokens of most words begin with the space before them.
    tokens = min(tokenizer.encode(f" {word}"), tokenizer.encode(word), key=len)[:16]
    network = networks_of(loaded)[0]
    side = getattr(network, "source", None) or network.target
    table: torch.Tensor = getattr(side, "tokens", side).weight.detach()[: len(tokenizer)]
    nearest = nearest_tokens(table.float(), tokens, count, tokenizer.special_ids)
    found = []
    for piece, others in zip(tokenizer.pieces(tokens), nearest, strict=True):
        near = {other: cosine for other, cosine in others if math.isfinite(cosine)}
        pairs = zip(tokenizer.pieces(near), near.values(), strict=True)
        found.append({"piece": piece, "neighbours": [{"piece": p, "cosine": c} for p, c in pairs]})
    return {"tokens": found}


_GENERATING: dict[str, Callable[[LoadedModel, Message], Job]] = {
    "complete": complete,
    "chat": chat,
    "translate": _translate,
    "ask": _ask,
    "paraphrase": _paraphrase,
    "summarise": _summarise,
}
_COMPUTING: dict[str, Callable[[LoadedModel, Message], Message]] = {
    "suggest": _suggest,
    "fill": lambda loaded, m: {"filled": [asdict(fill(loaded, t, m["count"])) for t in m["texts"]]},
    "classify": lambda loaded, m: {"classes": list(classify(loaded, m["texts"]))},
    "embed": _embed,
    "search": _search,
    "score": _score,
    "patch": pictures.inspect_patch,
    "neighbours": _neighbours,
    "teacher": trace_cache.teacher,
    "next": trace_cache.next_logits,
    "vocabulary": trace_cache.vocabulary,
}
