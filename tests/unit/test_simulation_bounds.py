"""Lower bounds: sound under every policy, and tight where the answer is known."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from policies.simulation.bounds import Bounds, bounds, fluid_seconds
from policies.simulation.engine import Mode
from policies.simulation.hits import Hit
from policies.simulation.joint import joint_seconds
from policies.simulation.profile import DS4_64K, LLAMACPP_131K, PROFILES, VLLM_2SPARK, Profile
from policies.simulation.report import figures
from policies.simulation.workload import Digests, Program, Segment, Turn, Workload, conversation
from policies.simulator import POLICIES, simulate
from policies.types import Priority

SIDES = (0, 1)
# Nothing that the bound leaves out on purpose.
PLAIN = replace(DS4_64K, quadratic_seconds=0.0, latency_seconds=0.0)


def cold(number: int, prompt_tokens: int, output_tokens: int) -> Turn:
    return Turn((Segment(2 * number, prompt_tokens),), output_tokens, 2 * number + 1)


def full_seconds(profile: Profile, hits: list[Hit]) -> float:
    """Of an engine that never waits and has all slots in use."""
    turns = [hit.turn for hit in hits]
    prefill = sum(profile.prefill_seconds(hit.turn.prompt_tokens, hit.cached_tokens) for hit in hits)
    rate = profile.slots / profile.token_seconds(profile.slots, 0)
    tokens = sum(turn.output_tokens - 1 for turn in turns)
    return max(prefill, prefill + (tokens - prefill * profile.starved_rate * profile.slots) / rate)


def crowd(seed: int, count: int) -> list[Program]:
    """Agents of a few turns, all with one head."""
    chance, digests = random.Random(seed), Digests()
    head = (Segment(digests.new(), 3000),)
    programs = []
    for number in range(count):
        steps = [(chance.randint(50, 8000), chance.randint(1, 600), chance.uniform(0, 10)) for _ in range(4)]
        turns = tuple(conversation(head, steps, digests))
        programs.append(Program(f"{number}", "crowd", Priority.AGENT, chance.uniform(0, 20), turns))
    return programs


@cache
def limits(seed: int, count: int) -> tuple[list[Program], Bounds]:
    """A crowd, and what nobody can do better for it."""
    programs = crowd(seed, count)
    return programs, bounds(list(PROFILES.values()), programs)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("count", [1, 4, 30])
def test_no_policy_beats_them(policy: str, mode: Mode, count: int) -> None:
    """Neither the makespan, nor the hits, nor any percentile of first tokens."""
    profiles = list(PROFILES.values())
    for seed in range(3):
        programs, best = limits(seed, count)
        run = figures(simulate(profiles, Workload(programs), policy, mode), profiles)
        assert run.makespan_seconds >= best.makespan_seconds
        assert run.hit_ratio <= best.hit_ratio + 1e-9
        assert run.ttft["agent"].p50 >= best.ttft["agent"].p50 - 1e-9
        assert run.ttft["agent"].p99 >= best.ttft["agent"].p99 - 1e-9


def test_one_engine_is_full_all_the_time() -> None:
    """On one engine there is nothing to choose: the sum of what requests take."""
    turns = [Hit(cold(number, 100 * number, 200), 0) for number in range(1, 30)]
    assert fluid_seconds([PLAIN], turns) == pytest.approx(full_seconds(PLAIN, turns), rel=0.01)


def test_prefill_alone_can_be_what_takes_longest() -> None:
    """Answers that are made while others read cost nothing."""
    turns = [Hit(cold(number, 20_000, 2), 0) for number in range(5)]
    prefill = sum(PLAIN.prefill_seconds(turn.prompt_tokens, 0) for turn, *_ in turns)
    assert fluid_seconds([PLAIN], turns) == pytest.approx(prefill, rel=0.01)


def test_two_equal_engines_take_half() -> None:
    """Requests may be split."""
    turns = [Hit(cold(number, 3000, 300), 0) for number in range(9)]
    alone = fluid_seconds([PLAIN], turns)
    assert fluid_seconds([PLAIN, replace(PLAIN, name="twin")], turns) == pytest.approx(alone / 2, rel=0.01)


def test_unlike_engines_share_by_their_speed() -> None:
    """Of equal requests each takes as many as it can in the time that all take."""
    turns = [Hit(cold(number, 500, 400), 0) for number in range(100)]
    alone = [fluid_seconds([profile], turns) for profile in PROFILES.values()]
    together = 1 / sum(1 / seconds for seconds in alone)
    assert fluid_seconds(list(PROFILES.values()), turns) == pytest.approx(together, rel=0.01)


@settings(deadline=None)
@given(
    some.lists(some.tuples(some.integers(10, 30_000), some.integers(1, 800)), min_size=1, max_size=5),
    some.sampled_from([(VLLM_2SPARK, LLAMACPP_131K), (DS4_64K, LLAMACPP_131K), (VLLM_2SPARK, DS4_64K)]),
)
def test_no_split_of_requests_is_better(rows: list[tuple[int, int]], fleet: tuple[Profile, Profile]) -> None:
    """Every way to give each request to one of two engines takes at least as long."""
    turns = [Hit(cold(number, prompt, output), 0) for number, (prompt, output) in enumerate(rows)]
    bound = fluid_seconds(fleet, turns)
    splits = []
    for choice in product(SIDES, repeat=len(turns)):
        shares = [
            [turn for turn, chosen in zip(turns, choice, strict=True) if chosen == side] for side in (0, 1)
        ]
        splits.append(max(fluid_seconds([fleet[side]], shares[side]) for side in (0, 1)))
    assert bound <= min(splits) + 1e-9


def test_the_longest_program_is_a_path() -> None:
    """Its pauses, and its turns one after the other on the fastest engine, warm."""
    digests = Digests()
    turns = tuple(conversation((), [(4000, 100, 0.0), (500, 100, 7.0)], digests))
    program = Program("one", "one", Priority.AGENT, 5.0, turns)
    first = VLLM_2SPARK.service_seconds(4000, 0, 100)
    second = VLLM_2SPARK.service_seconds(4600, 4100, 100)
    found = bounds([VLLM_2SPARK, LLAMACPP_131K], [program])
    assert found.path_seconds == pytest.approx(first + 7.0 + second)
    assert found.path_seconds <= found.makespan_seconds <= 1.001 * found.path_seconds  # in whole blocks
    assert found.hit_ratio == pytest.approx(4100 / 8600)


def test_an_engine_that_cannot_hold_a_request_is_no_choice() -> None:
    """The others must take it."""
    turns = [Hit(cold(0, 100_000, 10), 0)]
    both, one = fluid_seconds([LLAMACPP_131K, DS4_64K], turns), fluid_seconds([LLAMACPP_131K], turns)
    assert both == pytest.approx(one, rel=0.01)


def alone(*starts_and_steps: tuple[float, list[tuple[int, int, float]]]) -> list[tuple[float, list[Hit]]]:
    """Programs with all of their own prefixes, as `joint_seconds` takes them."""
    digests, programs = Digests(), []
    for starts, steps in starts_and_steps:
        turns, before = [], 0
        for turn in conversation((), steps, digests):
            turns.append(Hit(turn, before, 0))
            before = turn.prompt_tokens + turn.output_tokens
        programs.append((starts, turns))
    return programs


def test_a_program_among_others_is_not_alone() -> None:
    """On one engine, as many equal answers as it has slots: each takes the steps of a full batch, which
    neither the path nor the full engine shows."""
    engine = replace(PLAIN, setup_seconds=0.0, cache_tokens=1)
    crowd = alone(*[(0.0, [(10, 1000, 0.0)])] * engine.slots)
    found = joint_seconds([engine], [*crowd, *alone((0.0, [(10, 2000, 0.0)]))], 10)
    many, single = engine.token_seconds(engine.slots, 10), engine.token_seconds(1, 10)
    path, full = 1999 * single, (999 * engine.slots + 1999) * many / engine.slots
    assert found > 1.03 * max(path, full)
    assert found < 1000 * many + 1000 * single + 1


def test_a_pause_takes_the_slot_or_the_prefix() -> None:
    """Two conversations with long pauses on an engine with one slot: one waits for the other's pause, or
    reads all of its prompt again."""
    steps = [(20_000, 2, 0.0), (10, 2, 60.0)]
    engine = replace(PLAIN, slots=1, cache_tokens=1)
    own = engine.prefill_seconds(20_000, 0) + engine.prefill_seconds(20_012, 20_002)
    least = 60.0 + own
    assert joint_seconds([engine], alone((0.0, steps)), 20_012) == pytest.approx(least, rel=0.01)
    cold = engine.prefill_seconds(20_012, 0)
    found = joint_seconds([engine], alone((0.0, steps), (0.0, steps)), 20_012)
    again = 2 * engine.prefill_seconds(20_000, 0) + engine.prefill_seconds(20_012, 20_002) + cold
    assert found > least + 1  # with a pool it would be `least`
    assert found <= max(again, 60.0 + own + cold)
    pool = replace(engine, cache=VLLM_2SPARK.cache, pool_tokens=10**6)
    assert joint_seconds([pool], alone((0.0, steps), (0.0, steps)), 20_012) < found - 1


def test_whole_checkpoints_count() -> None:
    """What an engine finds only in part is no help in the bound either."""
    steps = [(3000, 2, 0.0), (10, 2, 0.0)]
    coarse = replace(PLAIN, cache_tokens=2048)
    expected = (
        coarse.prefill_seconds(3000, 0)
        + coarse.prefill_seconds(3012, 2048)
        + 2 * coarse.token_seconds(1, 3000)
    )
    assert joint_seconds([coarse], alone((0.0, steps)), 3012) == pytest.approx(expected, rel=0.01)
