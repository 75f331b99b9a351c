"""Bytes on both sides: what an engine receives of a request, and what a client receives of an answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.processes.asking import CHAT, COMPLETIONS, Reply, ask, backend, counted, metric, quiet
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = ("openai", "llamacpp")
ENGINE_KEY = "engine-key-canary"
USAGE = b'"stream_options":{"include_usage":true},'


@dataclass(frozen=True)
class Stage:
    """One gateway with an engine of each kind; a model is named by its engine's kind."""

    gateway: Gateway
    engines: dict[str, Engine]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Stage]:
    """The processes, for all tests of this module. Only the plain engine has a key."""
    options: dict[str, Any] = {"slots": 4, "instant": True}
    async with (
        engine("openai", model=["openai"], **options) as plain,
        engine("llamacpp", model=["llamacpp"], **options) as llama,
    ):
        backends = [
            {"name": "openai", "url": f"{plain.url}/v1", "slots": 4, "api_key": ENGINE_KEY},
            {"name": "llamacpp", "url": llama.url},
        ]
        async with gateway({"backends": backends}) as one:

            async def all_ready() -> bool:
                states = (await one.operator.get("/admin/backends")).json()
                return all(state["state"] == "ready" for state in states)

            await until(all_ready, "both ready")
            yield Stage(one, {"openai": plain, "llamacpp": llama})


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: Stage) -> Stage:
    """Engines that behave and count from here."""
    await quiet(running.gateway)
    for one in running.engines.values():
        await one.idle()
        await one.reset()
    return running


def model(template: bytes, kind: str) -> bytes:
    """A body for that engine."""
    return template.replace(b"MODEL", kind.encode())


# -- to the engine

SPACED = (
    b' {\r\n\t"x_unknown" : {"b":1, "a":[1.0,1e5,-0.0, 12345678901234567890] } ,"model" :"MODEL",'
    b'"messages":[ {"content":"h\\u00e9llo \xf0\x9f\x98\x80 \\/ \xe6\x97\xa5","role":"user"} ]  ,'
    b'"temperature":0.70, "tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}],'
    b'"seed":1e3%s}\n'
)
PROMPT = b'{"prompt":"once \\n upon", "model":"MODEL"  , "logit_bias":{"50256":-100},"n":1%s}'


@dataclass(frozen=True)
class Body:
    """The end of a request body, and what the engine gets in its place."""

    tail: bytes
    edits: tuple[tuple[bytes, bytes], ...] = ()  # (what stood there, what stands there); b"{": behind it
    kind: str = "openai"


BODIES = [
    # the plain engine: a request that does not stream passes as it is
    Body(b""),
    Body(b', "stream" : false'),
    Body(b', "stream":false ,"stream_options":null'),
    # a stream: usage is asked for, unless the client did that
    Body(b', "stream" : true', ((b"{", USAGE),)),
    Body(b',"stream":true,"stream_options":null', ((b":null", b':{"include_usage":true}'),)),
    Body(
        b',"stream":true,"stream_options" : { "x":[1] }',
        ((b' { "x":[1] }', b' {"include_usage":true, "x":[1] }'),),
    ),
    Body(
        b',"stream":true,"stream_options":{"include_usage" : false, "x":1}',
        ((b'"include_usage" : false', b'"include_usage" : true'),),
    ),
    Body(b',"stream":true,"stream_options":{"x":1,"include_usage":true}'),
    # llama.cpp always streams, because only a stream can be cancelled
    Body(b"", ((b"{", b'"stream":true,' + USAGE),), "llamacpp"),
    Body(b', "stream" : false', ((b"{", USAGE), (b": false", b": true")), "llamacpp"),
    Body(b', "stream" : null', ((b"{", USAGE), (b": null", b": true")), "llamacpp"),
    Body(b', "stream" : true', ((b"{", USAGE),), "llamacpp"),
    Body(b',"stream":true,"stream_options":{"include_usage":true}', (), "llamacpp"),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("case", BODIES, ids=lambda case: f"{case.kind}{case.tail.decode()}")
async def test_the_engine_gets_the_body_but_for_the_listed_edits(stage: Stage, path: str, case: Body) -> None:
    """Unknown fields, order, spacing and escapes are the client's; nothing is serialised anew."""
    template = SPACED if path == CHAT else PROMPT
    body = model(template % case.tail, case.kind)
    expected = body
    for old, new in case.edits:
        at = expected.rindex(old) if old != b"{" else expected.index(old)
        expected = expected[:at] + (old + new if old == b"{" else new) + expected[at + len(old) :]
    answer = await ask(stage.gateway, body, path=path)
    assert answer.head.status == 200, answer.body
    [received] = await stage.engines[case.kind].requests(10)
    assert received["body"] == expected
    assert received["target"] == path


async def test_a_large_body_in_pieces_arrives_whole(stage: Stage) -> None:
    """5 MB, chunked by the client, with a mark that JSON does not allow: one body with a length."""
    text = json.dumps("\u65e5\u672c" * 400_000).encode()
    body = b'{"model":"openai","messages":[{"role":"user","content":[{"type":"text","text":%s}]}]}' % text
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for at in range(0, len(body), 70_001):
            piece = b"\xef\xbb\xbf" * (at == 0) + body[at : at + 70_001]
            await client.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await client.write(b"0\r\n\r\n")
        assert (await client.head()).status in (200, 400)
    [received] = await stage.engines["openai"].requests(10)
    assert received["body"] == body
    fields = {name.lower(): value for name, value in received["headers"]}
    assert fields["content-length"] == str(len(body))
    assert "transfer-encoding" not in fields


SENT = [
    ("Content-Type", "application/json; charset=utf-8"),
    ("Accept", "text/event-stream"),
    ("Accept-Encoding", "gzip, br"),
    ("Authorization", "Bearer client-key-canary"),
    ("X-Api-Key", "client-key-canary"),
    ("Api-Key", "client-key-canary"),
    ("Cookie", "session=client-key-canary"),
    ("Proxy-Authorization", "Basic client-key-canary"),
    ("X-Conversation-Id", "conversation-1"),
    ("X-Slotgate-Agent", "agent-1"),
    ("X-Slotgate-Priority", "batch"),
    ("X-Forwarded-For", "10.9.8.7"),
    ("Forwarded", "for=10.9.8.7"),
    ("User-Agent", "OpenAI/Python 2.24.0"),
    ("X-Stainless-Read-Timeout", "1800"),
    ("Connection", "keep-alive, X-Hop"),
    ("X-Hop", "hop"),
    ("Keep-Alive", "timeout=5"),
    ("TE", "trailers"),
    ("Trailer", "X-Sum"),
    ("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("Tracestate", "a=b"),
    ("X-Request-Id", "client-id-0001"),
]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_engine_gets_the_listed_headers_only(stage: Stage, kind: str, streams: bool) -> None:
    """Content, acceptance, ids and own framing; its own key, never the client's."""
    body = json.dumps(chat("hi", stream=streams) | {"model": kind}).encode()
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.send("POST", CHAT, body, SENT)
        assert (await client.head()).headers["x-request-id"] == "client-id-0001"
    [received] = await stage.engines[kind].requests(10)
    fields = {name.lower(): value for name, value in received["headers"]}
    assert len(fields) == len(received["headers"])
    given = {name.lower(): value for name, value in SENT}
    own = {
        "host": stage.engines[kind].url.removeprefix("http://"),
        "accept-encoding": "identity",
        "connection": "keep-alive" if kind == "openai" else "close",
        "content-length": str(len(received["body"])),
    }
    if kind == "openai":
        own["authorization"] = f"Bearer {ENGINE_KEY}"
    passed = ("content-type", "accept", "traceparent", "tracestate", "x-request-id")
    assert fields == own | {name: given[name] for name in passed}


# -- to the client: streams


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
    """One chunk of a stream, spaced unlike any serialiser's."""
    choice = json.dumps({"index": 0, "delta": delta, "finish_reason": finish}, ensure_ascii=False)
    rest = "".join(f", {json.dumps(key)} : {json.dumps(value)}" for key, value in more.items())
    return f'{{"id":"x",  "object":"chat.completion.chunk","choices":[{choice}]{rest}}}'


ROLE = chunk({"role": "assistant", "content": ""})
TOKENS = [
    chunk({"content": "\u65e5\u672c\U0001f600"}),
    chunk({"content": "two words, " * 3}),
    chunk({"reasoning_content": "\u00e9"}),
    chunk({"content": 'says "error" and "usage" and [DONE]'}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
]
FINISH = chunk({}, "stop")
USAGE_CHUNK = '{"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}'
DONE = "[DONE]"


@dataclass(frozen=True)
class Framing:
    """How an engine writes its events."""

    newline: str = "\n"
    space: str = " "
    split_bytes: int = 0

    def event(self, data: str) -> str:
        """One event, with its blank line."""
        return f"data:{self.space}{data}{self.newline * 2}"

    def comment(self, text: str) -> str:
        """One comment."""
        return f": {text}{self.newline * 2}"


FRAMINGS = [
    Framing(newline, space, split_bytes)
    for newline, space, split_bytes in itertools.product(("\n", "\r\n", "\r"), (" ", ""), (0, 1, 13))
]


async def stream(stage: Stage, raw: list[str], kind: str = "openai", **script: Any) -> Reply:
    """What a client gets of a stream of exactly these bytes; it does not ask for usage itself."""
    await stage.engines[kind].script(raw=raw, **({"token_seconds": 0.0} | script))
    return await ask(stage.gateway, chat("hi") | {"model": kind})


@pytest.mark.parametrize("framing", FRAMINGS, ids=repr)
async def test_a_stream_arrives_as_it_was_sent(stage: Stage, framing: Framing) -> None:
    """From the first token on, byte for byte, whatever its line ends and cuts, but for the usage chunk."""
    tokens = [framing.event(token) for token in TOKENS]
    before = [framing.comment("prefill 10 %"), framing.event(ROLE), framing.comment("prefill 90 %")]
    between = [tokens[0], framing.comment("still here"), *tokens[1:], framing.event(FINISH)]
    after = [framing.event(USAGE_CHUNK), framing.event(DONE)]
    answer = await stream(stage, before + between + after, split_bytes=framing.split_bytes)
    assert answer.body.decode() == "".join([framing.event(ROLE), *between, framing.event(DONE)])
    assert answer.ended == "clean"


async def test_events_in_one_write_arrive_as_they_were_sent(stage: Stage) -> None:
    """Seven at once, then one and a half, then the rest: none is joined or lost, usage alone is taken out."""
    framing = Framing()
    events = [framing.event(token) for token in (ROLE, *TOKENS, *TOKENS, FINISH, USAGE_CHUNK, DONE)]
    whole = "".join(events)
    cuts = [0, len("".join(events[:7])), len("".join(events[:8])) + 40, len(whole)]
    answer = await stream(stage, [whole[a:b] for a, b in itertools.pairwise(cuts)], token_seconds=0.05)
    assert answer.body.decode() == whole.replace(framing.event(USAGE_CHUNK), "")


async def test_an_event_of_3_megabytes_passes(stage: Stage) -> None:
    """Between two small ones, as a reasoning trace or an image comes."""
    framing = Framing()
    large = chunk({"content": "\u65e5" * 1_048_576})
    raw = [framing.event(data) for data in (ROLE, TOKENS[0], large, TOKENS[1], FINISH, DONE)]
    answer = await stream(stage, raw)
    assert answer.body.decode() == "".join(raw)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("usage", ["asked", "always", "finish", "cumulative", "never"])
@pytest.mark.parametrize("asks", [True, False])
async def test_the_usage_chunk_is_for_those_who_asked(
    stage: Stage, kind: str, usage: str, asks: bool
) -> None:
    """It is counted either way; a count on a chunk that carries more stays where it is."""
    one, name = stage.engines[kind], "slotgate_tokens_total"
    before = await metric(stage.gateway, name, backend=kind, kind="completion")
    await one.script(usage=usage, tokens=5)
    options = {"stream_options": {"include_usage": True}} if asks else {}
    answer = await ask(stage.gateway, chat("count me", **options) | {"model": kind})
    chunks = [event.json() for event in answer.events[:-1]]
    bare = [chunk for chunk in chunks if not chunk["choices"]]
    assert len(bare) == (asks and usage in ("asked", "always", "cumulative"))
    if usage == "finish":
        assert chunks[-1]["usage"]["completion_tokens"] == 5
    elif usage == "cumulative":
        assert [c["usage"]["completion_tokens"] for c in chunks if c["choices"] and "usage" in c] == [
            1,
            2,
            3,
            4,
            5,
        ]
    await quiet(stage.gateway)
    after = await metric(stage.gateway, name, backend=kind, kind="completion")
    if usage != "never" or kind == "llamacpp":
        assert after - before == 5
    else:
        assert after > before


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ([ROLE, TOKENS[0], FINISH], [ROLE, TOKENS[0], FINISH, DONE]),
        ([ROLE, TOKENS[0], FINISH, DONE, DONE], [ROLE, TOKENS[0], FINISH, DONE]),
        ([ROLE, TOKENS[0], FINISH, DONE, TOKENS[1], USAGE_CHUNK], [ROLE, TOKENS[0], FINISH, DONE]),
        ([ROLE, FINISH, DONE], [ROLE, FINISH, DONE]),
        ([ROLE, FINISH], [ROLE, FINISH, DONE]),
    ],
    ids=["missing", "twice", "more behind it", "no token", "no token, missing"],
)
async def test_a_stream_ends_with_one_marker(stage: Stage, raw: list[str], expected: list[str]) -> None:
    """A missing [DONE] is added after a finish_reason, what follows it is dropped."""
    event = Framing().event
    answer = await stream(stage, [event(data) for data in raw])
    assert answer.body.decode() == "".join(map(event, expected))
    assert answer.ended == "clean"


async def test_the_client_does_not_wait_for_the_end_of_the_engines_answer(stage: Stage) -> None:
    """With [DONE] the client has everything, while the engine that is still to close keeps its slot."""

    async def slot_outlasts_the_answer() -> bool:
        await stage.engines["openai"].script(end_seconds=20.0)
        answer = await ask(stage.gateway, chat("slow end") | {"model": "openai"})
        assert answer.events[-1].done
        return bool((await backend(stage.gateway, "openai"))["slots"]["in_use"])

    assert any([await slot_outlasts_the_answer() for _ in range(3)])


# -- to the client: heads and documents


async def test_a_stream_says_how_it_was_served(stage: Stage) -> None:
    """Who served it, how long it waited, by which estimate; why, if the client wants to know."""
    for explain in (False, True):
        headers = [("X-Slotgate-Explain", "1")] * explain
        head = (await ask(stage.gateway, chat("h" * 400) | {"model": "openai"}, headers)).head
        fields = {name: value for name, value in head.headers.items() if name.startswith("x-slotgate")}
        assert fields["x-slotgate-backend"] == "openai"
        assert 0 <= int(fields["x-slotgate-queue-ms"]) < 5000
        assert 50 < int(fields["x-slotgate-prompt-tokens"]) < 300
        assert ("x-slotgate-reason" in fields) == ("x-slotgate-prefix" in fields) == explain
        assert len(head.headers["x-request-id"]) >= 8
        assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert not {"server", "access-control-allow-origin", "content-length"} & set(head.headers)


async def test_ids_of_requests_differ(stage: Stage) -> None:
    """An id that is no id is not taken over, and each request has its own."""
    bad = ["short", "has blank inside", "x" * 65, "line\tbreak-xxxx"]
    ids = [
        (await ask(stage.gateway, chat("hi") | {"model": "openai"}, [("X-Request-Id", id)])).head.headers[
            "x-request-id"
        ]
        for id in bad
    ]
    assert len(set(ids)) == len(bad)
    assert not set(ids) & set(bad)


async def test_a_document_of_a_plain_engine_passes_byte_for_byte(stage: Stage) -> None:
    """Order, spacing and values that Python would refuse to write are the engine's."""
    document = (
        '{ "choices":[{"index":0, "message":{"content":"\u65e5"},"logprobs":-Infinity}],"usage" : null}\n'
    )
    headers = [["Content-Type", "application/json"], ["X-Engine", "secret-build"], ["Set-Cookie", "a=b"]]
    await stage.engines["openai"].script(status=200, body=document, headers=headers)
    answer = await ask(stage.gateway, chat("hi", stream=False) | {"model": "openai"})
    assert answer.body.decode() == document
    assert answer.head.headers["content-type"] == "application/json"
    assert answer.head.headers["x-slotgate-backend"] == "openai"
    assert not {"x-engine", "set-cookie"} & set(answer.head.headers)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_document_that_was_streamed_upstream_is_whole(stage: Stage, path: str) -> None:
    """What llama.cpp would have answered itself: text, reason, usage and timings."""
    one = stage.engines["llamacpp"]
    body = {"model": "llamacpp", "stream": False}
    body |= chat("whole", stream=False) if path == CHAT else {"prompt": "whole"}
    answer = await ask(stage.gateway, body | {"model": "llamacpp"}, path=path)
    document = json.loads(answer.body)
    direct = (await stage.gateway.client.post(f"{one.url}{path}", json=body | {"model": "llamacpp"})).json()
    # llama.cpp leaves out `logprobs` in chat, which OpenAI's schema demands as null.
    assert document["choices"] == [{"logprobs": None} | choice for choice in direct["choices"]]
    assert document["usage"] == direct["usage"]
    assert document["object"] == direct["object"]
    assert set(document) == set(direct)
    assert answer.head.headers["content-type"] == "application/json"
    assert "transfer-encoding" not in answer.head.headers


async def test_a_stream_that_is_answered_with_a_document_is_a_document(stage: Stage) -> None:
    """An engine that ignores `stream` is not dressed up: its JSON, with JSON's content type."""
    await stage.engines["openai"].script(plain=True, tokens=3)
    before = await metric(stage.gateway, "slotgate_tokens_total", kind="completion")
    answer = await ask(stage.gateway, chat("plain") | {"model": "openai"})
    assert answer.head.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["choices"][0]["message"]["content"]
    await counted(stage.gateway, "slotgate_tokens_total", before + 3, kind="completion")
