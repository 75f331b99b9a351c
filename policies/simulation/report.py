"""What a run comes to, in the figures by which policies are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from policies.simulation.bounds import best_seconds
from policies.simulation.profile import Profile
from policies.simulation.spread import Spread, mean_spreads, spread
from policies.simulation.world import Record, Run
from policies.types import Priority


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run, or means over some. Programs are those of the foreground."""

    makespan_seconds: float  # from the first program's start to the last one's end
    program_seconds: float  # mean time of a program, pauses included
    ttft: dict[str, Spread]  # arrival to first token, by class
    wait: dict[str, Spread]  # arrival to slot, by class
    wait_seconds_max: float
    hit_ratio: float  # cached tokens of prompt tokens, of the programs
    fairness: float  # Jain's index over the programs' slowdowns
    requests: float
    refused: float
    broken: float
    oversubscribed: float  # requests that had to queue in an engine


def figures(run: Run, profiles: Sequence[Profile]) -> Figures:
    """What one run comes to."""
    records = run.records
    ended = [record for record in records if record.program.foreground]
    classes = sorted({record.program.priority for record in records})
    programs: dict[str, list[Record]] = {}
    for record in ended:
        programs.setdefault(record.program.name, []).append(record)
    spans = [rows[-1].ended - rows[0].program.starts for rows in programs.values()]
    return Figures(
        makespan_seconds=max(r.ended for r in ended) - min(r.program.starts for r in ended),
        program_seconds=sum(spans) / len(spans),
        ttft={c.label: spread(r.first - r.arrived for r in of(c, records)) for c in classes},
        wait={c.label: spread(r.started - r.arrived for r in of(c, records)) for c in classes},
        wait_seconds_max=max(record.started - record.arrived for record in records),
        hit_ratio=sum(r.cached_tokens for r in ended) / sum(r.turn.prompt_tokens for r in ended),
        fairness=jain([slowdown(rows, profiles) for rows in programs.values()]),
        requests=len(records),
        refused=run.refused,
        broken=run.broken,
        oversubscribed=run.oversubscribed,
    )


def of(priority: Priority, records: Iterable[Record]) -> list[Record]:
    """Those of one class."""
    return [record for record in records if record.program.priority is priority]


def slowdown(rows: Sequence[Record], profiles: Sequence[Profile]) -> float:
    """Time in the system of a program's turns, over their time alone on the best engine with the turn before
    cached."""
    alone, cached = 0.0, 0
    held: set[int] = set()
    for row in rows:
        cached = next((s.end_tokens for s in reversed(row.turn.prompt) if s.digest in held), 0)
        alone += best_seconds(profiles, row.turn, min(cached, row.turn.prompt_tokens - 1))
        held.update(segment.digest for segment in row.turn.sequence)
    return sum(row.ended - row.arrived for row in rows) / alone


def jain(values: Sequence[float]) -> float:
    """1 if all are equal, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def mean(some: Sequence[Figures]) -> Figures:
    """Each figure's mean over runs; of the longest wait and of what ought to be zero the worst run counts."""

    def average(value: Callable[[Figures], float]) -> float:
        return sum(map(value, some)) / len(some)

    return Figures(
        makespan_seconds=average(lambda figures: figures.makespan_seconds),
        program_seconds=average(lambda figures: figures.program_seconds),
        ttft=mean_spreads([figures.ttft for figures in some]),
        wait=mean_spreads([figures.wait for figures in some]),
        wait_seconds_max=max(figures.wait_seconds_max for figures in some),
        hit_ratio=average(lambda figures: figures.hit_ratio),
        fairness=average(lambda figures: figures.fairness),
        requests=average(lambda figures: figures.requests),
        refused=max(figures.refused for figures in some),
        broken=max(figures.broken for figures in some),
        oversubscribed=max(figures.oversubscribed for figures in some),
    )
