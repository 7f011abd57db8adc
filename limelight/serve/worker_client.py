"""The service's side of a worker process: starts it, sends it jobs, and restarts it when it dies.

A job is a number and a queue of the worker's messages about it. Numbers are never reused, so a
message can only reach the request that it belongs to.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from limelight.serve import logs
from limelight.serve.errors import RefusedError
from limelight.serve.ipc import ErrorPayload, Message, packed, receive_from
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics

KEY = "LIMELIGHT_API_KEY"  # in the environment: arguments of a command are visible to all users
LOST = (
    "the model could not be loaded: its process ended before it was ready, and the log says how; "
    "is there enough memory for it?"
)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds before a dead worker is started again
_GRACE = 3.0  # seconds for a worker to end by itself
UNREAD = 4_000  # queued messages and tokens of a job; then its client reads too slowly
_STATUS = {
    "invalid_request": 400,
    "too_slow": 408,
    "trace_expired": 410,
    "too_long": 413,
    "internal": 500,
    "worker_died": 503,
    "shutting_down": 503,
}
_HINTS = {410: "trace the text again", 413: "ask for less at a time", 503: "try again in a moment"}


class _Unread(asyncio.Queue[Message]):
    """The messages about a job, and how large those are that wait: some hold many tokens."""

    size = 0

    def _put(self, message: Message) -> None:
        super()._put(message)
        self.size += 1 + len(message.get("tokens", ()))

    def _get(self) -> Message:
        message: Message = super()._get()
        self.size -= 1 + len(message.get("tokens", ()))
        return message


class WorkerClient:
    """One worker process of a model, and the jobs that wait for it."""

    def __init__(
        self,
        name: str,
        run: Path,
        limits: Limits,
        metrics: Metrics,
        device: str = "auto",
        number: int = 0,
    ) -> None:
        self.name, self.run_path, self.limits, self.metrics = name, run, limits, metrics
        self.device, self.number = device, number
        self.facts: Message | None = None  # the worker's description of the model, once loaded
        self.failed = ""  # why the last attempt to load it failed
        self.ready = self.closing = False
        self.active = 0  # sequences in its batches
        self.answered = False  # the last ping
        self.started = asyncio.Event()  # the first process is ready, or has failed
        self.jobs: dict[int, _Unread] = {}
        self.numbers = count(1)
        self.outbox = bytearray()  # messages that wait for the end of this round of the event loop
        self.process: asyncio.subprocess.Process | None = None

    async def supervise(self) -> None:
        pause = FIRST_PAUSE
        while not self.closing:
            was_ready = await self.run_worker()
            if self.facts is None:  # it never loaded, so another attempt would fail as well
                if not self.closing:
                    self.failed = self.failed or LOST
                self.started.set()
                return
            pause = FIRST_PAUSE if was_ready else min(2 * pause, LONGEST_PAUSE)
            if not self.closing:
                await asyncio.sleep(pause)

    async def run_worker(self) -> bool:
        """Run one process to its end; whether it was ever ready."""
        options: Message = {n: getattr(self.limits, n) for n in ("batch", "texts", "traced")}
        options["device"] = self.device.partition(":")[0]
        self.process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "limelight.serve.worker"),
            *(str(self.run_path), json.dumps(options)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_environment(self.device),
            start_new_session=True,  # Ctrl-C is for the service, which lets the worker finish
        )
        was_ready, watcher = False, asyncio.create_task(self.watch(process))
        try:
            if process.stdout is None:
                raise RuntimeError("the worker has no standard output")
            while (message := await receive_from(process.stdout)) is not None:
                self.on_message(message)
                was_ready = was_ready or self.ready
        except ValueError as error:
            logs.log_error(error, model=self.name)
        finally:
            watcher.cancel()
            await self.cleanup()
        return was_ready

    async def watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill a process that does not answer two pings.

        One that computes does: a thread of its own answers. One that loads is not asked. The second
        ping is for a machine that was suspended just after the first.
        """
        missed = 0
        while missed < 2:
            self.answered = not self.ready
            if self.ready:
                self.send({"op": "ping"})
            await asyncio.sleep(self.limits.worker_seconds / 2)
            missed = 0 if self.answered else missed + 1
        logs.log_event("worker_stuck", model=self.name, device=self.device)
        process.kill()

    async def cleanup(self) -> None:
        self.ready, self.active = False, 0
        process, self.process = self.process, None
        if process is not None:
            code = await _end(process)
            if not self.closing:
                self.metrics.deaths.labels(self.name).inc()
                facts = {"model": self.name, "device": self.device, "code": code}
                logs.log_event("worker_ended", **facts, jobs=len(self.jobs))
        self.fail_all("worker_died", "the model's process ended before it could answer")

    def fail_all(self, code: str, message: str) -> None:
        for queue in self.jobs.values():
            queue.put_nowait({"error": ErrorPayload(code=code, message=message)})

    def on_message(self, message: Message) -> None:
        """Handle a message of the worker; those for jobs that are gone are dropped."""
        if "pieces" in message:
            for number, text, piece, tokens in message["pieces"]:
                self.deliver(number, {"text": text, "piece": piece, "tokens": tokens})
        elif "id" in message:
            self.deliver(message["id"], message)
        elif "active" in message:
            self.active = message["active"]
        elif "pong" in message:
            self.answered = True
            self.metrics.log_dropped.inc(message["pong"])
        elif "ready" in message:
            self.facts, self.failed, self.ready = message["ready"], "", True
            if ":" in self.device:  # it sees one GPU alone and calls it the first
                self.facts = {**message["ready"], "device": self.device}
            self.started.set()
            where = {name: self.facts.get(name) for name in ("device", "precision")}
            logs.log_event("model_ready", model=self.name, **where)
        elif "failed" in message:
            self.failed = message["failed"]
            logs.log_event("model_failed", model=self.name, message=self.failed)

    def deliver(self, number: int, message: Message) -> None:
        """Queue a message for its job; a client that reads too slowly would fill the memory."""
        if (queue := self.jobs.get(number)) is None:
            return
        queue.put_nowait(message)
        if queue.size > UNREAD:
            del self.jobs[number]
            self.send({"id": number, "op": "cancel"})
            slow = "the client read more slowly than the model generated"
            queue.put_nowait({"error": ErrorPayload(code="too_slow", message=slow)})

    def send(self, message: Message) -> None:
        """Messages of one round of the event loop go out together: each write wakes the worker."""
        if not self.outbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self.outbox += packed(message)

    def flush(self) -> None:
        frames = bytes(self.outbox)
        self.outbox.clear()
        if self.process is not None and self.process.stdin is not None:
            with suppress(ConnectionError, RuntimeError):
                self.process.stdin.write(frames)

    async def stream(
        self, op: str, seconds: float | None = None, **fields: Any
    ) -> AsyncGenerator[Message]:
        """Send a job and yield the worker's messages about it; the last one has `done`."""
        limit = min(seconds or self.limits.seconds, self.limits.seconds)
        deadline = asyncio.get_running_loop().time() + limit
        number, queue, finished = next(self.numbers), _Unread(), False
        self.jobs[number] = queue
        self.metrics.jobs.labels(self.name, str(self.number)).inc()
        try:
            self.send({"id": number, "op": op, **fields})
            while not finished:
                try:
                    async with asyncio.timeout_at(deadline):
                        message = await queue.get()
                except TimeoutError:
                    late = f"there was no answer within {limit:g} seconds"
                    if seconds is not None and seconds > limit:
                        late += f", which is all that this service allows, and not {seconds:g}"
                    raise RefusedError(504, "timeout", late, self.late_hint(seconds)) from None
                finished = "done" in message or "error" in message
                if "error" in message:
                    code, why = message["error"]["code"], message["error"]["message"]
                    status = _STATUS[code]
                    hint, retry = _HINTS.get(status, ""), 2 if status == 503 else 0
                    raise RefusedError(status, code, why, hint, retry)
                yield message
        finally:
            self.jobs.pop(number, None)
            if not finished:
                self.send({"id": number, "op": "cancel"})

    def late_hint(self, seconds: float | None) -> str:
        """What helps after a timeout, as far as this process knows."""
        hints = ["ask for less"]
        if seconds is not None and seconds < self.limits.seconds:
            hints.append(f"allow a timeout of up to {self.limits.seconds:g} seconds")
        if len(self.jobs) > 1:
            hints.append(f"wait until fewer requests are open ({len(self.jobs)} are)")
        return ", or ".join(hints)

    async def close(self) -> None:
        self.closing = True
        self.fail_all("shutting_down", "the service ended before it could answer")
        if self.process is not None:
            if self.process.stdin is not None:
                self.process.stdin.close()
            await _end(self.process, _GRACE if self.ready else 0)


def _environment(device: str) -> dict[str, str]:
    """Without the key, which a worker does not need.

    A worker on cuda:N sees that GPU alone, so that none takes memory on another's.
    """
    own = {name: value for name, value in os.environ.items() if name != KEY}
    if number := device.partition(":")[2]:
        visible = own.get("CUDA_VISIBLE_DEVICES")
        own["CUDA_VISIBLE_DEVICES"] = (
            number if visible is None else ",".join(visible.split(",")[int(number) :][:1])
        )
    return own


async def _end(process: asyncio.subprocess.Process, patience: float = 1.0) -> int:
    """Wait for a process to end, then kill it; its exit code.

    Killing one that has just ended would hide its exit code from whoever waits for it.
    """
    with suppress(TimeoutError):
        return await asyncio.wait_for(process.wait(), patience)
    with suppress(ProcessLookupError):
        process.kill()
    return await process.wait()
