"""`/v1/messages`, Anthropic's, and its `/v1/messages/count_tokens`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.accounting import TokenSource, Usage
from gateway.engines.base import COUNT_TOKENS, MESSAGES
from gateway.errors import ContextLengthExceeded, GatewayError, InvalidRequest
from gateway.json_spans import Span
from gateway.routes.base import COMMENT, FINISHED, NAMED_ERROR, NOTHING, TOKEN, Route, Seen
from gateway.routes.counts import count_of, table_of
from gateway.routes.message_assembly import MessageAssembly
from gateway.routes.prompt import Part, marked_message, piece
from gateway.sse import named_event

PING = named_event("ping", {"type": "ping"})
STOP = named_event("message_stop", {"type": "message_stop"})
TOKEN_FIELDS = ("text", "thinking", "partial_json")
CALLS = ("tool_use", "server_tool_use")

DONE = Seen(done=True)

# What Anthropic names its errors, by status; any other below 500 is `invalid_request_error`.
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


class Anthropic(Route):
    """What its two routes share: the prompt, and the shape of errors."""

    listed = "messages"
    error_field = NAMED_ERROR

    def prompt(self, text: str, values: dict[str, Any], spans: dict[str, Span]) -> Iterator[Part]:
        """The system prompt, which stands before all messages wherever it is in the body, then one piece
        per message."""
        messages = values.get("messages")
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("`messages` must be an array with at least one message.", "messages")
        if "system" in spans:
            yield piece(spans["system"])
        for item in messages:
            yield marked_message(text, item)

    def error_body(self, error: GatewayError) -> bytes:
        """`{"type": "error", "error": {"type", "message"}}`, and our own code and figures."""
        message = error.message
        if isinstance(error, ContextLengthExceeded):  # the words by which its clients know it
            message = f"prompt is too long: {message}"
        kind = ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        told = {"type": kind, "message": message, "code": error.code} | error.details()
        return json.dumps({"type": "error", "error": told}).encode()


class Messages(Anthropic):
    """Messages in, blocks of content out."""

    path = MESSAGES
    generates = True
    limit_keys: tuple[str, ...] = ("max_tokens",)
    markers: tuple[bytes, ...] = (b'"usage"', b'"error"', b'"ping"', b"message_stop", b"[DONE]")
    token_mark = b'"content_block_delta"'
    ending = STOP

    def is_answer(self, document: dict[str, Any]) -> bool:
        """An answer has blocks of content, and a reason why it ends: vLLM that is told to end gives those
        that it breaks off a null for a reason, in a stream too."""
        return isinstance(document.get("content"), list) and document.get("stop_reason") is not None

    def usage(self, chunk: Mapping[str, object]) -> Usage | None:
        """Of an answer, or of the two events that tell it.

        `message_start` counts the prompt, and of the output at most what is there so far;
        `message_delta` all of the output, and on some engines the prompt once more.
        """
        start = chunk.get("type") == "message_start"
        usage = table_of(table_of(chunk, "message") if start else chunk, "usage")
        tokens, completion = count_of(usage, "input_tokens"), count_of(usage, "output_tokens")
        if tokens is None and (start or completion is None):
            return None
        # Unlike OpenAI's, `input_tokens` are those that were not cached.
        cached = count_of(usage, "cache_read_input_tokens")
        created = count_of(usage, "cache_creation_input_tokens")
        return Usage(
            TokenSource.REPORTED,
            prompt_tokens=None if tokens is None else tokens + (cached or 0) + (created or 0),
            cached_tokens=cached,
            completion_tokens=None if start else completion,
        )

    def seen(self, chunk: dict[str, Any]) -> Seen:
        """Text, thinking and a tool's input are tokens, and so is the name of a tool."""
        match chunk.get("type"):
            case "content_block_delta":
                delta = table_of(chunk, "delta")
                return TOKEN if any(delta.get(name) for name in TOKEN_FIELDS) else NOTHING
            case "content_block_start":
                block = table_of(chunk, "content_block")
                told = block.get("type") in CALLS or any(block.get(name) for name in TOKEN_FIELDS)
                return TOKEN if told else NOTHING
            case "message_delta":
                return FINISHED if table_of(chunk, "delta").get("stop_reason") is not None else NOTHING
            case "message_stop":
                return DONE
        return NOTHING

    def assembly(self) -> MessageAssembly:
        """A message."""
        return MessageAssembly()

    def as_stream(self, document: dict[str, Any], *, wants_usage: bool) -> bytes:
        """Each block in one piece."""
        reason = {"stop_reason": document.get("stop_reason"), "stop_sequence": document.get("stop_sequence")}
        empty: dict[str, object] = {"content": [], "stop_reason": None, "stop_sequence": None}
        told = [_event("message_start", message=document | empty)]
        blocks = (block for block in document["content"] if isinstance(block, dict))
        for index, block in enumerate(blocks):
            start, delta = _in_two(block)
            told.append(_event("content_block_start", index=index, content_block=start))
            if delta:
                told.append(_event("content_block_delta", index=index, delta=delta))
            told.append(_event("content_block_stop", index=index))
        told.append(_event("message_delta", delta=reason, usage=document.get("usage")))
        return b"".join((*told, STOP))

    def heartbeat(self, mode: str, model: str, request_id: str, *, include_usage: bool) -> bytes:
        """A `ping`, which all its clients know, unless comments are wanted."""
        return {"off": b"", "comment": COMMENT}.get(mode, PING)


class CountTokens(Anthropic):
    """How many tokens the same request would have as a prompt."""

    path = COUNT_TOKENS
    takes_slot = False


def _event(type: str, **fields: object) -> bytes:
    return named_event(type, {"type": type} | fields)


def _in_two(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """How a block starts, and what then comes."""
    match block:
        case {"type": "text", "text": text}:
            return block | {"text": ""}, {"type": "text_delta", "text": text}
        case {"type": "thinking", "thinking": thinking}:
            return block | {"thinking": ""}, {"type": "thinking_delta", "thinking": thinking}
        case {"type": "tool_use", "input": tool_input}:
            return block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(tool_input)}
    return block, None
