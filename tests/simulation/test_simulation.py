"""The real Admission and Dispatcher under seeds of arrivals, departures, losses and changes: 2,000 each time,
10,000 with `make simulate-long`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.world import simulate

PER_CHUNK = 250
CHUNKS = 8
CHUNKS_LONG = 40
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


@pytest.mark.parametrize(
    "chunk", [*range(CHUNKS), *(pytest.param(n, marks=pytest.mark.long) for n in range(CHUNKS, CHUNKS_LONG))]
)
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
