"""What several workers say, put together; how processes ask each other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway import errors
from gateway.accounting import Record, TokenSource
from gateway.admin.history import Step, Used
from gateway.admin.prefix import KindView, PrefixView
from gateway.admin.views import BackendView, DrainView
from gateway.app import Gateway
from gateway.families import READ_AT_SCRAPE
from gateway.metrics import Metrics
from gateway.settings import Settings
from gateway.workers import wire
from gateway.workers.exposition import RULES, Expositions, Page
from gateway.workers.merging import backend_of, drain_of, figures_of, foreign, prefixes_of, steps_of
from gateway.workers.supervisor import Supervisor
from policies.types import Priority, Source, State
from policies.volatility import Kind
from tests.processes.process import until
from tests.unit.test_admin import a_gateway, submit


def gateways(count: int = 2) -> list[Gateway]:
    """Workers before the same engines: `small` with one slot, `large` that starts."""
    return [a_gateway() for _ in range(count)]


def served(metrics: Metrics, count: int) -> None:
    """So many requests ended there, of 10 tokens each."""
    for _ in range(count):
        record = Record(id="r", route="", arrived=0.0)
        record.model, record.backend, record.priority, record.outcome = (
            "m",
            "small",
            Priority.AGENT,
            "completed",
        )
        record.dispatched, record.ended = 1.0, 2.0
        record.source, record.prompt_tokens, record.completion_tokens = TokenSource.REPORTED, 5, 10
        metrics.observe(record)


def value(text: bytes, series: str) -> float:
    """Of one series, as it is written."""
    (line,) = [line for line in text.decode().splitlines() if line.startswith(f"{series} ")]
    return float(line.rpartition(" ")[2])


def merged(*workers: Gateway) -> bytes:
    """Their metrics together."""
    expositions = Expositions()
    for number in range(len(workers)):
        expositions.begun(number)
    return expositions.merged({number: one.metrics.render() for number, one in enumerate(workers)})


# -- metrics ----------------------------------------------------------------------------------------


def test_what_grows_is_added_up() -> None:
    """Counters and histograms, by their labels; a family that one worker has not fed yet is there too."""
    first, second = gateways()
    served(first.metrics, 3)
    served(second.metrics, 2)
    second.metrics.retry("unreachable")
    text = merged(first, second)
    assert value(text, 'slotgate_requests_total{backend="small",model="m",outcome="completed"}') == 5
    assert value(text, 'slotgate_queue_wait_seconds_count{class="agent"}') == 5
    assert value(text, 'slotgate_queue_wait_seconds_sum{class="agent"}') == 5.0
    assert value(text, 'slotgate_queue_wait_seconds_bucket{class="agent",le="+Inf"}') == 5
    assert value(text, 'slotgate_retries_total{reason="unreachable"}') == 1


def test_one_worker_alone_says_what_it_says() -> None:
    """Merging changes no byte of a single page, and keeps each family together."""
    (one,) = gateways(1)
    served(one.metrics, 3)
    assert merged(one) == one.metrics.render()


async def test_a_slot_that_all_see_is_one_slot() -> None:
    """Totals are not added; what one holds is foreign to the other, and to both together it is theirs."""
    first, second = gateways()
    submit(first, "a")
    second.dispatcher.observe("small", 3)  # that one, and two of nobody's here
    first.dispatcher.observe("small", 2)
    text = merged(first, second)
    slots = {
        state: value(text, f'slotgate_slots{{backend="small",state="{state}"}}')
        for state in ("total", "in_use", "leaving", "foreign")
    }
    assert slots == {"total": 1, "in_use": 1, "leaving": 0, "foreign": 2}


def test_states_are_those_of_the_worker_that_takes_most() -> None:
    """One state at a time: ready if one worker says so, drained only if all do."""
    first, second = gateways()
    second.admission.set_state("small", State.EJECTED, 0.0)
    first.admission.set_state("large", State.DRAINED, 0.0)
    second.admission.set_state("large", State.WARMING, 0.0)
    text = merged(first, second)
    for backend, is_in in (("small", "ready"), ("large", "warming")):
        states = {
            one: value(text, f'slotgate_backend_state{{backend="{backend}",state="{one}"}}') for one in State
        }
        assert [one for one, is_so in states.items() if is_so] == [is_in]


@pytest.mark.parametrize(
    ("told", "expected"), [(("shared", "shared"), "shared"), (("shared", "degraded"), "degraded")]
)
def test_one_worker_without_the_ledger_makes_all_degraded(told: tuple[str, ...], expected: str) -> None:
    """Where slots are counted is one thing."""
    pages = [
        Metrics(one.admission, "0", sharing=lambda state=state: state).render()  # type: ignore[misc]
        for one, state in zip(gateways(), told, strict=True)
    ]
    expositions = Expositions()
    expositions.begun(0)
    expositions.begun(1)
    text = expositions.merged(dict(enumerate(pages)))
    states = {
        state: value(text, f'slotgate_shared_state{{state="{state}"}}')
        for state in ("local", "shared", "degraded")
    }
    assert [state for state, is_so in states.items() if is_so] == [expected]


def test_every_gauge_has_its_rule() -> None:
    """A new one must say what it means of several processes."""
    (one,) = gateways(1)
    kinds = Page.read(one.metrics.render()).kinds
    gauges = {name for name, kind in kinds.items() if kind == "gauge"}
    assert gauges == set(RULES)
    assert set(RULES) < {family.name for family in READ_AT_SCRAPE}


def test_restarts_of_workers_are_counted_by_who_starts_them() -> None:
    """Whatever workers say, and while none says anything."""
    first, second = gateways()
    expositions = Expositions()
    expositions.begun(1)
    expositions.begun(2)
    both = {1: first.metrics.render(), 2: second.metrics.render()}
    assert value(expositions.merged(both), "slotgate_worker_restarts_total") == 0
    expositions.restarts += 1
    expositions.ended(1)
    assert value(expositions.merged({2: both[2]}), "slotgate_worker_restarts_total") == 1
    assert value(expositions.merged({}), "slotgate_worker_restarts_total") == 1


def test_no_sum_ever_becomes_less() -> None:
    """What a worker last said counts when it does not answer, and for ever when it has ended; what it had
    in hand does not."""
    first, second = gateways()
    served(first.metrics, 3)
    served(second.metrics, 2)
    expositions = Expositions()
    expositions.begun(1)
    expositions.begun(2)
    requests = 'slotgate_requests_total{backend="small",model="m",outcome="completed"}'
    assert value(expositions.merged({1: first.metrics.render(), 2: second.metrics.render()}), requests) == 5
    served(second.metrics, 4)
    silent = expositions.merged({2: second.metrics.render()})
    assert value(silent, requests) == 9
    expositions.ended(1)
    assert value(expositions.merged({2: second.metrics.render()}), requests) == 9
    (third,) = gateways(1)
    served(third.metrics, 1)
    expositions.begun(3)
    assert value(expositions.merged({2: second.metrics.render(), 3: third.metrics.render()}), requests) == 10
    expositions.ended(2)
    expositions.ended(3)
    last = expositions.merged({})
    assert value(last, requests) == 10
    assert b"slotgate_slots{" not in last
    late = expositions.merged({2: second.metrics.render()})
    assert value(late, requests) == 10  # it ended while it was asked


def test_what_was_removed_leaves_no_series_behind() -> None:
    """Nor in what workers said that have ended since, or say nothing any more; a name that comes again
    begins anew, and requests that reached no backend stay counted."""
    first, second, third = gateways(3)
    expositions = Expositions()
    for number, one in enumerate((first, second, third)):
        expositions.begun(number)
        served(one.metrics, 3)
        one.metrics.retry("unreachable")
    pages = {number: one.metrics.render() for number, one in enumerate((first, second, third))}
    assert expositions.merged(pages).count(b'backend="small"') > 10
    expositions.ended(0)
    second.dispatcher.apply(second.admission.set_state("small", State.DRAINED, 0.0))
    second.admission.remove("small")
    text = expositions.merged({1: second.metrics.render()})
    assert b'backend="small"' not in text
    assert b'backend="large"' in text
    assert value(text, 'slotgate_retries_total{reason="unreachable"}') == 3
    again = expositions.merged({1: second.metrics.render(), 2: pages[2]})
    assert value(again, 'slotgate_requests_total{backend="small",model="m",outcome="completed"}') == 3


def test_names_with_ends_of_lines_are_names() -> None:
    """As text knows some that are none here: one such model made the page unreadable for good."""
    (one,) = gateways(1)
    record = Record(id="r", route="", arrived=0.0)
    model = 'a\u2028b\x85c\x0bd\ne\\f"g'
    one.admission.serve_models("small", [model], 0.0)
    record.model, record.backend, record.outcome = model, "small", "completed"
    record.dispatched, record.ended = 1.0, 2.0
    one.metrics.observe(record)
    assert "\u2028" in one.metrics.render().decode()
    assert merged(one) == one.metrics.render()


# -- processes ---------------------------------------------------------------------------------------


def ends_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of workers that ended."""
    return [record.getMessage() for record in caplog.records if "another one" in record.getMessage()]


async def test_workers_that_cannot_live_are_started_ever_more_seldom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each end is told with its reason; who waits for the start waits no longer than for the first try."""
    ends = (sys.executable, "-c", "raise SystemExit(3)")
    supervisor = Supervisor(1, Settings(), "", 0, False, tmp_path, command=ends)
    started = asyncio.Event()
    running = asyncio.create_task(supervisor.run(started.set))
    await until(lambda: len(ends_told(caplog)) >= 2, "two ends")
    assert started.is_set()
    supervisor.stop()
    async with asyncio.timeout(60):
        await running
    assert ends_told(caplog)[:2] == [
        "worker 1 ended by itself with exit code 3; another one is started in 1 s",
        "worker 1 ended by itself with exit code 3; another one is started in 2 s",
    ]


# -- what operators see -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([(0, 0), (0, 0)], 0),
        ([(2, 1), (1, 2)], 0),
        ([(2, 3), (1, 4)], 2),
        ([(3, 0), (0, 0)], 0),  # the second has not heard of them yet
        ([(0, 0), (0, 3)], 0),  # nor that they have ended
    ],
)
def test_strangers_are_those_that_no_worker_knows(seen: list[tuple[float, float]], expected: int) -> None:
    """Also while workers have not heard of each other's last requests."""
    assert foreign(seen) == expected


async def views(*workers: Gateway) -> list[BackendView]:
    """What each says of `small`."""
    return [await one.own.backend("small") for one in workers]


async def test_a_backend_is_one_backend() -> None:
    """Its slots are counted once; where workers differ, the reason says so."""
    first, second = gateways()
    submit(first, "a")
    second.dispatcher.observe("small", 1)
    whole = backend_of(await views(first, second))
    assert (whole.slots.total, whole.slots.in_use, whole.slots.foreign, whole.slots.free) == (1, 1, 0, 0)
    assert (whole.state, whole.reason) == (State.READY, "")
    second.admission.set_state("small", State.DOWN, 0.0, "refused")
    whole = backend_of(await views(first, second))
    assert (whole.state, whole.reason) == (State.READY, "1 of 2 workers: down")


async def test_slots_that_are_only_assumed_count_for_nothing() -> None:
    """Where a worker knows them; where none does, the one that has tried most tells."""
    first, second, third = gateways(3)
    for one, slots, source in ((first, 1, Source.ASSUMED), (second, 4, Source.ASSUMED)):
        one.admission.resize("small", 0.0, slots=slots, source=source, context_tokens=None, kv_tokens=None)
    assert backend_of(await views(first, second)).slots.total == 4
    third.admission.resize("small", 0.0, slots=2, source=Source.LEARNT, context_tokens=None, kv_tokens=None)
    whole = backend_of(await views(first, second, third))
    assert (whole.slots.total, whole.slots.source) == (2, Source.LEARNT)


def test_a_drain_is_over_when_it_is_over_everywhere() -> None:
    """One that still runs something makes it draining, whatever the other one says."""
    done, not_yet = DrainView(state=State.DRAINED, in_flight=0), DrainView(state=State.DRAINING, in_flight=2)
    assert drain_of([done, not_yet]) == not_yet
    assert drain_of([done, done]) == done


async def test_the_page_shows_all_holders_and_all_that_wait() -> None:
    """Each request once, whichever worker has it."""
    first, second = gateways()
    submit(first, "a")
    submit(first, "b")
    second.dispatcher.observe("small", 1)
    submit(second, "c")
    whole = figures_of([await first.own.figures(), await second.own.figures()])
    assert [holder.id for holder in whole.backends[0].holders] == ["a"]
    assert {view.id for view in whole.queue} == {"b", "c"}
    assert whole.waiting["agent"] == 2
    assert whole.ready


def test_the_lines_are_drawn_from_all() -> None:
    """Times to first token together, so that percentiles are those of all; tokens added up."""
    first, second = Step(ttfts=[1.0]), Step(ttfts=[3.0])
    first.tokens["b"], second.tokens["b"] = 2.0, 5.0
    first.agents["x"], second.agents["x"] = Used(1, 10), Used(2, 20)
    whole = steps_of([{7: first}, {7: second, 8: Step()}])
    assert (whole[7].ttfts, whole[7].tokens["b"], list(whole)) == ([1.0, 3.0], 7.0, [7, 8])
    assert (whole[7].agents["x"].requests, whole[7].agents["x"].prompt_tokens) == (3, 30)
    assert first.agents["x"].requests == 1  # what a worker told is not changed


def test_an_agent_is_one_agent() -> None:
    """Its breaks are added up by kind; the last one is the last of all."""

    def view(agent: str, seconds: float, hour: int) -> PrefixView:
        last = datetime(2027, 1, 1, hour, tzinfo=UTC)
        kind = KindView(
            kind=Kind.TIME,
            between=False,
            breaks=1,
            tokens=100,
            seconds=seconds,
            path=f"at {hour}",
            offset=0,
            last=last,
            advice="",
            stabilise=None,
        )
        return PrefixView(
            agent=agent,
            turns=2,
            breaks=1,
            tokens=100,
            seconds=seconds,
            stabilise="off",
            held={Kind.TIME: 1},
            kinds=[kind],
        )

    whole = prefixes_of([[view("a", 1.0, 9)], [view("b", 5.0, 9), view("a", 2.0, 8)]])
    assert [one.agent for one in whole] == ["b", "a"]
    (kind,) = whole[1].kinds
    assert (whole[1].turns, whole[1].held, kind.breaks, kind.seconds, kind.path) == (
        4,
        {Kind.TIME: 2},
        2,
        3.0,
        "at 9",
    )


# -- how they ask each other ------------------------------------------------------------------------------


async def asked(tmp_path: Path, call: Callable[..., Any], *arguments: object, seconds: float = 20.0) -> Any:
    """What a process answers that has but this call."""
    path = str(tmp_path / "socket")
    server = await wire.listen(path, {"call": call})
    try:
        return await wire.ask(path, "call", *arguments, seconds=seconds)
    finally:
        server.close()


async def test_a_call_comes_back_with_its_answer(tmp_path: Path) -> None:
    """Values of any size and kind."""

    async def call(one: list[int], other: str) -> tuple[int, str]:
        return len(one), other

    assert await asked(tmp_path, call, list(range(200_000)), "x") == (200_000, "x")


async def test_an_error_is_the_same_error_there(tmp_path: Path) -> None:
    """With its data; a defect is told as one, and logged where it happened."""

    async def refuses() -> None:
        raise errors.InvalidRequest("Such is not taken.", "such")

    async def fails() -> None:
        raise RuntimeError

    with pytest.raises(errors.InvalidRequest, match="not taken") as refused:
        await asked(tmp_path, refuses)
    assert refused.value.param == "such"
    with pytest.raises(errors.GatewayError):
        await asked(tmp_path, fails)


async def test_who_is_gone_or_hangs_is_told_so(tmp_path: Path) -> None:
    """Within the time that was given."""

    async def hangs() -> None:
        await asyncio.sleep(60)

    with pytest.raises(wire.Unanswered):
        await wire.ask(str(tmp_path / "nobody"), "call", seconds=1.0)
    with pytest.raises(wire.Unanswered):
        await asked(tmp_path, hangs, seconds=0.05)
