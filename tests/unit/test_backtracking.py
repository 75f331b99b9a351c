"""Patterns of operators run over what clients send, between all else that the gateway does."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from gateway.backtracking import MOST, ways
from gateway.options import PrefixSettings

EVIL = (
    r"build (?:[0-9]+[.]?)+-final",
    r"(?:a+)+b",
    r"(?:a*)*b",
    r"(?:a|aa)+b",
    r"(?:[a-z]x?|[a-c]y)*1",
    r"(?:ab?b?)+c",
    r"[a-z]+[a-z]+x",
    r"x.*y.*z",
    r"(?:a?){30}a{30}",
    r"(?:\w+\s?)*!",
    r"(?>(?:a+)+b)",
    r"(?=(?:a+)+b)abc",
    r"(?:(?:a|A)+x?)+y",
)
INNOCENT = (
    r"build [0-9.]+",
    r"\d+\.\d+\.\d+",
    r"v\d+(?:\.\d+)*",
    r"(?:\d{1,3}\.){3}\d{1,3}",
    r"(?:ab|cd)+e",
    r"run-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}",
    r"session=.+?;",
    r"(?:Mon|Tue|Wed), \d\d?",
    r"build (?:[0-9]++[.]?)++-final",
    r"<now>[^<]*</now>",
)


@pytest.mark.parametrize("pattern", EVIL)
def test_what_could_be_tried_for_ever_is_refused(pattern: str) -> None:
    """Repeats in repeats, or beside them, that may share what they match: refused in one sentence."""
    assert ways(pattern.encode()) > MOST
    with pytest.raises(ValidationError, match="could try for ever"):
        PrefixSettings(patterns=(pattern,))


@pytest.mark.parametrize("pattern", INNOCENT)
def test_what_has_few_ways_is_taken(pattern: str) -> None:
    """What is apart by what follows it, possessive, atomic or bounded is as before."""
    assert ways(pattern.encode()) <= MOST
    assert PrefixSettings(patterns=(pattern,)).patterns == (pattern,)


@pytest.mark.parametrize("pattern", INNOCENT)
@pytest.mark.parametrize("sign", ["1", "1.", "a", "ab", "x1 ", ".", "<now>", "build 1"])
def test_what_is_taken_ends(pattern: str, sign: str) -> None:
    """No clock: what has no bound would not end at all."""
    for _ in re.finditer(pattern.encode(), (sign * 2000).encode()):
        pass
