"""The real Admission and Dispatcher under 2,000 seeds of arrivals, departures, losses and changes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.world import simulate

SEEDS = 2000
CHUNKS = 8
PER_CHUNK = SEEDS // CHUNKS
OUTCOMES = {
    "completed",
    "client_gone",
    "rejected",
    "wait_timeout",
    "no_backend",
    "backend_failed",
    "shutdown",
    "invalid",
}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_holds_every_invariant(chunk: int) -> None:
    """Whatever happens at one instant, no slot is lost or given twice, none stays empty without a
    reason, and every call ends once; and all of that did happen."""
    outcomes: Counter[str] = Counter()
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        result = simulate(seed)
        assert result.violation is None, (
            f"seed {seed} {result.violation}; replay with: python -m tests.simulation.replay {seed}"
        )
        outcomes += result.outcomes
    assert outcomes.keys() == OUTCOMES


def test_repeats_itself() -> None:
    """One seed tells one story, or a failure could not be replayed."""
    stories: list[list[str]] = [[], []]
    for story in stories:
        simulate(7, trace=story.append)
    assert stories[0] == stories[1] and len(stories[0]) > 20
