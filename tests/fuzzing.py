"""How many examples a fuzzer tries: a few each time, `make fuzz` so many times as many."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


def examples(count: int) -> settings:
    """Settings for a fuzzer; nothing in them depends on the machine's speed."""
    return settings(deadline=None, max_examples=count * TIMES, suppress_health_check=[HealthCheck.too_slow])
