"""Every client route: served where an engine has it, counted as it counts, in the route's own form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from gateway.engines import ENGINES
from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from tests.processes.asking import Reply, arrival, ask, metric, of, quiet, waits
from tests.processes.fleet import becomes, settled
from tests.processes.harness import Engine, Event, Gateway, RawClient, engine, gateway, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMMENT = b": waiting\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
KINDS = ("vllm", "llamacpp", "ds4", "sglang")
STREAMED = {MESSAGES: "message_stop", RESPONSES: "response.completed"}
TOOLS = {
    MESSAGES: [{"name": "terminal", "input_schema": {"type": "object"}}],
    RESPONSES: [{"type": "function", "name": "terminal", "parameters": {"type": "object"}}],
}
MISTAKES = ("capacity", "overloaded", "quota", "token limit")


@dataclass(frozen=True)
class Stage:
    """Each kind of engine with a model of its name; `plain` has chat only, and the model `vllm` too."""

    gateway: Gateway
    engines: dict[str, Engine]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Stage]:
    """The processes, for all tests of this module."""
    async with (
        engine("vllm", model=["vllm"], slots=2) as vllm,
        engine("llamacpp", model=["llamacpp"], slots=1, context_tokens=4096) as llamacpp,
        engine("ds4", model=["ds4"], slots=2) as ds4,
        engine("sglang", model=["sglang"], slots=2, embeddings=True) as sglang,
        engine("openai", model=["vllm", "plain"], slots=8) as plain,
    ):
        engines = {"vllm": vllm, "llamacpp": llamacpp, "ds4": ds4, "sglang": sglang, "plain": plain}
        backends = [
            {"name": name, "url": one.url, "engine": "openai" if name == "plain" else name, "slots": slots}
            for (name, one), slots in zip(engines.items(), (2, 1, 2, 2, 8), strict=True)
        ]
        queue = {"heartbeat_seconds": 0.25, "unavailable_grace_seconds": 1.0}
        async with gateway({"backends": backends, "queue": queue}) as one:
            for name in engines:
                await becomes(one, name, "ready")
            yield Stage(one, engines)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: Stage) -> Stage:
    """Engines that behave and count from here."""
    for one in running.engines.values():
        await one.idle()
        await one.reset()
    return running


def body(path: str, content: str, model: str, **more: Any) -> dict[str, Any]:
    """A request with this text on that route."""
    given: dict[str, Any] = {"model": model}
    match path:
        case "/v1/messages" | "/v1/messages/count_tokens" | "/v1/chat/completions":
            given["messages"] = [{"role": "user", "content": content}]
        case "/v1/completions" | "/tokenize":
            given["prompt"] = content
        case _:
            given["input"] = content
    return given | ({"max_tokens": 64} if path == MESSAGES else {}) | more


def told(path: str, document: dict[str, Any]) -> tuple[int, int]:
    """The tokens of prompt and answer that an answer tells its client."""
    usage = document["usage"]
    if path in (CHAT, COMPLETIONS, EMBEDDINGS):
        return usage["prompt_tokens"], usage.get("completion_tokens", 0)
    cached = usage.get("cache_read_input_tokens", 0)
    return usage["input_tokens"] + cached, usage["output_tokens"]


async def tokens(gateway: Gateway, model: str) -> tuple[float, float]:
    """The tokens that the gateway counted, as engines reported them."""
    await quiet(gateway)
    prompt, completion = [
        await metric(gateway, "slotgate_tokens_total", model=model, kind=kind, source="reported")
        for kind in ("prompt", "completion")
    ]
    return prompt, completion


def names(events: list[Event]) -> list[str]:
    """The types of the data events."""
    return [event.json().get("type") for event in events if event.data is not None]


def anthropic(reply: Reply, status: int, code: str) -> dict[str, Any]:
    """The error object of an answer on Anthropic's routes, held to what is promised of it."""
    assert reply.head.status == status, reply
    assert reply.ended == "clean"
    document = json.loads(reply.body)
    assert document["type"] == "error"
    error: dict[str, Any] = document["error"]
    assert error["code"] == code
    assert error["type"]
    assert not [word for word in MISTAKES if word in error["message"].lower()]
    return error


# --- what is counted is what the engine counted ----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_a_document_tells_and_counts_the_engines_tokens(stage: Stage, kind: str, path: str) -> None:
    """Also where the engine must stream and the gateway puts the document together."""
    before = await tokens(stage.gateway, kind)
    reply = await ask(stage.gateway, body(path, "tell me", kind), path=path)
    assert reply.head.status == 200, reply
    [record] = await of(stage.engines[kind], "tell me")
    assert record["stream"] is ENGINES[kind].streams_always
    expected = (record["prompt_tokens"], record["completion_tokens"])
    assert told(path, json.loads(reply.body)) == expected
    after = await tokens(stage.gateway, kind)
    assert (after[0] - before[0], after[1] - before[1]) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", list(STREAMED))
@pytest.mark.parametrize(
    "more", [{}, {"reasoning_tokens": 3}, {"tool_calls": [{"name": "a", "arguments": "{}"}]}]
)
async def test_a_stream_passes_whole_and_is_counted(
    stage: Stage, kind: str, path: str, more: dict[str, Any]
) -> None:
    """Its own events to its own end, and nothing else; the tokens are the engine's."""
    one, before = stage.engines[kind], await tokens(stage.gateway, kind)
    await one.script(**more)
    reply = await ask(stage.gateway, body(path, "stream", kind, stream=True), path=path)
    [record] = await of(one, "stream")
    assert names(reply.events)[-1] == STREAMED[path]
    assert names(reply.events)[0] in ("message_start", "response.created")
    assert b"[DONE]" not in reply.body
    after = await tokens(stage.gateway, kind)
    expected = (record["prompt_tokens"], record["completion_tokens"])
    assert (after[0] - before[0], after[1] - before[1]) == expected
    assert record["outcome"] == "completed"


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_embeddings_are_counted(stage: Stage, encoding: str) -> None:
    """The prompt's tokens, and none of an answer."""
    before = await tokens(stage.gateway, "sglang")
    value = body(EMBEDDINGS, "x", "sglang", input=["one two", "three"], encoding_format=encoding)
    reply = await ask(stage.gateway, value, path=EMBEDDINGS)
    document = json.loads(reply.body)
    assert len(document["data"]) == 2
    after = await tokens(stage.gateway, "sglang")
    assert (after[0] - before[0], after[1] - before[1]) == (document["usage"]["prompt_tokens"], 0)


async def test_many_texts_may_be_embedded_at_once(stage: Stage) -> None:
    """Together they are longer than a context, which each of them has for itself: the engine judges."""
    value = body(EMBEDDINGS, "", "sglang", input=["word " * 10_000] * 9)
    await stage.engines["sglang"].script(status=200, body='{"data": []}')
    assert (await ask(stage.gateway, value, path=EMBEDDINGS)).body == b'{"data": []}'
    value = body(EMBEDDINGS, "", "sglang", input=["short", "word " * 90_000])
    fault = json.loads((await ask(stage.gateway, value, path=EMBEDDINGS)).body)["error"]
    assert (fault["code"], fault["estimated"]) == ("context_length_exceeded", True)


@pytest.mark.parametrize("path", list(STREAMED))
async def test_bytes_pass_as_they_came(stage: Stage, path: str) -> None:
    """Any framing, unknown events and members; nothing is rebuilt."""
    start, token, end = {
        MESSAGES: (
            'event: message_start\r\ndata: {"type":"message_start","message":{"usage":{"input_tokens":1}}}',
            'data:{"type": "content_block_delta", "delta": {"text": "\\u00e9"}, "new": [1,  2]}',
            'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}\r\n\r\n'
            'event: message_stop\r\ndata: {"type": "message_stop"}',
        ),
        RESPONSES: (
            'event: response.created\r\ndata: {"type":"response.created"}',
            'data:{"type": "response.output_text.delta", "delta": "\\u00e9", "new": [1,  2]}',
            'event: response.completed\r\ndata: {"type":"response.completed","response":{"output":[]}}',
        ),
    }[path]
    raw = [f"{part}\r\n\r\n" for part in (start, token, ": comment", "event: news\r\ndata: {}", token, end)]
    await stage.engines["vllm"].script(raw=raw, split_bytes=7)
    reply = await ask(stage.gateway, body(path, "raw", "vllm", stream=True), path=path)
    assert reply.body == "".join(raw).encode()


# --- where a request goes --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", list(STREAMED))
async def test_a_route_goes_to_the_engine_that_has_it(stage: Stage, path: str) -> None:
    """Another backend of the same model has more free slots, but only chat."""
    for number in range(4):
        reply = await ask(stage.gateway, body(path, f"route {number}", "vllm"), path=path)
        assert reply.head.headers["x-slotgate-backend"] == "vllm"
    assert not await of(stage.engines["plain"], "route")


async def test_a_route_waits_for_its_engine(stage: Stage) -> None:
    """While that engine's slots are taken, a free one without the route is no help."""
    vllm = stage.engines["vllm"]
    await vllm.script(match="holds", times=2, prefill_seconds=1.0)
    holders = [
        asyncio.create_task(ask(stage.gateway, body(MESSAGES, f"holds {n}", "vllm"), path=MESSAGES))
        for n in (1, 2)
    ]
    await vllm.busy(2)
    waiting = asyncio.create_task(ask(stage.gateway, body(MESSAGES, "waits", "vllm"), path=MESSAGES))
    await waits(stage.gateway)
    passing = await ask(stage.gateway, body(CHAT, "passes", "vllm"), path=CHAT)
    assert passing.head.headers["x-slotgate-backend"] == "plain"
    assert not waiting.done()
    assert [reply.head.status for reply in await asyncio.gather(*holders, waiting)] == [200] * 3


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES, COUNT_TOKENS, TOKENIZE])
async def test_a_route_that_no_engine_of_the_model_has_is_not_found(stage: Stage, path: str) -> None:
    """At once, in the route's own form; a model that nobody serves is another matter."""
    fault = await ask(stage.gateway, body(path, "nowhere", "plain"), path=path)
    unknown = await ask(stage.gateway, body(path, "nowhere", "no-such-model"), path=path)
    if path in (MESSAGES, COUNT_TOKENS):
        assert anthropic(fault, 404, "not_found")["type"] == "not_found_error"
        assert "vllm" in anthropic(unknown, 404, "model_not_found")["message"]
    else:
        assert json.loads(fault.body)["error"]["code"] == "not_found"
        assert json.loads(unknown.body)["error"]["code"] == "model_not_found"
    assert not await of(stage.engines["plain"], "nowhere")


async def test_an_engine_that_lacks_a_route_of_its_kind_is_asked_once() -> None:
    """llama.cpp has embeddings only if it was started for them: seen once, and again in its next process.
    Its other requests do not suffer from it."""
    async with engine("llamacpp", slots=1) as one:
        backend = {"name": "one", "url": one.url, "engine": "llamacpp", "warmup": {"requests": 0}}
        async with gateway({"backends": [backend]}) as front:
            await becomes(front, "one", "ready")
            for _ in range(5):
                reply = await ask(front, body(EMBEDDINGS, "x", "fake-model"), path=EMBEDDINGS)
                assert reply.head.status == 404
                assert json.loads(reply.body)["error"]["code"] == "not_found"
            assert (await one.state())["probes"][f"POST {EMBEDDINGS}"] == 1
            assert (await ask(front, body(CHAT, "x", "fake-model"))).head.status == 200
            await one.process.kill()
            await becomes(front, "one", "down")
            await one.restart(embeddings=True)

            async def served() -> bool:
                again = await ask(front, body(EMBEDDINGS, "x", "fake-model"), path=EMBEDDINGS)
                return again.head.status == 200

            await until(served, "embeddings")


@pytest.mark.parametrize("path", list(STREAMED))
async def test_a_conversation_stays_where_its_prefix_is(path: str) -> None:
    """Each turn continues the last one, on the engine that has it; the mark for the cache moves on."""
    system = {"system" if path == MESSAGES else "instructions": "Be careful. " * 2000}
    async with engine("vllm", slots=2) as one, engine("vllm", slots=2) as two:
        backends = [
            {"name": name, "url": each.url, "engine": "vllm", "slots": 2, "warmup": {"requests": 0}}
            for name, each in (("one", one), ("two", two))
        ]
        async with gateway({"backends": backends}) as front:
            await becomes(front, "one", "ready")
            await becomes(front, "two", "ready")
            places: dict[str, set[str]] = {"a": set(), "b": set()}
            turns: dict[str, list[Any]] = {"a": [], "b": []}
            for number in range(4):
                for agent, items in turns.items():
                    block = {"type": "text" if path == MESSAGES else "input_text", "text": f"{agent}{number}"}
                    mark = {"cache_control": {"type": "ephemeral"}} if path == MESSAGES else {}
                    member = "messages" if path == MESSAGES else "input"
                    value = body(path, "", "fake-model") | system
                    value |= {member: [*items, {"role": "user", "content": [block | mark]}]}
                    value |= {next(iter(system)): agent + next(iter(system.values()))}
                    reply = await ask(front, value, path=path)
                    assert reply.head.status == 200, reply
                    places[agent].add(reply.head.headers["x-slotgate-backend"])
                    items.append({"role": "user", "content": [block]})
            assert [len(where) for where in places.values()] == [1, 1]
            assert places["a"] != places["b"]


async def test_what_clients_get_wrong_or_add_to_a_path(stage: Stage) -> None:
    """A base URL for another SDK is named as the mistake; Anthropic's beta clients add a query."""
    wrong = await ask(stage.gateway, body(MESSAGES, "wrong", "vllm"), path=f"/v1{MESSAGES}")
    assert wrong.head.status == 404
    assert f"Did you mean {MESSAGES}?" in json.loads(wrong.body)["error"]["message"]
    page = await ask(stage.gateway, b"", path="/console", method="GET")
    assert page.head.status == 404
    assert "admin port" in json.loads(page.body)["error"]["message"]
    beta = await ask(stage.gateway, body(MESSAGES, "beta", "vllm"), path=f"{MESSAGES}?beta=true")
    assert beta.head.status == 200


# --- counting takes no slot ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "path"), [("vllm", COUNT_TOKENS), ("llamacpp", COUNT_TOKENS), ("vllm", TOKENIZE)]
)
async def test_tokens_are_counted_while_all_slots_are_taken(stage: Stage, kind: str, path: str) -> None:
    """The engine answers beside its work; nothing waits, and nothing counts as tokens served."""
    one = stage.engines[kind]
    slots = one.options["slots"]
    await one.script(match="holds", times=slots, prefill_seconds=1.0)
    holders = [
        asyncio.create_task(ask(stage.gateway, body(MESSAGES, f"holds {n}", kind), path=MESSAGES))
        for n in range(slots)
    ]
    await one.busy(slots)
    reply = await ask(stage.gateway, body(path, "count these words", kind), path=path)
    assert reply.head.status == 200, reply
    document = json.loads(reply.body)
    assert document.get("input_tokens", document.get("count")) == len("count these words") // 4
    assert reply.head.headers["x-slotgate-backend"] == kind
    assert not any(holder.done() for holder in holders)
    await asyncio.gather(*holders)
    await settled(stage.gateway, kind)


async def test_a_text_may_be_tokenized_without_a_model(stage: Stage) -> None:
    """llama.cpp and vLLM do not ask for one."""
    reply = await ask(stage.gateway, {"content": "some words", "prompt": "some words"}, path=TOKENIZE)
    assert reply.head.status == 200, reply


async def test_a_client_that_leaves_while_tokens_are_counted_is_not_waited_for(stage: Stage) -> None:
    """Nothing of it is left."""
    await stage.engines["vllm"].script(path=COUNT_TOKENS, cut="stall")
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.post(COUNT_TOKENS, body(COUNT_TOKENS, "leaves", "vllm"))

        async def asked() -> bool:
            return bool((await stage.engines["vllm"].state())["probes"].get(f"POST {COUNT_TOKENS}"))

        await until(asked, "the question")
    await quiet(stage.gateway)


@pytest.mark.long
async def test_a_count_that_does_not_come_is_given_up(stage: Stage) -> None:
    """After half a minute, in the route's form; nothing of it is left."""
    await stage.engines["vllm"].script(path=COUNT_TOKENS, cut="stall")
    async with await RawClient.connect(stage.gateway.url, seconds=60.0) as client:
        await client.post(COUNT_TOKENS, body(COUNT_TOKENS, "stalls", "vllm"))
        head, answer = await client.head(), await client.body()
        anthropic(Reply(head, answer, client.ended), 504, "total_timeout")
    await quiet(stage.gateway)


async def test_an_engine_that_fails_to_count_is_not_blamed(stage: Stage) -> None:
    """A broken connection is answered, in the route's form, and costs the backend nothing."""
    await stage.engines["ds4"].reset()
    await stage.engines["vllm"].script(path=COUNT_TOKENS, cut="rst")
    reply = await ask(stage.gateway, body(COUNT_TOKENS, "breaks", "vllm"), path=COUNT_TOKENS)
    anthropic(reply, 503, "no_backend_ready")
    assert reply.head.headers["retry-after"] == "5"
    reply = await ask(stage.gateway, body(COUNT_TOKENS, "again", "vllm"), path=COUNT_TOKENS)
    assert reply.head.status == 200


async def test_a_stream_where_none_can_be_is_no_answer(stage: Stage) -> None:
    """Embeddings have none; that an engine sends one is its failure, not the gateway's."""
    headers = [("Content-Type", "text/event-stream")]
    await stage.engines["sglang"].script(path=EMBEDDINGS, status=200, headers=headers, body="data: {}\n\n")
    reply = await ask(stage.gateway, body(EMBEDDINGS, "x", "sglang"), path=EMBEDDINGS)
    assert (reply.head.status, json.loads(reply.body)["error"]["code"]) == (502, "backend_failed")


# --- signs of life and errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "beat"), [(MESSAGES, PING), (RESPONSES, COMMENT)])
async def test_a_client_hears_while_it_waits(stage: Stage, path: str, beat: bytes) -> None:
    """In the form of its route; then its answer, whole."""
    one = stage.engines["llamacpp"]
    await one.script(match="waits", prefill_seconds=1.2)
    reply = await ask(stage.gateway, body(path, "waits", "llamacpp", stream=True), path=path)
    raw = [event.raw for event in reply.events]
    assert raw.count(beat) >= 2
    rest = [event for event in reply.events if event.raw != beat]
    assert raw[: raw.count(beat)] == [beat] * raw.count(beat)
    assert names(rest)[-1] == STREAMED[path]


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
@pytest.mark.parametrize("path", list(STREAMED))
async def test_an_engine_that_dies_in_mid_stream(stage: Stage, kind: str, path: str) -> None:
    """One event by the name of `error`, in the route's form; no end that would mean success."""
    await stage.engines[kind].script(cut="rst", cut_after=6)
    reply = await ask(stage.gateway, body(path, "dies", kind, stream=True), path=path)
    *others, last = reply.events
    assert last.raw.startswith(b"event: error\ndata: {")
    assert last.json()["error"]["code"] == "backend_failed"
    assert (last.json().get("type") == "error") is (path == MESSAGES)
    assert STREAMED[path] not in names(others)
    assert reply.ended == "clean"


@pytest.mark.parametrize("path", list(STREAMED))
async def test_an_error_event_of_the_engine_passes(stage: Stage, path: str) -> None:
    """As it came, and nothing behind it; to a client that wanted a document it is a failure."""
    await stage.engines["vllm"].script(error_after=6)
    reply = await ask(stage.gateway, body(path, "errs", "vllm", stream=True), path=path)
    assert b"it broke" in reply.events[-1].raw or b"error" in reply.events[-1].raw
    assert STREAMED[path] not in names(reply.events)
    await stage.engines["llamacpp"].script(error_after=6)
    reply = await ask(stage.gateway, body(path, "errs", "llamacpp"), path=path)
    assert reply.head.status == 502
    assert json.loads(reply.body)["error"]["code"] == "backend_failed"
    assert reply.head.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_that_is_too_long(stage: Stage, stream: bool) -> None:
    """In the words that the route's clients know, with the limit; the engine did not see it."""
    long = body(MESSAGES, "word " * 8000, "llamacpp", stream=stream)
    error = anthropic(await ask(stage.gateway, long, path=MESSAGES), 400, "context_length_exceeded")
    assert error["message"].startswith("prompt is too long")
    assert "4096" in error["message"]
    reply = await ask(stage.gateway, body(RESPONSES, "word " * 8000, "llamacpp"), path=RESPONSES)
    assert json.loads(reply.body)["error"]["code"] == "context_length_exceeded"
    assert (await stage.engines["llamacpp"].state())["overlength"] == 0


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
async def test_a_body_that_is_no_request(stage: Stage, path: str) -> None:
    """Not JSON, no messages, no model: in Anthropic's shape."""
    anthropic(await ask(stage.gateway, b"{", path=path), 400, "invalid_json")
    anthropic(await ask(stage.gateway, {"model": "vllm"}, path=path), 400, "invalid_request")
    anthropic(await ask(stage.gateway, {"messages": [{}]}, path=path), 400, "invalid_request")


async def test_an_engines_refusal_passes_as_it_came(stage: Stage) -> None:
    """On messages in Anthropic's words already."""
    value = body(MESSAGES, "none", "vllm", max_tokens=-1)
    reply = await ask(stage.gateway, value, path=MESSAGES)
    assert reply.head.status == 400
    assert json.loads(reply.body)["type"] == "error"
    assert "code" not in json.loads(reply.body)["error"] or json.loads(reply.body)["error"]["code"] == 400


@pytest.mark.parametrize("path", list(STREAMED))
async def test_a_tool_call_passes(stage: Stage, path: str) -> None:
    """Streamed and whole; an agent's request is no interactive one."""
    for kind in KINDS:
        value = body(path, "call", kind, tools=TOOLS[path])
        whole = json.loads((await ask(stage.gateway, value, path=path)).body)
        items = whole["content"] if path == MESSAGES else whole["output"]
        [call] = [item for item in items if item["type"] in ("tool_use", "function_call")]
        assert call["name"] == "terminal"
        given = call["input"] if path == MESSAGES else json.loads(call["arguments"])
        assert given == {"command": "echo hi"}


async def test_a_client_that_leaves_frees_the_slot(stage: Stage) -> None:
    """On every route that takes one."""
    one = stage.engines["llamacpp"]
    for path in STREAMED:
        await one.script(match="leaves", token_seconds=0.2, tokens=100)
        async with await RawClient.connect(stage.gateway.url) as client:
            await client.post(path, body(path, "leaves", "llamacpp", stream=True, **limits(path)))
            await arrival(one, "leaves")
            await client.head()
        await one.idle()
        await settled(stage.gateway, "llamacpp")


def limits(path: str) -> dict[str, int]:
    """Room for a long answer."""
    return {"max_tokens" if path == MESSAGES else "max_output_tokens": 100}
