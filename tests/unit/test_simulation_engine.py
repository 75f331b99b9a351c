"""An engine in virtual time: what holds of every one, and how short prompts fare behind long ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from policies.simulation.engine import Engine, Job, Mode, Phase
from policies.simulation.profile import DS4_64K, LLAMACPP_131K, PROFILES, VLLM_2SPARK, Profile
from policies.simulation.workload import Segment, Turn

asked = some.lists(
    some.tuples(some.floats(0, 50), some.integers(1, 20_000), some.integers(1, 300)), min_size=1, max_size=15
)
any_profile = some.sampled_from(list(PROFILES.values()))
any_mode = some.sampled_from(list(Mode))


def turn(number: int, prompt_tokens: int, output_tokens: int = 100) -> Turn:
    """A prompt that shares nothing with those of other numbers."""
    return Turn((Segment(2 * number, prompt_tokens),), output_tokens, 2 * number + 1)


def played(engine: Engine, jobs: list[tuple[float, Turn]]) -> list[Job]:
    """The jobs after the engine has answered all; never more are active than it has slots."""
    waiting = [Job(f"{i}", turn, at) for i, (at, turn) in enumerate(sorted(jobs, key=lambda job: job[0]))]
    done = list(waiting)
    while waiting or engine.jobs:
        now = engine.next_event()
        if waiting and waiting[0].submitted <= now:
            now = waiting[0].submitted
            engine.advance(now)
            engine.submit(waiting.pop(0), now)
        else:
            engine.advance(now)
        assert engine.active <= engine.profile.slots
    return done


def ttft(profile: Profile, mode: Mode, long_prompts: int) -> float:
    """Of 256 tokens that come one second after so many prompts of 32K."""
    jobs = [(0.0, turn(number, 32_768)) for number in range(long_prompts)]
    short = played(Engine(profile, mode), [*jobs, (1.0, turn(99, 256))])[-1]
    assert short.first is not None
    return short.first - 1.0


# -- every engine -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(any_profile, any_mode, asked)
def test_every_job_is_answered_in_order_of_its_steps(
    profile: Profile, mode: Mode, rows: list[tuple[float, int, int]]
) -> None:
    """Submitted, slot, first token, last token; none is lost, none is faster than alone."""
    jobs = played(Engine(profile, mode), [(at, turn(i, p, o)) for i, (at, p, o) in enumerate(rows)])
    assert len(jobs) == len(rows)
    for job in jobs:
        assert job.phase is Phase.ENDED
        assert job.started is not None
        assert job.first is not None
        assert job.ended is not None
        assert job.submitted <= job.started < job.first <= job.ended
        alone = profile.service_seconds(job.turn.prompt_tokens, 0, job.turn.output_tokens)
        assert job.ended - job.started >= alone - 1e-6


@settings(deadline=None)
@given(any_profile, asked)
def test_strict_engines_answer_first_come_first_served(
    profile: Profile, rows: list[tuple[float, int, int]]
) -> None:
    """First tokens come in the order of arrival."""
    jobs = played(Engine(profile), [(at, turn(i, p, o)) for i, (at, p, o) in enumerate(rows)])
    firsts = [job.first for job in jobs]
    assert firsts == sorted(firsts, key=lambda first: first or 0.0)


@settings(deadline=None)
@given(any_profile, any_mode, asked)
def test_looking_more_often_changes_nothing(
    profile: Profile, mode: Mode, rows: list[tuple[float, int, int]]
) -> None:
    """Time may pass in any number of steps."""
    jobs = [(at, turn(i, p, o)) for i, (at, p, o) in enumerate(rows)]

    class Watched(Engine):
        def next_event(self) -> float:
            event = super().next_event()
            return event if self.looked or event == float("inf") else (self._at + event) / 2

        looked = False

        def advance(self, now: float) -> list[Job]:
            self.looked = not self.looked
            return super().advance(now)

    once, often = played(Engine(profile, mode), jobs), played(Watched(profile, mode), jobs)
    assert [job.ended for job in once] == pytest.approx([job.ended for job in often])


def test_what_is_due_when_a_request_arrives_is_still_reported() -> None:
    """An arrival at the very moment of a first token takes nothing of it away."""
    engine = Engine(DS4_64K)
    engine.submit(Job("first", turn(0, 500), 0.0), 0.0)
    engine.advance(engine.next_event())  # it reaches the prefill server
    now = engine.next_event()
    engine.submit(Job("second", turn(1, 500), now), now)
    assert engine.next_event() == now
    assert [job.id for job in engine.advance(now)] == ["first"]


# -- rates ------------------------------------------------------------------------------------------


def test_a_stream_starves_while_a_prompt_is_read() -> None:
    """llama.cpp makes 0.23 tokens a second meanwhile, and its usual ones before and after."""
    jobs = [(0.0, turn(0, 465, 40)), (1.2, turn(1, 9300, 1))]
    first, second = played(Engine(LLAMACPP_131K), jobs)
    assert first.first is not None
    assert first.ended is not None
    assert second.first is not None
    token = LLAMACPP_131K.token_seconds(1, 465)
    before, starved = (1.2 - first.first) / token, 0.227 * (second.first - 1.2)
    assert starved < 5 < before + starved
    assert first.ended == pytest.approx(second.first + (39 - before - starved) * token)


def test_an_engine_at_half_speed_takes_twice_as_long() -> None:
    """All its rates."""
    slow = Engine(replace(DS4_64K, latency_seconds=0.0))
    slow.set_speed(0.5, 0.0)
    full = Engine(replace(DS4_64K, latency_seconds=0.0))
    [one], [other] = played(slow, [(0.0, turn(0, 5000))]), played(full, [(0.0, turn(0, 5000))])
    assert one.ended is not None
    assert other.ended is not None
    assert one.ended == pytest.approx(2 * other.ended)


def test_a_lost_engine_returns_what_it_had() -> None:
    """Running, reading and queued ones; it begins anew with nothing cached."""
    engine = Engine(replace(DS4_64K, slots=2))
    for number in range(3):
        engine.submit(Job(f"{number}", turn(number, 4000), 0.0), 0.0)
    engine.advance(engine.next_event())
    engine.advance(engine.next_event())
    assert [job.id for job in engine.set_speed(0.0, 5.0)] == ["0", "1", "2"]
    assert not engine.alive
    assert (engine.active, engine.next_event()) == (0, float("inf"))
    engine.set_speed(1.0, 9.0)
    engine.submit(Job("again", turn(0, 4000), 9.0), 9.0)
    engine.advance(9.06)
    assert engine.jobs["again"].cached_tokens == 0


# -- short prompts behind long ones -----------------------------------------------------------------


@pytest.mark.parametrize(("long_prompts", "seconds"), [(0, 0.6), (1, 17.8), (2, 36.4), (5, 94.1)])
def test_a_short_prompt_waits_for_all_long_ones_on_vllm(long_prompts: int, seconds: float) -> None:
    """Strictly first come first served, 256 tokens wait up to a minute and a half."""
    assert ttft(VLLM_2SPARK, Mode.STRICT, long_prompts) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(("long_prompts", "seconds"), [(0, 0.64), (1, 83.9), (2, 168), (3, 252)])
def test_a_short_prompt_waits_for_all_long_ones_on_llamacpp(long_prompts: int, seconds: float) -> None:
    """The same, four times as long."""
    assert ttft(LLAMACPP_131K, Mode.STRICT, long_prompts) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(("profile", "chunk_seconds"), [(VLLM_2SPARK, 0.6), (LLAMACPP_131K, 4.5)])
@pytest.mark.parametrize("long_prompts", [1, 2, 3])
def test_a_short_prompt_that_shares_a_step_waits_for_a_chunk(
    profile: Profile, chunk_seconds: float, long_prompts: int
) -> None:
    """The one that it rides with, and what is left of the one before, however many long prompts wait."""
    alone = ttft(profile, Mode.SHARED, 0)
    assert alone + 0.9 * chunk_seconds <= ttft(profile, Mode.SHARED, long_prompts)
    assert ttft(profile, Mode.SHARED, long_prompts) <= alone + 2 * chunk_seconds


def test_a_short_prompt_rides_with_the_long_one_behind_it() -> None:
    """If they share steps; else it is answered before the long one is begun."""
    rows = [(0.0, turn(0, 500, 2)), (0.01, turn(1, 20_000, 2))]
    profile = replace(DS4_64K, latency_seconds=0.1)
    strict, shared = (played(Engine(profile, mode), rows)[0].first for mode in Mode)
    assert strict == pytest.approx(0.1 + profile.prefill_seconds(500, 0))
    assert shared == pytest.approx(strict + profile.chunk_tokens / profile.long_rate)


def test_short_prompts_share_one_step_up_to_a_chunk() -> None:
    """Their first tokens come together, with the end of the long one's chunk; the next ones wait for the next
    step, so a long prompt always gets on."""
    rows = [(0.0, turn(0, 40_000)), *((1.0, turn(number, 500, 2)) for number in range(1, 10))]
    profile = replace(DS4_64K, slots=10, latency_seconds=0.0)
    long, *shorts = played(Engine(profile, Mode.SHARED), rows)
    firsts = [short.first or 0.0 for short in shorts]
    assert [firsts.count(first) for first in sorted(set(firsts))] == [4, 4, 1]
    assert long.first is not None
    assert firsts[-1] < long.first
    gaps = [later - sooner for sooner, later in zip(firsts[3::4], firsts[4::4], strict=False)]
    assert all(gap >= profile.chunk_tokens / profile.long_rate for gap in gaps)


def test_sharing_a_step_costs_the_long_prompt_what_the_short_one_takes() -> None:
    """No work is lost or won."""
    ends = {}
    for mode in Mode:
        jobs = played(Engine(DS4_64K, mode), [(0.0, turn(0, 32_768, 1)), (1.0, turn(1, 256, 1))])
        ends[mode] = sorted(job.first or 0.0 for job in jobs)
    assert ends[Mode.SHARED][-1] == pytest.approx(ends[Mode.STRICT][-1])
    assert ends[Mode.SHARED][0] < ends[Mode.STRICT][0] / 5


# -- the cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_the_next_turn_of_a_conversation_finds_the_one_before(profile: Profile) -> None:
    """With its answer, but for a part of a block."""
    engine = Engine(profile)
    before = turn(0, 10_000, 500)
    engine.submit(Job("before", before, 0.0), 0.0)
    while engine.jobs:
        engine.advance(engine.next_event())
    now = 1000.0
    engine.advance(now)
    job = Job("after", Turn((*before.sequence, Segment(7, 11_000)), 10, 8), now)
    engine.submit(job, now)
    while engine.jobs:
        engine.advance(engine.next_event())
    assert 10_500 - profile.cache_tokens < job.cached_tokens <= 10_500
    assert job.first is not None
    work = profile.prefill_seconds(11_000, job.cached_tokens)
    assert job.first - now == pytest.approx(work + profile.latency_seconds)
