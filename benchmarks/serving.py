"""The service against bare decoding: tokens per second, latency, and what batching changes.

    python benchmarks/serving.py [--device auto] [--quick] [--seconds 20] [--beam 1] [--json FILE]

On a GPU the model is the paper's base model, and every answer has 128 tokens; on a CPU it is model
S (3 + 3 layers, 256, 1024, 4 heads, vocabulary 8,000), and every answer has 20. Weights are random,
and a bias keeps the end token away, so that answers have their full length. Bare decoding is the
same requests as one batch in Python, in the same run. Clients are a process of their own, and write
HTTP by hand; service and model have one CPU thread each.
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
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
SERVE = """
import sys
from limelight.serve.limits import Limits
from limelight.serve.server import serve

serve([sys.argv[2]], "127.0.0.1", int(sys.argv[3]), Limits(), device=sys.argv[1])
"""


@dataclass(frozen=True)
class Case:
    """A model, and the length of its answers."""

    name: str
    vocab: int
    sizes: dict[str, int]
    tokens: int


TINY = Case("tiny", 500, {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2, "max_len": 160}, 128)
S = Case("S", 8000, {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, "max_len": 128}, 20)
BASE = Case(
    "base", 32000, {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "max_len": 256}, 128
)


def make_run(folder: Path, case: Case) -> None:
    """A run folder of an encoder-decoder, as if it had been trained."""
    import torch

    from limelight.data.config import DataConfig
    from limelight.data.tokenizer import Tokenizer, TokenizerConfig
    from limelight.decode.config import DecodeConfig
    from limelight.model import build, model_config
    from limelight.recipe import Recipe, write_recipe
    from limelight.run.atomic import commit
    from limelight.run.folder import RunFolder
    from limelight.run.weights import WEIGHTS, write_tensors

    dice = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(dice.choices(letters, k=5)) for _ in range(case.vocab + 1000)]
    tokenizer = Tokenizer.train("word", (" " + " ".join(words) for _ in range(2)), case.vocab)
    config = model_config(family="encoder-decoder", vocab=len(tokenizer), **case.sizes)
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
    kind = TokenizerConfig(kind="word", vocab=case.vocab)
    decode = DecodeConfig(max_extra_tokens=case.tokens)  # the limit is relative to the source
    recipe = Recipe(folder.name, config, DataConfig(), kind, decode=decode)
    tokenizer.save(run.tokenizer)
    run.write_recipe(write_recipe(recipe))
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    commit(run.finished / "step-000001", lambda to: write_tensors(to / WEIGHTS, weights))
    run.begin(recipe.name)


def sources(folder: Path, count: int, lengths: tuple[int, int] = (10, 30)) -> list[str]:
    """Texts of this many tokens, the end token included."""
    from limelight.data.tokenizer import Tokenizer

    tokenizer, dice = Tokenizer.load(folder / "tokenizer.json"), random.Random(2)
    known = range(tokenizer.first_text_id + 256, len(tokenizer))
    drawn = (dice.choices(known, k=dice.randint(*lengths) - 1) for _ in range(count))
    return [tokenizer.decode(tokens).strip() for tokens in drawn]


class Bare:
    """The model in this process, without a service."""

    def __init__(self, folder: Path, texts: list[str], tokens: int, given: argparse.Namespace):
        import limelight
        from limelight.tasks.translate import Constraints, requests_for

        self.loaded = limelight.load(folder).to(given.device)
        self.seconds, self.tokens = given.seconds, tokens
        self.config = replace(self.loaded.decode, beam=given.beam, max_tokens=tokens)
        parts = [requests_for(self.loaded, text, self.config, Constraints()) for text in texts]
        self.requests = [part for (part,) in parts]

    def generate(self, first: int, count: int) -> list[list[int]]:
        """Tokens of some answers, from one batch."""
        chosen = self.requests[first : first + count]
        found = self.loaded.engine.generate(chosen, self.config)
        answers = [best.tokens for best, *_ in found]
        if any(len(tokens) != self.tokens for tokens in answers):
            raise RuntimeError("an answer ended early")
        return answers

    def batch_rate(self, rows: int) -> float:
        """Tokens per second of whole batches, after the first two."""
        self.generate(0, rows)
        self.generate(0, rows)
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < self.seconds / 2 or done < 3:
            self.generate(0, rows)
            done += 1
        return done * rows * self.tokens / (time.perf_counter() - began)

    def milliseconds(self) -> float:
        """Median time of an answer alone."""
        took, end = [], time.perf_counter() + self.seconds / 2
        while time.perf_counter() < end or len(took) < 5:
            began = time.perf_counter()
            self.generate(len(took) % len(self.requests), 1)
            took.append(time.perf_counter() - began)
        return statistics.median(took) * 1e3

    def same_in_a_batch(self, rows: int) -> float:
        """Share of answers that are the same alone and among others."""
        together = self.generate(0, rows)
        return statistics.mean(self.generate(i, 1)[0] == together[i] for i in range(rows))

    def described(self) -> dict[str, str]:
        """Where it runs."""
        weight = next(self.loaded.model.parameters())
        kind = str(weight.dtype).removeprefix("torch.")
        from limelight.device import describe

        return {"device": describe(weight.device), "precision": kind}


def ask(url: str, texts: list[str], clients: int, beam: int, tokens: int, seconds: float) -> Any:
    """How long each answer took, for clients that ask again and again, and the time in all."""
    took: list[float] = []
    host, port = url.removeprefix("http://").split(":")

    async def client(number: int, end: float) -> None:
        dice = random.Random(number)
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.perf_counter() < end:
            began = time.perf_counter()
            fields = {"text": dice.choice(texts), "beam": beam, "max_tokens": tokens}
            body = json.dumps(fields).encode()
            head = f"POST /api/translate HTTP/1.1\r\nhost: {host}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            start = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(start.split(b"content-length: ")[1].split(b"\r\n")[0])
            answer = await reader.readexactly(length)
            if b" 200 " not in start.split(b"\r\n")[0]:
                raise RuntimeError(answer.decode())
            took.append(time.perf_counter() - began)
        writer.close()

    async def everybody() -> float:
        began = time.perf_counter()
        end = began + seconds
        await asyncio.gather(*(client(number, end) for number in range(clients)))
        return time.perf_counter() - began

    lasted = asyncio.run(everybody())
    return took, lasted


@contextmanager
def serving(folder: Path, device: str) -> Iterator[tuple[str, int]]:
    """A service with this model: its address, and its process id."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", SERVE, device, str(folder), str(port)]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, cwd=ROOT, stderr=log) as service,
    ):
        try:
            while not is_ready(url):
                if service.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(log.read().decode()[-2000:])
                time.sleep(0.2)
            yield url, service.pid
        except Exception:
            log.seek(0)
            print(log.read().decode()[-4000:], file=sys.stderr)
            raise
        finally:
            service.terminate()


def is_ready(url: str) -> bool:
    """Whether the model can be asked."""
    try:
        with urllib.request.urlopen(f"{url}/readyz") as response:
            return bool(response.status == 200)
    except OSError:
        return False


def measure(
    url: str, pid: int, texts: list[str], clients: int, tokens: int, given: argparse.Namespace
) -> dict[str, float]:
    """What this many clients get, and CPU time of the service and of the model's process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    ask(url, texts, clients, given.beam, tokens, given.seconds / 10)  # until everything is warm
    before = [cpu_seconds(each) for each in (pid, *children)]
    took, lasted = ask(url, texts, clients, given.beam, tokens, given.seconds)
    spent = [cpu_seconds(p) - was for p, was in zip((pid, *children), before, strict=True)]
    return {
        "answers": len(took) / lasted,
        "tokens": len(took) * tokens / lasted,
        "p50_ms": statistics.median(took) * 1e3,
        "p99_ms": sorted(took)[int(0.99 * (len(took) - 1))] * 1e3,
        "service_cpu_ms": spent[0] / len(took) * 1e3,
        "worker_cpu_ms": sum(spent[1:]) / len(took) * 1e3,
    }


def cpu_seconds(pid: int | str) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(folder: Path, case: Case, given: argparse.Namespace) -> dict[str, Any]:
    """Bare decoding and the service, one after the other."""
    make_run(folder / case.name, case)
    texts = sources(folder / case.name, 64)
    bare = Bare(folder / case.name, texts, case.tokens, given)
    found: dict[str, Any] = {"model": case.name, "tokens": case.tokens, **bare.described()}
    found["bare"] = {"batch": bare.batch_rate(64), "alone_ms": bare.milliseconds()}
    found["same"] = bare.same_in_a_batch(64)
    del bare
    with serving(folder / case.name, given.device) as (url, pid):
        for clients in (1, 8, 64):
            found[clients] = measure(url, pid, texts, clients, case.tokens, given)
    make_run(folder / "empty", replace(TINY, name="empty"))
    with serving(folder / "empty", given.device) as (url, pid):
        found["empty"] = measure(url, pid, sources(folder / "empty", 64), 64, 1, given)
    return found


def shown(found: dict[str, Any]) -> str:
    """A table in Markdown."""
    bare, one, all_64 = found["bare"], found[1], found[64]
    rows = [
        ("bare decoding, one batch of 64", f"{bare['batch']:,.0f} tokens/s"),
        ("service, 64 clients", f"{all_64['tokens']:,.0f} tokens/s"),
        ("service / bare (goal: 0.60 or more)", f"{all_64['tokens'] / bare['batch']:.2f}"),
        ("service, 8 clients", f"{found[8]['tokens']:,.0f} tokens/s"),
        ("64 clients: answers; p50, p99", f"{all_64['answers']:.1f}/s; {all_64['p50_ms']:.0f} ms, "
         f"{all_64['p99_ms']:.0f} ms"),
        ("one answer in Python", f"{bare['alone_ms']:.1f} ms"),
        ("one client: p50, p99", f"{one['p50_ms']:.1f} ms, {one['p99_ms']:.1f} ms"),
        ("one client / Python (goal: 1.5 or less)", f"{one['p50_ms'] / bare['alone_ms']:.2f}"),
        ("CPU per answer, service and worker", f"{all_64['service_cpu_ms']:.2f} ms, "
         f"{all_64['worker_cpu_ms']:.2f} ms"),
        ("empty model, one token, 64 clients", f"{found['empty']['answers']:,.0f} requests/s"),
        (f"same answer alone and in a batch of 64, {found['precision']}", f"{found['same']:.0%}"),
    ]  # fmt: skip
    title = f"Serving model {found['model']} on {found['device']}, {found['precision']}, "
    title += f"{found['tokens']} tokens per answer"
    lines = [title, "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="a tiny model, for two seconds")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers here, too")
    given = parser.parse_args()
    import torch

    from limelight.device import choose_device

    given.seconds = 2 if given.quick else given.seconds
    on_cpu = choose_device(given.device).type == "cpu"
    case = TINY if given.quick else S if on_cpu else BASE
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
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder), case, given)
    print(f"\n{shown(found)}", flush=True)
    if given.json:
        given.json.write_text(json.dumps({**facts, **found}, indent=1), encoding="utf-8")
    if found[64]["answers"] < 0.8 * found[1]["answers"]:
        raise RuntimeError("more clients must not make the service slower")


if __name__ == "__main__":
    main()
