"""Who tells how much an engine holds, and what its own figures teach."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.capacity import LOWER_SECONDS, RESTORE_SECONDS, Capacity, Experience, Figure
from gateway.engines.base import Report
from gateway.options import BackendSettings
from policies.slots import SlotSearch
from policies.types import Source


def capacity(report: Report, experience: Experience | None = None, **settings: Any) -> Capacity:
    """Of an engine with these options."""
    return Capacity.of(BackendSettings(url="http://engine", **settings), report, experience)


# -- the order of witnesses -----------------------------------------------------------------------------


def test_the_operator_counts_more_than_the_engine_and_the_engine_more_than_experience() -> None:
    """Whoever else says something is shown, but does not count."""
    told, seen = Report(slots=6, context_tokens=4096, kv_tokens=10_000), Experience(SlotSearch(found=4))
    mine = capacity(told, seen, slots=11, context_tokens=1000, kv_tokens=5000)
    assert (mine.slots, mine.source) == (11, Source.CONFIGURED)
    assert mine.told.by_source == {Source.CONFIGURED: 11, Source.REPORTED: 6, Source.LEARNT: 4}
    assert (mine.context_tokens.value, mine.context_tokens.source) == (1000, Source.CONFIGURED)
    assert (mine.kv_tokens.value, mine.kv_tokens.source) == (5000, Source.CONFIGURED)

    theirs = capacity(told, seen)
    assert (theirs.slots, theirs.source) == (6, Source.REPORTED)
    assert (theirs.context_tokens.value, theirs.context_tokens.source) == (4096, Source.REPORTED)
    assert (theirs.kv_tokens.value, theirs.kv_tokens.source) == (10_000, Source.REPORTED)

    assert (capacity(Report(), seen).slots, capacity(Report(), seen).source) == (4, Source.LEARNT)


@pytest.mark.parametrize("slots", [None, 0])
def test_nothing_known_is_one_slot(slots: int | None) -> None:
    """An engine that claims to have no slot at all is a serial one; nobody is shown as a witness."""
    unknown = capacity(Report(slots=slots))
    assert (unknown.slots, unknown.source, unknown.told) == (1, Source.ASSUMED, Figure())
    assert (unknown.context_tokens, unknown.kv_tokens) == (Figure(), Figure())


def test_in_words() -> None:
    """For logs and commands."""
    assert str(capacity(Report(slots=2, context_tokens=4096))) == "2 slots (reported) of 4,096 tokens"
    assert str(capacity(Report())) == "1 slot (assumed), context not known"


# -- slots that nobody tells ----------------------------------------------------------------------------


def learnt(*looks: tuple[int | None, int | None]) -> int | None:
    """The slots that these looks at running and waiting requests teach."""
    seen = Experience()
    for running, waiting in looks:
        seen.look(Report(running=running, waiting=waiting), 1, 0.0)
    return seen.search.found


@pytest.mark.parametrize(
    ("looks", "slots"),
    [
        ([(5, 0), (6, 0)], None),  # never full
        ([(3, 2), (3, 1)], 3),
        ([(3, 2)], None),  # one look may have met a request that had just arrived
        ([(3, 2), (3, 0), (3, 2)], None),
        ([(3, 2), (1, 2)], 1),
        ([(3, 2), (1, 2), (4, 1), (4, 1), (2, 1)], 4),  # the most: memory may hold fewer at times
        ([(0, 2), (0, 2)], None),
        ([(None, 2), (3, None), (None, None)], None),
    ],
)
def test_what_runs_while_others_wait_is_the_number_of_slots(
    looks: list[tuple[int | None, int | None]], slots: int | None
) -> None:
    """Seen twice in a row."""
    assert learnt(*looks) == slots


# -- an engine that runs short of memory ----------------------------------------------------------------


class Engine:
    """An engine with six slots that is looked at again and again."""

    def __init__(self, slots: int = 6) -> None:
        self.seen = Experience()
        self.now = 0.0
        self.refused = 0
        self.slots = slots
        self.look()

    def look(self, refused: int = 0, seconds: float = 0.0) -> Capacity:
        """Time passes, so many requests are refused, and it is probed."""
        self.now += seconds
        self.refused += refused
        report = Report(slots=self.slots, refused=self.refused)
        self.seen.look(report, capacity(report, self.seen).slots, self.now)
        return capacity(report, self.seen)


def test_a_refusal_takes_one_slot_for_a_while() -> None:
    """Shown with its reason; what follows within seconds belongs to the same strain."""
    engine = Engine()
    after = engine.look(refused=1, seconds=2.0)
    assert (after.slots, after.source) == (5, Source.REPORTED)
    assert after.reason == "lowered from 6: the engine ran short of memory"
    assert engine.look(refused=20, seconds=LOWER_SECONDS / 2).slots == 5
    assert engine.look(refused=1, seconds=LOWER_SECONDS / 2).slots == 4


def test_slots_come_back_one_by_one() -> None:
    """Each after a time without a refusal."""
    engine = Engine()
    for _ in range(3):
        engine.look(refused=1, seconds=LOWER_SECONDS)
    assert engine.look(seconds=RESTORE_SECONDS - 1).slots == 3
    assert engine.look(seconds=1).slots == 4
    assert engine.look(seconds=RESTORE_SECONDS / 2).slots == 4
    assert engine.look(seconds=RESTORE_SECONDS / 2).slots == 5
    last = engine.look(seconds=RESTORE_SECONDS)
    assert (last.slots, last.reason) == (6, "")
    assert engine.look(seconds=10 * RESTORE_SECONDS).slots == 6


def test_a_refusal_that_takes_no_slot_keeps_them_from_coming_back() -> None:
    """The engine is still short of memory."""
    engine = Engine()
    assert engine.look(refused=1, seconds=LOWER_SECONDS).slots == 5
    engine.look(refused=1, seconds=LOWER_SECONDS - 1)
    assert engine.look(seconds=RESTORE_SECONDS - 1).slots == 5
    assert engine.look(seconds=1).slots == 6


def test_one_slot_is_always_left() -> None:
    """An engine that refuses everything is a matter of ejection."""
    engine = Engine(slots=3)
    for _ in range(9):
        engine.look(refused=1, seconds=LOWER_SECONDS)
    assert engine.look().slots == 1
    assert engine.look(seconds=RESTORE_SECONDS).slots == 2


def test_what_was_refused_before_the_first_look_is_not_ours() -> None:
    """The counter is one of the engine's whole life."""
    seen = Experience()
    seen.look(Report(slots=6, refused=40), 6, 0.0)
    assert seen.lowered == 0
    seen.look(Report(slots=6, refused=41), 6, 100.0)
    assert seen.lowered == 1


def test_answers_that_fail_for_want_of_memory_show_that_slots_share_it() -> None:
    """What was told as the context of each slot is that of all together. Where that is known, or a budget
    is, there are still too many requests."""
    seen, told = Experience(), Report(slots=4, context_tokens=131_072)
    seen.overfilled(capacity(told, seen), 0.0)
    after = capacity(told, seen)
    assert (after.slots, after.kv_tokens.value, after.kv_tokens.source) == (4, 131_072, Source.LEARNT)
    seen.overfilled(after, 1.0)
    assert capacity(told, seen).slots == 3

    mine = Experience()
    mine.overfilled(capacity(told, mine, kv_tokens=90_000), 0.0)
    assert (mine.kv_tokens, mine.lowered) == (None, 1)
    mine.look(told, 3, RESTORE_SECONDS)
    assert mine.lowered == 0


def test_without_a_context_there_is_no_budget_to_learn() -> None:
    """Then nothing changes: there is no llama.cpp that does not tell it."""
    seen = Experience()
    seen.overfilled(capacity(Report(slots=4), seen), 0.0)
    assert capacity(Report(slots=4), seen).kv_tokens.value is None
