"""What `make soak` finds in figures and in a standard error, by examples: it runs too long to try it out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak import MINUTES_MIN, Sample, defects, judged

BEFORE = Sample(0.0, 150_000_000, 20, 10, 120_000_000)


def test_a_traceback_is_found_whole() -> None:
    """In lines of its own, or in one of the log."""
    raw = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: no'
    logged = '{"level": "error", "exception": "Traceback (most recent call last): ..."}'
    fine = '{"level": "info", "event": "served"}'
    assert defects("\n".join((fine, raw, fine, logged, fine, "Task was destroyed but it is pending!"))) == [
        raw,
        logged,
        "Task was destroyed but it is pending!",
    ]


@pytest.mark.parametrize(
    ("growth", "used", "left", "faults"),
    [
        (500_000, 100_000, 0, []),
        (1_500_000, 0, 0, ["memory grows"]),
        (0, 600_000, 0, ["memory grows"]),
        (0, 0, 1, ["descriptors are left over", "tasks are left over"]),
    ],
)
def test_what_grows_is_a_fault(growth: int, used: int, left: int, faults: list[str]) -> None:
    """`growth`, `used`: bytes per minute; whatever happened before it was warm."""
    samples = [
        replace(
            BEFORE,
            minutes=float(n),
            memory_bytes=(200_000_000 if n < 10 else 300_000_000) + growth * n,
            used_bytes=BEFORE.used_bytes + used * n,
        )
        for n in range(int(MINUTES_MIN) + 5)
    ]
    after = replace(BEFORE, descriptors=BEFORE.descriptors + left, tasks=BEFORE.tasks + left)
    found = judged(float(len(samples)), BEFORE, samples, after)
    assert found["faults"] == faults
    assert found["memory_mb_per_minute"] == pytest.approx(growth / 1e6)
