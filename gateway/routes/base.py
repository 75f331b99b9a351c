"""What is particular to each route of the client port, as one class with what most have in common.

Nothing outside this package compares a route's path: a `Request` carries its route, and asks it. A route
does no I/O and keeps no state; what it knows is the shape of bodies, answers, streams and errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from gateway.accounting import Usage
from gateway.errors import GatewayError
from gateway.json_spans import Span
from gateway.routes.prompt import Part

COMMENT = b": waiting\n\n"
NAMED_ERROR = b"event: error\ndata: "  # of the routes whose events have names


class Seen(NamedTuple):
    """What one event of a stream says."""

    token: bool = False  # text, reasoning or a tool call
    finished: bool = False  # why the answer ends; only bookkeeping follows
    done: bool = False  # nothing follows; without a reason before it, the engine gave the answer up
    usage_only: bool = False  # it has no place for an answer at all
    aborted: bool = False  # the engine gave the answer up, though it ends as if it were whole


NOTHING = Seen()
TOKEN = Seen(token=True)
FINISHED = Seen(finished=True)
ABORTED = Seen(aborted=True)


class Assembly(Protocol):
    """The whole answer, from the events of a stream."""

    def add(self, chunk: dict[str, Any]) -> None:
        """Take the next event."""
        ...

    def answer(self) -> bytes:
        """The answer as JSON."""
        ...


class Route:
    """One route: as here, its answers are documents and its errors have OpenAI's shape."""

    path: str
    everywhere: bool = False  # whatever serves a model has it
    takes_slot: bool = True  # counting tokens takes none
    generates: bool = False  # the engine writes tokens: it keeps the prompt's prefix, and may stream
    asks_usage: bool = False  # a stream tells its usage only if stream_options.include_usage asks for it
    names_model: bool = True  # without `model` it is no request
    listed: str = ""  # the member of the body that is read item by item
    limit_keys: tuple[str, ...] = ()  # the first one that is not null limits the answer's tokens
    # What may change the course of a stream. Text of the model that contains one only costs a parse.
    markers: tuple[bytes, ...] = ()
    token_mark: bytes = b"data:"  # stands once in each event that brings tokens
    ending: bytes = b""  # what a stream that has finished may still lack
    error_field: bytes = b"data: "  # what stands before an error in a stream

    def prompt(self, text: str, values: dict[str, Any], spans: dict[str, Span]) -> Iterator[Part]:
        """The pieces of the prompt behind the tools. Raises InvalidRequest."""
        return iter(())

    def is_answer(self, document: dict[str, Any]) -> bool:
        """Whether a 200 holds an answer: some engines report errors under it."""
        return "error" not in document

    def usage(self, chunk: Mapping[str, object]) -> Usage | None:
        """What the engine counted, from an event or a whole answer."""
        return None

    def seen(self, chunk: dict[str, Any]) -> Seen:
        """What an event of a stream says."""
        return NOTHING

    def failure(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """The error that an event reports under a 200; engines have several shapes for it."""
        error = chunk.get("error")
        if error:
            return error if isinstance(error, dict) else {"message": str(error)}
        return None

    def tells(self, chunk: dict[str, Any]) -> bool:
        """Whether clients know such an event for an error; any other they take for a token without text."""
        return isinstance(chunk.get("error"), dict)

    def assembly(self) -> Assembly:
        """The answer that a stream would have been."""
        raise NotImplementedError(f"{self.path} has no streams")

    def as_stream(self, document: dict[str, Any], *, wants_usage: bool) -> bytes:
        """A whole answer as the stream it should have been, for a client that has a stream's head."""
        raise NotImplementedError(f"{self.path} has no streams")

    def heartbeat(self, mode: str, model: str, request_id: str, *, include_usage: bool) -> bytes:
        """The event that says "still there", after `queue.heartbeat`; b"" for off."""
        return b"" if mode == "off" else COMMENT

    def error_body(self, error: GatewayError) -> bytes:
        """A failure as this route's clients read it."""
        return error.body()

    def error_event(self, body: bytes) -> bytes:
        """The same in a stream; the body is JSON on one line."""
        return self.error_field + body + b"\n\n"
