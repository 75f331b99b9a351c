"""What no policy can beat, of a workload on a fleet in this model.

`fluid_seconds`: every request may be split over engines, every prefix is cached wherever it is needed, and no
engine ever waits. On engine b, with S slots, P seconds of prefill and O tokens, a run of T seconds needs

    P <= T   and   O <= g S P + (T - P) S / tpot(S)

since streams make g tokens per second each while a prefill runs. Both are linear: P and O of a request are
what it brings to a row, and the least T for which shares exist is a linear programme. Its dual needs no
solver: for any weights y of the rows that sum to 1, the sum over requests of the cheapest y-weighted row is a
lower bound on T. Weights are moved towards the fullest rows; the best bound found is returned, and it holds
however far from the optimum it is.

`path_seconds`: the longest program, each of its turns alone on the best engine with all of its prefix cached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from policies.simulation.profile import Profile
from policies.simulation.workload import Program, Turn

STEPS = 300
GAIN = 0.5  # of the first step; later ones are smaller


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one workload on one fleet."""

    fluid_seconds: float
    path_seconds: float
    hit_ratio: float  # of an endless cache that all engines share

    @property
    def makespan_seconds(self) -> float:
        """No run is shorter."""
        return max(self.fluid_seconds, self.path_seconds)


def bounds(profiles: Sequence[Profile], programs: Sequence[Program]) -> Bounds:
    """Of the programs in the foreground: those behind them only take time from them."""
    asked = [program for program in programs if program.foreground]
    found = ideal_hits(asked)
    prompts = sum(turn.prompt_tokens for program in asked for turn in program.turns)
    return Bounds(
        fluid_seconds=fluid_seconds(profiles, [(turn, cached) for turns in found for turn, cached in turns]),
        path_seconds=max(
            program.starts + alone_seconds(profiles, turns)
            for program, turns in zip(asked, found, strict=True)
        ),
        hit_ratio=sum(cached for turns in found for _, cached in turns) / prompts,
    )


def ideal_hits(programs: Sequence[Program]) -> list[list[tuple[Turn, int]]]:
    """Of each turn the tokens that an endless cache holds, if programs go in the order of their starts."""
    held: set[int] = set()
    hits: dict[str, list[tuple[Turn, int]]] = {}
    for program in sorted(programs, key=lambda program: program.starts):
        hits[program.name] = []
        for turn in program.turns:
            cached = next((s.end_tokens for s in reversed(turn.prompt) if s.digest in held), 0)
            hits[program.name].append((turn, min(cached, turn.prompt_tokens - 1)))
            held.update(segment.digest for segment in turn.sequence)
    return [hits[program.name] for program in programs]


def alone_seconds(profiles: Sequence[Profile], turns: Sequence[tuple[Turn, int]]) -> float:
    """Seconds of a program that has the fleet for itself, pauses included."""
    return sum(turn.think_seconds for turn, _ in turns) + sum(
        best_seconds(profiles, turn, cached) for turn, cached in turns
    )


def best_seconds(profiles: Sequence[Profile], turn: Turn, cached_tokens: int) -> float:
    """Seconds of a turn alone on the engine that is fastest for it; infinity: none holds it."""
    fitting = [profile for profile in profiles if profile.fits(turn.prompt_tokens, turn.output_tokens)]
    return min(
        (p.service_seconds(turn.prompt_tokens, cached_tokens, turn.output_tokens) for p in fitting),
        default=math.inf,
    )


def fluid_seconds(profiles: Sequence[Profile], turns: Sequence[tuple[Turn, int]]) -> float:
    """The linear programme's bound."""
    choices = [[_rows(profile, turn, cached) for profile in profiles] for turn, cached in turns]
    weights = [1 / (2 * len(profiles))] * (2 * len(profiles))
    best = 0.0
    for step in range(1, STEPS + 1):
        loads = [0.0] * len(weights)
        bound = 0.0
        for rows in choices:
            cheapest, engine = math.inf, 0
            for number, (prefill, busy) in enumerate(rows):
                price = weights[2 * number] * prefill + weights[2 * number + 1] * busy
                if price < cheapest:
                    cheapest, engine = price, number
            bound += cheapest
            loads[2 * engine] += rows[engine][0]
            loads[2 * engine + 1] += rows[engine][1]
        best = max(best, bound)
        fullest = max(loads)
        if not fullest:
            break
        moved = [
            w * math.exp(GAIN / math.sqrt(step) * load / fullest)
            for w, load in zip(weights, loads, strict=True)
        ]
        weights = [weight / sum(moved) for weight in moved]
    return best


def _rows(profile: Profile, turn: Turn, cached_tokens: int) -> tuple[float, float]:
    """Seconds that a turn takes of an engine: of its prefill server, and of its time in all."""
    if not profile.fits(turn.prompt_tokens, turn.output_tokens):
        return math.inf, math.inf
    prefill = profile.prefill_seconds(turn.prompt_tokens, cached_tokens)
    full = profile.slots / profile.token_seconds(profile.slots, 0)  # tokens per second
    starved = min(full, profile.starved_rate * profile.slots)
    return prefill, prefill * (1 - starved / full) + (turn.output_tokens - 1) / full
