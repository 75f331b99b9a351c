"""Holds a prompt's head still where it only looks different: tools in one order, spans at one value.

Everything here works on the bytes of a body. What was changed is the same for every turn of a conversation,
so that what is appended finds the head byte for byte as it was.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from policies.volatility import Kind, Span, spans, volatile

HEADS_MAX = 2000  # conversations
BYTES_MAX = 1 << 25
# Longer ones go as they came: to read them would hold up all else for too long.
TOOLS_BYTES_MAX = 1 << 18
HEAD_BYTES_MAX = 1 << 16
DAY_SECONDS = 86_400

_clock = re.compile(rb"\d{1,2}:\d\d(?P<seconds>:\d\d(?:[.,]\d+)?)?(?P<half> ?[AaPp]\.?[Mm]\b)?").match
_MORNING = bytes.maketrans(b"Pp", b"Aa")

IDENTIFIERS = (Kind.UUID, Kind.RANDOM_ID)

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


@lru_cache(maxsize=64)
def _ordered(text: bytes) -> tuple[bytes, Kinds]:
    try:
        tools = json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=_members)
        if not all(isinstance(tool, dict) for tool in tools):
            return text, NONE
        named = sorted(((_name(tool), _written(tool), tool) for tool in tools), key=lambda one: one[:2])
    except (ValueError, RecursionError):
        return text, NONE
    kinds = set()
    if [tool for _, _, tool in named] != tools:
        kinds.add(Kind.TOOL_ORDER)
    if any(written != _written(tool, by_key=False) for _, written, tool in named):
        kinds.add(Kind.TOOL_KEY_ORDER)
    return f"[{','.join(written for _, written, _ in named)}]".encode(), frozenset(kinds)


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
    sent: bytes  # as it goes to the engine
    skeleton: bytes  # without its volatile spans
    values: tuple[bytes, ...]  # these spans, as they came first
    midnight: frozenset[int]  # those of them that are times which differ between conversations
    kinds: Kinds  # what was held still when it came last

    @property
    def memory_bytes(self) -> int:
        """About what it takes to hold it."""
        return len(self.raw) + len(self.sent) + len(self.skeleton) + 64 * len(self.values)


class Heads:
    """System prompts as they came first, by conversation, and as its last one began by agent.

    `own`: the operator's patterns. Nothing moves: a span has another value, or it is as it came.
    """

    def __init__(
        self, own: Iterable[str] = (), *, heads_max: int = HEADS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._pattern = volatile(own)
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
        If anything else has changed, the text is taken as it came, and held from then on. In a new
        conversation, times of day that differ from those of the agent's last one become midnight: all of a
        day begin alike.
        """
        if len(text) > HEAD_BYTES_MAX:
            return text, NONE
        key = (agent, session, *said[:1]) if session is not None else (agent, *said[:2])
        head = self._heads.get(key)
        if head is not None and head.raw == text:
            self._heads.move_to_end(key)
            return head.sent, head.kinds
        found = list(spans(text, pattern=self._pattern))
        values = tuple(text[span.start : span.end] for span in found)
        skeleton = _filled(text, found, {})
        # Conversations without a name may begin with the same words: then their identifiers hold them apart.
        own = (agent, *said[:1], *(text[span.start : span.end] for span in found if span.kind in IDENTIFIERS))
        begins = session is None and len(said) < 2
        if begins:
            head = self._heads.get(own)
        elif session is None and head is None:
            head = self._heads.get(own) or self._heads.get((agent, *said[:1]))
        if head is not None and head.skeleton == skeleton:
            head = _held(head, text, found, values)
        else:
            head = self._begun(self._heads.get((agent,)), text, found, values, skeleton)
            self._keep((agent,), head)
        self._keep(key, head)
        if begins:
            self._keep(own, head)
        return head.sent, head.kinds

    def _begun(
        self, last: Head | None, text: bytes, found: list[Span], values: tuple[bytes, ...], skeleton: bytes
    ) -> Head:
        """The head of a new conversation; `last` is how another one of the same agent began."""
        midnight: frozenset[int] = frozenset()
        if last is not None and last.skeleton == skeleton:
            midnight = last.midnight | {
                place
                for place, span in enumerate(found)
                if span.kind is Kind.TIME and values[place] != last.values[place]
            }
        kept = dict(enumerate(values)) | {place: day_of(values[place]) for place in midnight}
        kinds = frozenset({Kind.TIME}) if midnight else NONE
        return Head(text, _filled(text, found, kept), skeleton, values, midnight, kinds)

    def _keep(self, key: Hashable, head: Head) -> None:
        before = self._heads.pop(key, None)
        self.memory_bytes += head.memory_bytes - (before.memory_bytes if before is not None else 0)
        self._heads[key] = head
        while len(self._heads) > self._heads_max or self.memory_bytes > self._bytes_max:
            self.memory_bytes -= self._heads.popitem(last=False)[1].memory_bytes


def _held(head: Head, text: bytes, found: Iterable[Span], values: tuple[bytes, ...]) -> Head:
    """The same head with what a turn has for its spans."""
    changed = {span.kind for span, now, first in zip(found, values, head.values, strict=True) if now != first}
    return replace(head, raw=text, kinds=frozenset(changed | {Kind.TIME} if head.midnight else changed))


def _filled(text: bytes, found: list[Span], values: Mapping[int, bytes]) -> bytes:
    """The text with these values in its spans; a span without one becomes a sign that no JSON has."""
    pieces: list[bytes] = []
    done = 0
    for place, span in enumerate(found):
        pieces += (text[done : span.start], values.get(place, b"\0"))
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
