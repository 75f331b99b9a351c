"""What a second worker is worth, told from rounds."""

from __future__ import annotations

import pytest

from gateway.bench.workers import ALONE, ONE, TWO, Round, report


def rounds(*two_us: float) -> list[dict[str, Round]]:
    """Rounds in which a request took so long with two workers, 100 us with one, 80 us without a ledger."""
    return [
        {ALONE: Round(12_500, 80e-6, 0.0), ONE: Round(1e4, 1e-4, 2e-5), TWO: Round(1e6 / us, us / 1e6, 2e-5)}
        for us in two_us
    ]


def test_a_second_worker_is_worth_what_requests_then_cost() -> None:
    """Twice the time, for requests of 125 us instead of 100."""
    text, worth = report(rounds(125, 125))
    assert worth == pytest.approx(1.6)
    assert "two workers: 125 us of processor time a request, 20 us of Redis's; 8,000 requests/s" in text
    assert "1.28 x one process without a ledger" in text
    assert text.endswith("the goal of 1.7 x one worker is MISSED")


def test_one_disturbed_round_counts_as_one() -> None:
    """It is the median of the rounds; their spread is told."""
    text, worth = report(rounds(104, 300, 102, 100, 103))
    assert worth == pytest.approx(2 / 1.03)
    assert text.endswith("reached")
