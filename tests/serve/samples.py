"""A service of its own for a test: started as a person starts it, and ended as a system ends it."""

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import torch

from limelight.run.atomic import commit
from limelight.run.weights import WEIGHTS, read_tensors, write_tensors

ROOT = Path(__file__).parent.parent.parent
JSON = {"content-type": "application/json"}


ON_DEVICE = """
import sys
from limelight.serve.limits import Limits
from limelight.serve.server import serve

serve(sys.argv[2:], "127.0.0.1", 0, Limits(), device=sys.argv[1])
"""


def exact(run: Path) -> Path:
    """The same run in float64, where a batch changes no choice; once for all tests."""
    copy = run.parent / "exact" / run.name
    with open(f"{run}.lock", "w") as lock:  # several processes test at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (copy / "finished").is_dir():
            shutil.copytree(run, copy, ignore=shutil.ignore_patterns("finished", "checkpoints"))
            make_exact(run, copy)
    return copy


def make_exact(run: Path, copy: Path) -> None:
    """Write a run's weights in float64 into a copy of its folder."""
    (last,) = (run / "finished").glob("step-*")

    def write(folder: Path) -> None:
        weights = read_tensors(last / WEIGHTS)
        write_tensors(folder / WEIGHTS, {n: t.to(torch.float64) for n, t in weights.items()})

    commit(copy / "finished" / last.name, write)


class Served:
    """`with Served(run) as service: service.post("/v1/completions", ...)`."""

    def __init__(self, *runs, arguments=(), key="", device="", **limits):
        options = [f"--limits.{name}={value}" for name, value in limits.items()]
        self.command = [sys.executable, "-m", "limelight", "serve", *map(str, runs), "--port=0"]
        self.command += [*options, *arguments]
        if device:
            self.command = [sys.executable, "-c", ON_DEVICE, device, *map(str, runs)]
        own = {"PYTHONPATH": str(ROOT), "LIMELIGHT_API_KEY": key, "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **own}
        self.log: list[str] = []
        self.headers = {"authorization": f"Bearer {key}"} if key else {}

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, stderr=subprocess.PIPE, text=True, env=self.environment
        )
        threading.Thread(target=self.read, daemon=True).start()
        self.wait_for("ready", 120)
        port = next(e for e in self.events() if e["event"] == "listening")["port"]
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=60, headers=self.headers)
        return self

    def __exit__(self, *_):
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(40) == 0, self.log[-5:]

    def read(self):
        for line in self.process.stderr:
            self.log.append(line)

    def events(self):
        return [json.loads(line) for line in list(self.log)]

    def wait_for(self, event, seconds):
        until(lambda: any(e["event"] == event for e in self.events()), seconds, self.process)

    def post(self, path, **body):
        return self.client.post(path, json=body)

    def ask(self, path, **body):
        """The answer, which must be one."""
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def number(self, name, **labels):
        """The sum of a metric over all its labels that agree."""
        total = 0.0
        for line in self.client.get("/metrics").text.splitlines():
            if found := re.fullmatch(rf"limelight_{name}(?:{{(.*)}})? (\S+)", line):
                told = dict(re.findall(r'(\w+)="([^"]*)"', found[1] or ""))
                if all(told.get(key) == value for key, value in labels.items()):
                    total += float(found[2])
        return total

    def worker(self):
        """The worker's process number."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in children.split()]


def memory_of(service):
    """Resident kilobytes of the service and its workers."""
    pids = [service.process.pid, *service.worker()]
    lines = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(int(text.split("VmRSS:")[1].split()[0]) for text in lines)


def until(true, seconds, process=None):
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        assert process is None or process.poll() is None, "the service has ended"
        time.sleep(0.02)


def all_at_once(service, requests, **client):
    """The responses to (path, body) pairs that are sent at the same time."""

    async def send():
        limits = httpx.Limits(max_connections=None)
        options = {"base_url": service.url, "timeout": 60, "limits": limits, **client}
        async with httpx.AsyncClient(**options) as session:
            return await asyncio.gather(*(session.post(p, json=body) for p, body in requests))

    return asyncio.run(send())
