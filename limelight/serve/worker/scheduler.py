"""The child process that holds a model: `python -m limelight.serve.worker RUN LIMITS`.

Between any two tokens it listens. New requests join those that are being written, those that are
done or given up leave. Token by token is written in one batch, whatever the settings of each text.
Beams are different: texts with the same settings that wait at the same time are searched together,
and those that come later form the next search; searches and the batch take turns, a token each.

It reads messages from its standard input and answers on its standard output, framed (`frames`). It
can be killed at any time: it keeps nothing that somebody else needs.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch

from limelight.decode.beam import BeamSearch
from limelight.decode.config import DecodeConfig
from limelight.decode.engine import MAX_BATCH_POSITIONS
from limelight.decode.generate import GenerationBatch, TokenEvent
from limelight.decode.request import DAMAGED, Hypothesis, Request
from limelight.errors import UserError
from limelight.loading import LoadedModel
from limelight.model.count import count_parameters
from limelight.serve import logs
from limelight.serve.ipc import Message, packed
from limelight.serve.worker.jobs import Job, code_of, job_for, searches, token_payload
from limelight.serve.worker.trace_cache import TraceCache, Work, example_for

_AT_ONCE = 2  # searches that take turns
_ADMIT_DELAY = 3  # tokens that newcomers wait for others to join with: a batch is read faster
_MOMENT = 0.02  # seconds
NO_MEMORY = (
    "there is not enough memory to load it: close other programs that use it, or serve fewer or "
    "smaller models"
)
_Owner = tuple[int, int]  # a job's number, and which of its texts


@dataclass
class _QueuedSequence:
    """A text that waits for its turn."""

    owner: _Owner
    request: Request
    config: DecodeConfig


@dataclass
class _RunningSearch:
    """A search, and whose texts it looks for."""

    search: BeamSearch
    owners: list[_Owner]


class Scheduler:
    """Jobs that are being worked on, all at the same time."""

    def __init__(
        self, loaded: LoadedModel, batch: int, most: int, traced: int, send: Callable[[bytes], None]
    ) -> None:
        self.loaded, self.batch, self.most, self.send = loaded, batch, most, send
        self.album = TraceCache(loaded, traced)
        self.jobs: dict[int, Job] = {}
        self.to_write: deque[_QueuedSequence] = deque()
        self.to_search: deque[_QueuedSequence] = deque()
        self.writing = self.new_writing()
        self.rows: dict[int, _Owner] = {}  # whose text each row of the batch is
        self.running: deque[_RunningSearch] = deque()
        self.work: deque[tuple[int, Work]] = deque()
        self.outbox = bytearray()
        self.told = self.waited = 0

    def new_writing(self) -> GenerationBatch:
        """A batch without texts."""
        model, tokenizer = self.loaded.engine.model, self.loaded.tokenizer
        return GenerationBatch(model, [], DecodeConfig(), tokenizer)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.jobs)

    def tell(self, message: Message, blob: bytes = b"") -> None:
        """Say something to the service, at the end of this turn."""
        self.outbox += packed(message, blob)

    def flush(self) -> None:
        """Send what is to be told."""
        texts = len(self.rows) + sum(len(running.owners) for running in self.running)
        if texts != self.told:
            self.told = texts
            self.tell({"active": texts})
        if self.outbox:
            self.send(bytes(self.outbox))
            self.outbox.clear()

    def on_message(self, message: Message) -> None:
        """A new job, or that one is not wanted any more."""
        number = message["id"]
        if message["do"] == "cancel":
            self.drop(number)
            return
        try:
            job = self.jobs[number] = job_for(self.loaded, self.album, message, self.most)
        except Exception as error:
            self.fail(number, error)
            return
        for i in range(len(job.texts)):
            self.go_on((number, i))
        if not job.texts:
            self.conclude(number)

    def go_on(self, owner: _Owner) -> None:
        """Let a text have its next stretch written, or be done."""
        number, i = owner
        job = self.jobs[number]
        text = job.texts[i]
        request = text.request()
        if request is not None:
            beam = searches(text.config, job.nbest)
            queue = self.to_search if beam else self.to_write
            queue.append(_QueuedSequence(owner, request, text.config))
            return
        self.tell_piece(owner, text.finish())
        job.left -= 1
        if not job.left:
            self.conclude(number)

    def tell_piece(self, owner: _Owner, piece: str, event: TokenEvent | None = None) -> None:
        """What a text has become longer by, if the client wants to know."""
        number, i = owner
        job = self.jobs[number]
        end = event is not None and event.token == self.loaded.tokenizer.end
        token = token_payload(self.loaded, event) if event and job.logprobs and not end else None
        if job.stream and (piece or token):
            self.tell({"id": number, "text": i, "piece": piece, "token": token})

    def conclude(self, number: int) -> None:
        """All texts are there: make of them what was asked for."""
        job = self.jobs[number]
        if job.result is not None:
            self.work.append((number, job.result(job)))

    def fail(self, number: int, error: Exception) -> None:
        """Something went wrong with one job; the others have nothing to do with it."""
        self.drop(number)
        if isinstance(error, UserError):
            told = {"code": code_of(error), "message": str(error)[:500]}
        else:
            logs.note_error(error, job=number)
            told = {"code": "internal", "message": "something went wrong inside the model"}
        self.tell({"id": number, "error": told})

    def drop(self, number: int) -> None:
        """Stop working on a job."""
        if self.jobs.pop(number, None) is None:
            return
        for row, (owner, _) in list(self.rows.items()):
            if owner == number:
                self.writing.stop(row)
                del self.rows[row]
        for running in self.running:
            for place, (owner, _) in enumerate(running.owners):
                if owner == number:
                    running.search.stop(place)
        for queue in (self.to_write, self.to_search):
            kept = [waiting for waiting in queue if waiting.owner[0] != number]
            queue.clear()
            queue.extend(kept)
        self.work = deque(item for item in self.work if item[0] != number)

    def step(self) -> None:
        """A token for everybody, and a bit of other work."""
        with torch.inference_mode():
            self.admit_writers()
            self.admit_searchers()
            self.write()
            self.search()
        self.do_work()
        self.flush()

    def admit_writers(self) -> None:
        """Texts that wait join the batch, as far as there is room."""
        enough = len(self.to_write) >= max(1, len(self.rows) // 8)
        if not enough and self.rows and self.waited < _ADMIT_DELAY:
            self.waited += 1
            return
        self.waited = 0
        chosen: list[_QueuedSequence] = []
        while self.to_write and len(self.rows) + len(chosen) < self.batch:
            longest = max(_size_of(item.request) for item in (*chosen, self.to_write[0]))
            if chosen and (len(chosen) + 1) * longest > MAX_BATCH_POSITIONS:
                break
            chosen.append(self.to_write.popleft())
        try:
            self.join(chosen)
        except Exception:  # one of them is to blame: which?
            for item in chosen:
                try:
                    self.join([item])
                except Exception as error:
                    self.fail(item.owner[0], error)

    def join(self, chosen: list[_QueuedSequence]) -> None:
        """Let these in."""
        chosen = [item for item in chosen if item.owner[0] in self.jobs]
        if chosen:
            requests = [item.request for item in chosen]
            rows = self.writing.add_requests(requests, [item.config for item in chosen])
            self.rows.update(zip(rows, (item.owner for item in chosen), strict=True))

    def write(self) -> None:
        """One more token for the texts in the batch."""
        if not self.writing.active:
            return
        try:
            events = self.writing.step()
        except Exception as error:
            for number in {owner for owner, _ in self.rows.values()}:
                self.fail(number, error)
            self.rows, self.writing = {}, self.new_writing()
            return
        for event in events:
            if event.row in self.rows:
                self.take(event)

    def take(self, event: TokenEvent) -> None:
        """A token for one text; it may be its last."""
        owner = self.rows[event.row]
        text = self.jobs[owner[0]].texts[owner[1]]
        self.tell_piece(owner, text.take(event), event)
        if text.enough:
            self.writing.stop(event.row)
        if event.row not in self.writing.active:
            del self.rows[event.row]
            self.go_on(owner)

    def admit_searchers(self) -> None:
        """Texts that wait for a beam of the same settings are searched together."""
        if not self.to_search or len(self.running) == _AT_ONCE:
            return
        first = self.to_search[0]
        kind, beam = self.kind_of(first), first.config.beam
        chosen: list[_QueuedSequence] = []
        for item in self.to_search:
            longest = max(_size_of(other.request) for other in (*chosen, item))
            room = (len(chosen) + 1) * beam * longest <= MAX_BATCH_POSITIONS
            if self.kind_of(item) == kind and len(chosen) < self.batch and (room or not chosen):
                chosen.append(item)
        taken = {id(item) for item in chosen}
        self.to_search = deque(item for item in self.to_search if id(item) not in taken)
        self.begin_search(chosen)

    def kind_of(self, item: _QueuedSequence) -> tuple[DecodeConfig, int, bool]:
        """What texts must have in common to be searched together."""
        job = self.jobs[item.owner[0]]
        return replace(item.config, seed=0, max_tokens=0), job.nbest, job.tree

    def begin_search(self, chosen: list[_QueuedSequence]) -> None:
        """Start a search; if that fails, find out for whom."""
        _, nbest, tree = self.kind_of(chosen[0])
        requests, config = [item.request for item in chosen], chosen[0].config
        model, tokenizer = self.loaded.engine.model, self.loaded.tokenizer
        try:
            search = BeamSearch(model, requests, config, tokenizer, nbest, tree)
        except Exception as error:
            if len(chosen) == 1:
                self.fail(chosen[0].owner[0], error)
                return
            for item in chosen:
                if item.owner[0] in self.jobs:
                    self.begin_search([item])
            return
        self.running.append(_RunningSearch(search, [item.owner for item in chosen]))

    def search(self) -> None:
        """One more token for every search."""
        for running in list(self.running):
            try:
                if running.search.step():
                    continue
            except Exception as error:
                for number in {owner for owner, _ in running.owners}:
                    if number in self.jobs:
                        self.fail(number, error)
            self.running.remove(running)
            self.finish_search(running)

    def finish_search(self, running: _RunningSearch) -> None:
        """A search has come to its end."""
        for place, (number, i) in enumerate(running.owners):
            if number not in self.jobs:
                continue
            job = self.jobs[number]
            text = job.texts[i]
            job.trees.append(running.search.trees[place])
            found = running.search.best_of(place)
            if hasattr(text, "found"):
                text.found = found
            else:
                for event in _events_of(found[0], self.loaded.tokenizer.end):
                    if not text.enough:
                        self.tell_piece((number, i), text.take(event), event)
            self.go_on((number, i))

    def do_work(self) -> None:
        """What cannot be done token by token, for a moment; then it is the others' turn."""
        end = time.perf_counter() + _MOMENT
        for _ in range(len(self.work)):
            if time.perf_counter() < end:
                self.work_on(*self.work.popleft())

    def work_on(self, number: int, work: Work) -> None:
        """The next bit of one job's."""
        try:
            with torch.inference_mode():
                next(work)
        except StopIteration as done:
            self.finish(number, done.value)
        except Exception as error:
            self.fail(number, error)
        else:
            self.work.append((number, work))

    def finish(self, number: int, answer: Message) -> None:
        """The answer is there."""
        blob = answer.pop("blob", b"")
        try:
            self.tell({"id": number, "done": answer}, blob)
        except ValueError:  # JSON has no NaN
            self.fail(number, UserError(DAMAGED))
        else:
            del self.jobs[number]


def _events_of(written: Hypothesis, end: int) -> list[TokenEvent]:
    """What a beam found, as if it had come token by token."""
    tokens = [*written.tokens, *[end] * written.ended]
    return [TokenEvent(0, token, p) for token, p in zip(tokens, written.logprobs, strict=True)]


def _size_of(request: Request) -> int:
    """The positions that it takes."""
    return len(request.source) + len(request.prompt) + request.limit


def facts_of(loaded: LoadedModel) -> Message:
    """What there is to know of a model."""
    return {
        "recipe": loaded.recipe.name,
        "about": loaded.recipe.about,
        "family": loaded.family,
        "kind": loaded.kind,
        "abilities": loaded.tasks,
        "tags": loaded.tags,
        "classes": loaded.classes,
        "history": loaded.history,
        "config": asdict(loaded.model.config),
        "decode": asdict(loaded.decode),
        "vocabulary": len(loaded.tokenizer),
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "parts": count_parameters(loaded.model),
        "step": loaded.step,
        "example": example_for(loaded),
    }


def trace_of(example: Message) -> Message:
    """What the page will ask first."""
    return {**example, "target": None, "settings": {}, "print": "", "what": "manifest"}
