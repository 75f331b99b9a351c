"""The pieces of a prompt, as they stand in a request's body: one per message, and one for what stands
before all messages. Each piece becomes a link of the chain by which conversations are recognised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from gateway.json_spans import Item, Span, members
from policies.prompt_length import MEDIA_BYTES

BLOCK_BYTES = 1024  # of a bare prompt, which has no messages, per link of the chain
MEDIA_KEYS = ("image_url", "file_data")  # whose value may be the data itself

# Where the engine is to keep a prefix for a while.
_MARK = r'"cache_control"\s*:\s*(?:\{[^{}]*\}|null)'
_marks = re.compile(rf",\s*{_MARK}|{_MARK}\s*,\s*").finditer
# A content of one block, which is a text.
_lone_text = re.compile(
    r'"content"\s*:\s*(\[\s*\{\s*"type"\s*:\s*"text"\s*,\s*"text"\s*:\s*)'
    rf'"[^"\\]*+(?:\\.[^"\\]*+)*+"(\s*(?:,\s*{_MARK}\s*)?\}}\s*\])'
).search


class Part(NamedTuple):
    """A piece of the prompt: the bytes from start to end, without those that are cut out."""

    start: int
    end: int
    size: int  # the bytes it counts for
    cuts: tuple[Span, ...] = ()

    def kept(self, body: bytes) -> bytes:
        """What is left of it."""
        kept = []
        at = self.start
        for start, end in self.cuts:
            kept.append(body[at:start])
            at = end
        return b"".join((*kept, body[at : self.end]))

    def place(self, offset: int) -> int:
        """Where in the body the byte stands that has this offset in what is left of it."""
        at = self.start
        for start, end in self.cuts:
            if at + offset < start:
                break
            offset -= start - at
            at = end
        return at + offset


def piece(span: Span) -> Part:
    """All that stands there."""
    start, end = span
    return Part(start, end, end - start)


def blocks(start: int, end: int) -> Iterator[Part]:
    """A long text in pieces of `BLOCK_BYTES`."""
    for at in range(start, end, BLOCK_BYTES):
        yield piece((at, min(at + BLOCK_BYTES, end)))


def message(text: str, item: Item) -> Part:
    """A message; `name` is left out of tool results, because Hermes forgets it when it resumes."""
    value, start, end = item
    if not isinstance(value, dict):
        return piece((start, end))
    cuts = (_name(text, start),) if "name" in value and value.get("role") == "tool" else ()
    return _part(value, start, end, cuts)


def marked_message(text: str, item: Item) -> Part:
    """A message of Anthropic's kind, without what Claude Code changes of it from turn to turn: it marks
    the newest message for the engine's cache, takes the mark off those before, and to that end writes a
    text as a block in one turn and as a string in the next. No turn would else continue the one before."""
    value, start, end = item
    if not isinstance(value, dict):
        return piece((start, end))
    match value.get("content"):
        case [{"type": "text"}]:
            lone = _lone_text(text, start, end)
        case _:
            lone = None
    if lone:
        return _part(value, start, end, (lone.span(1), lone.span(2)))
    return _part(value, start, end, tuple(mark.span() for mark in _marks(text, start, end)))


def _part(value: dict[str, Any], start: int, end: int, cuts: tuple[Span, ...]) -> Part:
    size = end - start
    for cut, resume in cuts:
        size -= resume - cut
    content = value.get("content")
    if isinstance(content, list):
        size -= _media_excess(content)
    return Part(start, end, size, cuts)


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
    excess = 0
    for part in content:
        if not isinstance(part, dict):
            continue
        for key, value in part.items():
            if key == "content" and isinstance(value, list):  # a tool's result, as Anthropic's are
                excess += _media_excess(value)
            elif isinstance(value, dict) and key != "input":  # what a tool is called with is text
                excess += sum(
                    max(0, len(data) - MEDIA_BYTES) for data in value.values() if isinstance(data, str)
                )
            elif key in MEDIA_KEYS and isinstance(value, str):
                excess += max(0, len(value) - MEDIA_BYTES)
    return excess
