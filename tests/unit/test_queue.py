"""The queue: who waits, in what order, within which bounds."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from policies.fairness import QUANTUM_SECONDS, Account
from policies.queue import Queue, group_of
from policies.types import Call, Limits, Priority, Refusal
from policies.waiting import Waiting
from tests.unit.fleet import a_call


def a_queue(*calls: Call, **limits: object) -> Queue:
    queue = Queue(Limits(**limits))  # type: ignore[arg-type]
    for call in calls:
        queue.put(Waiting(call, call.arrived), call.arrived)
    return queue


def ids(queue: Queue, now: float = 0.0) -> list[str]:
    return [waiting.call.id for waiting in queue.ordered(now)]


def test_holds_calls_and_their_bytes() -> None:
    """What is taken out is forgotten, bytes and all."""
    queue = a_queue(a_call("a", body_bytes=10), a_call("b", body_bytes=5))
    assert (len(queue), queue.bytes, "a" in queue, "x" in queue) == (2, 15, True, False)
    queue.take("a")
    assert (len(queue), queue.bytes, ids(queue)) == (1, 5, ["b"])
    queue.take("b")
    assert not queue and queue.bytes == 0


def test_may_be_emptied_while_it_is_looked_through() -> None:
    """A tick takes out whoever waited too long."""
    queue = a_queue(*(a_call(str(number)) for number in range(3)))
    for waiting in queue:
        queue.take(waiting.call.id)
    assert not queue


def test_orders_and_counts_by_class() -> None:
    """As `order` says; the lengths are what metrics show."""
    queue = a_queue(a_call("agent"), a_call("person", priority=Priority.INTERACTIVE, arrived=1.0))
    assert ids(queue, 1.0) == ["person", "agent"]
    assert ids(queue, 61.0) == ["agent", "person"]
    assert queue.lengths() == {Priority.INTERACTIVE: 1, Priority.AGENT: 1}


@pytest.mark.parametrize("limits", [{"waiting_max": 2}, {"waiting_bytes_max": 20}])
def test_is_full_beyond_either_bound(limits: dict[str, int]) -> None:
    """The call that is one too many is already inside when it is asked about."""
    calls = [a_call(str(number), body_bytes=10) for number in range(3)]
    for inside, refusal in ((2, None), (3, Refusal.QUEUE_FULL)):
        rejected = a_queue(*calls[:inside], **limits).over_bounds(calls[inside - 1], 0.0)
        assert (rejected.refusal if rejected else None) is refusal


def test_knows_how_fast_it_moves_from_releases_under_a_backlog() -> None:
    """Nothing is known before the first; then a place costs as many seconds as one took."""
    queue = a_queue(a_call("a", arrived=5.0))
    assert queue.predicted_wait(0) is None
    queue.released(15.0)
    assert (queue.predicted_wait(0), queue.predicted_wait(2)) == (10.0, 30.0)


def test_knows_the_pace_of_each_group_while_some_of_it_wait() -> None:
    """Those that start, not those that leave; a start that is late by now makes it slower; another class has
    a pace of its own, and nothing is kept of a group that waits no more."""
    queue = a_queue(*(a_call(str(number)) for number in range(4)))
    queue.put(Waiting(a_call("x", priority=Priority.BATCH), 0.0), 0.0)
    group, other = group_of(a_call()), group_of(a_call(priority=Priority.BATCH))
    assert (queue.pace(group, 5.0), queue.pace(other, 5.0)) == (0.0, 0.0)
    queue.start("0", 10.0)
    queue.take("1")
    queue.start("2", 20.0)
    assert (queue.pace(group, 21.0), queue.pace(other, 21.0)) == (10.0, 0.0)
    assert queue.pace(group, 50.0) == 14.0
    queue.start("3", 50.0)
    queue.put(Waiting(a_call("4"), 60.0), 60.0)
    assert queue.pace(group, 60.0) == 0.0


def test_refuses_who_cannot_wait_for_those_before_it() -> None:
    """Its own place counts, not the length of the queue: a person passes agents."""
    ahead = [a_call(str(number)) for number in range(3)]
    for priority, late in ((Priority.AGENT, True), (Priority.INTERACTIVE, False)):
        soon = a_call("soon", priority=priority, arrived=10.0, start_by=25.0)
        queue = a_queue(*ahead, soon)
        queue.released(10.0)
        rejected = queue.over_bounds(soon, 10.0)
        assert (rejected is not None and rejected.refusal is Refusal.WAIT_TOO_LONG) is late


def test_of_an_agent_that_is_being_served_nothing_is_overdue() -> None:
    """Its crowd waits for itself; once none of its calls was started for a minute, the first of them is."""
    crowd = [a_call(f"crowd-{number}") for number in range(3)]
    queue = a_queue(*crowd, a_call("person", agent="person", priority=Priority.INTERACTIVE, arrived=50.0))
    assert ids(queue, 61.0) == ["crowd-0", "person", "crowd-1", "crowd-2"]
    queue.start("crowd-0", 61.0)
    assert ids(queue, 110.0) == ["person", "crowd-1", "crowd-2"]
    queue.start("person", 110.0)
    queue.put(
        Waiting(a_call("person-2", agent="person", priority=Priority.INTERACTIVE, arrived=121.0), 121.0),
        121.0,
    )
    assert ids(queue, 121.5) == ["crowd-1", "person-2", "crowd-2"]


@pytest.mark.parametrize("seed", range(20))
def test_is_ordered_as_if_every_call_were_compared(seed: int) -> None:
    """Places are kept, and changed only for those whose accounts turned; that must make no difference."""
    chance, queue, now = random.Random(seed), Queue(Limits()), 0.0
    for number in range(300):
        now += chance.choice((0.0, 0.5, 10.0))
        key, agent, thread = chance.choice("kl"), chance.choice("abc"), chance.choice("xyz")
        accounts = ((key,), (key, agent), (key, agent, thread))
        call = a_call(f"{number}", priority=chance.choice(list(Priority)), arrived=now, accounts=accounts)
        queue.put(Waiting(call, now, service_seconds=chance.choice((0.2, 1.0, 30.0))), now)
        queue.fairness.charge(call, chance.choice((0.0, 1.0, 30.0)))
        while chance.random() < 0.6 and queue:
            gone = chance.choice([waiting.call.id for waiting in queue])
            queue.take(gone) if chance.random() < 0.5 else queue.start(gone, now)
        late, ahead, ordered = queue.overdue(now), _ahead(queue), queue.ordered(now)
        assert ordered == sorted(queue, key=lambda waiting: _place(waiting, late, ahead, now))


def _ahead(queue: Queue) -> set[Account]:
    served = {account: queue.fairness.served(account) for one in queue for account in one.call.accounts}
    return {
        account
        for account, seconds in served.items()
        if seconds
        > QUANTUM_SECONDS + min(least for other, least in served.items() if other[:-1] == account[:-1])
    }


def _place(waiting: Waiting, late: Collection[str], ahead: set[Account], now: float) -> tuple[object, ...]:
    call = waiting.call
    if call.id in late:
        return (0, call.arrived, call.id)
    after = tuple(account in ahead for account in call.accounts)
    return (1, call.priority, after, (call.arrived - now) / waiting.service_seconds, call.id)
