"""Three gateways and one ledger under many seeds: the bounds hold, and every slot comes back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.ledger.dispatcher import SharedDispatcher
from gateway.ledger.ledger import Ledger, Wanting
from gateway.ledger.step import Step
from policies.types import Call
from tests.ledger.world import KINDS, simulate

SEEDS, SEEDS_LONG = 15, 560  # of each kind
MUTANT_SEEDS = 60


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What gateways say of an outage is not news here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def hold(kind: str, seeds: range) -> Counter[str]:
    """Run them; what became of the calls."""
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        result = simulate(seed, kind)
        assert not result.violation, f"seed {seed} {result.violation}"
        outcomes += result.outcomes
        outcomes["degraded"] += result.degraded
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_the_bounds_hold(kind: str) -> None:
    """Crashes, pauses, losses of Redis, of its data and of its replies: no engine gets more than the bound of
    that fault says; a free slot is not free for long while a call waits; nothing is left at the end. Nobody
    who stays is turned away, whatever becomes of Redis."""
    outcomes = hold(kind, range(SEEDS))
    assert outcomes.keys() <= {"completed", "gone", "refused", "degraded"}
    assert outcomes["completed"] > 0.5 * SEEDS
    assert bool(outcomes["degraded"]) == (kind in ("outage", "restart", "stop", "losses", "everything"))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_bounds_hold_for_long(kind: str) -> None:
    """The same over 5,000 seeds."""
    hold(kind, range(SEEDS_LONG))


# -- the simulation can see -----------------------------------------------------------------------------


class Thawed(Ledger):
    """Gives slots at once where nobody knows what runs."""

    def _composed(self, *args: Any, **named: Any) -> Step:
        return replace(super()._composed(*args, **named), freeze_ms=0)


class Forgetful(Ledger):
    """Never holds again what it holds."""

    def _composed(self, *args: Any, **named: Any) -> Step:
        return replace(super()._composed(*args, **named), held=())


class Leaking(Ledger):
    """Gives nothing back; it only holds it no longer."""

    def release(self, id: str) -> None:
        self._held.pop(id, None)


class Greedy(Ledger):
    """Takes all slots for its own while nobody can be asked."""

    def share(self, url: str, slots: int) -> int:
        return slots


class Careless(Ledger):
    """Forgets slots that it may have been given."""

    def _lost(self, wanted: Any, why: str) -> None:
        super()._lost(wanted, why)
        for want in wanted:
            self._freed.pop(want.number, None)
            self._held.setdefault(f"ghost {want.number}", self._ghost(want))

    def _ghost(self, want: Wanting) -> Any:
        return want


class Unbowed(Ledger):
    """Comes back as if it had not decided alone."""

    def _composed(self, *args: Any, **named: Any) -> Step:
        return replace(super()._composed(*args, **named), lost_ms=None)


class Hasty(SharedDispatcher):
    """Does not ask."""

    async def confirmed(self, call: Call, name: str) -> bool:
        self.ledger.keep(call.id, self._url_of(name))
        return True


@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        (Thawed, "flush"),
        (Forgetful, "calm"),
        (Leaking, "calm"),
        (Greedy, "stop"),
        (Careless, "losses"),
        (Unbowed, "stop"),
    ],
)
def test_finds_a_planted_bug_of_the_ledger(mutant: type[Ledger], kind: str) -> None:
    """A new epoch without a freeze, leases that are not renewed or not given back, a whole engine for each
    gateway, slots that nobody has, a return that is not told: each breaks a bound."""
    assert any(simulate(seed, kind, ledger_type=mutant).violation for seed in range(MUTANT_SEEDS))


def test_finds_a_planted_bug_of_the_dispatcher() -> None:
    """Who does not ask takes what others have."""
    assert any(simulate(seed, "calm", dispatcher_type=Hasty).violation for seed in range(MUTANT_SEEDS))
