"""Two replicas behind a balancer: one ends, and nothing is lost but what it was answering."""

import asyncio
import json
import re
import signal
import threading
from contextlib import ExitStack, suppress

import httpx
import pytest

from tests.serve.samples import Served, until

pytestmark = pytest.mark.system  # each replica is two processes with a core of their own

UNANSWERED = {
    "error": {
        "message": "the replica ended before it answered",
        "type": "server_error",
        "param": None,
        "code": "no_replica",
        "hint": "try again in a moment",
    }
}


class Balancer:
    """What any balancer does: replicas in turn; one that refuses a connection is passed over."""

    def __init__(self, ports):
        self.ports, self.turn = ports, 0

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        starting = asyncio.start_server(self.carry, "127.0.0.1", 0)
        self.server = asyncio.run_coroutine_threadsafe(starting, self.loop).result(10)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    async def carry(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(size[1]) if size else 0)
        writer.write(
            await self.answer(re.sub(rb"(?i)connection: [^\r]*", b"connection: close", head) + body)
        )
        await writer.drain()
        writer.close()

    async def answer(self, request):
        self.turn += 1
        first = self.turn % len(self.ports)
        for port in self.ports[first:] + self.ports[:first]:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            answer = b""
            with suppress(OSError):
                writer.write(request)
                answer = await reader.read()
            writer.close()
            if answer:
                return answer
            break
        error = json.dumps(UNANSWERED).encode()
        head = f"HTTP/1.1 503 x\r\nretry-after: 2\r\ncontent-length: {len(error)}\r\n"
        return f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode() + error


class Replica(Served):
    """A service that a test may kill."""

    def __exit__(self, *_):
        if self.process.poll() is None:
            super().__exit__()
        else:
            self.client.close()


@pytest.fixture
def replicas(run):
    with ExitStack() as stack:
        started = [stack.enter_context(Replica(run("reverse"), run("babbler"))) for _ in range(2)]
        balancer = stack.enter_context(Balancer([int(r.url.split(":")[-1]) for r in started]))
        yield started, balancer.url


LONG = ("/v1/completions", {"model": "babbler", "prompt": "the", "max_tokens": 1500})
SHORT = [
    ("/api/translate", {"model": "reverse", "text": f"{a} {b}"}) for a in "abcd" for b in "xyz"
]


def send(url, requests, when_running):
    """Send requests at the same time; call a function when all of them are being answered."""

    async def ask():
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            tasks = [asyncio.create_task(client.post(p, json=body)) for p, body in requests]
            await asyncio.to_thread(when_running)
            return await asyncio.gather(*tasks)

    return asyncio.run(ask())


def end_first(replicas, number, count):
    def end():
        open_jobs = [lambda r=r: r.number("jobs_open", model="babbler") for r in replicas]
        until(lambda: [jobs() for jobs in open_jobs] == [count, count], 30)
        replicas[0].process.send_signal(number)

    return end


def test_a_replica_that_is_killed_loses_only_what_it_was_answering(replicas):
    both, url = replicas
    answers = send(url, [LONG] * 6, end_first(both, signal.SIGKILL, 3))
    lost = [answer for answer in answers if answer.status_code != 200]
    assert len(lost) == 3
    for answer in lost:  # an error that says what to do
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert answer.json() == UNANSWERED
    again = send(url, [LONG] * 3, lambda: None)  # as the error says
    texts = {
        answer.json()["choices"][0]["text"] for answer in [*answers, *again] if answer not in lost
    }
    assert [answer.status_code for answer in again] == [200] * 3
    assert len(texts) == 1  # whichever replica answered
    for answer, (_, body) in zip(send(url, SHORT, lambda: None), SHORT, strict=True):
        assert answer.json()["text"] == body["text"][::-1]


def test_a_replica_that_is_ended_in_good_order_loses_nothing(replicas):
    both, url = replicas
    answers = send(url, [LONG] * 6, end_first(both, signal.SIGTERM, 3))
    assert [answer.status_code for answer in answers] == [200] * 6
    assert both[0].process.wait(30) == 0
    assert {answer.status_code for answer in send(url, SHORT, lambda: None)} == {200}
    both[1].process.send_signal(signal.SIGTERM)  # the control: without any replica nobody answers
    assert both[1].process.wait(30) == 0
    assert {answer.status_code for answer in send(url, SHORT, lambda: None)} == {503}
