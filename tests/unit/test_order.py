"""Which waiting call goes next."""

from __future__ import annotations

from policies.fairness import QUANTUM_SECONDS
from policies.queue import Queue
from policies.types import Call, Limits, Priority
from policies.waiting import Waiting
from tests.unit.fleet import a_call


def ids(*calls: Call, now: float, charged: tuple[Call, ...] = (), service_seconds: float = 1.0) -> list[str]:
    queue = Queue(Limits())
    for call in calls:
        queue.put(Waiting(call, call.arrived, service_seconds=service_seconds), call.arrived)
    for call in charged:
        queue.fairness.charge(call, 2 * QUANTUM_SECONDS)
    return [waiting.call.id for waiting in queue.ordered(now)]


def test_goes_by_class_then_by_arrival() -> None:
    """A higher class goes first; of calls as long as each other, whoever came first."""
    calls = (
        a_call("batch", priority=Priority.BATCH, arrived=0.0),
        a_call("agent-2", priority=Priority.AGENT, arrived=2.0),
        a_call("agent-1", priority=Priority.AGENT, arrived=1.0),
        a_call("interactive", priority=Priority.INTERACTIVE, arrived=3.0),
    )
    assert ids(*calls, now=10.0) == ["interactive", "agent-1", "agent-2", "batch"]


def test_a_short_call_passes_a_long_one_that_has_not_waited_long() -> None:
    """By response ratio: 10 seconds are much for a call of one second, and little for one of thirty."""
    long = Waiting(a_call("long", arrived=0.0), 0.0, service_seconds=30.0)
    short = Waiting(a_call("short", arrived=50.0), 50.0, service_seconds=1.0)
    for now, first in ((50.1, "long"), (53.0, "short"), (51.0, "long")):
        queue = Queue(Limits())
        for waiting in (long, short):
            queue.put(waiting, now)
        assert queue.ordered(now)[0].call.id == first


def test_who_had_more_goes_after_the_others_of_its_class() -> None:
    """And a key counts more than an agent of it."""
    rich = a_call("rich", accounts=(("k",), ("k", "rich")), arrived=0.0)
    poor = a_call("poor", accounts=(("k",), ("k", "poor")), arrived=5.0)
    batch = a_call("batch", accounts=(("k",), ("k", "poor")), arrived=0.0, priority=Priority.BATCH)
    assert ids(batch, rich, poor, now=10.0) == ["rich", "poor", "batch"]
    assert ids(batch, rich, poor, now=10.0, charged=(rich,)) == ["poor", "rich", "batch"]
    key = a_call("key", accounts=(("other",), ("other", "poorest")), arrived=9.0)
    assert ids(batch, rich, poor, key, now=10.0, charged=(rich,)) == ["key", "poor", "rich", "batch"]


def test_an_overdue_call_goes_before_every_class() -> None:
    """A call that waited over a minute is not passed any more, or a steady flow of a higher class
    would starve it."""
    calls = (
        a_call("interactive", agent="person", priority=Priority.INTERACTIVE, arrived=65.0),
        a_call("batch", priority=Priority.BATCH, arrived=5.0),
    )
    assert ids(*calls, now=65.0) == ["interactive", "batch"]
    assert ids(*calls, now=65.1) == ["batch", "interactive"]
    assert ids(*calls, now=84.9, service_seconds=20.0) == ["interactive", "batch"]
    assert ids(*calls, now=85.1, service_seconds=20.0) == ["batch", "interactive"]


def test_overdue_calls_go_by_arrival_alone() -> None:
    """Among overdue calls class and accounts are forgotten."""
    calls = (
        a_call("interactive", agent="person", priority=Priority.INTERACTIVE, arrived=2.0, accounts=(("j",),)),
        a_call("batch", priority=Priority.BATCH, arrived=1.0, accounts=(("k",),)),
    )
    assert ids(*calls, now=100.0, charged=calls[1:]) == ["batch", "interactive"]


def test_calls_of_one_instant_have_a_fixed_order() -> None:
    """The id decides, so that a run can be repeated."""
    assert ids(a_call("b"), a_call("a"), now=0.0) == ["a", "b"]
