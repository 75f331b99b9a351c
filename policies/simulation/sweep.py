"""Equal requests at once on one engine: what benchmarks of engines measure, and what models are fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from policies.simulation.engine import Engine, Job, Mode
from policies.simulation.profile import Profile
from policies.simulation.workload import Segment, Turn


@dataclass(frozen=True, slots=True)
class Sweep:
    """One cell of a benchmark; rates in tokens per second."""

    ttft_seconds: float  # mean
    ttft_median_seconds: float
    decode_rates: Sequence[float]  # of each stream, from its first token on
    wall_seconds: float
    aggregate_rate: float  # all tokens over the wall

    @property
    def decode_rate(self) -> float:
        """Of the median stream."""
        return median(self.decode_rates)


def sweep(profile: Profile, prompt_tokens: int, output_tokens: int, concurrency: int) -> Sweep:
    """Cold prompts that share nothing, all at once, each with an answer of this length."""
    engine = Engine(profile, Mode.STRICT)
    jobs = [_job(number, prompt_tokens, output_tokens) for number in range(concurrency)]
    for job in jobs:
        engine.submit(job, 0.0)
    while engine.jobs:
        engine.advance(engine.next_event())
    firsts = [job.first for job in jobs if job.first is not None]
    ends = [job.ended for job in jobs if job.ended is not None]
    return Sweep(
        ttft_seconds=mean(firsts),
        ttft_median_seconds=median(firsts),
        decode_rates=[(output_tokens - 1) / (end - first) for first, end in zip(firsts, ends, strict=True)],
        wall_seconds=max(ends),
        aggregate_rate=concurrency * output_tokens / max(ends),
    )


def _job(number: int, prompt_tokens: int, output_tokens: int) -> Job:
    prompt = (Segment(2 * number, prompt_tokens),)
    return Job(f"{number}", Turn(prompt, output_tokens, 2 * number + 1), 0.0)
