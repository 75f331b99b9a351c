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

Where many work at once neither is near: who is alone makes its tokens fast, but an engine makes most when it
is full. `joint_seconds` has programs and engines in one, and slots that keep one prefix each; see `joint`.

Times to the first token are those of an idle fleet with all of the prefix cached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from policies.simulation.hits import Hit, best_hits, ideal_hits
from policies.simulation.joint import joint_seconds
from policies.simulation.profile import Profile
from policies.simulation.spread import Spread, spread
from policies.simulation.workload import Program, Turn

STEPS = 300
GAIN = 0.985  # of each step, to the power of its number: after 300 the bound is within 0.3 % of the optimum


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one workload on one fleet."""

    fluid_seconds: float
    path_seconds: float
    endless_seconds: float  # the larger of both: what endless caches would allow
    joint_seconds: float
    makespan_seconds: float  # the largest of all
    hit_ratio: float  # of an endless cache that all engines share
    ttft: dict[str, Spread]  # by class


def bounds(profiles: Sequence[Profile], programs: Sequence[Program]) -> Bounds:
    """Makespan and hits are those of the foreground: what is asked behind it only takes time from it."""
    foreground = [program for program in programs if program.foreground]
    ideal = ideal_hits(foreground)
    turns = [hit for hits in ideal for hit in hits]
    best = list(zip(programs, best_hits(programs), strict=True))
    start = min(program.starts for program in foreground)
    paths = [p.starts - start + alone_seconds(profiles, hits) for p, hits in best if p.foreground]
    fluid, path = fluid_seconds(profiles, turns), max(paths)
    longest = max(turn.prompt_tokens for program in programs for turn in program.turns)
    begun = [(p.starts - start, hits) for p, hits in zip(foreground, ideal, strict=True)]
    joint = joint_seconds(profiles, begun, longest)
    classes = sorted({program.priority for program in programs})
    return Bounds(
        fluid_seconds=fluid,
        path_seconds=path,
        endless_seconds=max(fluid, path),
        joint_seconds=joint,
        makespan_seconds=max(fluid, path, joint),
        hit_ratio=sum(hit.cached_tokens for hit in turns) / sum(hit.turn.prompt_tokens for hit in turns),
        ttft={
            c.label: spread(
                first_token_seconds(profiles, hit.turn, hit.cached_tokens)
                for program, hits in best
                if program.priority is c
                for hit in hits
            )
            for c in classes
        },
    )


def alone_seconds(profiles: Sequence[Profile], hits: Sequence[Hit]) -> float:
    """Seconds of a program that has the fleet for itself, the pauses between its turns included."""
    pauses = sum(hit.turn.think_seconds for hit in hits[1:])
    return pauses + sum(best_seconds(profiles, hit.turn, hit.cached_tokens) for hit in hits)


def first_token_seconds(profiles: Sequence[Profile], turn: Turn, cached_tokens: int) -> float:
    """Seconds to the first token on the idle engine that is fastest for it; infinity: none holds it."""
    fitting = [profile for profile in profiles if profile.fits(turn.prompt_tokens, turn.output_tokens)]
    return min(
        (p.latency_seconds + p.prefill_seconds(turn.prompt_tokens, cached_tokens) for p in fitting),
        default=math.inf,
    )


def best_seconds(profiles: Sequence[Profile], turn: Turn, cached_tokens: int) -> float:
    """Seconds of a turn alone on the engine that is fastest for it; infinity: none holds it."""
    fitting = [profile for profile in profiles if profile.fits(turn.prompt_tokens, turn.output_tokens)]
    return min(
        (p.service_seconds(turn.prompt_tokens, cached_tokens, turn.output_tokens) for p in fitting),
        default=math.inf,
    )


def fluid_seconds(profiles: Sequence[Profile], hits: Sequence[Hit]) -> float:
    """The linear programme's bound."""
    choices = [[_rows(profile, hit.turn, hit.cached_tokens) for profile in profiles] for hit in hits]
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
        moved = [w * math.exp(GAIN**step * load / fullest) for w, load in zip(weights, loads, strict=True)]
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
