"""Recorded streams of engines, and what the gateway makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway.answer import StreamedAnswer
from gateway.routes.base import Route
from gateway.sse import EventSplitter

STREAMS = Path(__file__).parents[1] / "fixtures/streams"


def recorded(name: str) -> bytes:
    """A stream as the engine sent it."""
    return (STREAMS / f"{name}.sse").read_bytes()


def document(name: str) -> dict[str, Any]:
    """A whole answer as the engine sent it."""
    found: dict[str, Any] = json.loads((STREAMS / f"{name}.json").read_text())
    return found


def passed(route: Route, *pieces: bytes, wants_usage: bool = True) -> tuple[StreamedAnswer, bytes]:
    """What a client gets of a stream that arrives in these pieces."""
    answer, splitter = StreamedAnswer(route, wants_usage=wants_usage), EventSplitter()
    return answer, b"".join(answer.take(splitter.feed(piece)) for piece in pieces)


def assembled(route: Route, stream: bytes) -> dict[str, Any]:
    """The whole answer that the stream would have been."""
    assembly = route.assembly()
    StreamedAnswer(route, wants_usage=True, assembly=assembly).take(stream)
    whole: dict[str, Any] = json.loads(assembly.answer())
    return whole


def shape(value: Any) -> Any:
    """Members and types, without nulls: engines write them in one form and leave them out in the other."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def assert_any_split_is_the_same(route: Route, stream: bytes) -> None:
    """Cut in two at each offset, and byte by byte, a stream is read as it is in one piece."""
    whole, expected = passed(route, stream)
    told = (whole.first_token, whole.finished, whole.done, whole.usage)
    for at in range(1, len(stream)):
        answer, got = passed(route, stream[:at], stream[at:])
        assert got == expected, at
        assert (answer.first_token, answer.finished, answer.done, answer.usage) == told, at
    answer, got = passed(route, *(stream[at : at + 1] for at in range(len(stream))))
    assert (got, answer.usage) == (expected, whole.usage)
