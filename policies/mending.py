"""Holds a prompt's head still where it only looks different: tools in one order, spans at one value.

Everything here works on the bytes of a body. What was changed is the same for every turn of a conversation,
so that what is appended finds the head byte for byte as it was.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from policies.volatility import Kind, Span, common, common_end, respanned, spans

HEADS_MAX = 2000  # conversations
BYTES_MAX = 1 << 25
# Longer ones go as they came: to read them would hold up all else for too long.
TOOLS_BYTES_MAX = 1 << 18
HEAD_BYTES_MAX = 1 << 16
MATCHES_MAX = 1000  # of an operator's patterns in one text
LISTS_MAX, TOOLS_MAX = 64, 1024  # that are known as they are written
DAY_SECONDS = 86_400

_clock = re.compile(rb"\d{1,2}:\d\d(?P<seconds>:\d\d(?:[.,]\d+)?)?(?P<half> ?[AaPp]\.?[Mm]\b)?").match
_word = re.compile(r"[^ \t\n\r]").search
_scanner = json.JSONDecoder()
_MORNING = bytes.maketrans(b"Pp", b"Aa")

UUID, RANDOM_ID = Kind.UUID, Kind.RANDOM_ID  # a hundred looks at an enumeration take longer than all else

Kinds = frozenset[Kind]
NONE: Kinds = frozenset()


# -- tools ----------------------------------------------------------------------------------------


class Number(str):
    """A number as it is written: 1.0 is not 1, and 1e400 is no infinity."""

    __slots__ = ()


class Ambiguous(ValueError):
    """An object has a key twice: which of them counts is the engine's to say."""


def ordered_tools(text: bytes) -> tuple[bytes, Kinds]:
    """A list of tools by their names, the members of each by their keys; arrays inside stay as they are.

    Also what was changed by that, beside the spelling. What is no such list comes back as it is.
    """
    return _ordered(text) if text.startswith(b"[") and len(text) <= TOOLS_BYTES_MAX else (text, NONE)


@lru_cache(maxsize=LISTS_MAX)
def _ordered(text: bytes) -> tuple[bytes, Kinds]:
    try:
        tools = [_tool(one) for one in _items(text.decode())]
    except (ValueError, RecursionError):
        return text, NONE
    ordered = sorted(tools, key=lambda tool: (tool.name, tool.written))
    kinds = {Kind.TOOL_ORDER} if ordered != tools else set()
    if any(tool.turned for tool in tools):
        kinds.add(Kind.TOOL_KEY_ORDER)
    return f"[{','.join(tool.written for tool in ordered)}]".encode(), frozenset(kinds)


class Tool(NamedTuple):
    """One of them, as it goes to the engine."""

    name: str
    written: str
    turned: bool  # its members stood in another order


def _items(text: str) -> list[str]:
    """The items of an array, as they are written. Raises ValueError."""
    items: list[str] = []
    at = _next(text, 1)
    going = text[at] != "]"
    while going:
        _, end = _scanner.raw_decode(text, at)
        items.append(text[at:end])
        at = _next(text, end)
        going = text[at] == ","
        if going:
            at = _next(text, at + 1)
    if text[at:] != "]":
        raise ValueError
    return items


def _next(text: str, at: int) -> int:
    """Where the next sign stands that is no blank."""
    found = _word(text, at)
    if found is None:
        raise ValueError
    return found.start()


@lru_cache(maxsize=TOOLS_MAX)
def _tool(text: str) -> Tool:
    tool = json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=_members)
    if not isinstance(tool, dict):
        raise ValueError
    written = _written(tool)
    return Tool(_name(tool), written, written != _written(tool, by_key=False))


def _name(tool: dict[str, Any]) -> str:
    function = tool.get("function", tool)
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Ambiguous
    return members


def _written(value: Any, *, by_key: bool = True) -> str:
    match value:
        case dict():
            members = sorted(value.items()) if by_key else value.items()
            written = (f"{json.dumps(key)}:{_written(inner, by_key=by_key)}" for key, inner in members)
            return f"{{{','.join(written)}}}"
        case list():
            return f"[{','.join(_written(item, by_key=by_key) for item in value)}]"
        case Number():
            return str(value)
    return json.dumps(value)


# -- the system prompt -------------------------------------------------------------------------------


@dataclass(slots=True)
class Head:
    """The system prompt of one conversation."""

    raw: bytes  # as it came last
    raw_spans: list[Span]  # of the built-in kinds
    first: bytes  # as it came first
    first_spans: list[Span]
    sent: bytes  # as it goes to the engine
    midnight: frozenset[int]  # those of its spans that are times which differ between conversations
    kinds: Kinds  # what was held still when it came last

    @property
    def memory_bytes(self) -> int:
        """About what it takes to hold it."""
        spans = 0 if self.raw_spans is self.first_spans else len(self.raw_spans)
        return len(self.raw) + len(self.first) + len(self.sent) + 64 * (spans + len(self.first_spans))


class Heads:
    """System prompts as they came first, by conversation, and as its last one began by agent.

    `own`: the operator's patterns. Nothing moves: a span has another value, or it is as it came.
    """

    def __init__(
        self, own: Iterable[str] = (), *, heads_max: int = HEADS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._own = re.compile("|".join(own).encode()) if own else None
        self._heads_max = heads_max
        self._bytes_max = bytes_max
        self._heads: OrderedDict[Hashable, Head] = OrderedDict()
        self.memory_bytes = 0

    def __len__(self) -> int:
        return len(self._heads)

    def still(
        self, agent: Hashable, session: str | None, said: Sequence[int], text: bytes
    ) -> tuple[bytes, Kinds]:
        """The text with its volatile spans as they were when this conversation began, and what they are.

        `agent`: also which of its system prompts, if it has several. `said`: digests of the first messages.
        If anything else has changed, the text is taken as it came, and held from then on; one in which the
        operator's patterns match more than 1,000 times goes as it came, always. In a new
        conversation, times of day that differ from those of the agent's last one become midnight: all of a
        day begin alike.
        """
        if len(text) > HEAD_BYTES_MAX:
            return text, NONE
        key = (agent, session, *said[:1]) if session is not None else (agent, *said[:2])
        head, last = self._heads.get(key), self._heads.get((agent,))
        if head is not None and head.raw == text:
            self._heads.move_to_end(key)
            return head.sent, head.kinds
        known = head or last
        kinds = list(spans(text)) if known is None else respanned(known.raw, known.raw_spans, text)
        found = kinds if self._own is None else _with(kinds, self._own, text)
        if found is None:
            return text, NONE
        begins = session is None and len(said) < 2
        unnamed: Hashable = None
        if begins or (session is None and head is None):
            # Conversations without a name may begin with the same words: their identifiers hold them apart.
            names = [text[s:e] for kind, s, e in found if kind is UUID or kind is RANDOM_ID]
            unnamed = (agent, *said[:1], *names)
            head = self._heads.get(unnamed)
            if head is None and not begins:
                head = self._heads.get((agent, *said[:1]))
        held = _held(head, text, kinds, found) if head is not None else None
        if held is None:
            held = _begun(last, text, kinds, found)
            self._keep((agent,), held)
        self._keep(key, held)
        if begins:
            self._keep(unnamed, held)
        return held.sent, held.kinds

    def _keep(self, key: Hashable, head: Head) -> None:
        before = self._heads.pop(key, None)
        self.memory_bytes += head.memory_bytes - (before.memory_bytes if before is not None else 0)
        self._heads[key] = head
        while len(self._heads) > self._heads_max or self.memory_bytes > self._bytes_max:
            self.memory_bytes -= self._heads.popitem(last=False)[1].memory_bytes


def _with(kinds: list[Span], own: re.Pattern[bytes], text: bytes) -> list[Span] | None:
    """What an operator's own patterns find, and of the built-in kinds what is beside that; None: they find
    too much to be looked at. How far a pattern looks around nobody knows, so it reads the whole text."""
    found: list[Span] = []
    at = 0
    for number, match in enumerate(own.finditer(text)):
        if number >= MATCHES_MAX:
            return None
        before = bisect_right(kinds, match.start(), at, key=_end)
        found += (*kinds[at:before], Span(Kind.PATTERN, *match.span()))
        at = bisect_left(kinds, match.end(), before, key=_start)
    return [*found, *kinds[at:]]


def _held(head: Head, text: bytes, kinds: list[Span], found: list[Span]) -> Head | None:
    """The same head with what a turn has for its spans; None: something else has changed."""
    moved = _moved(head, text, found)
    if moved is None:
        return None
    held = {found[place].kind for place in moved}
    if head.midnight:
        held.add(Kind.TIME)
    return replace(head, raw=text, raw_spans=kinds, kinds=frozenset(held))


def _begun(last: Head | None, text: bytes, kinds: list[Span], found: list[Span]) -> Head:
    """The head of a new conversation; `last` is how another one of the same agent began."""
    midnight: frozenset[int] = frozenset()
    if last is not None and (moved := _moved(last, text, found)) is not None:
        midnight = last.midnight | {place for place in moved if found[place].kind is Kind.TIME}
    at = sorted(midnight)
    sent = _filled(text, [found[n] for n in at], [day_of(text[slice(*found[n][1:])]) for n in at])
    return Head(text, kinds, text, found, sent, midnight, frozenset({Kind.TIME}) if midnight else NONE)


def _moved(head: Head, text: bytes, found: list[Span]) -> list[int] | None:
    """Which spans of a text differ from those that the conversation began with; None: something else does.

    Only what stands between the first difference and the last one is looked at.
    """
    was, were = head.first, head.first_spans
    if len(were) != len(found):
        return None
    at = common(was, text)
    rest = min(common_end(was, text), min(len(was), len(text)) - at)
    low = max(0, bisect_right(were, at, key=_end) - 1)
    high = max(
        bisect_left(were, len(was) - rest, key=_start), bisect_left(found, len(text) - rest, key=_start)
    )
    if high < len(found) and _from_end(were[high], was) != _from_end(found[high], text):
        high = len(found)
    low = min(low, high)
    if were[:low][-1:] != found[:low][-1:]:  # it looked at what is behind it
        low = 0
    if _gaps(was, were, low, high) != _gaps(text, found, low, high):
        return None
    return [n for n in range(low, high) if was[slice(*were[n][1:])] != text[slice(*found[n][1:])]]


def _start(span: Span) -> int:
    return span.start


def _end(span: Span) -> int:
    return span.end


def _from_end(span: Span, text: bytes) -> Span:
    """Where it stands, seen from the end of the text."""
    return Span(span.kind, span.start - len(text), span.end - len(text))


def _gaps(text: bytes, found: Sequence[Span], low: int, high: int) -> list[bytes]:
    """What stands between these spans, and between them and those beside them."""
    starts = [span.end for span in found[max(0, low - 1) : high]]
    ends = [span.start for span in found[low : high + 1]]
    if not low:
        starts.insert(0, 0)
    if high == len(found):
        ends.append(len(text))
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _filled(text: bytes, found: Sequence[Span], values: Sequence[bytes]) -> bytes:
    """The text with these values in its spans."""
    pieces: list[bytes] = []
    done = 0
    for span, value in zip(found, values, strict=True):
        pieces += (text[done : span.start], value)
        done = span.end
    return b"".join((*pieces, text[done:]))


def day_of(time: bytes) -> bytes:
    """A time of day as midnight in the same form, a time since 1970 as the day's beginning in UTC."""
    if clock := _clock(time):
        seconds = re.sub(rb"\d", b"0", clock["seconds"] or b"")
        half = clock["half"] or b""
        hour = b"12" if half else b"00"
        return hour + b":00" + seconds + half.translate(_MORNING) + time[clock.end() :]
    if b"T" in time:
        day, _, rest = time.partition(b"T")
        return day + b"T" + re.sub(rb"\d", b"0", rest)
    whole = time.partition(b".")[0]
    unit = 10 ** (len(whole) - 10)  # of seconds, milliseconds and so on
    return b"%d" % (int(whole) // (DAY_SECONDS * unit) * DAY_SECONDS * unit)
