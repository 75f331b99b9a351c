"""The body of a client's request: what must be known of it, and edits in place.

The body is never re-serialised: unknown fields, order and spacing are the client's and reach the engine
as they came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import xxhash

from gateway.engines.base import CHAT, COMPLETIONS
from gateway.errors import InvalidRequest
from gateway.json_spans import Span, decode, members, read, string
from policies.prefix import Link

# A sender must not add a byte order mark (RFC 8259, 8.1), and towards the engine the gateway is the
# sender: the mark is tolerated from the client and not sent on.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLOCK_BYTES = 1024  # of a bare prompt, which has no messages, per link of the chain
# What an inline image or sound counts for at most, about 1,000 tokens: a gateway that went by its
# length took a screenshot of 4 MB for a million tokens and refused it (mnfst/llm-gateway#2290).
MEDIA_BYTES = 4096
OUTPUT_TOKENS_MAX = 2**31 - 1  # a larger limit is none, and so is llama.cpp's -1
LIMIT_KEYS = ("max_completion_tokens", "max_tokens")  # the first one that is not null counts


class Part(NamedTuple):
    """A piece of the prompt: the bytes from start to end, without those from cut to resume."""

    start: int
    cut: int
    resume: int
    end: int
    size: int  # the bytes it counts for


@dataclass(frozen=True, slots=True)
class Request:
    """A request body and what the gateway must know of it."""

    body: bytes  # without a byte order mark
    model: str
    stream: bool
    include_usage: bool  # the client itself asked for usage
    output_tokens_max: int | None
    has_tools: bool
    user: str | None
    session: str | None
    parts: tuple[Part, ...]  # of the prompt; chat templates render tools first, wherever they stand
    spans: dict[str, Span]  # top-level key -> where its value stands
    usage_option: Span | None  # where the value of stream_options.include_usage stands

    @property
    def prompt_bytes(self) -> int:
        """Size of the prompt; an inline image counts for `MEDIA_BYTES` at most."""
        return sum(part.size for part in self.parts)

    def chain(self) -> tuple[Link, ...]:
        """The prompt as links: model and tools, then one per message, or per KiB of a bare prompt."""
        links = []
        end_bytes = 0
        digest = xxhash.xxh3_64_intdigest(self.model.encode())
        for start, cut, resume, end, size in self.parts:
            digest = xxhash.xxh3_64_intdigest(self.body[start:cut] + self.body[resume:end], digest)
            end_bytes += size
            links.append(Link(digest, end_bytes))
        return tuple(links)

    def edited(
        self,
        *,
        model: str | None = None,
        stream: bool | None = None,
        include_usage: bool = False,
        max_tokens: int | None = None,
    ) -> bytes:
        """The body with these values in it; every other byte stays. Nothing to change: `body` itself.

        `max_tokens` goes to the limit that the client gave, whichever its key. A limit or
        `stream_options` of a wrong type is left for the engine to refuse.
        """
        edits: list[tuple[Span, bytes]] = []
        if model not in (None, self.model):
            edits.append(self._member("model", json.dumps(model).encode()))
        if stream is not None:
            edits.append(self._member("stream", b"true" if stream else b"false"))
        if include_usage:
            edits += self._usage()
        if max_tokens is not None:
            given = [key for key in LIMIT_KEYS if key in self.spans] or ["max_tokens"]
            edits += (self._member(key, b"%d" % max_tokens) for key in given if self._is_limit(key))

        pieces: list[bytes] = []
        done = 0
        for (start, end), value in sorted(edits):
            if self.body[start:end] != value:
                pieces += (self.body[done:start], value)
                done = end
        return b"".join((*pieces, self.body[done:])) if pieces else self.body

    def _member(self, key: str, value: bytes) -> tuple[Span, bytes]:
        """Replace this member's value, or insert the member; `model` surely stands behind the comma."""
        if key in self.spans:
            return self.spans[key], value
        start = self.body.index(b"{") + 1
        return (start, start), b'"%s":%s,' % (key.encode(), value)

    def _usage(self) -> Iterator[tuple[Span, bytes]]:
        options = self._raw("stream_options")
        if self.usage_option:
            yield self.usage_option, b"true"
        elif options.startswith(b"{"):
            start = self.spans["stream_options"][0] + 1
            comma = b"," if options[1:-1].strip() else b""
            yield (start, start), b'"include_usage":true' + comma
        elif options in (b"", b"null"):
            yield self._member("stream_options", b'{"include_usage":true}')

    def _is_limit(self, key: str) -> bool:
        limit = self._raw(key)
        return limit in (b"", b"null") or limit.removeprefix(b"-").isdigit()

    def _raw(self, key: str) -> bytes:
        start, end = self.spans.get(key, (0, 0))
        return self.body[start:end]


def parse(body: bytes, route: str) -> Request:
    """Read a request's body.

    Only what the gateway itself acts upon is judged, the rest is the engine's business.
    Raises InvalidJson, and InvalidRequest with the parameter at fault.
    """
    body = body.removeprefix(BYTE_ORDER_MARK)
    text = decode(body)
    values, spans = read(text)

    model = string(text, values.get("model"), spans.get("model"))
    if model is None:
        raise InvalidRequest("`model` must be a string that names a model.", "model")
    stream = values.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("`stream` must be true or false.", "stream")
    usage, usage_option = _inner(text, values, spans, "stream_options", "include_usage")
    limit = next((values[key] for key in LIMIT_KEYS if values.get(key) is not None), None)
    tools = values.get("tools")
    return Request(
        body=body,
        model=model,
        stream=stream is True,
        include_usage=usage is True,
        output_tokens_max=limit if type(limit) is int and 0 <= limit <= OUTPUT_TOKENS_MAX else None,
        has_tools=isinstance(tools, list) and bool(tools),
        user=string(text, values.get("user"), spans.get("user")),
        session=string(text, values.get("prompt_cache_key"), spans.get("prompt_cache_key"))
        or string(text, *_inner(text, values, spans, "metadata", "session_id")),
        parts=(_part(*spans.get("tools", (0, 0))), *_prompt(text, values, spans, route)),
        spans=spans,
        usage_option=usage_option,
    )


def _inner(
    text: str, values: dict[str, Any], spans: dict[str, Span], key: str, inner_key: str
) -> tuple[object, Span | None]:
    """A member of a top-level object, and where it stands."""
    if isinstance(values.get(key), dict) and inner_key in values[key]:
        for name, value, start, end in members(text, spans[key][0]):
            if name == inner_key:
                return value, (start, end)
    return None, None


def _prompt(text: str, values: dict[str, Any], spans: dict[str, Span], route: str) -> Iterator[Part]:
    """The pieces of the prompt behind the tools."""
    if route == CHAT:
        messages = values.get("messages")
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("`messages` must be an array with at least one message.", "messages")
        for message, start, end in messages:
            yield _message(text, message, start, end)
    elif route == COMPLETIONS:
        if "prompt" not in values:
            raise InvalidRequest("`prompt` is missing.", "prompt")
        prompt_start, prompt_end = spans["prompt"]
        step = BLOCK_BYTES if isinstance(values["prompt"], str) else len(text)
        for start in range(prompt_start, prompt_end, step):
            yield _part(start, min(start + step, prompt_end))


def _part(start: int, end: int) -> Part:
    return Part(start, end, end, end, end - start)


def _message(text: str, message: object, start: int, end: int) -> Part:
    """A message; `name` is left out of tool results, because Hermes forgets it when it resumes."""
    if not isinstance(message, dict):
        return _part(start, end)
    cut = resume = end
    if "name" in message and message.get("role") == "tool":
        cut, resume = _name(text, start)
    size = (cut - start) + (end - resume)
    content = message.get("content")
    if isinstance(content, list):
        size -= _media_excess(content)
    return Part(start, cut, resume, end, size)


def _name(text: str, start: int) -> Span:
    """From where to where to cut, so that what is left is the message without its `name`."""
    before = None
    for key, _value, _start, end in members(text, start):
        if key == "name":
            return (text.index('"', start), text.index('"', end)) if before is None else (before, end)
        before = end
    raise AssertionError("the message has a name")


def _media_excess(content: list[Any]) -> int:
    """By how many bytes the inline images and sounds of a message exceed what they count for."""
    media = (value for part in content if isinstance(part, dict) for value in part.values())
    data = (value for held in media if isinstance(held, dict) for value in held.values())
    return sum(max(0, len(value) - MEDIA_BYTES) for value in data if isinstance(value, str))
