"""Accounts of seconds."""

from __future__ import annotations

from policies.fairness import ACCOUNTS_MAX, QUANTUM_SECONDS, Account, Fairness
from policies.types import Call
from tests.unit.fleet import a_call


def a_call_of(agent: str, conversation: str = "c", key: str = "k") -> Call:
    return a_call(accounts=((key,), (key, agent), (key, agent, conversation)))


def ahead(fairness: Fairness) -> set[Account]:
    fairness.compare()
    return fairness.ahead


def test_who_had_a_quantum_more_than_the_least_is_ahead() -> None:
    """Of those who want something now; less than a quantum is no difference."""
    fairness = Fairness()
    for agent in "abc":
        fairness.waits(a_call_of(agent))
    for agent, seconds in (("a", 5.0), ("b", 5.0 + QUANTUM_SECONDS), ("c", 5.1 + QUANTUM_SECONDS)):
        fairness.charge(a_call_of(agent), seconds)
    assert ahead(fairness) == {("k", "c")}
    fairness.left(a_call_of("a"))
    assert ahead(fairness) == set()


def test_accounts_are_compared_with_their_siblings_alone() -> None:
    """An agent with a hundred conversations weighs as much as one with a single one."""
    fairness = Fairness()
    for number in range(100):
        fairness.waits(a_call_of("crowd", f"{number}"))
    fairness.waits(a_call_of("single"))
    for number in range(3):
        fairness.charge(a_call_of("crowd", f"{number}"), 10.0)
    assert ahead(fairness) == {("k", "crowd")}
    fairness.charge(a_call_of("crowd", "0"), 15.0)
    assert ahead(fairness) == {("k", "crowd"), ("k", "crowd", "0")}
    fairness.charge(a_call_of("single"), 90.0)
    assert ahead(fairness) == {("k", "single"), ("k", "crowd", "0")}


def test_who_comes_back_is_lifted_to_the_least_of_those_who_wait() -> None:
    """An idle hour buys nothing."""
    fairness = Fairness()
    fairness.charge(a_call_of("busy"), 3600.0)
    fairness.waits(a_call_of("busy"))
    fairness.waits(a_call_of("new"))
    assert fairness.served(("k", "new")) == 3600.0
    assert ahead(fairness) == set()
    fairness.charge(a_call_of("new"), QUANTUM_SECONDS + 1)
    assert ahead(fairness) == {("k", "new")}


def test_nothing_is_lifted_by_those_who_do_not_wait() -> None:
    """Nor are calls without accounts anything to compare."""
    fairness = Fairness()
    fairness.charge(a_call_of("gone"), 3600.0)
    fairness.waits(a_call())
    fairness.waits(a_call_of("new"))
    assert fairness.served(("k", "new")) == 0.0
    fairness.left(a_call())


def test_remembers_a_bounded_number_of_accounts() -> None:
    """The one charged longest ago is forgotten first; clients choose the names."""
    fairness = Fairness()
    for number in range(ACCOUNTS_MAX + 1):
        fairness.charge(a_call(accounts=((number,),)), 1.0)
    assert (fairness.served((0,)), fairness.served((1,))) == (0.0, 1.0)
