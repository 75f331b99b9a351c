"""One measurement of one target, and what is read from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One workload on one target in one round. Times in microseconds."""

    target: str
    workload: str
    round: int
    requests_per_second: float
    events_per_second: float
    requests: int  # all, those of the warm-up too: what the CPU time was spent on
    events: int
    errors: int
    latency_p50: float | None
    latency_p99: float | None
    ttft_p50: float | None
    delay_p50: float | None  # of one event, from the engine's write to the load's read
    delay_p99: float | None
    cpu_seconds: float | None = None  # None: the engine itself
    memory_mib: float | None = None
    foreign_share: float | None = None  # of the target's CPU, taken by others meanwhile

    @classmethod
    def of_load(cls, target: str, workload: str, round_: int, load: dict[str, Any]) -> Sample:
        """From the line that the load program prints."""

        def percentile(of: str, name: str) -> float | None:
            value: float | None = load.get(of, {}).get(name)
            return value

        return cls(
            target,
            workload,
            round_,
            requests_per_second=load["rps"],
            events_per_second=load["chunks_s"],
            requests=load["total"],
            events=load["chunks_total"],
            errors=load["errors"],
            latency_p50=percentile("lat", "p50"),
            latency_p99=percentile("lat", "p99"),
            ttft_p50=percentile("ttft", "p50"),
            delay_p50=percentile("delay", "p50"),
            delay_p99=percentile("delay", "p99"),
        )

    def cpu_per_request(self) -> float | None:
        """CPU microseconds of the target for one request."""
        return self.cpu_seconds / self.requests * 1e6 if self.cpu_seconds and self.requests else None

    def cpu_per_event(self) -> float | None:
        """CPU microseconds of the target for one event of a stream."""
        return self.cpu_seconds / self.events * 1e6 if self.cpu_seconds and self.events else None


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of the report: one value of one workload."""

    title: str
    workload: str
    value: Callable[[Sample], float | None]


REQUESTS_32 = Figure("requests/s, 32 conn.", "plain32", lambda s: s.requests_per_second)
BURST_CPU = Figure("CPU µs/stream, burst", "burst32", Sample.cpu_per_request)
TTFT_1 = Figure("TTFT p50 µs, 1 conn.", "ttft1", lambda s: s.ttft_p50)
LATE_1 = Figure("TTFT p50 µs, 1 conn., after 1 ms", "late1", lambda s: s.ttft_p50)
PACED_512_ERRORS = Figure("errors, 512 paced", "paced512", lambda s: s.errors)

FIGURES = (
    Figure("p50 µs, 1 conn.", "plain1", lambda s: s.latency_p50),
    REQUESTS_32,
    Figure("CPU µs/request, 32 conn.", "plain32", Sample.cpu_per_request),
    Figure("requests/s, 128 conn.", "plain128", lambda s: s.requests_per_second),
    Figure("p99 µs, 128 conn.", "plain128", lambda s: s.latency_p99),
    BURST_CPU,
    TTFT_1,
    LATE_1,
    Figure("CPU µs/event, 128 paced", "paced128", Sample.cpu_per_event),
    Figure("delay p50 µs, 128 paced", "paced128", lambda s: s.delay_p50),
    Figure("delay p50 µs, 512 paced", "paced512", lambda s: s.delay_p50),
    Figure("delay p99 µs, 512 paced", "paced512", lambda s: s.delay_p99),
    PACED_512_ERRORS,
    Figure("MiB, 512 paced", "paced512", lambda s: s.memory_mib),
)
