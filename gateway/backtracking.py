"""How often a regular expression may try another way at one place of a text before it gives up.

A repeat is taken back only where what follows may begin with a byte that its own next round may begin with,
so with alternatives. Ways multiply; ambiguous repeats within a repeat have no bound that helps.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

UNBOUNDED = 10_000  # rounds that a repeat without bound is taken to make
MOST = 100_000  # ways: one such repeat, and a little beside it

_parser: Any = re._parser  # type: ignore[attr-defined]  # nothing public tells how a pattern was read
_ALL = frozenset(range(256))
_NONE: frozenset[int] = frozenset()
_CATEGORIES = {
    f"CATEGORY_{name}": frozenset(byte for byte in _ALL if re.match(pattern, bytes((byte,))))
    for name, pattern in {
        "DIGIT": rb"\d",
        "NOT_DIGIT": rb"\D",
        "SPACE": rb"\s",
        "NOT_SPACE": rb"\S",
        "WORD": rb"\w",
        "NOT_WORD": rb"\W",
    }.items()
}


class Part(NamedTuple):
    """A piece of a pattern."""

    first: frozenset[int]  # bytes that it may begin with, and perhaps more
    empty: bool  # it may match nothing
    ways: int


def ways(pattern: bytes) -> int:
    """In how many ways at most it may be tried at one place, MOST + 1 for any more. Raises re.error."""
    return _sequence(_parser.parse(pattern), _NONE).ways


def _sequence(nodes: Iterable[Any], follow: frozenset[int]) -> Part:
    whole = Part(_NONE, True, 1)
    for op, value in reversed(list(nodes)):
        behind = whole.first | follow if whole.empty else whole.first
        part = _part(str(op), value, behind)
        first = part.first | whole.first if part.empty else part.first
        whole = Part(first, part.empty and whole.empty, _bounded(part.ways * whole.ways))
    return whole


def _part(op: str, value: Any, follow: frozenset[int]) -> Part:
    match op:
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
            return Part(_bytes(op, value), False, 1)
        case "AT":
            return Part(_NONE, True, 1)
        case "ASSERT" | "ASSERT_NOT":
            return Part(_NONE, True, _sequence(value[1], _NONE).ways)
        case "SUBPATTERN":
            return _sequence(value[3], follow)
        case "ATOMIC_GROUP":
            return _sequence(value, _NONE)
        case "BRANCH":
            return _branch([_sequence(branch, follow) for branch in value[1]], follow)
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, nodes = value
            return _repeat(least, most, nodes, follow)
        case "POSSESSIVE_REPEAT":
            body = _sequence(value[2], _NONE)
            return Part(body.first, body.empty or not value[0], body.ways)
    return Part(_ALL, True, MOST + 1)


def _branch(parts: list[Part], follow: frozenset[int]) -> Part:
    begins = [part.first | follow if part.empty else part.first for part in parts]
    alike = any(a & b for a, b in itertools.combinations(begins, 2))
    found = sum(part.ways for part in parts) if alike else max(part.ways for part in parts)
    first = _NONE.union(*(part.first for part in parts))
    return Part(first, any(part.empty for part in parts), _bounded(found))


def _repeat(least: int, most: int, nodes: Iterable[Any], follow: frozenset[int]) -> Part:
    least, most = min(least, UNBOUNDED), min(most, UNBOUNDED)
    nodes = list(nodes)
    body = _sequence(nodes, _NONE)
    if most > 1:
        body = _sequence(nodes, follow | body.first)
    found = 1
    if most > least and (body.empty or body.first & follow):
        found = most - least + 1
    if body.ways > 1:  # in each round anew; two ways 64 times are too many already
        found = MOST + 1 if most > 64 else found * body.ways**most
    return Part(body.first, body.empty or not least, _bounded(found))


def _bounded(number: int) -> int:
    return min(number, MOST + 1)


def _bytes(op: str, value: Any) -> frozenset[int]:
    """The bytes that one place may match, in both cases: who ignores it is not told here."""
    found: set[int] = set()
    negated = op == "NOT_LITERAL"
    for kind, what in value if op == "IN" else ((op, value),):
        match str(kind):
            case "LITERAL" | "NOT_LITERAL":
                found.add(what)
            case "RANGE":
                found.update(range(what[0], what[1] + 1))
            case "CATEGORY":
                found |= _CATEGORIES.get(str(what), _ALL)
            case "NEGATE":
                negated = True
            case _:
                found |= _ALL
    if negated:
        found = set(_ALL) - found
    return frozenset(found).union(*(bytes((byte,)).swapcase() for byte in found))
