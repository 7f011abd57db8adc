"""All jobs of a worker at the same time: continuous batching.

New requests join the batch between two tokens, and those that are complete or cancelled leave it,
whatever the settings of each. Beam searches are different: requests with the same settings that
wait at the same time are searched together, and later ones form the next search. The batch and the
searches take turns, a token each. CTranslate2 searches beams, and greedily what is not streamed, in
a thread of its own.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from limelight.decode.config import DecodeConfig
from limelight.decode.engine import MAX_BATCH_POSITIONS, AnySearch
from limelight.decode.generate import GenerationBatch, TokenEvent
from limelight.decode.request import DAMAGED, Request
from limelight.errors import UserError
from limelight.explain.render.serialize import model_facts
from limelight.loading import LoadedModel
from limelight.serve import logs
from limelight.serve.ipc import ErrorPayload, Message, packed
from limelight.serve.worker.jobs import Job, error_code, job_for, uses_beam
from limelight.serve.worker.pictures import PictureQueue
from limelight.serve.worker.sequences import Sequence, token_payloads
from limelight.serve.worker.trace_cache import TraceCache, Work, example_for
from limelight.tasks.text_model import engine_of

_SEARCHES = 2  # beam searches that take turns
_JOIN_SHARE = 8  # newcomers wait for others until this many times the last join's seconds passed
_LONGEST_WAIT = 0.02  # seconds
_WORK_SECONDS = 0.001  # for other work between two tokens, at least
_WORK_SHARE = 0.3  # of the time that these took
_TOGETHER = 4  # answers that go out together
_STREAM_SECONDS = 0.01  # between two messages with pieces of streams


@dataclass(eq=False)
class _Member:
    """A sequence of a job, wherever it is: waiting, in the batch, or in a search."""

    number: int  # the job's
    index: int  # in the job
    job: Job
    sequence: Sequence
    request: Request | None = None  # the stretch that waits or is being generated
    reported: int = 0  # events whose tokens the client has

    @property
    def kind(self) -> tuple[DecodeConfig, int, bool]:
        """What requests must have in common to be searched together."""
        config = replace(self.sequence.config, seed=0, max_tokens=0)
        return config, self.job.nbest, self.job.keep_tree

    @property
    def positions(self) -> int:
        """Tokens that its request may come to."""
        request = self.request
        return len(request.source) + len(request.prompt) + request.limit if request else 0


@dataclass(eq=False)
class _RunningSearch:
    search: AnySearch
    members: list[_Member]


class Scheduler:
    """The jobs of a worker. `traced` tokens can be traced, with `exact` if it is given."""

    def __init__(
        self,
        loaded: LoadedModel,
        batch: int,
        most: int,
        traced: int,
        send: Callable[[bytes], None],
        exact: LoadedModel | None = None,
        run: str = "",
    ) -> None:
        self.loaded, self.batch, self.most, self.send = loaded, batch, most, send
        self.traces = TraceCache(exact or loaded, traced, run=run)
        self.pictures = PictureQueue(loaded)
        self.jobs: dict[int, Job] = {}
        self.to_generate: deque[_Member] = deque()
        self.to_search: deque[_Member] = deque()
        self.generating = self.new_batch()
        self.rows: dict[int, _Member] = {}  # of the batch
        self.searches: list[_RunningSearch] = []
        self.work: deque[tuple[int, Work]] = deque()
        self.unsent: dict[_Member, None] = {}  # members of streams with news, in order
        self.outbox = bytearray()
        self.active = 0
        self.next_join = 0.0  # when newcomers need not wait any more
        self.streamed = 0.0  # when pieces were sent last

    def new_batch(self) -> GenerationBatch:
        model, tokenizer = engine_of(self.loaded).model, self.loaded.tokenizer
        return GenerationBatch(model, [], DecodeConfig(), tokenizer)

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    def post(self, message: Message, blob: bytes = b"") -> None:
        """Send a message with the next flush."""
        self.outbox += packed(message, blob)

    def flush(self) -> None:
        """Send what has been posted; pieces of streams not too often, so that readers keep up."""
        active = len(self.rows) + sum(len(running.members) for running in self.searches)
        if active != self.active:
            self.active = active
            self.post({"active": active})
        if self.unsent and time.perf_counter() - self.streamed >= _STREAM_SECONDS:
            self.post_pieces()
        if self.outbox:
            self.send(bytes(self.outbox))
            self.outbox.clear()

    def post_pieces(self) -> None:
        """All new pieces of streams, in one message."""
        pieces, tokenizer = [], self.loaded.tokenizer
        for member in self.unsent:
            new: list[TokenEvent] = []
            if member.job.logprobs:
                new = member.sequence.without_end(tokenizer, member.reported)
                member.reported = len(member.sequence.events)
            if (piece := member.sequence.new_text()) or new:
                pieces.append((member.number, member.index, piece, token_payloads(tokenizer, new)))
        self.unsent.clear()
        self.streamed = time.perf_counter()
        if pieces:
            self.post({"pieces": pieces})

    def on_message(self, message: Message) -> None:
        number = message["id"]
        if message["op"] == "cancel":
            self.drop(number)
            return
        try:
            if message["op"] == "draw":
                job = self.jobs[number] = Job(lambda _: self.pictures.draw(message))
            else:
                job = self.jobs[number] = job_for(self.loaded, self.traces, message, self.most)
            for index, sequence in enumerate(job.sequences):
                self.advance(_Member(number, index, job, sequence))
            if not job.sequences:
                self.conclude(number)
        except Exception as error:
            self.fail(number, error)

    def advance(self, member: _Member) -> None:
        """Queue a sequence for its next stretch, or finish it."""
        sequence, job = member.sequence, member.job
        member.request = sequence.next_request()
        if member.request is not None:
            search = uses_beam(sequence.config, job.nbest) or self.writes_at_once(member)
            (self.to_search if search else self.to_generate).append(member)
            return
        sequence.finish()
        if job.stream:
            self.unsent[member] = None
        job.left -= 1
        if not job.left:
            self.conclude(member.number)

    def writes_at_once(self, member: _Member) -> bool:
        """Whether CTranslate2 will write it, which gives a text and not its tokens one by one."""
        if member.job.stream or member.sequence.needs_events or member.request is None:
            return False
        config = member.sequence.config
        return engine_of(self.loaded).in_ctranslate2([member.request], config) is not None

    def conclude(self, number: int) -> None:
        """All sequences are complete: begin with the work that needs them."""
        job = self.jobs[number]
        self.work.append((number, job.result(job)))

    def fail(self, number: int, error: Exception) -> None:
        """End one job with an error; the others are not affected.

        After an error of its device a process cannot use it any more: it ends, and is restarted.
        """
        if isinstance(error, torch.AcceleratorError):
            raise error
        self.drop(number)
        if isinstance(error, UserError):
            payload = ErrorPayload(code=error_code(error), message=str(error)[:500])
        else:
            logs.log_error(error, job=number)
            payload = ErrorPayload(code="internal", message="internal error in the model's process")
        self.post({"id": number, "error": payload})

    def drop(self, number: int) -> None:
        if self.jobs.pop(number, None) is None:
            return
        for row in [row for row, member in self.rows.items() if member.number == number]:
            self.generating.stop(row)
            del self.rows[row]
        for running in self.searches:
            for i, member in enumerate(running.members):
                if member.number == number:
                    running.search.stop(i)
        self.searches = [r for r in self.searches if any(m.number in self.jobs for m in r.members)]
        self.to_generate = deque(m for m in self.to_generate if m.number != number)
        self.to_search = deque(m for m in self.to_search if m.number != number)
        self.work = deque(item for item in self.work if item[0] != number)
        self.unsent = {member: None for member in self.unsent if member.number != number}

    def step(self) -> None:
        """A token for every sequence, and some other work."""
        began = time.perf_counter()
        with torch.inference_mode():
            if self.to_generate:
                self.admit_to_batch()
            if self.to_search and len(self.searches) < _SEARCHES:
                self.admit_to_search()
            if self.rows:
                self.generate()
            for running in list(self.searches):
                if running in self.searches:  # and was not dropped meanwhile
                    self.advance_search(running)
        if self.work:
            took = time.perf_counter() - began
            self.do_work(max(_WORK_SECONDS, _WORK_SHARE * took))
        self.flush()

    def admit_to_batch(self) -> None:
        """Let waiting sequences join the batch, as far as its limits allow.

        The batch stands still while newcomers are read, about as long for many as for one: so it
        reads them together, and not again at once.
        """
        began = time.perf_counter()
        enough = len(self.to_generate) >= max(1, len(self.rows) // 2)
        if not enough and self.rows and began < self.next_join:
            return
        chosen: list[_Member] = []
        longest = 0
        while self.to_generate and len(self.rows) + len(chosen) < self.batch:
            longest = max(longest, self.to_generate[0].positions)
            if chosen and (len(chosen) + 1) * longest > MAX_BATCH_POSITIONS:
                break
            chosen.append(self.to_generate.popleft())
        self.start(self.join, chosen)
        now = time.perf_counter()
        self.next_join = now + min(_JOIN_SHARE * (now - began), _LONGEST_WAIT)

    def start(self, how: Callable[[list[_Member]], None], chosen: list[_Member]) -> None:
        """Start these; if that fails, find out for whom."""
        chosen = [member for member in chosen if member.number in self.jobs]
        try:
            if chosen:
                how(chosen)
        except Exception as error:
            if len(chosen) == 1:
                self.fail(chosen[0].number, error)
                return
            for member in chosen:
                self.start(how, [member])

    def join(self, chosen: list[_Member]) -> None:
        requests = [member.request for member in chosen if member.request is not None]
        if not self.rows and self.generating.model is not engine_of(self.loaded).model:
            self.generating = self.new_batch()
        configs = [member.sequence.config for member in chosen]
        silent = [not (m.job.stream or m.sequence.needs_events) for m in chosen]
        rows = self.generating.add_requests(requests, configs, silent)
        self.rows.update(zip(rows, chosen, strict=True))

    def generate(self) -> None:
        try:
            events = self.generating.step()
        except Exception as error:
            for number in {member.number for member in self.rows.values()}:
                self.fail(number, error)
            self.rows, self.generating = {}, self.new_batch()
            return
        rows, active = self.rows, self.generating.active
        for event in events:
            member = rows.get(event[0])
            if member is None:
                continue
            member.sequence.add(event)
            if member.job.stream:
                self.unsent[member] = None
            if member.sequence.stopped:
                self.generating.stop(event[0])
            if event[0] not in active:
                del rows[event[0]]
                self.advance(member)
        finished, self.generating.finished = self.generating.finished, {}
        for row, (tokens, logprobs) in finished.items():
            if member := rows.pop(row, None):
                member.sequence.add_all(tokens, logprobs, self.loaded.tokenizer.end)
                self.advance(member)

    def admit_to_search(self) -> None:
        """Start a beam search for the first request that waits, and all of its kind."""
        kind, beam = self.to_search[0].kind, self.to_search[0].sequence.config.beam
        chosen: list[_Member] = []
        longest = 0
        for member in self.to_search:
            size = max(longest, member.positions)
            fits = (len(chosen) + 1) * beam * size <= MAX_BATCH_POSITIONS
            if len(chosen) < self.batch and (fits or not chosen) and member.kind == kind:
                chosen.append(member)
                longest = size
        started = set(chosen)
        self.to_search = deque(member for member in self.to_search if member not in started)
        self.start(self.begin_search, chosen)

    def begin_search(self, chosen: list[_Member]) -> None:
        requests = [member.request for member in chosen if member.request is not None]
        config, (_, nbest, keep_tree) = chosen[0].sequence.config, chosen[0].kind
        search = engine_of(self.loaded).new_search(requests, config, nbest, keep_tree)
        self.searches.append(_RunningSearch(search, chosen))

    def advance_search(self, running: _RunningSearch) -> None:
        """A token for a search; when it is complete, its sequences get what it found."""
        try:
            if running.search.step():
                return
        except Exception as error:
            for number in {member.number for member in running.members}:
                if number in self.jobs:
                    self.fail(number, error)
            return
        self.searches.remove(running)
        for i, member in enumerate(running.members):
            if member.number in self.jobs:
                member.job.trees.append(running.search.trees[i])
                found = running.search.best_of(i)
                member.sequence.add_found(found, self.loaded.tokenizer.end)
                self.advance(member)

    def do_work(self, seconds: float) -> None:
        """Whatever does not come token by token, for so long; then others have their turn.

        The service sends the first answers on while others are made, so that newcomers come while
        others are written: a batch of which all end at once would wait for all of them.
        """
        end = time.perf_counter() + seconds
        for done in range(1, len(self.work) + 1):
            if time.perf_counter() < end:
                self.work_on(*self.work.popleft())
                if not done % _TOGETHER:
                    self.flush()

    def work_on(self, number: int, work: Work) -> None:
        try:
            with torch.inference_mode():
                if (part := next(work)) is not None:
                    self.post({"id": number, "part": part})
        except StopIteration as done:
            self.finish(number, done.value)
        except Exception as error:
            self.fail(number, error)
        else:
            self.work.append((number, work))

    def finish(self, number: int, answer: Message) -> None:
        """Send a job's result, after all pieces of its stream."""
        blob = answer.pop("blob", b"")
        if self.unsent:
            self.post_pieces()
        try:
            self.post({"id": number, "done": answer}, blob)
        except ValueError:  # JSON has no NaN
            self.fail(number, UserError(DAMAGED))
        else:
            del self.jobs[number]


def describe(loaded: LoadedModel) -> Message:
    """What the API reports about a model."""
    images = loaded.recipe.images
    names = ("size", "tokens", "codes", "caption_tokens")
    return {
        **model_facts(loaded),
        "recipe": loaded.recipe.name,
        "about": loaded.recipe.about,
        "tags": loaded.tags,
        "images": images and {name: getattr(images, name) for name in names},
        "history": loaded.history,
        "step": loaded.step,
        "device": str(loaded.device),
        "precision": loaded.precision,
        "example": example_for(loaded),
    }
