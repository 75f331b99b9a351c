"""Calls by response ratio, of which only as many are compared as are asked for."""

from __future__ import annotations

import random

import pytest

from policies.queue import group_of
from policies.rank import LENGTHS, Rank, best_first
from policies.waiting import SERVICE_SECONDS_MIN, Hold, Waiting
from tests.unit.fleet import a_call

GROUP = group_of(a_call())


def ranks(calls: list[Waiting]) -> list[Rank]:
    """Of those that hold, and of those that do not."""
    both = [Rank(GROUP, Hold.NONE), Rank(GROUP, Hold.HOLDS)]
    for waiting in calls:
        both[waiting.held_since is not None].add(waiting)
    return both


def some_calls(chance: random.Random) -> list[Waiting]:
    """Of many lengths, some on the edge of one; many that came at once, a few that are still to come."""
    calls = []
    for number in range(chance.randrange(1, 150)):
        seconds = chance.choice((*LENGTHS[:8], 1.0, SERVICE_SECONDS_MIN + chance.expovariate(0.1), 1e6))
        call = a_call(f"{number}", arrived=chance.choice((0.0, 5.0, 30.0, chance.uniform(0.0, 12.0))))
        calls.append(Waiting(call, 0.0, service_seconds=seconds, held_since=chance.choice((None, 1.0))))
    return calls


@pytest.mark.parametrize("seed", range(50))
def test_gives_them_in_the_order_of_all(seed: int) -> None:
    """As if every call were compared at every moment, whoever came and went meanwhile."""
    chance = random.Random(seed)
    calls = some_calls(chance)
    both = ranks(calls)
    for gone in chance.sample(calls, len(calls) // 3):
        calls.remove(gone)
        both[gone.held_since is not None].remove(gone)
    assert sum(map(len, both)) == len(calls)
    for now in (10.0, 40.0):
        every = sorted(calls, key=lambda one: ((one.call.arrived - now) / one.service_seconds, one.call.id))
        assert list(best_first(both, now, lambda rank: False)) == every


def test_compares_few_of_many() -> None:
    """The first of 10,000 is found without a look at all of them."""

    class Counted(Waiting):
        looks = 0

        def __getattribute__(self, name: str) -> object:
            Counted.looks += name == "service_seconds"
            return super().__getattribute__(name)

    rank, chance = Rank(GROUP, Hold.NONE), random.Random(1)
    for number in range(10_000):
        call = a_call(f"{number}", arrived=chance.uniform(0.0, 100.0))
        rank.add(Counted(call, 0.0, service_seconds=chance.uniform(1.0, 30.0)))
    Counted.looks = 0
    next(best_first([rank], 100.0, lambda rank: False))
    assert 0 < Counted.looks < 1000


def test_leaves_out_those_that_need_no_look() -> None:
    """From the moment on at which that is so."""
    calls = [Waiting(a_call(f"{number}"), 0.0, held_since=None if number % 2 else 0.0) for number in range(8)]
    skipped = [False]
    order = best_first(ranks(calls), 1.0, lambda rank: rank.hold is Hold.HOLDS and skipped[0])
    seen = [next(order).call.id for _ in range(3)]
    skipped[0] = True
    assert [*seen, *(waiting.call.id for waiting in order)] == ["0", "1", "2", "3", "5", "7"]
