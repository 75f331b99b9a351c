"""A prefix that all conversations begin with draws nobody to one place."""

from __future__ import annotations

from collections import Counter

import pytest

from policies.prefix import Link
from tests.unit.fleet import a_backend, a_call, an_admission, granted

CALLS = 200


@pytest.mark.parametrize("running", [8, 16])
def test_a_system_prompt_of_all_pins_nobody(running: int) -> None:
    """Four backends with four slots, half full and full: each has its part of the calls, within a half."""
    names = [f"b{number}" for number in range(4)]
    admission = an_admission(*(a_backend(name, slots=4) for name in names))
    where: Counter[str] = Counter()
    live: list[str] = []
    for number in range(CALLS):
        now = number / 2
        if len(live) == running:
            admission.finish(live.pop(0), now)
        chain = (Link(digest=1, end_bytes=16_000), Link(digest=1000 + number, end_bytes=16_400))
        (name,) = granted(
            admission.submit(a_call(f"{number}", chain=chain, prompt_tokens=4100), now)
        ).values()
        admission.first_token(f"{number}", now)
        live.append(f"{number}")
        where[name] += 1
    assert where.total() == CALLS
    assert max(where.values()) <= 1.5 * CALLS / len(names)
    assert set(where) == set(names)
