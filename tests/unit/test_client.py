"""The answer to one client: what may follow what."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.client import JSON, Client
from gateway.errors import BackendFailed
from gateway.routes.chat import Chat
from gateway.routes.choices import DONE
from gateway.routes.completions import Completions
from tests.unit.wire import Wire

BEAT = b": waiting\n\n"


def streaming() -> tuple[Client, Wire]:
    """A client that asked for a stream."""
    wire = Wire()
    client = Client(wire, Chat(), "id-of-request", 0.0)
    client.streaming = True
    client.headers = [(b"x-slotgate-backend", b"one")]
    return client, wire


async def test_a_heartbeat_never_follows_the_end() -> None:
    """One that was due in the instant in which the answer ended is not sent."""
    for how in ("stream", "answer", "fail"):
        client, wire = streaming()
        if how == "stream":
            await client.stream(b"data: [DONE]\n\n", 1.0, last=True)
        elif how == "answer":
            await client.answer(200, JSON, b"{}")
        else:
            await client.stream(b"data: 1\n\n", 1.0)
            await client.fail(BackendFailed("it died", started=True))
        sent = list(wire.messages)
        await client.beat(BEAT, 2.0)
        assert wire.messages == sent
        assert sent[-1].get("more_body", False) is False


async def test_a_head_that_leaves_with_a_heartbeat_names_no_backend() -> None:
    """Another one than the first may answer in the end."""
    client, wire = streaming()
    await client.beat(BEAT, 1.0)
    await client.stream(b"data: 1\n\n", 2.0)
    names = [name for name, _ in wire.messages[0]["headers"]]
    assert b"x-request-id" in names
    assert b"x-slotgate-backend" not in names
    assert wire.sent == BEAT + b"data: 1\n\n"


async def test_comments_of_an_engine_do_not_put_off_a_heartbeat() -> None:
    """Only data is what the client waits for; a heartbeat itself counts, or there would be one per sweep."""
    client, _ = streaming()
    await client.stream(b"data: 1\n\n", 1.0)
    await client.stream(b": busy\n\n", 2.0)
    assert client.last_sent == 1.0
    await client.beat(BEAT, 3.0)
    assert client.last_sent == 3.0


def test_a_document_as_a_stream_ends_well() -> None:
    """Strange choices are left as they are; usage is for those who asked."""
    document = {
        "id": "x",
        "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}, None],
        "usage": {"n": 1},
    }
    stream = Completions().as_stream(document, wants_usage=True)
    assert stream == (
        b'data: {"id":"x","object":"text_completion","choices":'
        b'[{"index":0,"text":"a","finish_reason":"stop"}]}\n\n'
        b'data: {"id":"x","object":"text_completion","choices":[],"usage":{"n":1}}\n\n'
        b"data: [DONE]\n\n"
    )
    assert b'"usage"' not in Chat().as_stream(document, wants_usage=False)


@pytest.mark.parametrize("calls", [5, "x", {"a": 1}, [None, 1, {"id": "c"}]])
def test_tool_calls_that_are_none_are_no_defect_of_ours(calls: Any) -> None:
    """What an engine sends there is the client's to judge."""
    document = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "stop"}]}
    assert Chat().as_stream(document, wants_usage=False).endswith(DONE)
