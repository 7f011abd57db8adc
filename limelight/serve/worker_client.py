"""The service's side of a model: it starts the worker, hands it jobs, and brings it back.

A job is a number and a queue of what the worker says about it. Nothing is shared between two jobs,
and no number is given twice, so what a worker says can reach nobody but the one who asked.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from limelight.serve import logs
from limelight.serve.ipc import Message, packed, receive_from
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics

LOST = (
    "the model could not be loaded: its process ended before it was ready, and the log says how; "
    "is there enough memory for it?"
)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds before a dead worker is started again
_LAST_BREATH = 3.0  # seconds for a worker that is told to end
UNREAD = 4_000  # messages that wait for a client who does not read; then it has been too slow


class RefusedError(Exception):
    """A request that is not answered, and why: told to the client as it is."""

    def __init__(
        self, status: int, code: str, message: str, hint: str = "", retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.retry_after = retry_after


class WorkerClient:
    """One model: its worker, and those who wait for an answer."""

    def __init__(self, name: str, run: Path, limits: Limits, counts: Metrics) -> None:
        self.name, self.run_path, self.limits, self.counts = name, run, limits, counts
        self.facts: Message | None = None  # what the worker says of the model, once it has loaded
        self.failed = ""  # why it could not be loaded at all
        self.ready = False
        self.closing = False
        self.started = asyncio.Event()  # the first worker is ready, or has failed
        self.jobs: dict[int, asyncio.Queue[Message]] = {}
        self.numbers = count(1)
        self.process: asyncio.subprocess.Process | None = None
        counts.ready.labels(name).set(0)
        counts.waiting.labels(name).set_function(lambda: len(self.jobs))

    async def supervise(self) -> None:
        """Keep a worker alive until the service ends."""
        pause = FIRST_PAUSE
        while not self.closing:
            was_ready = await self.run_worker()
            if self.facts is None:  # the very first: what is wrong now will be wrong later
                if not self.closing:
                    self.failed = self.failed or LOST
                self.started.set()
                return
            pause = FIRST_PAUSE if was_ready else min(2 * pause, LONGEST_PAUSE)
            if not self.closing:
                await asyncio.sleep(pause)

    async def run_worker(self) -> bool:
        """The life of one worker; whether it was ever ready."""
        names = ("batch", "texts", "traced")
        limits = json.dumps({name: getattr(self.limits, name) for name in names})
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "limelight.serve.worker", str(self.run_path), limits),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the service, which lets the worker finish
        )
        was_ready = False
        try:
            while (message := await receive_from(_assert_pipe(self.process.stdout))) is not None:
                self.on_message(message)
                was_ready = was_ready or self.ready
        except ValueError as error:
            logs.note_error(error, model=self.name)
        finally:
            await self.cleanup()
        return was_ready

    async def cleanup(self) -> None:
        """The worker is gone, or must go; whoever waited for it is told."""
        self.set_ready(False)
        process, self.process = self.process, None
        if process is not None:
            code = await _end(process)
            if not self.closing:
                self.counts.deaths.labels(self.name).inc()
                logs.log_event("worker_ended", model=self.name, code=code, jobs=len(self.jobs))
        self.counts.texts.labels(self.name).set(0)
        message = "the model's process ended before it could answer"
        self.fail_all({"code": "worker_died", "message": message})

    def fail_all(self, error: Message) -> None:
        """Nobody here will be answered."""
        for queue in self.jobs.values():
            queue.put_nowait({"error": error})

    def set_ready(self, ready: bool) -> None:
        """Whether the model can be asked."""
        self.ready = ready
        self.counts.ready.labels(self.name).set(int(ready))

    def on_message(self, message: Message) -> None:
        """Something from the worker; what is for somebody who has left is dropped."""
        if "ready" in message:
            self.facts = message["ready"]
            self.failed = ""
            self.set_ready(True)
            self.started.set()
            logs.log_event("model_ready", model=self.name)
        elif "failed" in message:
            self.failed = message["failed"]
            logs.log_event("model_failed", model=self.name, message=self.failed)
        elif "active" in message:
            self.counts.texts.labels(self.name).set(message["active"])
        elif (queue := self.jobs.get(message["id"])) is not None:
            queue.put_nowait(message)
            if queue.qsize() > UNREAD:
                self.give_up(message["id"], queue)

    def give_up(self, number: int, queue: asyncio.Queue[Message]) -> None:
        """A client that reads more slowly than the model writes would fill the memory."""
        del self.jobs[number]
        self.send({"id": number, "do": "cancel"})
        message = "the answer was not read as fast as it was written"
        queue.put_nowait({"error": {"code": "too_slow", "message": message}})

    def send(self, message: Message) -> None:
        """Something to the worker, if there is one."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(ConnectionError, RuntimeError):
                self.process.stdin.write(packed(message))

    def check(self) -> None:
        """Whether one more can be taken in."""
        if self.closing:
            raise RefusedError(
                503, "shutting_down", "the service is about to end", "ask another", 2
            )
        if not self.ready:
            message = "the model is restarting"
            if self.facts is None:
                message = "the model is being loaded"
            elif self.failed:
                message = "the model's run folder cannot be read any more; the log says why"
            raise RefusedError(503, "model_unavailable", message, "ask again in a moment", 2)
        if len(self.jobs) >= self.limits.queue:
            message = f"{self.limits.queue} requests are waiting already"
            raise RefusedError(429, "too_many_requests", message, "ask again in a moment", 1)

    async def ask(
        self, do: str, seconds: float | None = None, **fields: Any
    ) -> AsyncGenerator[Message]:
        """Hand in a job; what the worker says about it, the last message with `done` in it."""
        self.check()
        limit = min(seconds or self.limits.seconds, self.limits.seconds)
        deadline = asyncio.get_running_loop().time() + limit
        number, queue, finished = next(self.numbers), asyncio.Queue[Message](), False
        self.jobs[number] = queue
        try:
            self.send({"id": number, "do": do, **fields})
            while not finished:
                try:
                    async with asyncio.timeout_at(deadline):
                        message = await queue.get()
                except TimeoutError:
                    told = f"there was no answer within {limit:g} seconds"
                    if seconds is not None and seconds > limit:
                        told += f", which is all that this service allows, and not {seconds:g}"
                    hint = "ask for less, or later"
                    raise RefusedError(504, "timeout", told, hint) from None
                finished = "done" in message or "error" in message
                if "error" in message:
                    raise _refused(message["error"])
                yield message
        finally:
            self.jobs.pop(number, None)
            if not finished:
                self.send({"id": number, "do": "cancel"})

    async def close(self) -> None:
        """End the worker. Those who still wait are told so."""
        self.closing = True
        message = "the service ended before it could answer"
        self.fail_all({"code": "shutting_down", "message": message})
        if self.process is not None:
            if self.process.stdin is not None:
                self.process.stdin.close()
            await _end(self.process, _LAST_BREATH if self.ready else 0)


async def _end(process: asyncio.subprocess.Process, patience: float = 1.0) -> int:
    """Wait for a process to end by itself, and make it end if it does not; its exit code.

    To kill one that has just ended would take its exit code away from who is waiting for it.
    """
    with suppress(TimeoutError):
        return await asyncio.wait_for(process.wait(), patience)
    with suppress(ProcessLookupError):
        process.kill()
    return await process.wait()


_STATUS = {
    "invalid_request": 400,
    "too_slow": 408,
    "trace_expired": 410,
    "too_long": 413,
    "internal": 500,
    "worker_died": 503,
    "shutting_down": 503,
}
_HINTS = {410: "trace the text again", 413: "ask for less at a time", 503: "ask again in a moment"}


def _refused(error: Message) -> RefusedError:
    """What a worker says is wrong, as the client is told it."""
    status = _STATUS[error["code"]]
    hint = _HINTS.get(status, "")
    return RefusedError(status, error["code"], error["message"], hint, 2 if status == 503 else 0)


def _assert_pipe(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    """A pipe that was asked for is there."""
    if stream is None:
        raise RuntimeError("the worker has no standard output")
    return stream


async def wait_for_all(desks: Iterable[WorkerClient]) -> None:
    """Until every model is ready, or has failed."""
    for desk in desks:
        await desk.started.wait()
