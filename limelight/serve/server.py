"""The service as a process: listens, starts its workers, and shuts down gracefully."""

import asyncio
import gc
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from limelight.errors import UserError
from limelight.run.bundled_models import runs_by_name
from limelight.serve import logs
from limelight.serve.app import application
from limelight.serve.connection import BoundedProtocol
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.middleware import SecurityMiddleware
from limelight.serve.model_registry import ModelRegistry, ServedModel
from limelight.serve.worker_client import KEY, WorkerClient

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")  # as browsers send it, without the port
_ORIGIN = re.compile(rf"null|[A-Za-z][A-Za-z0-9+.-]*://({_HOST.pattern})(:[0-9]+)?")
_SITE = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?")  # what a policy of frames can name
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")
_COUNT_GPUS = "import torch; print(torch.cuda.device_count())"


def serve(
    runs: Sequence[str],
    host: str,
    port: int,
    limits: Limits,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    device: str = "auto",
    frames: Sequence[str] = (),
) -> None:
    """Serve runs until a signal ends the process.

    `device` may list several, separated by commas: each model then has a worker on each of them.
    """
    check_port(port)
    check_allowlists(hosts, origins, frames)
    paths, devices = named(runs), devices_of(device)
    given = os.environ.get(KEY, "")
    key = given.strip()
    if given and not key:
        raise UserError(f"{KEY} is blank: set it to a key that clients must send, or unset it")
    loopback = host in ("localhost", "::1") or host.startswith("127.")
    if not loopback and not key:
        raise UserError(
            f"--host {host} is reachable from other machines: set {KEY} in the environment "
            "to a key that clients must send"
        )
    logs.install()
    listener = listen(host, port)
    registry = _registry(paths, devices, limits)
    app = application(registry, key, [host, *hosts], origins, frames)
    try:
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:  # uvloop's, if it is there
            runner.run(_Service(registry, app, listener).run())
    finally:
        logs.flush()


def _registry(paths: Mapping[str, Path], devices: Sequence[str], limits: Limits) -> ModelRegistry:
    models, metrics = dict[str, ServedModel](), Metrics()
    for name, path in paths.items():
        workers = [
            WorkerClient(name, path, limits, metrics, device, number)
            for number, device in enumerate(devices)
        ]
        models[name] = ServedModel(name, path, workers, limits, metrics)
    return ModelRegistry(models, limits, metrics)


def named(runs: Sequence[str]) -> dict[str, Path]:
    """Paths of runs by their folders' names; each must be a run folder."""
    folders = runs_by_name(runs)
    for name, folder in folders.items():
        folder.check()
        if not _NAME.fullmatch(name):
            raise UserError(f"invalid model name {name!r}: use letters, digits and . _ -")
    return {name: folder.path.resolve() for name, folder in folders.items()}


def devices_of(names: str) -> list[str]:
    """The devices to start workers on: those listed; for auto, all GPUs if there are several.

    A process of its own counts GPUs, as this one never imports torch; and only where several may
    be, as that takes seconds.
    """
    devices = [name.strip() for name in names.split(",")]
    for device in devices:
        if not _DEVICE.fullmatch(device):
            raise UserError(
                f"invalid --device {device!r}: use auto, cpu, cuda, cuda:N or mps, "
                "or several, separated by commas"
            )
    windows = sys.platform == "win32"
    if devices == ["auto"] and (windows or len(list(Path("/dev").glob("nvidia[0-9]*"))) > 1):
        command = [sys.executable, "-c", _COUNT_GPUS]
        counted = subprocess.run(command, capture_output=True, text=True, check=False)
        count = int(counted.stdout) if counted.stdout.strip().isdigit() else 0
        return [f"cuda:{i}" for i in range(count)] if count > 1 else devices
    return devices


def check_port(port: int) -> None:
    """Reject numbers that are not ports."""
    if not 0 <= port <= 65535:
        raise UserError(f"invalid --port {port}: use 1-65535, or 0 for any free port")


def check_allowlists(
    hosts: Sequence[str], origins: Sequence[str], frames: Sequence[str] = ()
) -> None:
    """Reject hosts and origins that no browser would ever send."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UserError(f"invalid --allowed-hosts {host!r}: give a name such as example.com")
    named = [("allowed-origins", origin, _ORIGIN) for origin in origins]
    named += [("embed-from", frame, _SITE) for frame in frames]
    for option, origin, form in named:
        if not form.fullmatch(origin):
            raise UserError(
                f"invalid --{option} {origin!r}: give an address such as "
                "https://example.com, with nothing after the name but a port"
            )


def listen(host: str, port: int) -> socket.socket:
    """The listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        why = str(error.strerror or error)
        why = why.partition(" (while attempting")[0]  # which repeats the address
        raise UserError(
            f"cannot listen on {host} port {port}: {why}; choose another with --host or --port"
        ) from error


class _Service:
    def __init__(
        self, registry: ModelRegistry, app: SecurityMiddleware, listener: socket.socket
    ) -> None:
        self.registry, self.listener, self.limits = registry, listener, registry.limits
        self.workers = [worker for model in registry.models.values() for worker in model.workers]
        self.server = _Server(_config(app, registry))

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            if sys.platform == "win32":  # its loop has no signal handlers
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.drain))
            else:
                loop.add_signal_handler(number, self.drain)
        keepers = [asyncio.create_task(worker.supervise()) for worker in self.workers]
        watcher = asyncio.create_task(self.give_up_on_failure())
        host, port = self.listener.getsockname()[:2]
        browsable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        page = f"http://[{browsable}]:{port}/" if ":" in host else f"http://{browsable}:{port}/"
        models = ", ".join(self.registry.models)
        logs.log_event("listening", page=page, host=host, port=port, models=models)
        await self.server.serve(sockets=[self.listener])
        await asyncio.gather(*(worker.close() for worker in self.workers))
        for task in (*keepers, watcher):
            task.cancel()
        await asyncio.gather(*keepers, watcher, return_exceptions=True)
        logs.log_event("ended")
        if failed := [worker for worker in self.workers if worker.failed and not worker.facts]:
            raise UserError(failed[0].failed)

    async def give_up_on_failure(self) -> None:
        waiting = [asyncio.create_task(worker.started.wait()) for worker in self.workers]
        for started in asyncio.as_completed(waiting):
            await started
            if any(worker.failed for worker in self.workers):
                self.server.should_exit = True
                return
        gc.freeze()  # libraries and routes stay: a collection need not visit them
        logs.log_event("ready")

    def drain(self) -> None:
        if self.registry.draining:
            return
        logs.log_event("ending")
        self.registry.draining = True
        self.server.should_exit = True
        loop = asyncio.get_running_loop()
        loop.call_later(self.limits.shutdown_seconds, self.cut_off)

    def cut_off(self) -> None:
        for worker in self.workers:
            worker.fail_all("shutting_down", "the service ended before it could answer")


def _config(app: SecurityMiddleware, registry: ModelRegistry) -> uvicorn.Config:
    class Protocol(BoundedProtocol):
        limits, metrics = registry.limits, registry.metrics

    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Longer than clients keep theirs (httpx, and so openai: 5 s): none uses a closed one
        timeout_keep_alive=math.ceil(registry.limits.header_seconds),
        timeout_graceful_shutdown=int(registry.limits.shutdown_seconds) + 5,
    )


class _Server(uvicorn.Server):
    """uvicorn's, without its signal handlers, which would exit with a failure."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
