"""Many clients, clients that leave, clients that dawdle, a worker that dies, the end of it all."""

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx
import pytest

import limelight
from limelight.serve.errors import RefusedError
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.worker_client import UNREAD, WorkerClient
from tests.serve.samples import JSON, ROOT, Served, all_at_once, exact, memory_of, until

PROMPTS = [
    f"the {animal} {verb}" for animal in ("cat", "dog", "old man") for verb in ("s", "w", "")
]
ENDS = {200, 429, 503, 504}


@pytest.fixture(scope="module")
def writer(run):
    """One model, and a queue that 200 clients overflow."""
    with Served(exact(run("writer")), queue=64, batch=32) as served:
        yield served


def asked_for(i):
    """A request by its number, each with an answer of its own."""
    settings = {"temperature": 1.5, "seed": i % 50, "max_tokens": 10 + i % 30}
    return {"model": "writer", "prompt": PROMPTS[i % len(PROMPTS)], **settings}


def answer_to(known, asked):
    settings = {name: asked[name] for name in ("temperature", "seed", "max_tokens")}
    return known["writer"].write(asked["prompt"], **settings)


async def hammer(service, clients, seconds, seen):
    """So many clients at once, who ask again and again."""
    end = time.monotonic() + seconds
    options = {"base_url": service.url, "timeout": 60}
    options["limits"] = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(**options) as session:

        async def client(number):
            dice = random.Random(number)
            while time.monotonic() < end:
                asked = asked_for(dice.randrange(10**6))
                response = await session.post("/v1/completions", json=asked)
                seen.append((asked, response))
                if response.status_code != 200:
                    await asyncio.sleep(dice.random())

        await asyncio.gather(*(client(number) for number in range(clients)))


# Looks after the health from a process of its own: 200 clients in one keep each other waiting.
DOCTOR = """
import http.client, json, sys, time
place, end, times = http.client.HTTPConnection(*sys.argv[1:3]), time.time() + float(sys.argv[3]), []
while time.time() < end:
    began = time.perf_counter()
    place.request("GET", "/healthz")
    answer = place.getresponse()
    answer.read()
    assert answer.status == 200
    times.append(time.perf_counter() - began)
    time.sleep(0.05)
print(json.dumps(times))
"""


def doctor(service, seconds):
    """Start to ask how the service is, again and again; the times that took are printed."""
    place = service.url.removeprefix("http://").split(":")
    command = [sys.executable, "-c", DOCTOR, *place, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def check_load(service, known, seconds):
    before = service.number("requests_total", route="/v1/completions")
    seen = []
    with doctor(service, seconds) as watching:
        asyncio.run(hammer(service, 200, seconds, seen))
        health = json.load(watching.stdout)
    assert watching.returncode == 0
    ends = Counter(response.status_code for _, response in seen)
    assert set(ends) <= ENDS
    assert ends[200] > 50
    known_answers = {}
    for asked, response in seen:
        if response.status_code in (429, 503):
            assert int(response.headers["retry-after"]) >= 1
        if response.status_code == 200:
            key = json.dumps(asked)
            known_answers[key] = known_answers.get(key) or answer_to(known, asked)
            assert response.json()["choices"][0]["text"] == known_answers[key]
    assert service.number("requests_total", route="/v1/completions") - before == len(seen)
    for status, count in ends.items():
        assert (
            service.number("requests_total", route="/v1/completions", status=str(status)) >= count
        )
    assert service.number("jobs_open") == 0
    # The one that asks; the one before it may end a moment after its answer has arrived.
    until(lambda: service.number("requests_open") == 1, 10)
    return ends, statistics.quantiles(health, n=100)[98]


@pytest.mark.system
def test_200_clients_are_each_answered_or_refused(writer, known, capsys):
    ends, p99 = check_load(writer, known, seconds=4)
    with capsys.disabled():  # a number to be read; the soak, alone on the machine, holds it to 0.25
        told = ", ".join(f"{count} x {status}" for status, count in sorted(ends.items()))
        print(f"\n200 clients: {told}; health p99 {p99 * 1e3:.0f} ms")


@pytest.mark.soak
def test_200_clients_for_minutes(writer, known):
    _, p99 = check_load(writer, known, seconds=300)
    assert p99 <= 0.25


def leave_midway(service, asked, bytes_read):
    """Ask for a stream, read a little of it, and go."""
    host, port = service.url.removeprefix("http://").split(":")
    body = json.dumps({**asked, "stream": True}).encode()
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}:{port}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        if bytes_read:
            connection.settimeout(20)
            connection.recv(bytes_read)


@pytest.mark.system
def test_clients_that_leave_free_their_places_and_harm_nobody(run, known):
    with Served(exact(run("writer")), queue=300) as service:
        staying = [asked_for(i) for i in range(100)]
        leaving = [{**asked_for(i), "max_tokens": 4000, "temperature": 2.0} for i in range(100)]
        reads = [0, 1, 300, 1000]
        threads = [
            threading.Thread(target=leave_midway, args=(service, asked, reads[i % 4]))
            for i, asked in enumerate(leaving)
        ]
        for thread in threads:
            thread.start()
        responses = all_at_once(service, [("/v1/completions", asked) for asked in staying])
        for thread in threads:
            thread.join()
        until(lambda: service.number("jobs_open") == 0, 1)
        until(lambda: service.number("texts_written_now") == 0, 1)
        for asked, response in zip(staying, responses, strict=True):
            assert response.json()["choices"][0]["text"] == answer_to(known, asked)
        following = [asked_for(i) for i in range(100, 200)]
        responses = all_at_once(service, [("/v1/completions", asked) for asked in following])
        for asked, response in zip(following, responses, strict=True):
            assert response.json()["choices"][0]["text"] == answer_to(known, asked)
        left = service.number("requests_total", route="/v1/completions", status="499")
        answered = service.number("requests_total", route="/v1/completions", status="200")
        assert left + answered == 300
        assert left > 20  # some texts end before their reader is gone, the more the busier it is


def conversation_with(service, raw, seconds=15):
    """What comes back for these bytes, until the service closes the connection."""
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(seconds)
        for piece in raw:
            connection.sendall(piece)
            time.sleep(0.05)
        came = b""
        while piece := connection.recv(65536):
            came += piece
        return came


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
HEAD += b"content-type: application/json\r\n"
MALFORMED = [
    b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"get / http/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nx: \x00\r\n\r\n", b"GET /\x1b[31m HTTP/1.1\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: gzip\r\n\r\n", HEAD + b"content-length: -1\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000,
]  # fmt: skip


def test_malformed_and_oversized_requests_are_refused_and_closed(service):
    for raw in MALFORMED:
        came = conversation_with(service, [raw])
        assert came.startswith(b"HTTP/1.1 4"), raw[:60]
        assert came.count(b"HTTP/1.1") == 1
    large = b"x" * 2**16
    chunk = b"%x\r\n%s\r\n" % (len(large), large)
    for raw in (
        [HEAD + b"content-length: 1000000000\r\n\r\n"],
        [HEAD + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 17],
    ):
        assert conversation_with(service, raw).startswith(b"HTTP/1.1 413")
    lying = HEAD + b'content-length: 5\r\n\r\n{"prompt": "a"}'
    assert conversation_with(service, [lying]).startswith(b"HTTP/1.1 400")


@pytest.mark.system
def test_clients_that_dawdle_are_sent_away_and_keep_nobody_waiting(run):
    limits = {"header_seconds": 1, "body_seconds": 1, "read_seconds": 1}
    with Served(run("writer"), **limits) as service:
        began = time.monotonic()
        with_patience = [
            [b""],  # says nothing at all
            [b"GET / HTTP/1.1\r\n"],  # never ends its headers
            [HEAD + b"content-length: 100\r\n\r\n{"],  # never ends its body
        ]
        done = []
        threads = [
            threading.Thread(target=lambda raw=raw: done.append(conversation_with(service, raw)))
            for raw in with_patience * 20
        ]
        for thread in threads:
            thread.start()
        for _ in range(10):
            asked = time.perf_counter()
            assert service.post("/v1/completions", prompt="the", max_tokens=5).status_code == 200
            assert time.perf_counter() - asked < 1
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < 8
        assert sum(came.startswith(b"HTTP/1.1 408") for came in done) == 20
        assert sum(came == b"" for came in done) == 40


@pytest.mark.system
def test_a_worker_that_dies_takes_only_its_requests_with_it(run, known):
    kill_workers(run, known, times=1)


@pytest.mark.soak
def test_a_worker_that_dies_twenty_times(run, known):
    kill_workers(run, known, times=20)


def kill_workers(run, known, times):
    """Under load: whoever was being answered gets 503, all others are answered right."""
    with Served(exact(run("writer")), exact(run("chat")), queue=300) as service:
        stop, seen, others = threading.Event(), [], []
        chat = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}

        def ask(path, asked, told):
            with httpx.Client(base_url=service.url, timeout=60) as client:
                while not stop.is_set():
                    told.append((asked, client.post(path, json=asked)))
                    if told[-1][1].status_code != 200:
                        time.sleep(0.1)

        threads = [
            threading.Thread(target=ask, args=("/v1/completions", asked_for(i), seen))
            for i in range(8)
        ]
        threads.append(threading.Thread(target=ask, args=("/v1/chat/completions", chat, others)))
        for thread in threads:
            thread.start()
        for _ in range(times):
            known_before = len(seen)
            until(lambda n=known_before: 200 in [r.status_code for _, r in seen[n:]], 30)
            killed = next(pid for pid in service.worker() if b"/writer" in command_of(pid))
            os.kill(killed, signal.SIGKILL)
            until(lambda: service.client.get("/readyz").status_code == 503, 2)
            until(lambda: service.client.get("/readyz").status_code == 200, 10)
        stop.set()
        for thread in threads:
            thread.join()
        assert {response.status_code for _, response in seen} == {200, 503}
        assert {response.status_code for _, response in others} == {200}
        for asked, response in seen:
            if response.status_code == 200:
                assert response.json()["choices"][0]["text"] == answer_to(known, asked)
            else:
                assert response.json()["error"]["code"] in ("worker_died", "model_unavailable")
                assert "retry-after" in response.headers
        assert service.number("worker_deaths_total") == times


def command_of(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


@pytest.mark.system
def test_told_to_end_it_ends_in_good_order(run, known):
    service = Served(exact(run("writer")))
    with service:
        asked = [{**asked_for(i), "max_tokens": 300} for i in range(30)]
        outcome = []

        def send():
            outcome.extend(all_at_once(service, [("/v1/completions", a) for a in asked]))

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: service.number("jobs_open") >= 10, 10)  # the first may be answered already
        workers = service.worker()
        service.process.send_signal(signal.SIGTERM)
        thread.join()
        assert service.process.wait(30) == 0
        statuses = {response.status_code for response in outcome}
        assert statuses <= {200, 503}
        for a, response in zip(asked, outcome, strict=True):
            if response.status_code == 200:
                assert response.json()["choices"][0]["text"] == answer_to(known, a)
        assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)
        port = int(service.url.rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)):
            pass


def ask_and_never_read(service, **asked):
    """A connection on which a stream is asked for, with next to no room for what comes."""
    host, port = service.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect((host, int(port)))
    body = json.dumps({**asked, "stream": True}).encode()
    connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    return connection


@pytest.mark.system
def test_clients_that_do_not_read_keep_nobody_waiting_and_take_no_memory(run):
    """They ask for more than fits anywhere; others are answered, and in the end they are let go."""
    babbler = limelight.load(exact(run("babbler")))  # it does not know how to end
    with Served(exact(run("babbler")), read_seconds=3, seconds=200) as service:
        asked = {"prompt": "the", "temperature": 0, "max_tokens": 4000, "n": 16, "logprobs": 5}
        before = memory_of(service)
        sockets = [ask_and_never_read(service, **asked, seed=i) for i in range(3)]
        until(lambda: service.number("jobs_open") == 3, 20)
        for seed in range(10):
            settings = {"temperature": 1.5, "seed": seed, "max_tokens": 20}
            told = service.ask("/v1/completions", prompt="a", **settings)
            assert told["choices"][0]["text"] == babbler.write("a", **settings)
        assert service.client.get("/healthz").status_code == 200
        until(lambda: service.number("jobs_open") == 0, 200)
        until(lambda: service.number("requests_open") == 1, 20)  # the one that asks
        assert memory_of(service) < before + 100_000
        for each in sockets:
            each.close()


def test_what_nobody_reads_does_not_pile_up():
    """Without a model: a worker's client ends a job that nobody reads, and only that."""

    async def check():
        client = WorkerClient("model", "nowhere", Limits(), Metrics())
        client.ready, said = True, []
        client.send = said.append
        slow, quick = client.stream("complete"), client.stream("complete")
        waiting = [asyncio.create_task(anext(job)) for job in (slow, quick)]
        await asyncio.sleep(0)
        for _ in range(UNREAD + 2):
            client.on_message({"pieces": [[1, 0, "a", []]]})
        client.on_message({"id": 2, "done": {}})
        assert await waiting[1] == {"id": 2, "done": {}}
        assert {"id": 1, "op": "cancel"} in said
        assert 1 not in client.jobs
        assert (await waiting[0])["piece"] == "a"
        for _ in range(UNREAD):
            await anext(slow)
        with pytest.raises(RefusedError, match="read more slowly"):
            await anext(slow)
        assert said.count({"id": 1, "op": "cancel"}) == 1

    asyncio.run(check())


@pytest.mark.parametrize(("tokens", "dropped"), [(0, False), (99, True)])
def test_what_nobody_reads_is_counted_in_tokens_too(tokens, dropped):
    """A message may hold many of them, each with its alternatives."""

    async def check():
        client = WorkerClient("model", "nowhere", Limits(), Metrics())
        client.ready, client.send = True, lambda message: None
        waiting = asyncio.create_task(anext(client.stream("complete")))
        await asyncio.sleep(0)
        for _ in range(UNREAD // 100 + 1):
            client.on_message({"pieces": [[1, 0, "a", [{}] * tokens]]})
        assert (1 not in client.jobs) == dropped
        assert (await waiting)["piece"] == "a"

    asyncio.run(check())


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        (1000, "within 0.05 seconds, which is all that this service allows, and not 1000"),
        (0.01, "within 0.01 seconds"),
        (None, "within 0.05 seconds"),
    ],
)
@pytest.mark.parametrize("others", [0, 2])
def test_an_answer_too_late_tells_whose_limit_it_was_and_what_helps(seconds, sentence, others):
    async def ask():
        client = WorkerClient("model", "nowhere", Limits(seconds=0.05), Metrics())
        client.ready = True
        client.jobs |= dict.fromkeys(range(-others, 0))
        await anext(client.stream("complete", seconds))

    with pytest.raises(RefusedError, match=f"there was no answer {sentence}$") as refused:
        asyncio.run(ask())
    assert (refused.value.status, refused.value.code) == (504, "timeout")
    hint = refused.value.hint
    assert hint.startswith("ask for less")
    assert ("a timeout of up to 0.05 seconds" in hint) == (seconds == 0.01)
    assert ("(3 are)" in hint) == (others > 0)


@pytest.mark.system
def test_a_run_folder_that_disappears_harms_nobody_and_is_told(run, known, tmp_path):
    gone, place = tmp_path / "writer", tmp_path / "elsewhere"
    shutil.copytree(exact(run("writer")), gone)
    with Served(gone, exact(run("chat"))) as service:
        gone.rename(place)
        told = service.ask("/v1/completions", **asked_for(1))  # the model is in memory
        assert told["choices"][0]["text"] == answer_to(known, asked_for(1))
        runs = service.client.get("/api/runs").json()["runs"]
        assert (runs[0]["name"], runs[0]["last"]) == ("writer", None)
        killed = next(pid for pid in service.worker() if b"/writer" in command_of(pid))
        os.kill(killed, signal.SIGKILL)

        def refusal():
            response = service.post("/v1/completions", **asked_for(1))
            assert response.status_code == 503
            return response.json()["error"]

        until(lambda: "run folder" in refusal()["message"], 60)
        assert str(tmp_path) not in json.dumps(refusal())
        chat = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
        assert service.post("/v1/chat/completions", **chat).status_code == 200
        failed = [event for event in service.events() if event["event"] == "model_failed"]
        assert failed[0]["model"] == "writer"
        assert "not a run folder" in failed[0]["message"] or "recipe" in failed[0]["message"]
        place.rename(gone)
        until(lambda: service.client.get("/readyz").status_code == 200, 60)
        told = service.ask("/v1/completions", **asked_for(1))
        assert told["choices"][0]["text"] == answer_to(known, asked_for(1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_while_a_model_loads_it_ends_quietly(run, number):
    command = [sys.executable, "-m", "limelight", "serve", str(run("writer")), "--port=0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    lines = [process.stderr.readline()]
    told = json.loads(lines[0])
    assert told["event"] == "listening"
    assert told["page"] == f"http://127.0.0.1:{told['port']}/"  # to click on
    time.sleep(0.3)  # by now the model's process has begun
    process.send_signal(number)
    lines += process.stderr.readlines()
    assert process.wait(30) == 0
    events = [json.loads(line)["event"] for line in lines]  # every line is one of ours
    assert events == ["listening", "ending", "ended"]


def test_a_damaged_run_is_told_at_the_start(run, programs, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(run("writer"), broken)
    for weights in broken.rglob("*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-7])
    for path, words in ((broken, "weights"), (tmp_path / "gone", "is not a run folder")):
        command = [programs / "limelight", "serve", path, "--port=0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert words in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def talk(service, people, turns):
    """Conversations at the same time, each with a secret of its own in every turn."""
    secrets = [f"s{i:03}{random.Random(i).randrange(10**6):06}" for i in range(people)]

    async def converse(session, secret):
        history, heard = [], []
        for turn in range(turns):
            said = f"my word is {secret}" if turn % 2 else f"{secret} hello"
            history.append({"role": "user", "content": said})
            settings = {"beam": 1} if turn % 3 else {"temperature": 1.0, "seed": turn}
            asked = {"model": "chat", "messages": history, "max_tokens": 12, **settings}
            response = await session.post("/v1/chat/completions", json=asked)
            heard.append(response.text)
            if response.status_code == 200:
                content = response.json()["choices"][0]["message"]["content"]
                history.append({"role": "assistant", "content": content})
        return heard

    async def everybody():
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=service.url, timeout=60, limits=limits) as session:
            return await asyncio.gather(*(converse(session, secret) for secret in secrets))

    return secrets, asyncio.run(everybody())


def check_secrets(service, people, turns):
    secrets, heard = talk(service, people, turns)
    for own, answers in zip(secrets, heard, strict=True):
        assert len(answers) == turns
        for text in answers:
            assert not any(secret in text for secret in secrets if secret != own)
    log = "".join(service.log)
    assert not any(secret in log for secret in secrets)


def test_nobody_hears_anybody_elses_secret(service):
    check_secrets(service, people=20, turns=5)


@pytest.mark.soak
def test_nobody_hears_a_secret_in_a_hundred_long_conversations(service):
    check_secrets(service, people=100, turns=20)


def test_the_log_cannot_be_forged(service):
    hostile = '\r\n{"event": "forged"}\x1b[31m\x00\u2028'
    service.post("/v1/completions", model="writer", prompt=hostile, max_tokens=1)
    service.client.post("/" + "%0d%0a%1b%5b31m", content=b"{}", headers=JSON)
    service.client.get("/healthz", headers={"user-agent": "a\x1b[31m"})
    time.sleep(0.2)
    raw = "".join(service.log)
    assert "\x1b" not in raw
    assert "\x00" not in raw
    assert all(event["event"] != "forged" for event in service.events())
