"""What no policy can beat, with programs and engines in one: a program hurries alone, engines hurry full.

A step with k streams on an engine with the constants a, d and e takes a + dk + ec seconds, with c their mean
context. Each of its tokens takes all of that from its program, and a k-th of it from the engine. So a turn
that is done amid k streams brings to a run of T seconds

    to its program         its pause, its prefill, and its tokens times (a + dk + ec)
    to the prefill server  its prefill
    to the engine's steps  its tokens times (a + dk + ec) / k, less what was made beside prefills
    to the engine's slots  its seconds there, and its pause if what no other program has is to be found
                           there at the end of it, over their number

and none of these may have more than T. While a prompt is read, streams make g tokens a second or fewer, so
of each second of a prefill no more than g (a + dS + eC) are spared, with C the longest context. What is a
program's own, a turn finds only where it was kept since the turn before, in a slot that was nobody's
meanwhile; on each engine it chooses between that and a longer prefill. What others have, too, it finds for
nothing, and everything where blocks are kept in a pool. Turns may be split over engines and over k, any
number from 1 to S, and nothing ever waits.

All that is linear but for k, for which the best is known in closed form. For any weights of the rows that sum
to 1, the sum over turns of the cheapest weighted choice is a lower bound on T, however far from the best ones
these weights are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from policies.simulation.hits import Hit
from policies.simulation.profile import CacheKind, Profile

STEPS = 400
GAIN = 0.985  # of each step, to the power of its number

ROWS = 3  # of an engine: its prefill server, its steps, its slots


class Way(NamedTuple):
    """To do a turn on an engine; seconds, tokens, and seconds per token."""

    engine: int
    prefill: float
    spared: float  # of the engine's steps, by what streams make beside the prefill
    kept: float  # of the slots, for the pause before it
    slots: int
    tokens: float
    base: float  # of a token, whatever the batch
    step: float  # and for each stream of it
    slotted: float  # what a second there takes of the slots
    latency: float


def joint_seconds(
    profiles: Sequence[Profile], programs: Sequence[tuple[float, Sequence[Hit]]], longest_tokens: int
) -> float:
    """The bound. `programs`: seconds from the first one's start to this one's, and its turns.
    `longest_tokens`: no prompt is longer, be it of somebody else."""
    fixed = [starts + sum(hit.turn.think_seconds for hit in hits[1:]) for starts, hits in programs]
    turns = [
        (number, ways)
        for number, (_, hits) in enumerate(programs)
        for hit in hits
        if (ways := [way for b, p in enumerate(profiles) for way in _ways(b, p, hit, longest_tokens)])
    ]
    engines = ROWS * len(profiles)
    rows = engines + len(programs)
    weights = [1 / rows] * rows
    best = 0.0
    for step in range(1, STEPS + 1):
        loads = [0.0] * engines + fixed
        bound = sum(map(mul, weights[engines:], fixed))
        for number, ways in turns:
            price, way, batch = _cheapest(ways, weights, weights[engines + number])
            bound += price
            _load(loads, engines + number, way, batch)
        best = max(best, bound)
        fullest = max(loads)
        moved = [w * math.exp(GAIN**step * load / fullest) for w, load in zip(weights, loads, strict=True)]
        whole = sum(moved)
        weights = [weight / whole for weight in moved]
    return best


def _ways(engine: int, profile: Profile, hit: Hit, longest_tokens: int) -> list[Way]:
    """With what the turn may find there if that was kept, and without."""
    turn, ways = hit.turn, list[Way]()
    if not profile.fits(turn.prompt_tokens, turn.output_tokens):
        return ways
    beside = min(1.0, profile.starved_rate * profile.token_seconds(profile.slots, longest_tokens))
    slotted = 0.0 if profile.cache is CacheKind.BLOCK else 1 / profile.slots
    for tokens in {hit.cached_tokens, hit.shared_tokens}:
        found = tokens // profile.cache_tokens * profile.cache_tokens
        prefill = profile.prefill_seconds(turn.prompt_tokens, found)
        pause = turn.think_seconds if tokens > hit.shared_tokens else 0.0
        ways.append(
            Way(
                engine=engine,
                prefill=prefill,
                spared=prefill * beside,
                kept=pause * slotted,
                slots=profile.slots,
                tokens=turn.output_tokens - 1,
                base=profile.decode_base_seconds + profile.decode_context_seconds * turn.prompt_tokens,
                step=profile.decode_step_seconds,
                slotted=slotted,
                latency=profile.latency_seconds,
            )
        )
    return ways


def _cheapest(ways: Sequence[Way], weights: Sequence[float], own: float) -> tuple[float, Way, float]:
    """The price of the cheapest way, at the batch that is best for it."""
    least, best, among = math.inf, ways[0], 1.0
    for way in ways:
        row = ROWS * way.engine
        read, steps, slots = weights[row : row + ROWS]
        alone = own + slots * way.slotted  # of a second of the program there
        batch = math.sqrt(steps * way.base / (alone * way.step)) if alone * way.step else math.inf
        batch = min(max(batch, 1.0), way.slots)
        token = way.base + way.step * batch
        price = (
            (read + steps + alone) * way.prefill
            - steps * way.spared
            + slots * way.kept
            + alone * way.latency
            + way.tokens * token * (alone + steps / batch)
        )
        if price < least:
            least, best, among = price, way, batch
    return least, best, among


def _load(loads: list[float], own: int, way: Way, batch: float) -> None:
    """What a way brings to each row."""
    row, decode = ROWS * way.engine, way.tokens * (way.base + way.step * batch)
    there = way.latency + way.prefill + decode
    loads[row] += way.prefill
    loads[row + 1] += way.prefill - way.spared + decode / batch
    loads[row + 2] += way.kept + there * way.slotted
    loads[own] += there
