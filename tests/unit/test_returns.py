"""Which conversations will ask again soon."""

from __future__ import annotations

import pytest

from policies import returns
from policies.returns import Returns
from policies.types import Call
from tests.unit.fleet import a_call, a_chain


def a_turn(number: int, conversation: str | None = "talk") -> Call:
    return a_call(conversation=conversation, chain=a_chain(*range(1, number + 1)))


def a_talk(*pauses: float) -> tuple[Returns, float]:
    """Answers, each after one of these pauses but the first; and when the last one ended."""
    known, now = Returns(), 0.0
    known.answered(a_turn(1), now)
    for number, pause in enumerate(pauses, 2):
        now += pause
        known.asks(a_turn(number), now)
        known.answered(a_turn(number), now)
    return known, now


def at(known: Returns, now: float) -> Returns:
    """As of an event of somebody else."""
    known.asks(a_call("other"), now)
    return known


def test_one_answer_promises_nothing() -> None:
    """It may have been a question and no conversation; and of what was never answered nothing is known."""
    known, _ = a_talk()
    assert not known.expected(1)
    assert not known.expected(99)


def test_who_came_back_is_expected_for_twice_the_usual_pause() -> None:
    """And a second; then the conversation is taken to be over."""
    known, ended = a_talk(10.0)
    assert known.expected(2)
    assert at(known, ended + 21.0).expected(2)
    assert not at(known, ended + 21.1).expected(2)


def test_who_usually_takes_long_is_not_expected() -> None:
    """A person who reads and thinks: nobody keeps a slot free that long."""
    known, ended = a_talk(200.0, 200.0)
    assert not at(known, ended + 1.0).expected(3)


def test_who_asks_again_already_is_expected() -> None:
    """However long it waits for its slot."""
    known, ended = a_talk(10.0)
    known.asks(a_turn(3), ended + 5.0)
    assert at(known, ended + 500.0).expected(2)


def test_the_usual_pause_follows_the_latest_ones() -> None:
    """A tool that takes half a minute from now on."""
    known, ended = a_talk(1.0, *[25.0] * 9)
    assert at(known, ended + 45.0).expected(11)


def test_calls_that_nobody_can_tell_apart_teach_nothing() -> None:
    """No conversation, or no prompt to know it by."""
    known = Returns()
    for call in (a_turn(1, None), a_call(conversation="talk")):
        known.answered(call, 0.0)
        known.asks(call, 1.0)
    assert not known.expected(1)


def test_forgets_those_that_asked_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose the names."""
    monkeypatch.setattr(returns, "CONVERSATIONS_MAX", 3)
    known = Returns()
    for number in range(9):
        known.answered(a_call(conversation=number, chain=a_chain(number)), 0.0)
    assert len(known._talks) == len(known._held) == 3
