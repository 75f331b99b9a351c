"""How seconds are spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of seconds."""

    p50: float
    p90: float
    p99: float
    largest: float


def spread(seconds: Iterable[float]) -> Spread:
    """Percentiles by nearest rank."""
    rows = sorted(seconds)
    return Spread(*(rows[max(0, math.ceil(share * len(rows)) - 1)] for share in (0.5, 0.9, 0.99, 1.0)))


def mean_spread(some: Sequence[Spread]) -> Spread:
    """Each percentile's mean over runs."""
    return Spread(
        p50=sum(one.p50 for one in some) / len(some),
        p90=sum(one.p90 for one in some) / len(some),
        p99=sum(one.p99 for one in some) / len(some),
        largest=sum(one.largest for one in some) / len(some),
    )


def mean_spreads(some: Sequence[dict[str, Spread]]) -> dict[str, Spread]:
    """The same by class; a run without a class does not count for it."""
    return {name: mean_spread([one[name] for one in some if name in one]) for name in some[0]}
