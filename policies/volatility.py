"""Spans of a prompt that change from turn to turn although nothing was said: clocks, identifiers, counters.

A span is looked for in the bytes of the body, where a line break is `\\n` and a date may be `11\\/30\\/2026`.
"""

from __future__ import annotations

import enum
import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Kind(enum.StrEnum):
    """What makes a prompt differ from the one before. The values are what metrics and headers carry."""

    DATE = "date"
    TIME = "time"
    UUID = "uuid"
    COUNTER = "counter"
    RANDOM_ID = "random_id"
    PATTERN = "pattern"  # one of the operator's own
    WHITESPACE = "whitespace"
    TOOL_ORDER = "tool_order"
    TOOL_KEY_ORDER = "tool_key_order"  # members of a tool or its schema
    TOOLS = "tools_changed"
    MODEL = "model_changed"
    SYSTEM = "system_rewritten"
    HISTORY = "history_rewritten"
    COMPACTION = "compaction"
    CALL_IDS = "tool_call_ids"
    REASONING = "reasoning_dropped"


class Span(NamedTuple):
    """A volatile span: the bytes from start to end."""

    kind: Kind
    start: int
    end: int


NEAR = 40  # bytes around a difference in which its span begins and ends; a UUID has 36
WORD = 128  # or so many, of a single word; a SHA-512 has 128
FAR = 48  # bytes: no span of several words is longer
BLOB = 1024  # bytes of a word; what is longer is none
LIKE = 16  # bytes behind a span that must be alike, so that it is the same span

_DAY = r"(?:Mon|Tue(?:s)?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_NTH = r"\d{1,2}(?:st|nd|rd|th)?\b"
_SLASH = r"(?:[-.]|\\?/)"
_SPANS = {
    Kind.UUID: r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b",
    Kind.TIME: (
        r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\ ?[AaPp]\.?[Mm]\b)?(?:\ ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)\b)?"
        r"|\d{8}T\d{4,6}Z?\b"
        r"|1[5-9]\d{8}(?:\d{3}){0,3}(?:\.\d+)?\b"  # since 1970, in seconds to nanoseconds, of 2017 to 2033
    ),
    Kind.DATE: (
        rf"\d{{4}}{_SLASH}\d{{1,2}}{_SLASH}\d{{1,2}}(?!\d)|\d{{1,2}}{_SLASH}\d{{1,2}}{_SLASH}\d{{4}}\b"
        rf"|(?=[A-Z0-9])(?:{_DAY}|(?:{_NTH}\ )?{_MONTH}(?:\ {_NTH})?(?:,?\ \d{{4}}\b)?)"
    ),
    Kind.RANDOM_ID: r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[0-9A-Za-z]{6,}(?![0-9A-Za-z])",
    Kind.COUNTER: r"\d+",
}
# A span begins where a word or a number does, and not with the letter of an escape or within its number: both
# are one letter. All else is passed over five times as fast so.
_IN_ESCAPE = "".join(rf"(?<!\\u[0-9a-fA-F]{{{digits}}})" for digits in range(4))
_BEGINS = (
    rf"(?:(?<![\\0-9A-Za-z])(?=[0-9A-Za-z])|(?=\d)(?:(?<!\d){_IN_ESCAPE}|(?<=\\u[0-9a-fA-F]{{4}}))"
    r"|(?<=\\[nrt])(?=[0-9A-Za-z]))"
)
_ANY = "|".join(f"(?P<{kind.name}>{pattern})" for kind, pattern in _SPANS.items())
_not_word = re.compile(rb"[^0-9A-Za-z]").search
_BLANKS = b" \t\r\n\\"


def volatile(own: Iterable[str] = ()) -> re.Pattern[bytes]:
    """What looks volatile: an operator's own patterns, then the kinds above. Raises re.error."""
    first = "".join(f"(?P<{Kind.PATTERN.name}>{pattern})|" for pattern in ("|".join(own),) if pattern)
    return re.compile(f"{first}(?x:{_BEGINS}(?:{_ANY}))".encode())


_volatile = volatile()


def spans(
    text: bytes, start: int = 0, end: int | None = None, pattern: re.Pattern[bytes] = _volatile
) -> Iterator[Span]:
    """Everything there that looks volatile, in order."""
    for found in pattern.finditer(text, start, len(text) if end is None else end):
        yield Span(Kind[found.lastgroup or ""], found.start(), found.end())


def respanned(known: bytes, found: Sequence[Span], text: bytes) -> list[Span]:
    """The spans of a text, from those of another one that it is almost like: only around what differs is it
    read. They are the same as those of the whole text."""
    shift, at, rest = len(text) - len(known), common(known, text), common_end(known, text)
    rest = min(rest, min(len(text), len(known)) - at)
    start = _word_start(text, max(0, at - FAR), BLOB)
    same = bisect_right(found, start, key=lambda span: span.end)
    if same < len(found):
        start = min(start, found[same].start)
    stop = _word_end(text, min(len(text), len(text) - rest + FAR), BLOB)
    if max(at - start, stop - len(text) + rest) > BLOB:  # the middle of a word without end
        return list(spans(text))
    fresh = list(itertools.takewhile(lambda span: span.start < stop, spans(text, start, stop + FAR)))
    behind = bisect_left(found, stop - shift, key=lambda span: span.start)
    ends = (fresh[-1].end if fresh else 0, found[behind - 1].end + shift if behind else 0)
    if max(ends) > stop and ends[0] != ends[1]:  # one of them reaches into what is behind
        return list(spans(text))
    moved = (Span(kind, start + shift, end + shift) for kind, start, end in found[behind:])
    return [*found[:same], *fresh, *(moved if shift else found[behind:])]


def common(a: bytes, b: bytes) -> int:
    """The length of the common beginning of two texts, by bisection: they are long and almost equal."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_end(a: bytes, b: bytes) -> int:
    """The same of their ends."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def kind_at(old: bytes, new: bytes, at: int) -> Kind | None:
    """What the difference is that two texts have first at this place; None: none of what is volatile."""
    if is_blank(old, new, at):
        return Kind.WHITESPACE
    change = change_at(old, new, at)
    return change.kind if change is not None else None


class Change(NamedTuple):
    """A span that has another value."""

    kind: Kind
    was: Span
    now: Span


def change_at(old: bytes, new: bytes, at: int) -> Change | None:
    """The span that two texts have there, first of all that differs; None: it is no span."""
    was, now = _span_at(old, at), _span_at(new, at)
    if was is None or now is None or was.start != now.start:
        return None
    behind = old[was.end : was.end + NEAR], new[now.end : now.end + NEAR]
    if behind[0] != behind[1] and _likeness(behind[0]) != _likeness(behind[1]):
        return None
    if was.kind is now.kind:
        return Change(was.kind, was, now)
    loose = {Kind.COUNTER, Kind.RANDOM_ID}  # of an identifier the digits may come alone
    return Change(Kind.RANDOM_ID, was, now) if {was.kind, now.kind} == loose else None


def is_blank(old: bytes, new: bytes, at: int) -> bool:
    """Whether only blanks differ, from there to the end."""
    start = at - old.endswith(b"\\", 0, at)  # of an escape, half may be common
    if not any(sign in _BLANKS for sign in old[start : start + 1] + new[start : start + 1]):
        return False
    return _without_blanks(old[start:]) == _without_blanks(new[start:])


def _without_blanks(text: bytes) -> bytes:
    for escape in (b"\\n", b"\\t", b"\\r"):
        text = text.replace(escape, b"")
    return text.translate(None, b" \t\r\n")


def _span_at(text: bytes, at: int) -> Span | None:
    """The span that holds this place, or ends there."""
    start, end = _word_start(text, max(0, at - NEAR)), _word_end(text, at + NEAR)
    last = None
    for span in spans(text, start, end):
        if span.start > at:
            break
        if span.end >= at:
            last = span
    return last


def _word_end(text: bytes, at: int, most: int = WORD) -> int:
    found = _not_word(text, at, at + most)
    return found.start() if found else at + most


def _word_start(text: bytes, at: int, most: int = WORD) -> int:
    before = text[max(0, at - most) : at]
    return at - min(len(before), _word_end(before[::-1], 0, most))


def _likeness(text: bytes) -> bytes:
    """A text whatever is volatile in it left out."""
    return _volatile.sub(b"#", text)[:LIKE]
