"""What is refused, and how: without a model, as no refused request may ever reach one."""

import asyncio
import base64
import gzip
import json
import re
import zlib
from functools import cache

import httpx
import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from limelight.errors import UserError
from limelight.serve.app import application
from limelight.serve.docs_pages import reference
from limelight.serve.errors import RefusedError, error_body
from limelight.serve.limits import Limits, limits_with
from limelight.serve.metrics import Metrics
from limelight.serve.middleware import json_response
from limelight.serve.model_registry import ModelRegistry, ServedModel
from limelight.serve.schemas.trace import TraceToken
from limelight.serve.server import check_allowlists, named
from limelight.serve.static import POLICY
from limelight.serve.trace_token import LARGEST, LONGEST, name_of, token_of
from limelight.serve.worker_client import WorkerClient

KEY = "a key of some length"
LEAKS = re.compile(r"Traceback|File \"|/[a-z]+/[a-z]+/|0x[0-9a-f]{6,}|site-packages|\.py\b")


class NoWorker(WorkerClient):
    """A model that nobody may reach."""

    def __init__(self, limits, metrics):
        super().__init__("model", "nowhere", limits, metrics)
        self.ready, self.reached = True, 0
        abilities = ["write", "translate", "chat", "embed", "fill", "classify", "score"]
        self.facts = {"abilities": abilities}

    async def stream(self, *_, **__):
        self.reached += 1
        yield {"done": {}}


class Front:
    """The application in this process."""

    def __init__(self, **options):
        self.limits, self.metrics = Limits(), Metrics()
        self.worker = NoWorker(self.limits, self.metrics)
        model = ServedModel("model", "nowhere", [self.worker], self.limits, self.metrics)
        registry = ModelRegistry({"model": model}, self.limits, self.metrics)
        self.app = application(registry, **options)

    def send(self, method, path, **options):
        async def send():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                return await client.request(method, path, **options)

        response = asyncio.run(send())
        if response.status_code >= 400 and method != "HEAD":
            assert response.headers["content-type"] == "application/json"
            error = response.json()["error"]
            assert set(error) == {"code", "message", "hint", "type", "param"}
            assert not LEAKS.search(response.text)
        return response

    def raw(self, method, path):
        """The status of a request whose path nobody has tidied up."""
        sent = []

        async def send(event):
            sent.append(event)

        bodies = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive():
            return bodies.pop() if bodies else await asyncio.Event().wait()

        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
        scope |= {"headers": headers, "query_string": b"", "scheme": "http", "root_path": ""}
        asyncio.run(self.app(scope, receive, send))
        return sent[0]["status"]

    def post(self, path="/v1/completions", body=None, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        own = {"content-type": "application/json", **headers}
        return self.send("POST", path, content=content, headers=own)


@cache
def front_with(**options):
    return Front(**options)


@pytest.fixture
def front():
    front_with().worker.reached = 0
    return front_with()


def all_routes():
    """Every route there is, those of included routers too."""
    top = Front().app.app.app.routes
    routes = [r for each in top for r in getattr(each, "original_router", Group(each)).routes]
    return sorted((method, route.path) for route in routes for method in route.methods)


class Group:
    """A route as a router of one."""

    def __init__(self, route):
        self.routes = [route]


ROUTES = all_routes()


def test_the_route_table_is_the_one_we_know():
    paths = {path for _, path in ROUTES}
    assert {"/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/embeddings"} < paths
    ours = ("model", "translate", "suggest", "fill", "classify", "score", "neighbours", "runs")
    inside = ("trace", "teacher", "next", "vocabulary", "example", "search")
    assert {f"/api/{name}" for name in (*ours, *inside)} < paths
    parts = ("tensor/{name}", "focus", "thumbs", "logits", "token", "stop/{name}")
    assert {f"/api/trace/{{trace}}/{part}" for part in parts} < paths
    assert {"/healthz", "/readyz", "/metrics", "/about", "/docs", "/openapi.json"} < paths
    assert {"/", "/page/{path:path}"} < paths
    assert {"/v1/images/generations", "/api/draw", "/api/draw/patch"} < paths
    assert {"/api/ask", "/api/paraphrase", "/api/summarise"} < paths
    whole = ("heads", "html", "map", "animation")
    assert {f"/api/trace/{{trace}}/{part}" for part in whole} < paths
    assert "/api/runs/{name}/steps" in paths
    assert len(paths) == 45


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_but_health_and_the_page_needs_the_key(method, path):
    front = front_with(key=KEY)
    path = path.replace("{name}", "model").replace("{trace}", name_of(TraceToken(text="a")))
    path = path.replace("{path:path}", "js/app.js")
    wrong = ("", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", KEY, "Bearer " + "x" * 1000)
    statuses = {
        front.send(method, path, headers={"authorization": value} if value else {}).status_code
        for value in wrong
    }
    if path in ("/healthz", "/readyz", "/", "/page/js/app.js"):
        assert statuses == {200}
        return
    assert statuses == {401}
    right = front.send(method, path, headers={"authorization": f"Bearer {KEY}"})
    assert right.status_code not in (401, 403)
    odd = [f"/{path}", path + "/", path.replace("/", "/./"), path + "?a=b", path + " "]
    for other in (*odd, "/healthz/..", "/healthz/../v1/models", "/healthz;/v1/models", "//healthz"):
        for how in (method, "HEAD", "OPTIONS"):
            assert front.raw(how, other) == 401


def test_the_page_needs_no_key_but_nothing_that_is_not_a_file_of_it_is_open():
    front = front_with(key=KEY)
    for path in ("/page/", "/page/nothing.js", "/page/../api/runs", "/page/__init__.py", "/page"):
        assert front.raw("GET", path) == 401
    assert front.raw("GET", "/page/js/app.js/") == 401
    assert front.raw("GET", "//page/js/app.js") == 401
    other = front.send("GET", "/page/js/app.js", headers={"host": "evil.example"})
    assert other.status_code == 403  # the page is open, and still only for those who mean us


def test_files_of_the_page_come_as_what_they_are(front):
    kinds = {
        "/": "text/html",
        "/page/js/app.js": "text/javascript",
        "/page/css/app.css": "text/css",
    }
    for path, kind in kinds.items():
        first = front.send("GET", path)
        assert first.headers["content-type"] == f"{kind}; charset=utf-8"
        assert first.headers["content-security-policy"] == POLICY
        assert first.headers["cache-control"] == "no-cache"
        assert first.headers["x-content-type-options"] == "nosniff"
        assert first.headers["content-encoding"] == "gzip"
        plain = front.send("GET", path, headers={"accept-encoding": "identity"})
        assert plain.content == first.content  # httpx has unpacked it
        again = front.send("GET", path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        stale = front.send("GET", path, headers={"if-none-match": '"another"'})
        assert stale.status_code == 200
    for path in ("/page/__init__.py", "/page/%2e%2e/py.typed", "/page/", "/page/js/tabs"):
        assert front.send("GET", path).status_code == 404


HOSTILE_IDS = [
    "x", "-", "_" * 100, "A" * LONGEST, "..", "%00", "e30", "bnVsbA", "eJw",
    base64.urlsafe_b64encode(zlib.compress(b"[" * 100_000)).decode().rstrip("="),
    base64.urlsafe_b64encode(zlib.compress(b'{"text":"a"}') + b"more").decode().rstrip("="),
    base64.urlsafe_b64encode(zlib.compress(b'{"text":"a"}')[:-3]).decode().rstrip("="),
    base64.urlsafe_b64encode(zlib.compress(b'{"text":"' + b"a" * 2 * LARGEST)).decode().rstrip("="),
    *(
        base64.urlsafe_b64encode(zlib.compress(json.dumps(told).encode())).decode().rstrip("=")
        for told in (
            {}, [], None, {"text": 1}, {"text": "a", "beam": 10**9}, {"text": "a", "more": 1},
            {"text": "a", "temperature": "1"}, {"text": "a", "print": "../"}, {"model": "x" * 65},
            {"text": "a", "max_tokens": 0}, {"text": "a", "path": "/etc/passwd"},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("accepted", ["gzip, br", "identity", ""])
@pytest.mark.parametrize("path", ["/api/translate", "/v1/embeddings"])
@pytest.mark.parametrize("size", [100, 100_000])
def test_only_large_answers_to_the_page_are_compressed(path, size, accepted):
    content = json.dumps({"text": "a" * size}).encode()
    scope = {"type": "http", "path": path, "headers": [(b"accept-encoding", accepted.encode())]}
    response = asyncio.run(json_response(content, scope))
    compressed = path.startswith("/api") and size > 4096 and "gzip" in accepted
    assert (response.headers.get("content-encoding") == "gzip") == compressed
    body = gzip.decompress(response.body) if compressed else response.body
    assert body == content
    assert len(response.body) == int(response.headers["content-length"])
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("host", "scheme", "address"),
    [
        ("localhost:8000", None, "http://localhost:8000"),
        ("walks.example", None, "http://walks.example"),
        ("walks.example", "https", "https://walks.example"),
        ("walks.example:8443", "https", "https://walks.example:8443"),
    ],
)
def test_the_preview_picture_has_the_address_that_the_page_was_asked_for_at(host, scheme, address):
    front = Front(hosts=["walks.example"])
    front.app = ProxyHeadersMiddleware(front.app)  # as uvicorn runs it: who is here may say so
    told = {"host": host, **({"x-forwarded-proto": scheme} if scheme else {})}
    page = front.send("GET", "/", headers=told)
    assert f'<meta property="og:image" content="{address}/page/preview.png">' in page.text
    assert front.send("GET", "/page/preview.png", headers=told).status_code == 200
    same = front.send("GET", "/", headers={**told, "if-none-match": page.headers["etag"]})
    assert same.status_code == 304
    plain = front.send("GET", "/", headers={**told, "accept-encoding": "identity"})
    assert plain.text == page.text


def test_the_scheme_that_a_stranger_names_is_not_believed():
    front = Front()
    front.app = ProxyHeadersMiddleware(front.app, trusted_hosts="10.0.0.1")
    page = front.send("GET", "/", headers={"x-forwarded-proto": "https"})
    assert 'content="http://localhost/page/preview.png"' in page.text


@pytest.mark.parametrize("name", HOSTILE_IDS, ids=lambda name: name[:20])
def test_what_names_no_trace_is_refused_before_anything_is_done(front, name):
    for part in ("thumbs", "tensor/logits", "stop/mask", "logits?row=0", "token?row=0"):
        response = front.send("GET", f"/api/trace/{name}/{part}")
        assert response.status_code in (404, 422), (name, part)
    assert front.worker.reached == 0


def test_a_trace_of_a_model_that_is_not_here_is_refused(front):
    name = name_of(TraceToken(text="a", model="../model"))
    assert front.send("GET", f"/api/trace/{name}/thumbs").status_code == 404
    long = name_of(TraceToken(text="a", max_tokens=5000))
    assert front.send("GET", f"/api/trace/{long}/thumbs").status_code == 413
    assert front.worker.reached == 0


def test_a_name_says_again_what_it_was_made_of():
    asked = {"text": "ä\x00\u202e🍌" * 50, "target": "b", "mode": "beam", "beam": 3, "seed": 2**40}
    token = TraceToken(**asked, temperature=0.7, tag="de", model="m", print="0123456789abcdef")
    assert token_of(name_of(token)) == token
    assert re.fullmatch("[A-Za-z0-9_-]+", name_of(token))
    with pytest.raises(RefusedError, match="too long"):
        name_of(TraceToken(text="".join(map(chr, range(0x4E00, 0x4E00 + 9000)))))


@pytest.mark.parametrize(
    "question",
    ["tensor/logits?head=0", "tensor/logits?head=x", "tensor/logits?rows=1", "tensor/logits?as=f64",
     "tensor/logits?rows=-1:2", "tensor/logits?rows=1:99999999", "logits", "logits?row=-1",
     "focus", "focus?at=", "focus?at=a&head=0", "token?side=middle&row=0", "token?row=1e9",
     "stop/mask?layer=0", "stop/mask?word=", "stop/mask?head=10001", "stop/mask?source=-1",
     "tensor/" + "x" * 101, "logits?row=" + "9" * 500],
)  # fmt: skip
def test_questions_about_a_trace_have_bounds(front, question):
    response = front.send("GET", f"/api/trace/{name_of(TraceToken(text='a'))}/{question}")
    assert response.status_code == 422
    assert front.worker.reached == 0


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"mode": "greedy", "beam": 3}, "beam: should be 1 with the mode greedy, and is 3"),
        (
            {"mode": "greedy", "temperature": 0.5},
            "temperature: should be 0 with the mode greedy, and is 0.5",
        ),
        ({"mode": "beam", "beam": 1}, "beam: should be 2 or more with the mode beam, and is 1"),
        (
            {"mode": "beam", "temperature": 0.9},
            "temperature: should be 0 with the mode beam, and is 0.9",
        ),
        ({"mode": "sample", "beam": 4}, "beam: should be 1 with the mode sample, and is 4"),
        (
            {"mode": "sample", "temperature": 0},
            "temperature: should be above 0 with the mode sample, and is 0",
        ),
    ],
    ids=str,
)
def test_a_mode_and_a_setting_that_contradict_each_other_are_refused(front, asked, sentence):
    response = front.post("/api/trace", {"text": "a", **asked})
    assert response.status_code == 422
    assert response.json()["error"]["message"] == sentence
    named = name_of(TraceToken(text="a", **asked))
    assert front.send("GET", f"/api/trace/{named}/thumbs").status_code == 422
    assert front.worker.reached == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"mode": "greedy", "beam": 1, "temperature": 0},
        {"mode": "beam", "beam": 2, "temperature": 0},
        {"mode": "sample", "beam": 1, "temperature": 0.1},
        {"beam": 3},
    ],
    ids=str,
)
def test_a_mode_and_a_setting_that_agree_are_not(front, asked):
    """The control: the model is reached, though this one has nothing to tell."""
    front.raw("GET", f"/api/trace/{name_of(TraceToken(text='a', **asked))}/thumbs")
    assert front.worker.reached == 1


def test_a_key_given_twice_is_none():
    both = [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")]
    assert Front(key=KEY).send("GET", "/v1/models", headers=both).status_code == 400


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil@localhost", "",
     "localhost:80:80", "0.0.0.0", "127.0.0.2", "[::1].evil", "localhost:8000@evil", "LOCALHOST."],
)  # fmt: skip
def test_other_hosts_are_refused(front, host):
    response = front.send("GET", "/v1/models", headers={"host": host})
    assert response.status_code == 403
    assert front.send("GET", "/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:1", "127.0.0.1:8000", "[::1]:9", "me.org"]
)
def test_own_hosts_are_not(host):
    front = Front(hosts=["me.org"])
    assert front.send("GET", "/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://localhost", "http://localhost:1", "file://",
     "http://localhost.evil.example", "http://evil/localhost", "chrome-extension://x"],
)  # fmt: skip
def test_pages_of_other_origins_are_refused(front, origin):
    response = front.post(body={"prompt": "a"}, origin=origin)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    assert front.worker.reached == 0


def test_pages_of_our_own_and_of_those_named_are_not():
    front = Front(origins=["https://friend.example"])
    for origin in ("http://localhost", "https://friend.example"):
        assert front.send("GET", "/v1/models", headers={"origin": origin}).status_code == 200


@pytest.mark.parametrize("host", ["http://x", "example.com:80", "x/", "*.example.com", "a b", ""])
def test_a_host_that_nobody_could_send_is_told(host):
    with pytest.raises(UserError, match=r"--allowed-hosts .*: give a name such as example.com"):
        check_allowlists([host], [])


@pytest.mark.parametrize("origin", ["foo", "example.com", "https://x/", "https://x/y", "*", ""])
def test_an_origin_that_nobody_could_send_is_told(origin):
    with pytest.raises(
        UserError, match=r"--allowed-origins .*: give an address such as https://example.com"
    ):
        check_allowlists([], [origin])


@pytest.mark.parametrize(
    "site", ["null", "*", "example.com", "ftp://x", "https://x/y", "https://x; img-src *"]
)
def test_a_site_that_no_policy_can_name_is_told(site):
    with pytest.raises(UserError, match=r"invalid --embed-from .*: give an address such as"):
        check_allowlists([], [], [site])


def test_only_named_sites_can_show_the_page_in_a_frame():
    sites = ["https://blog.example", "http://localhost:3"]
    check_allowlists([], [], sites)
    front = Front(frames=sites)
    policy = front.send("GET", "/").headers["content-security-policy"]
    assert "frame-ancestors https://blog.example http://localhost:3" in policy
    assert policy.partition("frame-ancestors")[0] == POLICY.partition("frame-ancestors")[0]
    answer = front.send("GET", "/v1/models").headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer  # only the page, no answer of the API


def test_hosts_and_origins_that_can_be_sent_are_taken():
    hosts, origins = (
        ["api.Example.com", "10.0.0.7", "[fe80::1]"],
        ["https://x.org", "http://[::1]:3"],
    )
    check_allowlists(hosts, [*origins, "null"])
    front = Front(hosts=hosts, origins=origins)
    for host in hosts:
        sent = {"host": f"{host.lower()}:8000"}
        assert front.send("GET", "/v1/models", headers=sent).status_code == 200
    for origin in origins:
        assert front.send("GET", "/v1/models", headers={"origin": origin}).status_code == 200


@pytest.mark.parametrize(
    ("named", "sent"),
    [
        ("https://x.org:443", "https://x.org"),
        ("http://X.org:80", "http://x.org"),
        ("https://x.org:80", "https://x.org:80"),
        ("https://x.org:8443", "https://x.org:8443"),
    ],
)
def test_the_usual_port_is_left_out_as_browsers_do(named, sent):
    check_allowlists([], [named])
    front = Front(origins=[named])
    assert front.send("GET", "/v1/models", headers={"origin": sent}).status_code == 200
    other = sent.replace("https", "ftp")
    assert front.send("GET", "/v1/models", headers={"origin": f"{other}:1"}).status_code == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data", "json"]
)
def test_only_json_is_read(front, kind):
    response = front.post(body={"prompt": "a"}, **{"content-type": kind})
    assert response.status_code == 415
    assert front.worker.reached == 0


def test_a_compressed_body_is_refused(front):
    assert front.post(body={"prompt": "a"}, **{"content-encoding": "gzip"}).status_code == 415


NESTED = [b"[" * 2_900, b'{"a":' * 2_900, b"[" * 2_900 + b"]" * 2_900]
BROKEN = [
    b"", b"{", b"nul", b"\xff\xfe", b"\x00", b'{"prompt": "a", "prompt": "b"}', b'{"prompt": NaN}',
    b'{"prompt":"a","temperature":Infinity}', b'{"n":' + b"9" * 5000 + b"}", b"{'prompt': 'a'}",
    b'{"prompt":"a",}', *NESTED,
]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body[:20]))
def test_what_is_no_json_is_refused(front, body):
    assert front.post(body=body).status_code == 400
    assert front.worker.reached == 0


NUMBERS = ("n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "beam", "logprobs",
           "repetition_penalty", "timeout")  # fmt: skip
WRONG = ("1", True, [1], {}, -1, 2**63, 10**400, 1e308, -1e308, "NaN", "\x00")


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_bounds(front, name):
    for value in WRONG:
        response = front.post(body={"prompt": "a", name: value})
        assert response.status_code in (400, 422), (name, value)
        assert response.json()["error"]["code"] in ("invalid_field", "invalid_json")
    assert front.post(body=f'{{"prompt":"a","{name}":1e309}}'.encode()).status_code in (400, 422)
    assert front.worker.reached == 0


@pytest.mark.parametrize(
    "change",
    [{"prompt": 1}, {"prompt": []}, {"prompt": ["a"] * 65}, {"prompt": [[1, 2]]}, {"prompt": None},
     {"prompt": "\ud800"}, {"stop": "x" * 201}, {"stop": ["a"] * 5}, {"stop": ""}, {"user": 5},
     {"model": "x" * 65}, {"unknown": 1}, {"stream": "yes"}, {"engine": {"depth": 1}},
     {"file": "/etc/passwd"}, {"url": "http://localhost/"}, {"stream_options": {"x": 1}},
     {"frequency_penalty": 0.5}, {"echo": True}],
    ids=str,
)  # fmt: skip
def test_every_field_has_bounds(front, change):
    response = front.post(body={"prompt": "a", **change})
    assert response.status_code == 422
    assert front.worker.reached == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"stop": ["a"] * 6}, "stop: should have 4 entries at most"),
        ({"stop": ["a", ""]}, "stop.1: should have 1 or more characters"),
        ({"stop": ""}, "stop: should have 1 or more characters"),
        ({"stop": 5}, "stop: should be text or a list"),
        ({"prompt": []}, "prompt: should have 1 or more entries"),
        ({"prompt": ["a", 3]}, "prompt.1: should be text"),
        ({"n": "3"}, "n: should be a whole number"),
        ({"n": 99, "zz": 1}, "n: should be 16 at most"),
        ({"temperature": -1}, "temperature: should be 0 or more"),
        ({"top_p": 0}, "top_p: should be above 0"),
        ({"stream": "yes"}, "stream: should be true or false"),
        ({"presence_penalty": 0.5}, "presence_penalty: only 0 is possible: see repetition_penalty"),
        (
            {"frequency_penalty": -1},
            "frequency_penalty: only 0 is possible: see repetition_penalty",
        ),
        ({"echo": True}, "echo: should be false"),
        ({"prompt": {}}, "prompt: should be text or a list"),
        ({"stream_options": {"x": 1}}, "stream_options.x: there is no such field"),
        ({"a-b": 1}, "a-b: there is no such field"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_field_is_one_true_sentence(front, change, sentence):
    response = front.post(body={"prompt": "a", **change})
    assert response.status_code == 422
    assert response.json()["error"]["message"] == sentence


def test_the_likeliest_tokens_are_told_only_with_logprobs(front):
    asked = {"messages": [{"role": "user", "content": "a"}]}
    for more in ({}, {"logprobs": False}, {"logprobs": None}):
        response = front.post("/v1/chat/completions", {**asked, "top_logprobs": 2, **more})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (422, "invalid_field")
        assert error["message"] == "top_logprobs: there are none without logprobs"
    assert front.worker.reached == 0
    for more in ({"top_logprobs": 0}, {"top_logprobs": 2, "logprobs": True}):  # the control
        front.post("/v1/chat/completions", {**asked, **more})
    assert front.worker.reached == 2


@pytest.mark.parametrize(
    ("method", "path", "body", "sentence"),
    [
        ("POST", "/v1/completions", b"{}", "prompt: this is missing"),
        ("POST", "/v1/completions", b"[1]", "the body: should be an object"),
        ("POST", "/v1/completions", b'"x"', "the body: should be an object"),
        ("POST", "/v1/chat/completions",
         b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}',
         "messages.0.content.0.type: should be 'text'"),
        ("GET", "/api/runs/model/metrics?after=x", b"", "after: should be a whole number"),
        ("GET", "/api/trace/abc/logits", b"", "row: this is missing"),
        ("POST", "/v1/completions", b'{"prompt": "a", "temperature": 1e999}',
         "temperature: should be a finite number"),
        ("POST", "/v1/completions", b'{"prompt": "a", "timeout": -1e999}',
         "timeout: should be a finite number"),
        ("GET", f"/api/runs/model/metrics?after={'9' * 5000}", b"", "after: is too large"),
    ],
)  # fmt: skip
def test_so_it_is_wherever_it_stands(front, method, path, body, sentence):
    headers = {"content-type": "application/json"} if body else {}
    response = front.send(method, path, content=body, headers=headers)
    assert response.status_code == 422
    assert response.json()["error"]["message"] == sentence


NAMES = [
    "../model", "..", "model/../model", "/etc/passwd", "model\x00", "%2e%2e", "..\\model", "C:\\",
    "model.", " model", "MODEL", "m\u2215odel", "\uff0e\uff0e/", "file:///etc", "~", "$HOME",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_looked_up_in_a_list_and_nowhere_else(front, name):
    assert front.post(body={"prompt": "a", "model": name}).status_code == 404
    assert front.raw("GET", f"/api/runs/{name}/metrics") == 404
    assert front.raw("GET", f"/v1/models/{name}") == 404
    for path in ("/api/model", "/api/vocabulary", "/api/example"):
        assert front.send("GET", path, params={"model": name}).status_code == 404


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/api/model?name=model", "there is model"),
        ("/api/vocabulary?modell=model", "there is model"),
        ("/api/runs?model=model", "leave it out"),
        ("/api/trace/abc/tensor/logits?kind=u8", "there is head, rows, as"),
    ],
)
def test_what_an_address_asks_and_its_route_does_not_know_is_refused(front, path, hint):
    response = front.send("GET", path)
    name = path.partition("?")[2].partition("=")[0]
    assert response.status_code == 422
    assert response.json()["error"]["message"] == f"{name}: there is no such parameter"
    assert response.json()["error"]["hint"] == hint
    assert front.worker.reached == 0


def test_limits_of_texts_hold_before_anything_is_done(front):
    long = "x" * (front.limits.characters + 1)
    assert front.post(body={"prompt": long}).status_code == 413
    assert front.post(body={"prompt": ["a"] * 33, "n": 2}).status_code == 413
    assert front.post(body={"prompt": "a", "max_tokens": 5000}).status_code == 413
    assert front.post(body=b'"' + b"x" * 2**20 + b'"').status_code == 413
    assert front.post("/api/translate", {"text": long}).status_code == 413
    assert front.worker.reached == 0


def test_ways_and_places_that_are_not_there(front):
    assert front.send("GET", "/v1/completions").status_code == 405
    assert front.send("DELETE", "/v1/models").status_code == 405
    for path in ("/nothing", "/v1", "/v1/", "//", "/static/../x", "/v1/models/", "/docs/oauth2"):
        assert front.raw("GET", path) == 404


def test_limits_can_be_changed_within_reason():
    assert limits_with(["limits.queue=5", "limits.body-seconds=2"]).queue == 5
    for change in (
        "limits.queue=0",
        "limits.que=1",
        "queue=1",
        "limits.queue=many",
        "limits.body=",
    ):
        with pytest.raises(UserError):
            limits_with([change])


def test_a_folder_that_is_no_run_is_told_at_once(tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        named([str(tmp_path)])


def test_all_responses_are_declared():
    schema = Front().app.app.app.openapi()
    for path, methods in schema["paths"].items():
        for told in methods.values():
            assert {"200", "401", "403", "422"} <= set(told["responses"]), path


def test_the_reference_tells_all_that_an_error_has():
    told = reference({"paths": {}})
    has = json.loads(error_body(RefusedError(400, "wrong", "no")))["error"]
    assert [name for name in has if not re.search(rf"\b{name}\b", told)] == []
