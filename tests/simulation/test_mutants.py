"""The simulation can see: bugs planted in subclasses are found within 200 seeds."""

from __future__ import annotations

import asyncio

import pytest

from gateway.dispatcher import Slot
from policies import filters
from policies.admission import Admission
from policies.placement import Offer, Placement
from policies.tiers import Tiers
from policies.types import Call, Decision, Limits, Rejected, Source
from policies.waiting import Waiting
from tests.simulation.invariants import ObservedDispatcher
from tests.simulation.world import simulate

SEEDS = 200


class LosingSlot(Slot):
    """Gives nothing back when its waiter is cancelled after it was granted."""

    async def __aenter__(self) -> Slot:
        dispatcher = self._dispatcher
        try:
            self.lease = await dispatcher.granted(
                self.call.id, dispatcher.admission.submit(self.call, dispatcher.clock())
            )
        except BaseException:
            if dispatcher.admission.lease(self.call.id) is None:
                dispatcher.finish(self.call.id)
            raise
        return self


class LostHandOver(ObservedDispatcher):
    """Hands out losing slots."""

    def slot(self, call: Call) -> Slot:
        return LosingSlot(self, call)


class HastyDispatcher(ObservedDispatcher):
    """Takes a closed connection for a free slot."""

    def leave(self, id: str, stopping: asyncio.Future[None]) -> None:
        self.finish(id)


class MissingDispatch(Admission):
    """Frees a slot and tells nobody."""

    def finish(self, id: str, now: float) -> list[Decision]:
        lease = self.lease(id)
        return super().finish(id, now) if lease is None else self._release(lease, now)


class ForgetfulAdmission(Admission):
    """Lets a call that returns to the queue fall through."""

    def not_started(
        self, call: Call, now: float, pause_seconds: float = 0.0, since: float | None = None
    ) -> list[Decision]:
        return self.finish(call.id, now)


class Spendthrift(Admission):
    """Knows nothing of the tokens that an engine has room for."""

    def resize(
        self,
        name: str,
        now: float,
        *,
        slots: int,
        source: Source,
        context_tokens: int | None,
        kv_tokens: int | None = None,
    ) -> list[Decision]:
        return super().resize(name, now, slots=slots, source=source, context_tokens=context_tokens)


class LevelPlacement(Placement):
    """Takes backups and fallbacks for backends like any other."""

    def fitting(self, call: Call) -> Tiers | Rejected:
        fits = filters.fitting(call, [b for b in self._backends.values() if b.serves(call)])
        return [fits] if fits else super().fitting(call)


class EagerAdmission(Admission):
    """Places calls so."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._placement = LevelPlacement(limits, self.backends)


class StubbornPlacement(Placement):
    """Holds as long as it likes."""

    def _worth(self, waiting: Waiting, best: Offer, start: Offer, now: float) -> bool:
        return best.seconds < start.seconds


class StubbornAdmission(Admission):
    """Places calls so."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._placement = StubbornPlacement(limits, self.backends)


@pytest.mark.parametrize("mutant", [LostHandOver, HastyDispatcher])
def test_finds_a_planted_bug_of_the_dispatcher(mutant: type[ObservedDispatcher]) -> None:
    """A lost hand-over, or a slot used again before the engine has stopped, breaks an invariant."""
    assert any(simulate(seed, dispatcher_type=mutant).violation for seed in range(SEEDS))


@pytest.mark.parametrize(
    "mutant", [MissingDispatch, ForgetfulAdmission, Spendthrift, EagerAdmission, StubbornAdmission]
)
def test_finds_a_planted_bug_of_admission(mutant: type[Admission]) -> None:
    """A free slot that nobody is told of, a forgotten call, more tokens than there is room for, a backup that
    is used before its time, or a slot that is left free for too long, breaks an invariant."""
    assert any(simulate(seed, admission_type=mutant).violation for seed in range(SEEDS))
