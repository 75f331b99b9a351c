"""Where two prompts first differ, and how."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

from policies.turn import Turn
from policies.volatility import Kind, common, kind_at

PATH_LENGTH_MAX = 120
# Identifiers of a call, in the words of chat completions, responses and messages.
IDS = frozenset({"id", "tool_call_id", "call_id", "tool_use_id"})
REASONING = frozenset({"reasoning_content", "reasoning", "thinking", "reasoning_details"})
THOUGHTS = frozenset({"thinking", "redacted_thinking", "reasoning"})  # types of blocks and items
ALIKE = 0.5  # share of a text that must have stayed where no more than its words tell that it was rewritten
ALIKE_BYTES = 64
CLOSING = b'"]} '  # what may stand behind the end of a text
DEPTH_MAX = 12  # of a path that is shown
HEADS_MAX = 4  # that were read last
READ_BYTES_MAX = 1 << 19  # of both; more would hold up all else for too long

_thought = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_word = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*").fullmatch


class Difference(NamedTuple):
    """The first place at which a prompt is not what the engine saw before."""

    kind: Kind
    place: int  # number of the piece; -1: the model
    at: int  # bytes of the piece before it, as the engine reads it
    offset: int  # in the body
    path: str
    head: bool  # in what stands before all messages that are said
    sure: bool  # it is the same piece, changed; else it may as well be another one in its place


def first_difference(old: Turn, new: Turn) -> Difference | None:
    """Where the new turn leaves the old one; None: one continues the other."""
    if old.model != new.model:
        return Difference(Kind.MODEL, -1, 0, new.model_start, "model", True, True)
    for place in range(min(len(old), len(new))):
        was, now = old.kept(place), new.kept(place)
        if was != now and (found := _within(old, new, place, was, now)):
            return found
    return None


@lru_cache(maxsize=HEADS_MAX)
def _head(text: bytes) -> Any:
    """Tools or a system prompt, read once though two turns are compared with them."""
    return json.loads(text)


class _Unreadable(ValueError):
    """Too long to be read."""


def _within(old: Turn, new: Turn, place: int, was: bytes, now: bytes) -> Difference | None:
    """The difference of one piece; None if both say the same in other spelling."""
    at = common(was, now)
    if place == len(old) - 1 and not was[at:].strip(CLOSING):
        return None  # what was said last goes on
    is_tools, is_head = new.path(place) == "tools", place < max(old.first, new.first)
    keys, kind, sure = "", None, False
    try:
        if len(was) + len(now) > READ_BYTES_MAX:
            raise _Unreadable
        read = _head if is_head else json.loads
        before, after = read(was), read(now)
        # Templates write tools out member by member; in another order they are as long as before.
        if before == after and not (is_tools and (len(was) == len(now) or repr(before) != repr(after))):
            return None
        keys, sure = way(before, after)
        if is_tools:
            kind = of_tools(before, after)
        elif not is_head:
            kind = _of_messages(before, after, old, place, now)
    except (ValueError, RecursionError):  # a piece that is no JSON of its own, or nested without end
        keys = ""
    kind = kind or kind_at(was, now, at)
    sure = sure or is_head or kind is not None
    if kind is None:
        kind = Kind.TOOLS if is_tools else Kind.SYSTEM if is_head else Kind.HISTORY
    path = (new.path(place) + keys)[:PATH_LENGTH_MAX]
    return Difference(kind, place, at, new.pieces[place].place(at), path, is_head, sure)


def of_tools(before: Any, after: Any) -> Kind | None:
    """Whether the same tools stand in another order, or their members do; or there are others."""
    if before == after:
        return Kind.TOOL_KEY_ORDER
    was, now = _by_name(before), _by_name(after)
    if was.keys() != now.keys():
        return Kind.TOOLS
    return Kind.TOOL_ORDER if was == now else None


def _by_name(tools: Any) -> dict[str, Any]:
    named = {}
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            named[name] = tool
    return named


def _of_messages(before: Any, after: Any, old: Turn, place: int, now: bytes) -> Kind | None:
    """Whether a message only lost its reasoning, or has other identifiers."""
    if isinstance(before, dict) and before.get("type") in THOUGHTS:  # an item of its own
        return Kind.REASONING if place + 1 < len(old) and old.kept(place + 1) == now else None
    unthought = _without(before, REASONING)
    if unthought != before and unthought == after:
        return Kind.REASONING
    if _without(before, IDS) == _without(after, IDS):
        return Kind.CALL_IDS
    return None


def _without(value: Any, keys: frozenset[str]) -> Any:
    """A message without these members; where they are reasoning, also without thoughts in its content."""
    thoughts = keys is REASONING
    match value:
        case dict():
            return {key: _without(inner, keys) for key, inner in value.items() if key not in keys}
        case list():
            return [
                _without(inner, keys)
                for inner in value
                if not (thoughts and isinstance(inner, dict) and inner.get("type") in THOUGHTS)
            ]
        case str() if thoughts and "<think>" in value:
            return _thought.sub("", value)
    return value


def way(before: Any, after: Any) -> tuple[str, bool]:
    """The way to the first value that differs, as `[2].function.description`; and whether that is a text
    which for the most part stayed."""
    path = ""
    for _ in range(DEPTH_MAX):
        match before, after:
            case dict(), dict():
                key = next((k for k, v in after.items() if k not in before or before[k] != v), None)
                if key is None or key not in before:
                    break
                path += f".{key}" if _word(key) else "[*]"
                before, after = before[key], after[key]
            case list(), list():
                index = next((i for i, (b, a) in enumerate(zip(before, after, strict=False)) if b != a), None)
                if index is None:
                    break
                path += f"[{index}]"
                before, after = before[index], after[index]
            case _:
                break
    if isinstance(before, str) and isinstance(after, str):
        a, b = before.encode(errors="replace"), after.encode(errors="replace")
        stayed = common(a, b)
        return path, stayed >= max(ALIKE_BYTES, ALIKE * min(len(a), len(b)))
    return path, False
