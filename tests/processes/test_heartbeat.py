"""Signs of life: what a streaming client hears while nothing else is sent, and what follows them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.processes.asking import CHAT, COMPLETIONS, arrival, ask, checked, fault, of, waits
from tests.processes.harness import Engine, Event, Gateway, RawClient, chat, engine, gateway, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = ("openai", "llamacpp")
COMMENT = b": waiting\n\n"
USAGE = {"stream_options": {"include_usage": True}}
SECONDS = 0.25  # between heartbeats; the sweep that sends them comes every 0.25 s


@dataclass(frozen=True)
class Stage:
    """A gateway with quick heartbeats, one with none; the plain engine has room, llama.cpp one slot."""

    gateway: Gateway
    silent: Gateway
    engines: dict[str, Engine]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Stage]:
    """The processes, for all tests of this module; the model `gone` has no engine that runs."""
    async with (
        engine("openai", model=["openai"], slots=8) as plain,
        engine("llamacpp", model=["llamacpp"]) as llama,
    ):
        engines = {"openai": plain, "llamacpp": llama}
        backends: list[dict[str, Any]] = [{"name": kind, "url": one.url} for kind, one in engines.items()]
        backends[0]["slots"] = 8
        gone = {"name": "gone", "url": "http://127.0.0.1:9", "engine": "openai", "models": ["gone"]}
        queue: dict[str, Any] = {"heartbeat_seconds": SECONDS, "unavailable_grace_seconds": 1.0}
        async with (
            gateway({"backends": [*backends, gone], "queue": queue}) as one,
            gateway({"backends": backends, "queue": queue | {"heartbeat": "off"}}) as silent,
        ):
            for each in (one, silent):
                await until(lambda each=each: both_ready(each), "both ready")
            yield Stage(one, silent, engines)


async def both_ready(one: Gateway) -> bool:
    """Whether both engines take calls."""
    states = (await one.operator.get("/admin/backends")).json()
    return sum(state["state"] == "ready" for state in states) == 2


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: Stage) -> Stage:
    """Engines that behave and count from here."""
    for one in running.engines.values():
        await one.idle()
        await one.reset()
    return running


def body(content: str, *, asks: bool = False, kind: str = "openai", **more: Any) -> dict[str, Any]:
    """A streaming request, with or without the wish for usage."""
    return chat(content, **(USAGE if asks else {}), **more) | {"model": kind}


def on(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """The same request for that route."""
    if path == CHAT:
        return request
    prompt = {"prompt": request["messages"][0]["content"]}
    return prompt | {key: value for key, value in request.items() if key != "messages"}


def is_heartbeat(event: Event, *, asks: bool, path: str = CHAT) -> bool:
    """Whether it is one, of the form this client must get."""
    if not asks:
        return event.raw == COMMENT
    if event.data is None or event.done or event.json().get("choices") != [] or "usage" in event.json():
        return False
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    assert event.json().keys() == {"id", "object", "created", "model", "choices"}
    assert event.json()["object"] == kind
    return True


def split(events: list[Event], *, asks: bool, path: str = CHAT) -> tuple[int, list[Event]]:
    """The number of heartbeats, and the other events."""
    others = [event for event in events if not is_heartbeat(event, asks=asks, path=path)]
    return len(events) - len(others), others


@pytest.mark.parametrize("asks", [True, False])
async def test_a_queued_client_hears_that_it_is_not_forgotten(stage: Stage, asks: bool) -> None:
    """While another one runs; the head says no more than the request's id, and the answer follows whole."""
    one = stage.engines["llamacpp"]
    await one.script(match="runs", token_seconds=0.25, tokens=7)
    async with (
        await RawClient.connect(stage.gateway.url) as first,
        await RawClient.connect(stage.gateway.url) as client,
    ):
        await first.post(CHAT, body("runs", kind="llamacpp"))
        await arrival(one, "runs")
        await client.post(CHAT, body("waits", asks=asks, kind="llamacpp"))
        await waits(stage.gateway)
        head = await client.head()
        assert not [name for name in head.headers if name.startswith("x-slotgate")]
        assert head.headers["x-request-id"]
        event = await client.event()
        assert event is not None
        assert is_heartbeat(event, asks=asks)
        assert not await of(one, "waits")
        heartbeats, others = split(await client.events(), asks=asks)
        assert heartbeats >= 1
        assert others[-1].done
        assert sum(bool(event.token) for event in others) == 8
        assert client.ended == "clean"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("comments", [None, 0.1])
async def test_a_client_hears_during_the_prefill(stage: Stage, path: str, comments: float | None) -> None:
    """Be the engine silent or full of comments of its own, which are dropped."""
    script = {"prefill_seconds": 1.2, "comment_seconds": comments, "tokens": 3}
    await stage.engines["openai"].script(times=2, **script)

    async def hears(asks: bool) -> None:
        answer = await ask(stage.gateway, on(path, body("prefill", asks=asks)), path=path)
        heartbeats, others = split(answer.events, asks=asks, path=path)
        assert 2 <= heartbeats <= 5
        assert b": prefill" not in answer.body
        assert others[-1].done
        assert sum(bool(event.token) for event in others) == 3
        assert not [name for name in answer.head.headers if name.startswith("x-slotgate")]

    await asyncio.gather(hears(True), hears(False))


async def test_a_quick_answer_has_none(stage: Stage) -> None:
    """Heartbeats are for silence only."""
    for asks in (True, False):
        heartbeats, _ = split((await ask(stage.gateway, body("quick", asks=asks))).events, asks=asks)
        assert heartbeats == 0


async def test_a_client_hears_between_tokens(stage: Stage) -> None:
    """Later too, and never inside an event: one that comes in pieces over a second stays in one piece."""
    token = 'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
    end = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', "data: [DONE]\n\n"
    raw = [token % "a", token % ("b" * 30), *end]
    script = {"raw": raw, "token_seconds": 0.5, "split_bytes": 20, "split_seconds": 0.2}
    await stage.engines["openai"].script(times=2, **script)

    async def hears(asks: bool) -> None:
        heartbeats, others = split((await ask(stage.gateway, body("slow", asks=asks))).events, asks=asks)
        assert heartbeats >= 3
        assert "".join(event.raw.decode() for event in others) == "".join(raw)

    await asyncio.gather(hears(True), hears(False))


async def test_comments_of_the_engine_are_not_what_a_client_waits_for(stage: Stage) -> None:
    """Behind the first token they pass, but a client that counts data only gets its heartbeats as well."""
    token = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    end = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', "data: [DONE]\n\n"
    await stage.engines["openai"].script(raw=[token, *[": busy\n\n"] * 12, *end], token_seconds=0.1)
    answer = await ask(stage.gateway, body("comments", asks=True))
    heartbeats, others = split(answer.events, asks=True)
    assert heartbeats >= 2
    assert "".join(event.raw.decode() for event in others) == token + ": busy\n\n" * 12 + "".join(end)


async def test_a_client_that_does_not_stream_hears_nothing(stage: Stage) -> None:
    """Its answer is one document with a length, however long it takes."""
    for kind in KINDS:
        await stage.engines[kind].script(prefill_seconds=0.8)
        answer = await ask(stage.gateway, body("document", kind=kind, stream=False))
        assert answer.head.status == 200
        assert answer.head.headers["content-length"] == str(len(answer.body))
        assert answer.head.headers["x-slotgate-backend"] == kind
        assert json.loads(answer.body)["choices"]


async def test_off_is_off(stage: Stage) -> None:
    """Then the head waits for the first token, and says who served."""
    await stage.engines["openai"].script(prefill_seconds=1.0, comment_seconds=0.2)
    answer = await ask(stage.silent, body("off", asks=True))
    assert answer.head.headers["x-slotgate-backend"] == "openai"
    assert split(answer.events, asks=True)[0] == 0
    assert not answer.body.startswith(b":")


# -- what comes after the head


async def after_heartbeat(stage: Stage, request: dict[str, Any], **script: Any) -> list[Event]:
    """The events behind the heartbeats of a request whose answer the engine thinks about for a second."""
    await stage.engines["openai"].script(**({"prefill_seconds": 0.9} | script))
    answer = await ask(stage.gateway, request)
    assert (answer.head.status, answer.ended) == (200, "clean")
    assert answer.head.headers["content-type"] == "text/event-stream; charset=utf-8"
    heartbeats, others = split(answer.events, asks="stream_options" in request)
    assert heartbeats
    return others


@pytest.mark.parametrize("asks", [True, False])
async def test_a_failure_after_the_head_is_one_event(stage: Stage, asks: bool) -> None:
    """The error object and the end of the stream, without [DONE], which would mark success."""
    [event] = await after_heartbeat(stage, body("fails", asks=asks), status=500, body="<html>")
    checked(event.json(), "backend_failed")


async def test_a_refusal_after_the_head_keeps_the_engines_words(stage: Stage) -> None:
    """The status has left already; the object is the engine's."""
    error = {"error": {"message": "Unknown tool choice", "type": "invalid_request_error", "code": 400}}
    [event] = await after_heartbeat(stage, body("refused"), status=400, body=json.dumps(error, indent=1))
    assert event.json() == error


async def test_a_refusal_without_an_object_is_one_all_the_same(stage: Stage) -> None:
    """Words that are no JSON cannot go into an event as they are."""
    [event] = await after_heartbeat(stage, body("refused"), status=422, body="no\n\nsuch thing")
    checked(event.json(), "invalid_request")


async def test_an_over_length_answer_after_the_head_is_mapped(stage: Stage) -> None:
    """As it would be before."""
    error = {"code": "context_length_exceeded", "message": "too long", "type": "invalid_request_error"}
    [event] = await after_heartbeat(stage, body("long"), status=400, body=json.dumps({"error": error}))
    checked(event.json(), "context_length_exceeded")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_document_after_the_head_becomes_a_stream(stage: Stage, path: str) -> None:
    """An engine that ignored `stream`: never JSON bytes under an event stream's head."""
    script = {"prefill_seconds": 0.9, "plain": True, "tokens": 4, "reasoning_tokens": int(path == CHAT)}
    await stage.engines["openai"].script(times=2, **script)

    async def streams(asks: bool) -> None:
        answer = await ask(stage.gateway, on(path, body("plain", asks=asks)), path=path)
        heartbeats, others = split(answer.events, asks=asks, path=path)
        assert heartbeats
        assert others[-1].done
        chunks = [event.json() for event in others[:-1]]
        kind = "chat.completion.chunk" if path == CHAT else "text_completion"
        assert {chunk["object"] for chunk in chunks} == {kind}
        assert sum(len(event.token.split()) for event in others) == 4
        assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]] == ["stop"]
        assert any(chunk.get("usage") for chunk in chunks) == asks

    await asyncio.gather(streams(True), streams(False))


async def test_tool_calls_of_a_document_become_pieces_of_a_stream(stage: Stage) -> None:
    """With the index by which a streaming client puts them together."""
    calls = [{"name": name, "arguments": '{"a":1}'} for name in ("f", "g")]
    first, *_ = await after_heartbeat(stage, body("calls"), plain=True, tool_calls=calls)
    delta = first.json()["choices"][0]["delta"]
    assert [(call["index"], call["function"]["name"]) for call in delta["tool_calls"]] == [(0, "f"), (1, "g")]


async def test_an_engine_that_dies_after_the_head_ends_the_stream(stage: Stage) -> None:
    """Before its first token and behind it: one error event, what was sent is kept."""
    for cut_after in (0, 1, 3):
        script = {"head_first": True, "cut": "rst", "cut_after": cut_after, "cut_inside": True}
        *tokens, event = await after_heartbeat(stage, body("dies"), **script)
        assert len([one for one in tokens if one.token]) == max(0, cut_after - 1)
        checked(event.json(), "backend_failed")
        await ask(stage.gateway, body("well again"))


# -- while nobody can serve


async def test_without_a_backend_the_status_waits_for_the_grace(stage: Stage) -> None:
    """No heartbeat before, so that 503 can still be said."""
    answer = await ask(stage.gateway, body("nobody", kind="gone"))
    fault(answer, 503, "no_backend_ready")
    assert 1 <= int(answer.head.headers["retry-after"]) <= 60


async def test_many_clients_hear_at_the_same_time(stage: Stage) -> None:
    """Thirty in the queue of one slot: each has its head and a heartbeat within a few seconds."""
    await stage.engines["llamacpp"].script(match="runs", token_seconds=60.0)
    async with await RawClient.connect(stage.gateway.url) as first:
        await first.post(CHAT, body("runs", kind="llamacpp"))
        await arrival(stage.engines["llamacpp"], "runs")

        async def hears(number: int) -> None:
            async with await RawClient.connect(stage.gateway.url) as client:
                await client.post(CHAT, body(f"{number} waits", asks=number % 2 == 0, kind="llamacpp"))
                await client.head()
                for _ in range(2):
                    event = await client.event()
                    assert event is not None
                    assert is_heartbeat(event, asks=number % 2 == 0)

        async with asyncio.timeout(20):
            await asyncio.gather(*map(hears, range(30)))
    await waits(stage.gateway, 0)
