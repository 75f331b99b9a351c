"""The overhead report compares within rounds and judges the gates."""

from dataclasses import replace
from typing import Any

from gateway.bench.overhead.report import GATES, Results, report
from gateway.bench.overhead.samples import Sample


def sample(target: str, workload: str, round_: int = 0, **figures: Any) -> Sample:
    """A sample with 1,000 requests and nothing remarkable but the given figures."""
    load = {"rps": 1000.0, "chunks_s": 0, "total": 1000, "chunks_total": 64_000, "errors": 0}
    return replace(Sample.of_load(target, workload, round_, load), **figures)


def verdicts(*samples: Sample) -> list[str]:
    """The verdict of each gate, in order."""
    return [gate.verdict(Results(samples)) for gate in GATES]


def run(ours_requests: float, ours_cpu: float, ours_ttft: float, errors: int) -> list[Sample]:
    """One round in which nginx does 1,000 requests/s, vllm-router takes 1 s, nginx adds 100 µs."""
    return [
        sample("nginx", "plain32", requests_per_second=1000),
        sample("slotgate", "plain32", requests_per_second=ours_requests),
        sample("vllm-router", "burst32", cpu_seconds=1.0),
        sample("slotgate", "burst32", cpu_seconds=ours_cpu),
        sample("direct", "ttft1", ttft_p50=30),
        sample("nginx", "ttft1", ttft_p50=130),
        sample("slotgate", "ttft1", ttft_p50=ours_ttft),
        sample("slotgate", "paced512", errors=errors),
    ]


def test_gates_hold_at_their_bounds() -> None:
    """A figure exactly at its bound is ok."""
    assert verdicts(*run(120, 0.5, 330, 0)) == ["ok"] * 4


def test_gates_are_missed_beyond_their_bounds() -> None:
    """A figure a little beyond its bound is missed."""
    assert verdicts(*run(119, 0.51, 331, 1)) == ["missed"] * 4


def test_gates_without_a_peer_are_not_measured() -> None:
    """A run without the peer of a gate says so and passes no verdict."""
    assert verdicts(sample("slotgate", "plain32")) == ["not measured"] * 4


def test_ratios_are_taken_round_by_round() -> None:
    """A round that slowed both alike leaves the ratio as it was."""
    samples = [
        sample("nginx", "plain32", 0, requests_per_second=1000),
        sample("slotgate", "plain32", 0, requests_per_second=500),
        sample("nginx", "plain32", 1, requests_per_second=100),
        sample("slotgate", "plain32", 1, requests_per_second=50),
    ]
    row = next(
        line for line in report(Results(samples)).split("Ratios to nginx")[1].splitlines() if "32" in line
    )
    assert row.endswith("| 1.00 | 0.50 |")


def test_errors_of_a_single_round_miss_the_gate() -> None:
    """Errors are added up over the rounds, so none hides behind a median."""
    samples = [sample("slotgate", "paced512", round_, errors=round_ == 2) for round_ in range(3)]
    assert verdicts(*samples)[3] == "missed"
