"""One who asks for two hundred things at once does not hold up those who ask for five."""

from __future__ import annotations

from collections import defaultdict

import pytest

from policies.simulation.profile import fleet
from policies.simulator import simulate
from policies.types import Priority
from tests.simulation.test_promises import asked, longest

LIGHT = 10
EACH = 5
HEAVY = 200
SIZE = (300, 100)  # tokens of a prompt and of its answer


@pytest.mark.parametrize("name", ["ds4-64k", "vllm-2spark"])
def test_who_asks_for_little_is_not_held_up(name: str) -> None:
    """Each of ten that ask for five has started all of them in twice the time that its share of the slots
    would take, and of one who asks for two hundred few pass it."""
    profiles = fleet([name])
    rows = [("heavy", Priority.AGENT, 0.0, SIZE)] * HEAVY
    rows += [(f"light-{n}", Priority.AGENT, 0.01, SIZE) for n in range(LIGHT) for _ in range(EACH)]
    run = simulate(profiles, asked(rows), "slotgate")
    slots = sum(profile.slots for profile in profiles)
    service = longest(run.records)
    waits = defaultdict(list)
    for record in run.records:
        waits[record.program.tenant].append(record.started - record.arrived)
    # By turns, each of them had had its five when everybody had had five, over all slots.
    fair = EACH * (LIGHT + 1) * service / slots
    longest_wait = max(max(waits[f"light-{number}"]) for number in range(LIGHT))
    assert longest_wait <= 2 * fair
    last = max(r.started for r in run.records if r.program.tenant != "heavy")
    before = sum(r.started < last for r in run.records if r.program.tenant == "heavy")
    print(f"{name}: {longest_wait / fair:.2f} of the fair share, {before} before")  # noqa: T201
    assert before <= 2 * slots, before
