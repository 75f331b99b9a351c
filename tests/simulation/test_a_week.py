"""A week at a request a second: what is remembered has a bound, and nothing is left of what has ended."""

from __future__ import annotations

import gc
import itertools
from collections import Counter

import pytest

from policies.admission import Admission
from policies.output_length import OutputLength
from policies.prefix import Link
from policies.types import Source, State
from tests.unit.fleet import MODEL, a_backend, a_call, an_admission, granted

DAY = 86_400
NAMES = ("a", "b", "c")
SERVICE_SECONDS = 8
CONVERSATION = 20  # turns


def restart(admission: Admission, name: str, now: float) -> None:
    """As each engine does once a day, with other slots each time."""
    admission.set_state(name, State.DOWN, now)
    admission.restarted(name)
    slots = 4 + int(now / DAY) % 3
    admission.resize(name, now, slots=slots, source=Source.REPORTED, context_tokens=65_536)
    admission.set_state(name, State.READY, now)


def live(days: int) -> list[tuple[int, int]]:
    """Objects that there are after each day, and calls that ended by then."""
    admission = an_admission(*(a_backend(name, slots=4) for name in NAMES))
    outputs = OutputLength()
    running: dict[int, list[str]] = {}
    seen: list[tuple[int, int]] = []
    outcomes: Counter[str] = Counter()
    for second in range(days * DAY):
        now = float(second)
        for id in running.pop(second, ()):
            admission.finish(id, now)
            outputs.learn(MODEL, 1, int(id) % 500, None, id)
            outcomes["completed"] += 1
        talk, turn = divmod(second, CONVERSATION)
        agent = f"agent {talk}"  # clients name themselves as they like
        chain = tuple(
            Link(digest=(talk << 8) + place, end_bytes=400 * (place + 1)) for place in range(turn + 1)
        )
        accounts = (("key",), ("key", agent), ("key", agent, f"talk {talk}"))
        call = a_call(f"{second}", agent=agent, arrived=now, chain=chain, accounts=accounts)
        for id in granted(admission.submit(call, now)):
            admission.first_token(id, now)
            running.setdefault(second + SERVICE_SECONDS, []).append(id)
        if second % 4 == 0:
            for id in granted(admission.tick(now)):
                admission.first_token(id, now)
                running.setdefault(second + SERVICE_SECONDS, []).append(id)
        if second % DAY in (3600, 7200, 10_800):
            restart(admission, NAMES[second % DAY // 3600 - 1], now)
        if second % DAY == DAY - 1:
            gc.collect()
            seen.append((len(gc.get_objects()), outcomes["completed"]))
    assert outcomes.total() + len(admission.queue) + sum(map(len, running.values())) == days * DAY
    return seen


def checked(seen: list[tuple[int, int]]) -> None:
    """Flat from the second day on, and every day's calls have ended."""
    objects = [count for count, _ in seen]
    assert max(objects[1:]) - min(objects[1:]) <= 0.02 * objects[1] + 500, objects
    ended = [count for _, count in seen]
    assert all(later - earlier >= 0.99 * DAY for earlier, later in itertools.pairwise(ended))


@pytest.mark.long
def test_a_week_leaves_nothing_behind() -> None:
    """600,000 calls of 30,000 conversations, and 21 restarts of engines."""
    checked(live(7))
