"""The body of a client's request: what must be known of it, and edits in place.

The body is never re-serialised: unknown fields, order and spacing are the client's and reach the engine
as they came.
"""

from __future__ import annotations

import codecs
import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from gateway.errors import InvalidRequest
from gateway.json_spans import Span, decode, members, read, string
from gateway.routes.base import Route
from gateway.routes.prompt import Part, piece
from policies.prefix import INSIDE_BYTES_MIN, Link, inside

OUTPUT_TOKENS_MAX = 2**31 - 1  # a larger limit is none, and so is llama.cpp's -1


@dataclass(slots=True, eq=False)
class Request:
    """A request body and what the gateway must know of it; nobody changes it. (To make one that is frozen
    takes twice as long.)"""

    route: Route
    body: bytes  # without a byte order mark
    model: str  # "" where the route lets it be left out
    stream: bool
    include_usage: bool  # the client itself asked for usage, or gets it in any case
    output_tokens_max: int | None
    has_tools: bool
    user: str | None
    session: str | None
    parts: tuple[Part, ...]  # of the prompt; chat templates render tools first, wherever they stand
    spans: dict[str, Span]  # top-level key -> where its value stands
    usage_option: Span | None  # where the value of stream_options.include_usage stands
    mends: tuple[str, ...] = ()  # what of its head is held still, and is not as the client sent it

    @property
    def prompt_bytes(self) -> int:
        """Size of the prompt; an inline image counts for `MEDIA_BYTES` at most."""
        return sum(part.size for part in self.parts)

    def chain(self) -> tuple[Link, ...]:
        """The prompt as links: model and tools, then one per message, or per KiB of a bare prompt. None
        for a prompt of which the engine keeps nothing."""
        if not self.route.generates:
            return ()
        links: list[Link] = []
        end_bytes = 0
        digest = xxhash.xxh3_64_intdigest(self.model.encode())
        for part in self.parts:
            start, end, size, cuts = part
            kept = part.kept(self.body) if cuts else self.body[start:end]
            digest = xxhash.xxh3_64_intdigest(kept, digest)
            end_bytes += size
            links.append(Link(digest, end_bytes))
        return tuple(links)

    def inside(self, chain: tuple[Link, ...]) -> tuple[Link, ...]:
        """Places inside the last message, where that is long and all text."""
        if len(chain) < 2 or self.parts[-1].size < INSIDE_BYTES_MIN:
            return ()
        text = self.parts[-1].kept(self.body)
        return inside(xxhash.xxh3_64_intdigest, text, chain[-2]) if len(text) == self.parts[-1].size else ()

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
            keys = self.route.limit_keys
            given = [key for key in keys if key in self.spans] or keys[-1:]
            edits += (self._member(key, b"%d" % max_tokens) for key in given if self._is_limit(key))

        if not edits:
            return self.body
        edits = [(at, value) for at, value in edits if self.body[at[0] : at[1]] != value]
        return _replaced(self.body, edits) if edits else self.body

    def mended(self, edits: list[tuple[Span, bytes]], mends: tuple[str, ...]) -> Request:
        """This request with these texts in place of whole parts of its prompt; all else only moves."""
        texts = {start: text for (start, _), text in edits}
        if any(part.cuts and part.start in texts for part in self.parts):
            return replace(parse(_replaced(self.body, edits), self.route), mends=mends)
        since, by = [0], [0]  # from where on what stands there moves, and by how much
        for (start, end), text in sorted(edits):
            since.append(end)
            by.append(by[-1] + len(text) - (end - start))

        def moved(span: Span) -> Span:
            start, end = span
            return start + by[bisect_right(since, start) - 1], end + by[bisect_right(since, end) - 1]

        parts: list[Part] = []
        for part in self.parts:
            start, end, size, cuts = part
            more = by[bisect_right(since, start) - 1]
            if start in texts and end > start:
                length = len(texts[start])
                part = Part(start + more, start + more + length, size + length - (end - start))
            elif more:
                part = Part(start + more, end + more, size, tuple(map(moved, cuts)) if cuts else ())
            parts.append(part)
        return replace(
            self,
            body=_replaced(self.body, edits),
            parts=tuple(parts),
            spans={key: moved(span) for key, span in self.spans.items()},
            usage_option=moved(self.usage_option) if self.usage_option else None,
            mends=mends,
        )

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


def _replaced(body: bytes, edits: list[tuple[Span, bytes]]) -> bytes:
    """The body with these texts in place of those that stand there."""
    pieces: list[bytes] = []
    done = 0
    for (start, end), text in sorted(edits):
        pieces += (body[done:start], text)
        done = end
    return b"".join((*pieces, body[done:]))


def parse(body: bytes, route: Route) -> Request:
    """Read a request's body.

    Only what the gateway itself acts upon is judged, the rest is the engine's business.
    Raises InvalidJson, and InvalidRequest with the parameter at fault.
    """
    # A sender must not add a byte order mark (RFC 8259, 8.1), and towards the engine the gateway is the
    # sender: the mark is tolerated from the client and not sent on.
    body = body.removeprefix(codecs.BOM_UTF8)
    text = decode(body)
    values, spans = read(text, route.listed)

    model = string(text, values.get("model"), spans.get("model"))
    if model is None and (route.names_model or values.get("model")):
        raise InvalidRequest("`model` must be a string that names a model.", "model")
    stream = values.get("stream") if route.generates else None
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("`stream` must be true or false.", "stream")
    usage, usage_option = _inner(text, values, spans, "stream_options", "include_usage")
    limit: object = None if route.generates else 0  # of tokens that are generated
    for key in route.limit_keys:
        if (limit := values.get(key)) is not None:
            break
    tools = values.get("tools")
    user = string(text, values.get("user"), spans.get("user"))
    session = string(text, values.get("prompt_cache_key"), spans.get("prompt_cache_key")) or string(
        text, *_inner(text, values, spans, "metadata", "session_id")
    )
    return Request(
        route,
        body,
        model or "",
        stream is True,
        usage is True or not route.asks_usage,
        limit if type(limit) is int and 0 <= limit <= OUTPUT_TOKENS_MAX else None,
        isinstance(tools, list) and bool(tools),
        user,
        session,
        (piece(spans.get("tools", (0, 0))), *route.prompt(text, values, spans)),
        spans,
        usage_option,
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
