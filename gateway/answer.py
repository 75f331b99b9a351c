"""What an engine's stream says, and which of its bytes the client gets.

Bytes pass through; events are found but not rewritten. Once the first token is out, only a few words
in a block make it worth parsing, which keeps a burst of 64 events at the cost of one search.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.accounting import Usage, usage_from
from gateway.assembly import Assembly
from gateway.engines.base import CHAT
from gateway.sse import data_of, event_end, event_of, events

DONE = b"data: [DONE]\n\n"
# What may change the course of a stream. Text of the model that contains one only costs a parse.
MARKERS = (
    b'"usage"',
    b'"timings"',
    b'"error"',
    b'"detail"',
    b"[DONE]",
    b'"finish_reason":"',
    b'"finish_reason": "',
)
TOKEN_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "text")


class StreamedAnswer:
    """One stream of chat or completion chunks.

    Before the first token nothing is passed on: comments are dropped, chunks without a token held
    back, so that a retry stays invisible. Behind `[DONE]` or an error everything is dropped; a `[DONE]`
    there would mark success.
    """

    __slots__ = (
        "_assembly",
        "_held",
        "_wants_usage",
        "answer_bytes",
        "done",
        "error",
        "events",
        "finished",
        "first_token",
        "usage",
    )

    def __init__(self, *, wants_usage: bool, assembly: Assembly | None = None) -> None:
        self._wants_usage = wants_usage
        self._assembly = assembly
        self._held: list[bytes] = []
        self.first_token = False
        self.finished = False  # a finish_reason was seen
        self.done = False  # [DONE] was seen
        self.error: dict[str, Any] | None = None  # the engine's error event
        self.usage: Usage | None = None
        self.events = 0  # data events with tokens; behind the first one every unremarkable event counts
        self.answer_bytes = 0  # of these events

    @property
    def committed(self) -> bool:
        """The answer has begun: a token, or an end without one."""
        return self.first_token or self.finished or self.done

    @property
    def over(self) -> bool:
        """Nothing that follows belongs to the answer: the engine has ended it, or has failed."""
        return self.done or self.error is not None

    def take(self, block: bytes) -> bytes:
        """Read whole events; return what the client gets of them."""
        if self._assembly is not None:
            return b"".join(map(self._event, events(block)))
        start = 0
        passed: list[bytes] = []
        while not self.first_token and not self.over and start < len(block):
            end = event_end(block, start)
            passed.append(self._event(block[start:end]))
            start = end
        if not self.over and start < len(block):
            passed.append(self._behind_first_token(block[start:] if start else block))
        return passed[0] if len(passed) == 1 else b"".join(passed)

    def end(self) -> bytes:
        """The engine's stream is over: what is still missing for the client. llama.cpp and ds4 end
        without `[DONE]` after an error; some engines forget it after a finish_reason."""
        return DONE if self.finished and not self.done and self.error is None else b""

    def _behind_first_token(self, block: bytes) -> bytes:
        plain = _plain_bytes(block)
        if plain:
            self.events += block.count(b"data:", 0, plain)
            self.answer_bytes += plain
        if plain == len(block):
            return block
        return block[:plain] + b"".join(map(self._event, events(block[plain:])))

    def _event(self, event: bytes) -> bytes:
        """Read one event; return what the client gets of it."""
        if self.over:
            return b""
        data = data_of(event)
        if data == b"[DONE]":
            self.done = True
            return self._released(event)
        chunk = _object(data) if data is not None else None
        if chunk is None:  # a comment, or a line that is no JSON
            return event if self.first_token else b""
        if (error := _error(chunk)) is not None:
            self.error = error
            return event if self.committed else b""
        return self._chunk(chunk, event)

    def _chunk(self, chunk: dict[str, Any], event: bytes) -> bytes:
        usage = usage_from(chunk)
        if usage is not None:
            self.usage = usage
        if self._assembly is not None:
            self._assembly.add(chunk)
        choices = [choice for choice in chunk.get("choices") or () if isinstance(choice, dict)]
        if usage is not None and not choices and not self._wants_usage:
            return b""
        if any(map(_has_token, choices)):
            self.first_token = True
            self.events += 1
            self.answer_bytes += len(event)
        if any(choice.get("finish_reason") is not None for choice in choices):
            self.finished = True
        if not self.committed:
            self._held.append(event)
            return b""
        return self._released(event)

    def _released(self, event: bytes) -> bytes:
        if not self._held:
            return event
        held, self._held = self._held, []
        return b"".join((*held, event))


def as_stream(document: dict[str, Any], route: str, *, wants_usage: bool) -> bytes:
    """A whole answer as the stream it should have been, for a client that has a stream's head already."""
    rest = {key: value for key, value in document.items() if key not in ("choices", "usage", "timings")}
    rest["object"] = "chat.completion.chunk" if route == CHAT else "text_completion"
    choices = [choice for choice in document["choices"] if isinstance(choice, dict)]
    stream = event_of(rest | {"choices": [_as_delta(choice) for choice in choices]})
    if wants_usage and document.get("usage"):
        stream += event_of(rest | {"choices": [], "usage": document["usage"]})
    return stream + DONE


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(choice.get("message"), dict):
        return choice
    delta = dict(choice["message"])
    if calls := delta.get("tool_calls"):  # clients put the pieces of a call together by its index
        delta["tool_calls"] = [{"index": index} | call for index, call in enumerate(calls)]
    return {key: value for key, value in choice.items() if key != "message"} | {"delta": delta}


def _plain_bytes(block: bytes) -> int:
    """Length of the whole events at the start of the block that need no look."""
    if b"\r" in block:
        return 0
    first = len(block)
    for marker in MARKERS:
        at = block.find(marker, 0, first)
        if at >= 0:
            first = at
    if first == len(block):
        return first
    before = block.rfind(b"\n\n", 0, first)
    return before + 2 if before >= 0 else 0


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return chunk if isinstance(chunk, dict) else None


def _error(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The error that an event reports under a 200; engines have several shapes for it."""
    error = chunk.get("error")
    if error:
        return error if isinstance(error, dict) else {"message": str(error)}
    if chunk.get("object") == "error" or ("detail" in chunk and "choices" not in chunk):
        return chunk
    return None


def _has_token(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or choice
    return isinstance(delta, dict) and any(delta.get(name) for name in TOKEN_FIELDS)
