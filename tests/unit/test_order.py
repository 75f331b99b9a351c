"""Which waiting call goes next."""

from __future__ import annotations

from policies import order
from policies.types import Priority
from tests.unit.fleet import a_call


def ids(*calls: object, now: float) -> list[str]:
    return [call.id for call in order.ordered(calls, now)]  # type: ignore[arg-type]


def test_goes_by_class_then_by_arrival() -> None:
    """A higher class goes first; within a class, whoever came first."""
    calls = (
        a_call("batch", priority=Priority.BATCH, arrived=0.0),
        a_call("agent-2", priority=Priority.AGENT, arrived=2.0),
        a_call("agent-1", priority=Priority.AGENT, arrived=1.0),
        a_call("interactive", priority=Priority.INTERACTIVE, arrived=3.0),
    )
    assert ids(*calls, now=10.0) == ["interactive", "agent-1", "agent-2", "batch"]


def test_an_overdue_call_goes_before_every_class() -> None:
    """A call that waited over a minute is not passed any more, or a steady flow of a higher class
    would starve it."""
    calls = (
        a_call("interactive", priority=Priority.INTERACTIVE, arrived=65.0),
        a_call("batch", priority=Priority.BATCH, arrived=5.0),
    )
    assert ids(*calls, now=65.0) == ["interactive", "batch"]
    assert ids(*calls, now=65.1) == ["batch", "interactive"]


def test_overdue_calls_go_by_arrival_alone() -> None:
    """Among overdue calls the class is forgotten."""
    calls = (
        a_call("interactive", priority=Priority.INTERACTIVE, arrived=2.0),
        a_call("batch", priority=Priority.BATCH, arrived=1.0),
    )
    assert ids(*calls, now=100.0) == ["batch", "interactive"]


def test_calls_of_one_instant_have_a_fixed_order() -> None:
    """The id decides, so that a run can be repeated."""
    assert ids(a_call("b"), a_call("a"), now=0.0) == ["a", "b"]
