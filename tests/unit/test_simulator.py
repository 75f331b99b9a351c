"""Whole runs: what every policy must do, and what tells the policies apart."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

import pytest

from policies.simulation.baselines import AtArrival
from policies.simulation.engine import Engine, Job, Mode
from policies.simulation.profile import DS4_64K, DS4_262K, LLAMACPP_131K, PROFILES, VLLM_2SPARK, fleet
from policies.simulation.report import figures, jain
from policies.simulation.router import Decision, Knowledge, Request, Start
from policies.simulation.scenarios import SCENARIOS, Maker, TooFewEngines
from policies.simulation.traces import sessions
from policies.simulation.workload import Digests, Happening, Program, Segment, Workload, conversation
from policies.simulation.world import World
from policies.simulator import POLICIES, compare, limits, simulate
from policies.types import Priority

TRACE = files("gateway").joinpath("traces", "coding_agents.jsonl")
RECORDED = sessions(TRACE.read_text("utf-8").splitlines())
TWINS = ("ds4-64k", "ds4-64k")
A, B = "ds4-64k", "ds4-64k#2"  # their names
LATE_BINDING = ("slotgate", "central-fcfs")  # those that keep a queue of their own


def scenario(name: str, agents: int, seed: int = 1, engines: Sequence[str] = tuple(PROFILES)) -> Workload:
    return SCENARIOS[name](Maker(RECORDED, random.Random(seed)), fleet(engines), agents)


def program(name: str, digests: Digests, starts: float, *steps: tuple[int, int, float]) -> Program:
    return Program(name, name, Priority.AGENT, starts, tuple(conversation((), steps, digests)))


# -- every policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_turn_is_answered_once(policy: str, mode: Mode, name: str) -> None:
    """Of all programs in the foreground, in order, whatever happens to engines."""
    load = scenario(name, 6)
    run = simulate(fleet(list(PROFILES)), load, policy, mode)
    answered = Counter((record.program.name, record.turn.answer) for record in run.records)
    expected = {(p.name, turn.answer) for p in load.programs if p.foreground for turn in p.turns}
    assert expected <= set(answered)
    assert set(answered.values()) == {1}
    for record in run.records:
        assert record.program.starts <= record.arrived <= record.started < record.first <= record.ended


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_repeats_to_the_last_bit(policy: str) -> None:
    """The same seed, the same records."""
    first, second = (simulate(fleet(list(PROFILES)), scenario("burst", 8), policy) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("policy", LATE_BINDING)
@pytest.mark.parametrize("name", SCENARIOS)
def test_who_keeps_the_queue_never_exceeds_the_slots(policy: str, name: str) -> None:
    """No engine ever has to queue; but one that does not tell its slots gets one request too many while they
    are searched for, until two looks have seen it."""
    searched = 5 * len(PROFILES) if name == "unknown-slots" else 0
    assert simulate(fleet(list(PROFILES)), scenario(name, 12), policy).oversubscribed <= searched


def test_who_binds_at_arrival_makes_engines_queue() -> None:
    """The counter above can count."""
    assert simulate(fleet(list(PROFILES)), scenario("main", 24), "round-robin").oversubscribed > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_one_engine_is_enough(policy: str) -> None:
    """All go there."""
    run = simulate([LLAMACPP_131K], scenario("main", 3), policy)
    assert {record.engine for record in run.records} == {LLAMACPP_131K.name}


@pytest.mark.parametrize("policy", POLICIES)
def test_what_only_one_engine_holds_goes_there(policy: str) -> None:
    """A prompt of 100,000 tokens."""
    digests = Digests()
    load = Workload([program(f"{number}", digests, number, (100_000, 10, 0.0)) for number in range(4)])
    run = simulate([DS4_64K, LLAMACPP_131K], load, policy)
    assert [record.engine for record in run.records] == [LLAMACPP_131K.name] * 4


# -- an engine that is lost -------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_that_break_off_are_asked_for_again(policy: str) -> None:
    """By the client if they had begun, at once if not; nothing starts on the lost engine until it is back."""
    digests = Digests()
    programs = [program(f"{number}", digests, 0.1 * number, (3000, 800, 0.0)) for number in range(12)]
    load = Workload(programs, [Happening(9.0, A, 0.0), Happening(300.0, A, 1.0)])
    run = simulate(fleet(TWINS), load, policy)
    assert len(run.records) == 12
    assert run.broken > 0
    ended_there = [record for record in run.records if record.engine == A]
    assert all(record.ended <= 9.0 or record.started >= 300.0 for record in ended_there)


def test_a_policy_that_loses_a_request_is_caught() -> None:
    """It hangs the run, which says so."""

    class Forgetful(AtArrival):
        def arrive(self, request: Request, now: float) -> list[Decision]:
            return []

    load = Workload([program("one", Digests(), 0.0, (10, 10, 0.0))])
    with pytest.raises(AssertionError, match="1 requests never start"):
        World([DS4_64K], load, Forgetful, Mode.STRICT).play()


# -- the published policies -------------------------------------------------------------------------


def first_engines(policy: str, programs: list[Program], engines: Sequence[str]) -> list[str]:
    """Where each turn went, in the order of the answers."""
    run = simulate(fleet(engines), Workload(programs), policy)
    return [record.engine for record in sorted(run.records, key=lambda record: record.arrived)]


def test_round_robin_takes_turns() -> None:
    """Whatever is cached where."""
    digests = Digests()
    steps = [(2000, 10, 0.0)] + [(100, 10, 5.0)] * 5
    assert first_engines("round-robin", [program("one", digests, 0.0, *steps)], TWINS) == [A, B] * 3


def test_least_requests_counts_requests() -> None:
    """An engine with two slots gets as many as one with eleven."""
    digests = Digests()
    programs = [program(f"{number}", digests, 0.01 * number, (2000, 500, 0.0)) for number in range(8)]
    where = Counter(first_engines("least-requests", programs, ("ds4-64k", "ds4-262k")))
    assert where == {DS4_64K.name: 4, DS4_262K.name: 4}


@pytest.mark.parametrize("policy", ["sticky", "chwbl", "cache-aware-64", "cache-aware-4", "lmetric", "dynamo",
                                    "central-fcfs", "seconds-at-arrival", "slotgate"])  # fmt: skip
def test_a_conversation_stays_where_its_prefix_is(policy: str) -> None:
    """While nothing speaks against it."""
    steps = [(9000, 10, 0.0)] + [(100, 10, 5.0)] * 5
    where = first_engines(policy, [program("one", Digests(), 0.0, *steps)], TWINS)
    assert len(set(where)) == 1


def test_bounded_hashing_keeps_loads_near_the_mean() -> None:
    """Of 16 requests in flight on two engines none has more than 1.25 x 8, whatever the hashes say."""
    digests = Digests()
    programs = [program(f"{number}", digests, 0.01 * number, (500, 2000, 0.0)) for number in range(16)]
    assert max(Counter(first_engines("chwbl", programs, TWINS)).values()) <= 10


@pytest.mark.parametrize(("policy", "most"), [("cache-aware-64", 20), ("cache-aware-4", 12)])
def test_cache_awareness_gives_way_when_loads_are_far_apart(policy: str, most: int) -> None:
    """By more than 4 requests, and by half; the default of 64 is more than two engines have slots."""
    digests = Digests()
    head = (Segment(digests.new(), 8000),)
    first = Program("first", "a", Priority.AGENT, 0.0, tuple(conversation(head, [(10, 2, 0.0)], digests)))
    answers = [tuple(conversation(head, [(10, 3000, 0.0)], digests)) for _ in range(20)]
    others = [Program(f"{n}", "a", Priority.AGENT, 20 + 0.01 * n, turns) for n, turns in enumerate(answers)]
    where = Counter(first_engines(policy, [first, *others], TWINS))
    assert where[A] == 1 + most


@pytest.mark.parametrize(("prompt_tokens", "choice"), [(4000, A), (999, B)])
def test_lmetric_weighs_prefill_by_batch(prompt_tokens: int, choice: str) -> None:
    """99 tokens beyond a warm prefix beside ten others count 1,089: less than 4,000 cold ones alone, more
    than 999."""
    digests = Digests()
    warm, cold = (Engine(replace(profile, cache_tokens=1)) for profile in fleet(TWINS))
    held = program("held", digests, 0.0, (prompt_tokens - 100, 1, 0.0), (98, 1, 0.0))
    others = [program(f"{number}", digests, 0.0, (100, 4000, 0.0)) for number in range(10)]
    for number, turn in enumerate([held.turns[0], *(other.turns[0] for other in others)]):
        warm.submit(Job(f"{number}", turn, 0.0), 0.0)
    while any(job.first is None for job in warm.jobs.values()):
        warm.advance(warm.next_event())
    request = Request("one", held, held.turns[1], 100.0)
    lmetric = POLICIES["lmetric"](Knowledge([warm, cold]))
    assert lmetric.arrive(request, 100.0) == [Start("one", choice)]


def test_late_binding_waits_for_a_slot() -> None:
    """Where binding at arrival queues behind a long answer, the central queue takes the slot that frees."""
    digests = Digests()
    engines = ("ds4-262k", "ds4-262k")
    long = [program(f"long-{n}", digests, 0.01 * n, (100, 4000 if n % 2 else 10, 0.0)) for n in range(4)]
    late = program("late", digests, 1.0, (100, 10, 0.0))
    run = simulate(fleet(engines), Workload([*long, late]), "central-fcfs")
    [record] = [record for record in run.records if record.program.name == "late"]
    assert record.started < 5


# -- figures ----------------------------------------------------------------------------------------


def test_fairness_is_jains_index() -> None:
    """1 if all fare alike, 1/n if one has everything."""
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_figures_of_a_run_that_can_be_told_by_hand() -> None:
    """One turn cold, one warm, on an engine of its own."""
    engine = VLLM_2SPARK
    load = Workload([program("one", Digests(), 2.0, (4000, 100, 0.0), (500, 100, 7.0))])
    found = figures(simulate([engine], load, "slotgate"), [engine])
    cached = 4100 // 256 * 256
    first, second = engine.service_seconds(4000, 0, 100), engine.service_seconds(4600, cached, 100)
    assert found.makespan_seconds == pytest.approx(first + 7 + second)
    assert found.program_seconds == pytest.approx(first + 7 + second)
    assert found.hit_ratio == pytest.approx(cached / 8600)
    assert found.wait_seconds_max == 0
    assert found.fairness == 1
    assert found.ttft["agent"].p99 == pytest.approx(engine.latency_seconds + engine.prefill_seconds(4000, 0))
    assert found.ttft["agent"].p50 == pytest.approx(
        engine.latency_seconds + engine.prefill_seconds(4600, cached)
    )


def test_a_comparison_is_a_row_per_policy_and_mode() -> None:
    """Means over workloads, in the order asked for."""
    profiles, loads = fleet(list(PROFILES)), [scenario("main", 4, seed) for seed in (1, 2)]
    rows = list(compare(profiles, loads, ["sticky", "slotgate"], list(Mode)))
    assert [(row.mode, row.policy) for row in rows] == [
        (Mode.STRICT, "sticky"),
        (Mode.STRICT, "slotgate"),
        (Mode.SHARED, "sticky"),
        (Mode.SHARED, "slotgate"),
    ]
    single = [figures(simulate(profiles, load, "sticky"), profiles).makespan_seconds for load in loads]
    assert rows[0].figures.makespan_seconds == pytest.approx(sum(single) / 2)


# -- scenarios --------------------------------------------------------------------------------------


def test_prompts_are_as_long_as_was_meant() -> None:
    """The median near 17,000 tokens, all of them within the smallest context."""
    loads = [scenario("main", 24, seed) for seed in range(1, 6)]
    lengths = sorted(
        turn.prompt_tokens for load in loads for p in load.programs if p.foreground for turn in p.turns
    )
    assert 12_000 < lengths[len(lengths) // 2] < 22_000
    assert lengths[-1] < 65_536


def test_a_lost_engine_does_not_count_for_the_bound() -> None:
    """What survives must do the work."""
    profiles = fleet(list(PROFILES))
    whole, lost = limits(profiles, [scenario("main", 24)]), limits(profiles, [scenario("lost", 24)])
    assert lost.fluid_seconds > whole.fluid_seconds


def test_the_last_engine_cannot_be_lost() -> None:
    """Who would do the work?"""
    with pytest.raises(TooFewEngines):
        scenario("lost", 4, engines=("ds4-64k",))


def test_a_heavy_tenant_does_not_change_what_others_ask() -> None:
    """So that their figures can be compared with those of the undisturbed run."""
    alone, beside = scenario("main", 6), scenario("heavy", 6)
    turns = [[p.turns for p in load.programs if p.foreground] for load in (alone, beside)]
    assert turns[0] == turns[1]
    assert sum(p.tenant == "heavy" for p in beside.programs) == 18


def test_engines_of_one_kind_have_names_of_their_own() -> None:
    """In the order in which they were named."""
    assert [profile.name for profile in fleet(("ds4-64k", "vllm-2spark", "ds4-64k"))] == [A, "vllm-2spark", B]
