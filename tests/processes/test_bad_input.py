"""Requests that cannot be served, and odd ways to send good ones: one clear answer, and nothing lost."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.processes.asking import (
    CHAT,
    COMPLETIONS,
    Reply,
    arrival,
    ask,
    counted,
    fault,
    metric,
    of,
    quiet,
    reply,
    waits,
)
from tests.processes.fleet import becomes
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY_BYTES_MAX = 2_000_000
CONTEXT_TOKENS = 4096
GOOD = json.dumps(chat("good")).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


@dataclass(frozen=True)
class Stage:
    """One gateway, one llama.cpp with a single slot."""

    gateway: Gateway
    engine: Engine

    async def works(self) -> None:
        """The next request is served."""
        answer = await ask(self.gateway, GOOD)
        assert answer.head.status == 200, answer
        assert answer.events[-1].done

    async def invalid(self) -> float:
        """How many requests were counted as invalid."""
        return await metric(self.gateway, "slotgate_requests_total", outcome="invalid")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Stage]:
    """The processes, for all tests of this module."""
    async with engine("llamacpp", context_tokens=CONTEXT_TOKENS, tokens=3, decode_tps=500.0) as one:
        backends = [{"name": "one", "url": one.url}]
        server = {"body_bytes_max": BODY_BYTES_MAX}
        async with gateway({"backends": backends, "server": server}) as front:
            await becomes(front, "one", "ready", 30.0)
            yield Stage(front, one)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: Stage) -> AsyncIterator[Stage]:
    """An engine that counts from here; after the test the gateway serves as before."""
    await quiet(running.gateway)
    await running.engine.idle()
    await running.engine.reset()
    yield running
    await running.works()


# -- bodies

MESSAGES = b'"messages":[{"role":"user","content":"x"}]'


def good(more: bytes) -> bytes:
    """A body with something more in it."""
    return b'{"model":"fake-model",%b,%b}' % (MESSAGES, more)


BODIES: list[tuple[str, bytes, str, str]] = [
    ("empty", b"", "invalid_json", "ended early"),
    ("blank", b" \n ", "invalid_json", "ended early"),
    ("words", b"hello", "invalid_json", "not JSON"),
    ("cut", GOOD[:-9], "invalid_json", "ended early"),
    ("cut in a string", GOOD[:30], "invalid_json", "ended early"),
    ("more behind it", GOOD + b"{}", "invalid_json", "not JSON"),
    ("NaN", good(b'"temperature":NaN'), "invalid_json", "NaN"),
    ("Infinity", good(b'"temperature":-Infinity'), "invalid_json", "Infinity"),
    ("a comma too many", good(b'"a":[1,]'), "invalid_json", "not JSON"),
    ("single quotes", b"{'model':'fake-model'}", "invalid_json", "not JSON"),
    ("not UTF-8", good(b'"user":"\xff"'), "invalid_json", "UTF-8"),
    ("compressed", b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "invalid_json", "UTF-8"),
    ("deep", good(b'"a":' + b"[" * 100_000 + b"]" * 100_000), "invalid_json", "too deeply"),
    ("deep, never closed", good(b'"a":' + b'{"a":' * 100_000), "invalid_json", ""),
    ("a number of 10,000 digits", good(b'"seed":' + b"9" * 10_000), "invalid_json", "digits"),
    ("a list", b"[1]", "invalid_request", "object"),
    ("a string", b'"x"', "invalid_request", "object"),
    ("null", b"null", "invalid_request", "object"),
    ("nothing in it", b"{}", "invalid_request", "model"),
    ("no model", b"{%b}" % MESSAGES, "invalid_request", "model"),
    ("a number as model", b'{"model":1,%b}' % MESSAGES, "invalid_request", "model"),
    ("no messages", b'{"model":"fake-model"}', "invalid_request", "messages"),
    ("empty messages", b'{"model":"fake-model","messages":[]}', "invalid_request", "messages"),
    ("messages that are none", b'{"model":"fake-model","messages":"hi"}', "invalid_request", "messages"),
    ("stream that is none", good(b'"stream":"yes"'), "invalid_request", "stream"),
    ("a key twice", good(b'"model":"other"'), "invalid_request", "twice"),
]


@pytest.mark.parametrize(
    ("body", "code", "words"), [case[1:] for case in BODIES], ids=[case[0] for case in BODIES]
)
async def test_a_body_that_is_no_request(stage: Stage, body: bytes, code: str, words: str) -> None:
    """400 at once with a sentence that names the fault; the connection serves the next request."""
    before = await stage.invalid()
    async with await RawClient.connect(stage.gateway.url) as client:
        length = [("Content-Length", "0")] * (not body)
        await client.send("POST", CHAT, body, [("Content-Type", "application/json"), *length])
        answer = await reply(client)
        error = fault(answer, 400, code)
        assert words in error["message"]
        assert len(error["message"]) < 300
        assert error["type"] == "invalid_request_error"
        assert answer.head.headers["x-request-id"]
        assert "connection" not in answer.head.headers
        await client.post(CHAT, GOOD)
        assert (await reply(client)).events[-1].done
    assert await stage.invalid() == before + 1


async def test_a_prompt_is_missing(stage: Stage) -> None:
    """As messages are on the other route."""
    error = fault(
        await ask(stage.gateway, b'{"model":"fake-model"}', path=COMPLETIONS), 400, "invalid_request"
    )
    assert error["param"] == "prompt"


@pytest.mark.parametrize(
    "more",
    [
        b'"seed":123456789012345678901234567890',
        b'"x":1e400',
        b'"max_tokens":1e3',
        b'"max_tokens":-1',
        b'"max_tokens":999999999999999999',
        b'"a":' + b"[" * 400 + b"]" * 400,
        b'"user":"\\ud800"',
        b'"":0, "\\u0000":1',
        b'"stream":null,"tools":null',
    ],
    ids=lambda more: more[:40].decode(),
)
async def test_what_is_the_engines_business_is_left_to_it(stage: Stage, more: bytes) -> None:
    """Odd values that the gateway need not understand reach the engine as they are."""
    answer = await ask(stage.gateway, good(more))
    [received] = await stage.engine.requests(5)
    assert more.rpartition(b",")[2] in received["body"]
    assert answer.head.status == 200


# -- models and paths


@pytest.mark.parametrize("model", ["gpt-4", "", "fake-model ", "x" * 5000, "a\nb\u001b[31m\U0001f600"])
async def test_an_unknown_model(stage: Stage, model: str) -> None:
    """404 that lists those that exist, and repeats no more of what was sent than a name's length."""
    before = await stage.invalid()
    answer = await ask(stage.gateway, chat("x") | {"model": model})
    if not model:
        fault(answer, 400, "invalid_request")
    else:
        error = fault(answer, 404, "model_not_found")
        assert "fake-model" in error["message"]
        assert error["param"] == "model"
        assert len(error["message"]) < 500
        assert "\n" not in error["message"]
    assert await stage.invalid() == before + 1
    exposed = (await stage.gateway.operator.get("/metrics")).text
    assert "gpt-4" not in exposed


PATHS = [
    ("GET", "/"),
    ("GET", "/api/v1/models"),
    ("GET", "/api/tags"),
    ("GET", "/v1/props"),
    ("GET", "/props"),
    ("GET", "/version"),
    ("GET", "/slots"),
    ("POST", "/v1/chat/completions/"),
    ("POST", "/chat/completions"),
    ("POST", "/v1//chat/completions"),
    ("POST", "/v1/./chat/completions"),
    ("POST", "/V1/Chat/Completions"),
    ("POST", "/v1/audio/speech"),
    ("POST", "/api/show"),
    ("GET", "/admin/backends"),
    ("POST", "/admin/backends/one/drain"),
    ("GET", "/console"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/health/"),
    ("GET", "/v1/../props"),
    ("GET", "/%2e%2e/slots"),
    ("GET", "/v1/models/%00"),
]
# Method, path, and what the path takes.
METHODS = [
    ("GET", CHAT, {"POST"}),
    ("PUT", CHAT, {"POST"}),
    ("OPTIONS", CHAT, {"POST"}),
    ("GET", "/tokenize", {"POST"}),
    ("DELETE", "/v1/models", {"GET"}),
    ("POST", "/v1/models/fake-model", {"GET"}),
    ("PATCH", "/health", {"GET", "HEAD"}),
]


async def test_an_unknown_path_is_answered_at_once(stage: Stage) -> None:
    """Also while the only slot is taken and others wait; the engine never hears of it."""
    await stage.engine.script(match="runs", token_seconds=60.0)
    async with (
        await RawClient.connect(stage.gateway.url) as first,
        await RawClient.connect(stage.gateway.url) as second,
    ):
        await first.post(CHAT, chat("runs"))
        await arrival(stage.engine, "runs")
        await second.post(CHAT, chat("waits"))
        await waits(stage.gateway)
        probes = (await stage.engine.state())["probes"]
        for method, path in PATHS:
            started = time.monotonic()
            answer = await ask(
                stage.gateway, GOOD if method in ("POST", "PUT") else b"", path=path, method=method
            )
            code = "model_not_found" if path.startswith("/v1/models/") else "not_found"
            fault(answer, 404, code)
            assert not [name for name in answer.head.headers if name.startswith("access-control")]
            assert time.monotonic() - started < 2.0, path
        for method, path, allowed in METHODS:
            answer = await ask(stage.gateway, GOOD, path=path, method=method)
            fault(answer, 405, "method_not_allowed")
            assert set(answer.head.headers["allow"].split(", ")) == allowed, path
            assert not [name for name in answer.head.headers if name.startswith("access-control")]
        for path, status in (("/health", 200), ("/ready", 200), ("/v1/models", 200), ("/metrics", 200)):
            assert (await ask(stage.gateway, b"", path=path, method="GET")).head.status == status
    state = await stage.engine.state()
    assert set(state["probes"]) <= set(probes) | {"GET /props", "GET /v1/models", "GET /metrics"}
    assert state["received"] == 1


async def test_models_are_listed_one_by_one(stage: Stage) -> None:
    """A model's own page says what the list says; another name is not found."""
    listed = json.loads((await ask(stage.gateway, b"", path="/v1/models", method="GET")).body)
    one = json.loads((await ask(stage.gateway, b"", path="/v1/models/fake-model", method="GET")).body)
    assert listed["data"] == [one]
    assert one["context_length"] == one["max_model_len"] == CONTEXT_TOKENS
    answer = await ask(stage.gateway, b"", path="/v1/models/nobody/has-it", method="GET")
    assert "fake-model" in fault(answer, 404, "model_not_found")["message"]


# -- size


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_prompt_that_fits_nowhere(stage: Stage, path: str, streams: bool) -> None:
    """400 with the limit and the engine's own count; only its tokenizer sees the prompt, since an estimate
    alone must not make an agent rewrite its conversation."""
    prompt = "word " * 20_000
    body = chat(prompt, stream=streams)
    if path == COMPLETIONS:
        body = {"model": "fake-model", "prompt": prompt, "stream": streams}
    error = fault(await ask(stage.gateway, body, path=path), 400, "context_length_exceeded")
    assert (error["n_ctx"], error["n_prompt_tokens"]) == (CONTEXT_TOKENS, 25_000)
    assert "estimated" not in error
    assert str(CONTEXT_TOKENS) in error["message"]
    assert not (await stage.engine.state())["received"]


async def test_a_prompt_near_the_limit_is_counted(stage: Stage) -> None:
    """Where the estimate cannot tell, the engine's tokenizer does: on each side by a few tokens."""
    for tokens, fits in ((CONTEXT_TOKENS - 10, True), (CONTEXT_TOKENS + 10, False)):
        answer = await ask(stage.gateway, chat("x" * 4 * tokens, max_tokens=1))
        if fits:
            assert answer.head.status == 200
        else:
            error = fault(answer, 400, "context_length_exceeded")
            assert (error["n_prompt_tokens"], error.get("estimated")) == (tokens, None)


async def send_in_pieces(client: RawClient, head: bytes, total: int, piece: bytes) -> None:
    """A body that a client goes on sending whatever it is told, as simple clients do."""
    await client.write(head)
    for _ in range(total // len(piece)):
        await client.write(piece)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/v1/unknown"])
async def test_a_body_that_is_too_large(stage: Stage, path: str, chunked: bool) -> None:
    """413 to a client that reads only after it has sent everything; the connection then closes."""
    before = await stage.invalid()
    total, data = 8 * BODY_BYTES_MAX, b"x" * 100_000
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % total
    piece = b"%x\r\n%b\r\n" % (len(data), data) if chunked else data
    async with await RawClient.connect(stage.gateway.url) as client:
        head = b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % (path.encode(), framing)
        try:
            await send_in_pieces(client, head, total, piece)
        except ConnectionError:
            pytest.fail("the gateway closed before its answer could be read")
        answer = await reply(client)
        if path == CHAT:
            error = fault(answer, 413, "body_too_large")
            assert str(BODY_BYTES_MAX) in error["message"]
            assert answer.head.headers["connection"] == "close"
            await client.closed()
            assert await stage.invalid() == before + 1
        else:
            fault(answer, 404, "not_found")


async def test_a_body_of_just_the_limit_is_read(stage: Stage) -> None:
    """The limit itself is not too large: it fits no slot, which is another error."""
    body = json.dumps(chat("")).encode()
    body = body.replace(b'"content": ""', b'"content": "%b"' % (b"x" * (BODY_BYTES_MAX - len(body))))
    assert len(body) == BODY_BYTES_MAX
    fault(await ask(stage.gateway, body), 400, "context_length_exceeded")
    fault(await ask(stage.gateway, body + b" "), 413, "body_too_large")


@pytest.mark.parametrize(
    "fields",
    [
        [("X-Many", "1")] * 101,
        [("X-Long", "x" * 65_537)],
        [(f"X-{i}", "x" * 1000) for i in range(99)],
        [("Cookie", "x" * 100_000)],
    ],
    ids=["many", "long", "all together", "cookie"],
)
async def test_too_many_headers(stage: Stage, fields: list[tuple[str, str]]) -> None:
    """431, and the connection closes."""
    before = await stage.invalid()
    answer = await ask(stage.gateway, GOOD, fields)
    fault(answer, 431, "headers_too_large")
    assert answer.head.headers["connection"] == "close"
    assert await stage.invalid() == before + 1


async def test_headers_that_never_end(stage: Stage) -> None:
    """Refused after a bounded number of bytes, not collected for ever."""
    for piece in (b"X-Field: %b\r\n" % (b"x" * 1000), b"x" * 1000):
        async with await RawClient.connect(stage.gateway.url) as client:
            await client.write(b"POST %b HTTP/1.1\r\nHost: x\r\nX-Begin: " % CHAT.encode())
            for _ in range(3000):
                try:
                    await client.write(piece)
                except ConnectionError:
                    break
            answer = await reply(client)
            fault(answer, 431, "headers_too_large")
            await client.closed()


# -- HTTP


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"CONNECT engine:80 HTTP/1.1\r\nHost: engine:80\r\n\r\n",
    ],
    ids=["no request", "two framings", "two lengths", "bad chunk", "bad header", "TLS", "CONNECT"],
)
async def test_what_is_no_http(stage: Stage, raw: bytes) -> None:
    """400 in the same form as every error, then the connection closes."""
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.write(raw)
        answer = await reply(client)
        fault(answer, 400, "invalid_request")
        assert answer.head.headers["connection"] == "close"
        await client.closed()


async def test_garbage_behind_a_request_does_not_get_into_its_answer(stage: Stage) -> None:
    """The stream is the engine's or nothing; the connection ends."""
    await stage.engine.script(token_seconds=0.1, tokens=100)
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.post(CHAT, chat("garbage"))
        await client.head()
        await client.first_token()
        await client.write(b"\x00garbage\r\n\r\n")
        seen = await client.body()
    assert b"HTTP/1.1" not in seen
    assert client.ended in ("cut", "reset")
    await stage.engine.idle(10.0)


@pytest.mark.parametrize("streams", [True, False])
async def test_an_http_1_0_client_gets_bytes_without_chunks(stage: Stage, streams: bool) -> None:
    """As nginx asks by default: the close ends the body, and events come one by one."""
    await stage.engine.script(token_seconds=0.1, tokens=4)
    body = json.dumps(chat("old", stream=streams)).encode()
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.write(
            b"POST %b HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%b"
            % (CHAT.encode(), len(body), body)
        )
        head = await client.head()
        assert "transfer-encoding" not in head.headers
        assert head.headers["connection"] == "close"
        if streams:
            events = await client.events()
            assert events[-1].done
            assert sum(bool(event.token) for event in events) == 4
            assert events[-1].at - events[0].at > 0.15
        else:
            answer = Reply(head, await client.body(), client.ended)
            assert len(answer.text.split()) == 4
        await client.closed()


async def test_other_answers_to_http_1_0(stage: Stage) -> None:
    """Errors and the small routes have a length there too."""
    for line, status in (("GET /health", 200), ("GET /nothing", 404), (f"POST {CHAT}", 400)):
        async with await RawClient.connect(stage.gateway.url) as client:
            await client.write(f"{line} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
            answer = await reply(client)
            assert (answer.head.status, answer.ended) == (status, "clean")
            assert answer.head.headers["content-length"] == str(len(answer.body))
            await client.closed()


async def test_a_client_that_waits_to_be_told_to_go_on(stage: Stage) -> None:
    """`Expect: 100-continue`, as curl sends it; what is too large is refused before it comes."""
    head = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n"
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.write(head.format(CHAT, len(GOOD)).encode())
        assert (await client.head()).status == 100
        await client.write(GOOD)
        assert (await reply(client)).events[-1].done
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.write(head.format(CHAT, BODY_BYTES_MAX + 1).encode())
        fault(await reply(client), 413, "body_too_large")


async def test_requests_one_behind_the_other(stage: Stage) -> None:
    """Pipelined on one connection: answered in order, each whole, good and bad ones mixed."""
    async with await RawClient.connect(stage.gateway.url) as client:
        for number in range(6):
            await client.post(CHAT, chat(f"pipelined {number}", stream=number % 2 == 0))
            await client.post(CHAT, b"{bad")
        for number in range(6):
            answer = await reply(client)
            assert answer.head.status == 200
            assert answer.ended == "clean"
            assert ("data:" in answer.body.decode()) == (number % 2 == 0)
            fault(await reply(client), 400, "invalid_json")
    order = [record["key"] for record in await of(stage.engine, "pipelined")]
    assert order == [f"pipelined {number}" for number in range(6)]


async def test_a_slow_body_is_waited_for(stage: Stage) -> None:
    """One byte at a time is slow, not wrong."""
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.write(POST + b"Content-Length: %d\r\n\r\n" % len(GOOD))
        for byte in GOOD:
            await client.write(bytes([byte]))
            await asyncio.sleep(0.002)
        assert (await reply(client)).events[-1].done


@pytest.mark.parametrize("sent", [0, 20])
async def test_a_client_that_leaves_while_it_sends_its_body(stage: Stage, sent: int) -> None:
    """Nothing was asked: nothing reaches the engine, and it is no fault of anybody."""
    before = await metric(stage.gateway, "slotgate_requests_total", outcome="client_gone")
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.write(POST + b"Content-Length: %d\r\n\r\n" % len(GOOD))
        await client.write(GOOD[:sent])
        await asyncio.sleep(0.1)
        client.close()
    await counted(stage.gateway, "slotgate_requests_total", before + 1, outcome="client_gone")
    assert not (await stage.engine.state())["received"]


async def test_head_is_get_without_a_body(stage: Stage) -> None:
    """As uptime checks ask; the connection stays in step."""
    async with await RawClient.connect(stage.gateway.url) as client:
        for _ in range(2):
            await client.send("HEAD", "/health")
            head = await client.head()
            assert head.status == 200
        await client.send("GET", "/health")
        assert (await reply(client)).body == b'{"status":"ok"}'


async def test_an_upgrade_is_ignored(stage: Stage) -> None:
    """A request that offers HTTP/2 or a web socket is served as it is."""
    for protocol in ("h2c", "websocket"):
        fields = [
            ("Connection", "Upgrade, HTTP2-Settings"),
            ("Upgrade", protocol),
            ("HTTP2-Settings", "AAMAAABk"),
        ]
        answer = await ask(stage.gateway, GOOD, fields)
        assert answer.head.status == 200, protocol
        assert answer.events[-1].done


async def test_many_silent_connections_disturb_nobody(stage: Stage) -> None:
    """200 that say nothing, half a request line, or half a body."""
    starts = (
        b"",
        b"POST /v1/ch",
        b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{" % CHAT.encode(),
    )
    port = int(stage.gateway.url.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    try:
        for number, one in enumerate(silent):
            one.sendall(starts[number % 3])
        for _ in range(5):
            await stage.works()
    finally:
        for one in silent:
            one.close()


async def test_nothing_that_clients_send_gets_into_the_log(stage: Stage) -> None:
    """Neither prompts nor bodies, be they good or broken, at the level that is on by default."""
    canary = "canary-4711"
    await ask(stage.gateway, chat(canary))
    for bad in (f'{{"model":"{canary}"', f'{{"model":"x","messages":"{canary}"}}', f"{canary}"):
        await ask(stage.gateway, bad.encode())
    await ask(stage.gateway, b"", path=f"/{canary}", method="GET")
    assert canary not in stage.gateway.process.errors
    assert canary not in stage.gateway.process.output
    assert canary not in (await stage.gateway.operator.get("/metrics")).text
