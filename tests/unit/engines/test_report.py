"""What two reports of one engine tell together."""

from __future__ import annotations

import pytest

from gateway.engines.base import Report


@pytest.mark.parametrize(
    ("before", "seconds", "now", "younger"),
    [
        (3600, 2.0, 3602, False),
        (3600, 2.0, 3601, False),  # whole seconds
        (3600, 2.0, 3600, False),
        (3600, 9.0, 3600, False),  # the answer before had waited
        (3600, 2.0, 0, True),
        (3, 2.0, 1, True),
        (1, 30.0, 12, True),  # nobody looked for 30 seconds
        (1, 30.0, 31, False),
        (None, 2.0, 5, False),
        (5, 2.0, None, False),
    ],
)
def test_an_uptime_that_lags_is_a_restart(
    before: int | None, seconds: float, now: int | None, younger: bool
) -> None:
    """By more than a probe may take; what is not told proves nothing."""
    earlier, later = Report(uptime_seconds=before), Report(uptime_seconds=now)
    assert later.is_younger(earlier, seconds) is younger
