"""What an engine's stream says, and which of its bytes the client gets.

Bytes pass through; events are found but not rewritten. Once the first token is out, only a few words
in a block make it worth parsing, which keeps a burst of 64 events at the cost of one search.
"""

from __future__ import annotations

import codecs
import json
from typing import Any

from gateway.accounting import Usage
from gateway.routes.base import Assembly, Route
from gateway.sse import EventTooLarge, data_of, event_end, events

HELD_BYTES_MAX = 4 * 1024 * 1024  # before the first token: the role, progress
PIECE_BYTES = 64  # that one of them takes beside its own

_decoder = json.JSONDecoder()


class StreamedAnswer:
    """One stream of events; what each of them says, its route knows.

    Before the first token nothing is passed on: comments are dropped, events without a token held
    back, so that a retry stays invisible. Behind the end or an error everything is dropped; a `[DONE]`
    there would mark success.
    """

    __slots__ = (
        "_assembly",
        "_held",
        "_held_bytes",
        "_markers",
        "_route",
        "_token_mark",
        "_wants_usage",
        "answer_bytes",
        "done",
        "error",
        "events",
        "finished",
        "first_token",
        "told",
        "usage",
    )

    def __init__(self, route: Route, *, wants_usage: bool, assembly: Assembly | None = None) -> None:
        self._route = route
        self._markers = route.markers
        self._token_mark = route.token_mark
        self._wants_usage = wants_usage
        self._assembly = assembly
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.first_token = False
        self.finished = False  # the reason why it ends was seen
        self.done = False  # its end was seen
        self.error: dict[str, Any] | None = None  # the engine's error event
        self.told = False  # the client has it
        self.usage: Usage | None = None
        self.events = 0  # with tokens
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
        return self._route.ending if self.finished and not self.done and self.error is None else b""

    def _behind_first_token(self, block: bytes) -> bytes:
        plain = _plain_bytes(block, self._markers)
        if plain:
            self.events += block.count(self._token_mark, 0, plain)
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
            return self._marker(event)
        chunk = object_of(data) if data is not None else None
        if chunk is None:  # a comment, or a line that is no JSON
            return event if self.first_token else b""
        if (error := self._route.failure(chunk)) is not None:
            self.error, self.told = error, self.committed and self._route.tells(chunk)
            return event if self.told else b""
        return self._chunk(chunk, event)

    def _marker(self, event: bytes) -> bytes:
        """`[DONE]`; behind nothing at all it would mark an empty success."""
        if not self.committed:
            self.error = {"type": "no answer"}
            return b""
        self.done = True
        return self._released(event)

    def _chunk(self, chunk: dict[str, Any], event: bytes) -> bytes:
        usage = self._route.usage(chunk)
        if usage is not None:
            self.usage = usage if self.usage is None else usage.after(self.usage)
        if self._assembly is not None:
            self._assembly.add(chunk)
        seen = self._route.seen(chunk)
        if usage is not None and seen.usage_only and not self._wants_usage:
            return b""
        if seen.aborted or (seen.done and not self.finished):
            self.error = {"type": "abort"}
            return b""
        if seen.token:
            self.first_token = True
            self.events += 1
            self.answer_bytes += len(event)
        if seen.finished:
            self.finished = True
        if seen.done:
            self.done = True
        if not self.committed:
            self._hold(event)
            return b""
        return self._released(event)

    def _hold(self, event: bytes) -> None:
        self._held.append(event)
        self._held_bytes += len(event) + PIECE_BYTES
        if self._held_bytes > HELD_BYTES_MAX:
            raise EventTooLarge(HELD_BYTES_MAX)

    def _released(self, event: bytes) -> bytes:
        if not self._held:
            return event
        held, self._held = self._held, []
        return b"".join((*held, event))


def _plain_bytes(block: bytes, markers: tuple[bytes, ...]) -> int:
    """Length of the whole events at the start of the block that need no look."""
    if b"\r" in block:
        return 0
    first = len(block)
    for marker in markers:
        at = block.find(marker, 0, first)
        if at >= 0:
            first = at
    if first == len(block):
        return first
    before = block.rfind(b"\n\n", 0, first)
    return before + 2 if before >= 0 else 0


def object_of(data: bytes) -> dict[str, Any] | None:
    """The JSON object that this is; None if it is none."""
    try:  # `json.loads` would first guess the encoding, which takes a quarter of all the rest
        value = _decoder.decode(data.removeprefix(codecs.BOM_UTF8).decode(errors="surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
