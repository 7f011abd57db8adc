"""The service as a process: it listens, lets its models load, and ends in good order."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from limelight.errors import UserError
from limelight.run.bundled_models import find_run
from limelight.serve import logs
from limelight.serve.app import application
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.middleware import SecurityMiddleware, error_body
from limelight.serve.model_registry import ModelRegistry
from limelight.serve.worker_client import RefusedError, WorkerClient, wait_for_all

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")  # as browsers name it, less the port
_ORIGIN = re.compile(rf"null|[A-Za-z][A-Za-z0-9+.-]*://({_HOST.pattern})(:[0-9]+)?")
_KEY = "LIMELIGHT_API_KEY"  # in the environment: what stands in a command can be seen by everybody


def serve(
    runs: Sequence[str],
    host: str,
    port: int,
    limits: Limits,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> None:
    """Until it is told to end."""
    check_port(port)
    check_allowlists(hosts, origins)
    paths = named(runs)
    key = os.environ.get(_KEY, "")
    if not _is_loopback(host) and not key:
        raise UserError(
            f"--host {host} lets other machines in: set {_KEY} in the environment, "
            "so that they need a key"
        )
    logs.install()
    listener = listen(host, port)
    asyncio.run(_Service(paths, listener, limits, key, [host, *hosts], origins).run())


def named(runs: Sequence[str]) -> dict[str, Path]:
    """Runs by their folders' names. What is no run folder is known before anything is started."""
    paths: dict[str, Path] = {}
    for run in runs:
        folder = find_run(run)
        folder.check()
        path = folder.path.resolve()
        if not _NAME.fullmatch(path.name):
            raise UserError(f"{path.name!r} is no name for a model: use letters, digits and . _ -")
        if path.name in paths:
            raise UserError(f"two runs are called {path.name!r}: rename a folder")
        paths[path.name] = path
    return paths


def check_port(port: int) -> None:
    """What is no port at all is known before anything is started."""
    if not 0 <= port <= 65535:
        raise UserError(
            f"--port {port} is none: choose one from 1 to 65535, or 0 for any that is free"
        )


def check_allowlists(hosts: Sequence[str], origins: Sequence[str]) -> None:
    """What no browser ever sends would be waited for in vain."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UserError(f"--hosts takes a name, as example.com, and not {host!r}")
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise UserError(
                f"--origins takes an address, as https://example.com, with nothing behind the "
                f"name but a port, and not {origin!r}"
            )


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host in ("localhost", "::1") or host.startswith("127.")


def listen(host: str, port: int) -> socket.socket:
    """The one port that is open."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        why = str(error.strerror or error)
        why = why.partition(" (while attempting")[0]  # the address once more
        raise UserError(
            f"cannot listen on {host} port {port}: {why}; choose another with --host or --port"
        ) from error


def _address_of(host: str, port: int) -> str:
    """Where a browser on this machine finds the page."""
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    host = anywhere.get(host, host)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Service:
    """The models, the server, and the order in which they begin and end."""

    def __init__(
        self,
        paths: dict[str, Path],
        listener: socket.socket,
        limits: Limits,
        key: str,
        hosts: Sequence[str],
        origins: Sequence[str],
    ) -> None:
        self.paths, self.listener, self.limits = paths, listener, limits
        self.key, self.hosts, self.origins = key, hosts, origins

    async def run(self) -> None:
        """All of its life."""
        counts = Metrics()
        desks = {
            name: WorkerClient(name, path, self.limits, counts) for name, path in self.paths.items()
        }
        self.house = ModelRegistry(desks, self.limits, counts)
        app = application(self.house, self.key, self.hosts, self.origins)
        self.server = _Server(self.config(app))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            if sys.platform == "win32":  # its loop knows nothing of signals
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.drain))
            else:
                loop.add_signal_handler(number, self.drain)
        keepers = [asyncio.create_task(desk.supervise()) for desk in desks.values()]
        watcher = asyncio.create_task(self.give_up_on_failure())
        host, port = self.listener.getsockname()[:2]
        page = _address_of(host, port)
        logs.log_event("listening", page=page, host=host, port=port, models=", ".join(desks))
        await self.server.serve(sockets=[self.listener])
        await asyncio.gather(*(desk.close() for desk in desks.values()))
        for task in (*keepers, watcher):
            task.cancel()
        await asyncio.gather(*keepers, watcher, return_exceptions=True)
        logs.log_event("ended")
        if failed := [desk for desk in desks.values() if desk.failed and desk.facts is None]:
            raise UserError(failed[0].failed)

    def config(self, app: SecurityMiddleware) -> uvicorn.Config:
        """The server's settings."""

        class Protocol(_TimeoutProtocol):
            limits, counts = self.limits, self.house.counts

        return uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=int(self.limits.shutdown_seconds) + 5,
            h11_max_incomplete_event_size=self.limits.header,
        )

    async def give_up_on_failure(self) -> None:
        """A model that cannot be loaded at the start is a mistake to be told at once."""
        desks = self.house.desks.values()
        waiting = [asyncio.create_task(wait_for_all([desk])) for desk in desks]
        for done in asyncio.as_completed(waiting):
            await done
            if any(desk.failed for desk in desks):
                self.server.should_exit = True
                return
        logs.log_event("ready")

    def drain(self) -> None:
        """Take nothing new in; what is being answered may finish, for a while."""
        if self.house.draining:
            return
        logs.log_event("ending")
        self.house.draining = True
        self.server.should_exit = True
        loop = asyncio.get_running_loop()
        loop.call_later(self.limits.shutdown_seconds, self.cut_off)

    def cut_off(self) -> None:
        """Whoever still waits is told that there will be no answer."""
        message = "the service ended before it could answer"
        for desk in self.house.desks.values():
            desk.fail_all({"code": "shutting_down", "message": message})


class _Server(uvicorn.Server):
    """uvicorn's, but signals are ours: to be told to end is no failure."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them as they are."""
        yield


class _TimeoutProtocol(H11Protocol):
    """A connection, with a clock for clients that send or read too slowly."""

    limits: Limits
    counts: Metrics
    clock: asyncio.TimerHandle | None = None  # until a request has begun
    reading: asyncio.TimerHandle | None = None  # until the client has taken what was sent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """One more, if there is room."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
            return
        # Or else the system waits 40 ms for more before it sends an answer's last piece.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wait_for_request()

    def data_received(self, data: bytes) -> None:
        """A part of a request; its first line and headers must come in time."""
        super().data_received(data)
        self.wait_for_request()

    def wait_for_request(self) -> None:
        """Start the clock when a request is awaited, stop it when one has come."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.clock is None:
            self.clock = self.loop.call_later(self.limits.header_seconds, self.abort)
        elif not idle and self.clock is not None:
            self.clock.cancel()
            self.clock = None

    def pause_writing(self) -> None:
        """The client does not read: it has a while to begin."""
        self.reading = self.loop.call_later(self.limits.read_seconds, self.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """It reads."""
        if self.reading is not None:
            self.reading.cancel()
            self.reading = None
        super().resume_writing()

    def abort(self) -> None:
        """Too slow."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """No clock runs for nobody."""
        for clock in (self.clock, self.reading):
            if clock is not None:
                clock.cancel()
        self.clock = self.reading = None
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP at all."""
        self.counts.requests.labels("malformed", "400").inc()
        refused = RefusedError(400, "invalid_http", "this is no HTTP that could be understood")
        body = error_body(refused)
        head = (
            f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
