"""What it costs to see, told from pairs of rounds."""

from __future__ import annotations

import pytest

from gateway.accounting import Record
from gateway.bench.eyes import BOUND, Round, report, unwatched
from gateway.lessons import Lessons


def pairs(*cpu_us: float) -> list[tuple[Round, Round]]:
    """Rounds in which a request took so long where it was seen, and 100 us where it was not."""
    return [(Round(1e6 / us, us / 1e6), Round(1e4, 1e-4)) for us in cpu_us]


def test_the_cost_is_the_share_of_requests_that_are_not_served() -> None:
    """125 us instead of 100 are four requests instead of five."""
    text, cost = report(pairs(125, 125, 125))
    assert cost == pytest.approx(0.2)
    assert "CPU of a request: 125.0 us seen, 100.0 us blind; +25.0%" in text
    assert text.endswith("requests/s that it costs, by CPU: 20.0%; MISSED: the bound is 5%")


def test_one_disturbed_round_does_not_count() -> None:
    """It is the median of the pairs; their spread is told."""
    text, cost = report(pairs(102, 104, 103, 300, 101))
    assert cost <= BOUND
    assert "+3.0%, half of 5 pairs between +2.0% and +4.0%" in text
    assert text.endswith("within 5%")


def test_nobody_looks_in_a_blind_gateway_but_who_must() -> None:
    """Scheduling learns as ever."""
    seen: list[Record] = []

    class Eye:
        def observe(self, record: Record) -> None:
            seen.append(record)

    class Learns(Lessons):
        def __init__(self) -> None:
            self.learnt: list[Record] = []

        def observe(self, record: Record) -> None:
            self.learnt.append(record)

    learns, record = Learns(), Record("x", "/v1/chat/completions", 0.0)
    unwatched(Eye(), learns).close(record, 1.0)
    assert (seen, learns.learnt) == ([], [record])
