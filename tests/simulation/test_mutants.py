"""The simulation can see: bugs planted in subclasses are found within 200 seeds."""

from __future__ import annotations

import asyncio

import pytest

from gateway.dispatcher import Slot
from policies.admission import Admission
from policies.types import Call, Decision
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

    def not_started(self, call: Call, now: float, pause_seconds: float = 0.0) -> list[Decision]:
        return self.finish(call.id, now)


@pytest.mark.parametrize("mutant", [LostHandOver, HastyDispatcher])
def test_finds_a_planted_bug_of_the_dispatcher(mutant: type[ObservedDispatcher]) -> None:
    """A lost hand-over, or a slot used again before the engine has stopped, breaks an invariant."""
    assert any(simulate(seed, dispatcher_type=mutant).violation for seed in range(SEEDS))


@pytest.mark.parametrize("mutant", [MissingDispatch, ForgetfulAdmission])
def test_finds_a_planted_bug_of_admission(mutant: type[Admission]) -> None:
    """A free slot that nobody is told of, or a forgotten call, breaks an invariant."""
    assert any(simulate(seed, admission_type=mutant).violation for seed in range(SEEDS))
