"""How many answers a service gives, and how soon, to 1, 8 and 64 clients at once on a CPU.

    python benchmarks/serving.py [--seconds 20] [--beam 1] [--json serving.json]

Model S (3 + 3 layers, 256, 1024, 4 heads, vocabulary 8,000) with random weights; sources of 10 to
30 tokens, 20 tokens for each: a bias keeps the end token away. What 64 clients get is compared with
the same requests decoded one at a time in Python, without HTTP. Service and model have one thread
each; the clients are a process of their own.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded

import httpx

ROOT = Path(__file__).parent.parent
CLIENTS = (1, 8, 64)
TOKENS = 20
S = {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, "max_len": 128}


def make_run(folder: Path, sizes: dict[str, int]) -> None:
    """A run folder of an encoder-decoder, as if it had been trained."""
    import torch

    from limelight.data.config import DataConfig
    from limelight.data.tokenizer import Tokenizer, TokenizerConfig
    from limelight.model import build, model_config
    from limelight.recipe import Recipe, write_recipe
    from limelight.run.atomic import commit
    from limelight.run.folder import RunFolder
    from limelight.training.checkpoint import WEIGHTS, write_tensors

    dice = random.Random(1)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(9000)]
    tokenizer = Tokenizer.train("word", (" " + " ".join(words) for _ in range(2)), 8000)
    config = model_config(family="encoder-decoder", vocab=len(tokenizer), **sizes)
    torch.manual_seed(1)
    model = build(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
            if name.endswith("norm.weight"):
                parameter.mul_(torch.randn_like(parameter).sign())
        model.classifier.bias[: len(tokenizer.special)] = -1e9
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    recipe = Recipe(folder.name, config, DataConfig(), TokenizerConfig(kind="word", vocab=8000))
    tokenizer.save(run.tokenizer)
    run.write_recipe(write_recipe(recipe))
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    commit(run.finished / "step-000001", lambda to: write_tensors(to / WEIGHTS, weights))
    run.begin(recipe.name)


def sources(folder: Path, count: int, lengths: tuple[int, int] = (10, 30)) -> list[str]:
    """Texts of so many tokens, with the end token."""
    from limelight.data.tokenizer import Tokenizer

    tokenizer, dice = Tokenizer.load(folder / "tokenizer.json"), random.Random(2)
    known = range(tokenizer.first_text_id + 256, len(tokenizer))
    drawn = (dice.choices(known, k=dice.randint(*lengths) - 1) for _ in range(count))
    return [tokenizer.decode(tokens).strip() for tokens in drawn]


def one_at_a_time(folder: Path, texts: list[str], beam: int, seconds: float) -> float:
    """Answers per second of a Python program that asks for one after the other."""
    import limelight

    loaded = limelight.load(folder)
    loaded.translate(texts[0], beam=beam, max_tokens=TOKENS)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        loaded.translate(texts[done % len(texts)], beam=beam, max_tokens=TOKENS)
        done += 1
    return done / (time.perf_counter() - began)


def ask(url: str, texts: list[str], clients: int, beam: int, seconds: float) -> list[float]:
    """How long each answer took, for so many clients that ask again and again.

    They write HTTP by hand: a library would take longer than the service.
    """
    took: list[float] = []
    host, port = url.removeprefix("http://").split(":")

    async def client(number: int, end: float) -> None:
        dice = random.Random(number)
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.perf_counter() < end:
            began = time.perf_counter()
            asked = {"text": dice.choice(texts), "beam": beam, "max_tokens": TOKENS}
            body = json.dumps(asked).encode()
            head = f"POST /api/translate HTTP/1.1\r\nhost: {host}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            told = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(told.split(b"content-length: ")[1].split(b"\r\n")[0])
            answer = await reader.readexactly(length)
            if b" 200 " not in told.split(b"\r\n")[0]:
                raise RuntimeError(answer.decode())
            took.append(time.perf_counter() - began)
        writer.close()

    async def everybody() -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(client(number, end) for number in range(clients)))

    asyncio.run(everybody())
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers here, too")
    given = parser.parse_args()
    facts = {
        "date": str(date.today()),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "seconds": given.seconds,
        "beam": given.beam,
    }
    print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model-s"
        make_run(folder, S)
        texts = sources(folder, 256)
        alone = one_at_a_time(folder, texts, given.beam, given.seconds)
        print(f"one at a time, in Python: {alone:.1f} answers/s, beam {given.beam}", flush=True)
        with serving(folder) as (url, pid):
            cases = {n: measure(url, texts, n, given, alone, pid) for n in CLIENTS}
        if given.json:
            told = {**facts, "one_at_a_time": alone, "cases": cases}
            given.json.write_text(json.dumps(told, indent=1))
        rates = [case["rate"] for case in cases.values()]
        for before, rate in pairwise(rates):
            assert rate >= 0.8 * before, "more clients must not make the whole slower"


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """A service with this model: where it listens, and the number of its process."""
    url = f"http://127.0.0.1:{(port := free())}"
    command = [sys.executable, "-m", "limelight", "serve", str(folder), f"--port={port}"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as service:
        try:
            wait_for(url)
            yield url, service.pid
        finally:
            service.terminate()


def measure(
    url: str, texts: list[str], clients: int, given: argparse.Namespace, alone: float, service: int
) -> dict[str, float]:
    """So many clients: what they get, and what it costs the service and the model's process."""
    (worker,) = Path(f"/proc/{service}/task/{service}/children").read_text(encoding="utf-8").split()
    before = [seconds_of(pid) for pid in (service, worker)]
    took = ask(url, texts, clients, given.beam, given.seconds)
    spent = [seconds_of(pid) - was for pid, was in zip((service, worker), before, strict=True)]
    cuts = statistics.quantiles(took, n=100)
    case = {
        "rate": len(took) / given.seconds,
        "times_one_at_a_time": len(took) / given.seconds / alone,
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "service_cpu_ms": spent[0] / len(took) * 1e3,
        "worker_cpu_ms": spent[1] / len(took) * 1e3,
    }
    print(f"{clients:3} clients: {case['rate']:6.1f} answers/s, ", end="")
    print(f"{case['times_one_at_a_time']:.2f} times as many as one at a time; ", end="")
    print(
        f"half within {case['p50_ms']:.0f} ms, 99 of 100 within {case['p99_ms']:.0f} ms; ", end=""
    )
    print(f"each takes {case['service_cpu_ms']:.1f} ms of the service's processor and ", end="")
    print(f"{case['worker_cpu_ms']:.1f} ms of the model's", flush=True)
    return case


def free() -> int:
    """A port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def seconds_of(pid: int | str) -> float:
    """Processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(url: str) -> None:
    """Until the model can be asked."""
    while True:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
