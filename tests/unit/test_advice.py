"""Advice: the same requests again, on another window."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from policies.advice import Deployment, advise, choices
from policies.capacity import Pool, Seen, Split
from policies.hindsight import hindsight
from policies.prefix import Link
from policies.replay import profile
from policies.service_model import ServiceModel
from policies.simulation.profile import PROFILES, CacheKind
from policies.simulation.slotgate import service_model
from policies.simulation.workload import Workload
from policies.simulator import simulate
from policies.traffic import Asked, programs
from policies.types import Priority
from tests.unit.bygone import traffic

LARGE = PROFILES["ds4-262k"]
LAW = Seen({262_144: 2, 65_536: 11}, slots_min=2)


@pytest.fixture(scope="module")
def seen() -> list[Asked]:
    """What eight agents asked of two slots."""
    return traffic([LARGE], agents=8)


def a_request(number: int, **fields: object) -> Asked:
    """One that took a second, nothing cached."""
    row = Asked(
        arrived=float(number),
        dispatched=float(number),
        first=number + 0.5,
        ended=number + 1.0,
        agent="someone",
        priority=Priority.AGENT,
        backend="one",
        prompt_tokens=1000,
        cached_tokens=0,
        output_tokens=100,
    )
    return replace(row, **fields)  # type: ignore[arg-type]


# -- requests as programs ------------------------------------------------------------------------------


def test_a_conversation_is_played_with_its_pauses() -> None:
    """Who goes on from a whole prompt comes after its answer, which the engine has."""
    first = (Link(1, 400), Link(2, 4000))
    second = (*first, Link(3, 4400), Link(4, 8000))
    (program,) = programs(
        [
            a_request(10, chain=first),
            a_request(14, chain=second, prompt_tokens=2000, dispatched=17.0, first=18.0, ended=19.0),
        ]
    )
    assert (program.starts, program.tenant, len(program.turns)) == (0.0, "someone", 2)
    assert [turn.think_seconds for turn in program.turns] == [0.0, 3.0]
    assert program.turns[0].answer == 3
    assert [segment.end_tokens for segment in program.turns[1].prompt] == [100, 1000, 1100, 2000]


def test_a_message_after_the_prompt_is_no_answer_if_it_is_the_last() -> None:
    """A client that drops answers and asks on: its new question is not cached."""
    first = (Link(1, 400), Link(2, 4000))
    (program,) = programs([a_request(0, chain=first), a_request(2, chain=(*first, Link(3, 4400)))])
    assert program.turns[0].answer not in {1, 2, 3}


@pytest.mark.parametrize(
    "other",
    [
        {"chain": (Link(7, 4000),)},  # another prompt
        {"arrived": 0.9},  # before the answer
        {"priority": Priority.INTERACTIVE},
    ],
)
def test_others_are_conversations_of_their_own(other: dict[str, object]) -> None:
    """Nothing in common, or side by side."""
    chain = (Link(1, 4000),)
    rows = [a_request(0, chain=chain), a_request(2, **({"chain": (*chain, Link(2, 5000))} | other))]
    assert [len(program.turns) for program in programs(rows)] == [1, 1]


def test_a_named_conversation_needs_no_messages() -> None:
    """The name that a client gives holds together what has no chain, within one agent."""
    rows = [a_request(number, conversation="c") for number in (0, 2, 4)]
    assert [len(program.turns) for program in programs(rows)] == [3]
    rows[1] = replace(rows[1], agent="other")
    assert [len(program.turns) for program in programs(rows)] == [2, 1]


# -- rates as they were --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["central-fcfs", "slotgate"])
@pytest.mark.parametrize("name", PROFILES)
def test_rates_are_found_again_in_what_an_engine_did(name: str, policy: str) -> None:
    """Of a simulated engine, from its requests alone, starting from one of its kind that is three times
    slower: time to first token of cold prompts and pace of answers within a fifth, whoever sent them."""
    true = PROFILES[name]
    model = service_model(true)
    (found,) = hindsight(traffic([true], 16, policy), slower(model)).values()
    assert found.learnt
    assert 2 <= found.slots <= true.slots
    for tokens in (4000, 16_000, 32_000):
        assert found.service.first_token(tokens) == pytest.approx(model.first_token(tokens), rel=0.2)
    assert found.service.token_seconds(2, 8000) == pytest.approx(model.token_seconds(2, 8000), rel=0.2)


def slower(model: ServiceModel) -> ServiceModel:
    """A third of every rate."""
    times = {
        name: value * 3
        for name, value in asdict(model).items()
        if name.endswith("seconds") and not name.startswith("cache")
    }
    rates = {
        name: value / 3 for name, value in asdict(model).items() if name.endswith("per_second") and value
    }
    return replace(model, **times, **rates)


def test_slots_are_those_in_use_at_a_time() -> None:
    """The next request may start before the end of the one before is on record."""
    rows = [a_request(number, ended=number + 1.01) for number in range(5)]
    assert hindsight(rows, ServiceModel())["one"].slots == 1
    rows.append(a_request(2, arrived=2.2, dispatched=2.2))
    assert hindsight(rows, ServiceModel())["one"].slots == 2
    assert hindsight(rows, ServiceModel())["one"].context_tokens == 1100


def test_a_prompt_that_was_read_out_of_turn_teaches_nothing() -> None:
    """Nobody knows when the engine began with it."""
    rows = [a_request(0, first=30.0, ended=31.0), a_request(1, first=2.0, ended=3.0)]
    few = [a_request(40 + number) for number in range(3)]
    assert not hindsight([*rows, *few], ServiceModel())["one"].learnt


# -- windows -------------------------------------------------------------------------------------------


def test_only_windows_that_hold_nearly_all_are_looked_at() -> None:
    """Prompts of 28,000 tokens: not 16,384, nor a window that gives as many slots as there are."""
    rows = [a_request(number, prompt_tokens=28_000) for number in range(50)]
    found = choices(Deployment("one", LARGE, LAW), rows)
    assert [(room.context_tokens, room.slots) for room in found] == [(32_768, 23), (65_536, 11), (131_072, 5)]
    assert [room.estimate for room in found] == [True, False, True]


def test_of_too_many_windows_those_that_hold_all_come_first() -> None:
    """A large fleet has one look at each backend: at the smallest window that turns nobody away."""
    rows = [a_request(number, prompt_tokens=5000) for number in range(199)]
    rows.append(a_request(199, prompt_tokens=40_000))
    one = Deployment("one", LARGE, LAW)
    assert [room.context_tokens for room in choices(one, rows, limit=1)] == [65_536]
    assert [room.context_tokens for room in choices(one, rows, limit=3)] == [8192, 65_536, 131_072]
    fleet = [Deployment(f"box-{number}", replace(LARGE, name=f"box-{number}"), LAW) for number in range(16)]
    advice = advise(rows, fleet)
    assert advice is not None
    assert [other.backend for other in advice.alternatives] == [other.name for other in fleet]


def test_a_split_context_may_be_cut_otherwise() -> None:
    """Slots of one context, each holding what was asked."""
    one = Deployment("one", replace(LARGE, slots=4, context_tokens=32_768), Split(131_072))
    found = choices(one, [a_request(0, prompt_tokens=14_000)])
    assert [(room.context_tokens, room.slots) for room in found] == [(16_384, 8), (65_536, 2), (131_072, 1)]


def test_a_pool_may_have_twice_the_slots_if_it_holds_them() -> None:
    """Its window costs nothing; more slots are limited by what requests need."""
    one = Deployment("one", replace(LARGE, slots=6, context_tokens=1_000_000), Pool(1_000_000))
    small, large = [a_request(0)], [a_request(0, prompt_tokens=120_000)]
    huge = [a_request(0, prompt_tokens=180_000)]
    assert [[room.slots for room in choices(one, rows)] for rows in (small, large, huge)] == [[12], [8], []]


def test_more_slots_shorten_the_queue(seen: list[Asked]) -> None:
    """Eight agents on two slots: with the window that gives eleven they hardly wait; told in words, from
    plays, of which that of the present is near what was."""
    advice = advise(seen, [Deployment("box", replace(LARGE, name="box"), LAW)])
    assert advice is not None
    assert advice.best is not None
    assert advice.best.room.slots >= 11
    assert advice.best.outcome.wait_mean < 0.2 * advice.present.wait_mean
    assert advice.best.outcome.too_long == advice.present.too_long == 0
    assert advice.present.wait_mean == pytest.approx(advice.seen_wait_mean, rel=0.15)
    before, after = advice.present.wait_mean, advice.best.outcome.wait_mean
    assert f"slots instead of 2; expected queue wait {before:.0f} s -> {after:.0f} s." in advice.sentences[-1]


def test_it_repeats_itself(seen: list[Asked]) -> None:
    """The order in which requests are given does not matter either."""
    fleet = [Deployment("box", replace(LARGE, name="box"), LAW)]
    assert advise(seen[-60:], fleet) == advise(seen[:-61:-1], fleet)


def test_an_idle_engine_is_left_alone() -> None:
    """Nobody waits: no window is better, whatever it would give."""
    rows = [a_request(10 * number) for number in range(40)]
    advice = advise(rows, [Deployment("box", replace(LARGE, name="box"), LAW)])
    assert advice is not None
    assert advice.alternatives
    assert advice.best is None
    assert "No other context window" in advice.sentences[-1]


def test_a_window_that_turns_requests_away_is_never_the_best() -> None:
    """One prompt in 111 that only the large window holds: smaller ones are shown with what they leave out,
    not recommended."""
    rows = [a_request(9 * number, prompt_tokens=20_000) for number in range(110)]
    rows.append(a_request(400, prompt_tokens=200_000))
    advice = advise(rows, [Deployment("box", replace(LARGE, name="box"), LAW)])
    assert advice is not None
    smaller = [one for one in advice.alternatives if one.room.context_tokens < 200_000]
    assert smaller
    assert all(one.outcome.too_long == 1 for one in smaller)
    assert advice.best is None


def test_what_is_not_known_is_said() -> None:
    """Without a law there is nothing to play but the present, and the reason stands there."""
    rows = [a_request(number // 4) for number in range(40)]
    advice = advise(rows, [Deployment("box", replace(LARGE, name="box"), None, "nobody tells")])
    assert advice is not None
    assert not advice.alternatives
    assert advice.sentences[-1].startswith("box: how many slots another context window gives is not known")
    assert advice.sentences[-1].endswith("nobody tells.")


def test_there_is_no_advice_without_requests() -> None:
    """None at all, or none that the fleet holds."""
    fleet = [Deployment("box", replace(LARGE, name="box"), LAW)]
    assert advise([], fleet) is None
    assert advise([a_request(0, prompt_tokens=10**6)], fleet) is None


def test_a_learnt_backend_is_a_profile() -> None:
    """The way back from what admission believes: every rate is where it came from."""
    for true in PROFILES.values():
        made = profile(
            true.name,
            service_model(true),
            true.cache,
            slots=true.slots,
            context_tokens=true.context_tokens,
            kv_tokens=true.pool_tokens or None,
        )
        assert made == replace(
            true, prefill_slowdown=0.0, chunk_tokens=made.chunk_tokens, knee_tokens=made.knee_tokens
        )
    endless = profile("x", ServiceModel(), CacheKind.SLOT, slots=1, context_tokens=None)
    assert endless.context_tokens > 10**9
    assert simulate([endless], Workload(programs([a_request(0)])), "slotgate").records
