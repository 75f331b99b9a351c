"""What the live page is told: figures, lines, changes of states; to whom, and when nobody listens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.types import Message

from gateway.accounting import Record, TokenSource
from gateway.admin.events import EVENTS_MAX, LISTENERS_MAX, Events, EventStream, Listener
from gateway.admin.figures import AGENTS_SHOWN_MAX, BREAKING_SHOWN_MAX, Reader, percentile
from gateway.admin.history import AGENTS_MAX, OTHERS, STEP_SECONDS, STEPS, TTFTS_MAX, History, Step
from gateway.admin.page import FOLDER
from gateway.app import Gateway
from gateway.engines.base import CHAT
from gateway.inflight import Phase
from policies.differences import Difference
from policies.stability import Verdict
from policies.types import Priority, Reason, Source, State, StateChanged
from policies.volatility import Kind
from tests.unit.test_admin import TOKEN, a_gateway, connect, served, submit
from tests.unit.test_server import BEHIND, answer, connected

SHORT = 0.001  # of a tick
SECONDS_MAX = 20.0  # for what should take none


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = a_gateway()
    yield gateway
    gateway.events.close()
    await gateway.fleet.close()


def reader(gateway: Gateway, history: History | None = None) -> Reader:
    """What reads figures off this gateway."""
    clock = gateway.dispatcher.clock
    return Reader(
        gateway.admission,
        gateway.fleet,
        gateway.inflights,
        gateway.metrics,
        history or History(clock),
        gateway.prefixes.findings,
        gateway.mender,
        gateway.why_not_ready,
        clock,
    )


def read(raw: bytes) -> tuple[str, dict[str, Any]]:
    """An event's name and data."""
    assert raw.endswith(b"\n\n")
    name, data = raw.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def heard(listener: Listener, name: str) -> dict[str, Any]:
    """The next event of this name."""
    async with asyncio.timeout(SECONDS_MAX):
        async for raw in listener.events():
            told, data = read(raw)
            if told == name:
                return data
    raise AssertionError(f"no {name} before the end")


# -- who listens ------------------------------------------------------------------------------------


async def test_nothing_runs_while_nobody_listens(gateway: Gateway) -> None:
    """The producer starts with the first listener, is one for all, and ends with the last."""
    events = Events(gateway.own, SHORT)
    before = asyncio.all_tasks()
    assert not events.runs
    first, second = await events.join(), await events.join()
    (producer,) = asyncio.all_tasks() - before
    events.leave(first)
    assert events.runs
    events.leave(second)
    await asyncio.wait([producer], timeout=SECONDS_MAX)
    assert producer.cancelled()
    assert not events.runs
    assert asyncio.all_tasks() == before


async def test_a_newcomer_is_told_everything_at_once(gateway: Gateway) -> None:
    """Lines and figures come before the first tick."""
    listener = await Events(gateway.own, 1000).join()
    names = [read(await anext(listener.events()))[0] for _ in range(2)]
    assert names == ["lines", "figures"]


async def test_all_listeners_hear_the_same_bytes(gateway: Gateway) -> None:
    """Figures are read and written out once, whoever listens."""
    events = Events(gateway.own, SHORT)
    listeners = [await events.join() for _ in range(3)]
    for listener in listeners:
        for _ in range(2):
            await anext(listener.events())
    heard = [await anext(listener.events()) for listener in listeners]
    assert heard[0] is heard[1]
    assert heard[1] is heard[2]
    events.close()


async def test_a_change_of_state_is_told_at_once(gateway: Gateway) -> None:
    """No tick is waited for; the words are those of the change."""
    events = Events(gateway.own, 1000)
    listener = await events.join()
    events.state_changed(StateChanged("small", State.DRAINING, "new driver"))
    told = await heard(listener, "state")
    assert abs(told.pop("at") - time.time()) < SECONDS_MAX
    assert told == {"backend": "small", "state": "draining", "reason": "new driver"}


async def test_the_gateways_own_changes_are_told(gateway: Gateway) -> None:
    """It is Admission that changes states; the page hears of it."""
    listener = await gateway.events.join()
    gateway.fleet.drain("small", "")
    assert (await heard(listener, "state"))["state"] == "drained"


async def test_a_listener_that_takes_nothing_is_dropped(gateway: Gateway) -> None:
    """Its answer ends though its connection hangs, without an error; those who listen go on."""
    events = Events(gateway.own, SHORT)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) > 2:
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    scope = {"type": "http", "path": "/admin/events", "headers": []}
    hangs = asyncio.create_task(EventStream(events)(scope, receive, send))
    listener = await events.join()
    async with asyncio.timeout(SECONDS_MAX):
        async for _ in listener.events():
            if hangs.done():
                break
    assert await hangs is None
    assert events.listeners == [listener]
    assert len(sent) == 3
    events.close()


async def test_who_is_dropped_is_no_error_in_the_log(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """On a connection from which nobody reads: it is closed, and what its answer lacks is nobody's defect."""
    events = Events(gateway.own, 1000)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await EventStream(events)(scope, receive, send)

    async with connected(answer, app=app) as client:
        await client.write(BEHIND)
        await client.until(b"event: lines")
        news = StateChanged("small", State.DOWN, "it burns " * 20_000)
        for _ in range(20 * EVENTS_MAX):
            if not events.listeners:
                break
            events.state_changed(news)
            await asyncio.sleep(0)
        assert not events.listeners
        async with asyncio.timeout(SECONDS_MAX):
            await client.ended()
    assert [record.getMessage() for record in caplog.records if record.name != "slotgate.events"] == []


async def test_a_cancelled_answer_is_cancelled(gateway: Gateway) -> None:
    """Only its own drop ends quietly; a shutdown's cancellation passes, and nobody is left behind."""
    events = Events(gateway.own, 1000)

    async def hang(*_: object) -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "path": "/admin/events", "headers": []}
    task = asyncio.create_task(EventStream(events)(scope, hang, hang))
    await asyncio.sleep(0)
    assert events.listeners
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not events.listeners


async def test_listeners_have_a_limit(gateway: Gateway) -> None:
    """One more, and the one who came first makes room."""
    events, tasks = Events(gateway.own, 1000), []

    async def listen() -> Listener:
        listener = await events.join()
        try:
            await asyncio.sleep(SECONDS_MAX)
        except asyncio.CancelledError:
            assert listener.caught()
        return listener

    for _ in range(LISTENERS_MAX + 1):
        tasks.append(asyncio.create_task(listen()))
        await asyncio.sleep(0)
    first = await tasks[0]
    assert first not in events.listeners
    assert len(events.listeners) == LISTENERS_MAX
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks[1:], return_exceptions=True)
    events.close()


async def test_what_a_listener_may_be_behind_has_a_limit() -> None:
    """Beyond it, it is told so by False, and keeps nothing more."""
    listener = Listener()
    told = [listener.tell(b"") for _ in range(EVENTS_MAX + 1)]
    assert told == [True] * EVENTS_MAX + [False]


async def test_a_gateway_that_ends_ends_the_streams() -> None:
    """Over HTTP: a stream that is open ends as a whole answer, a new one is refused."""
    gateway = a_gateway(TOKEN)
    async with connect(gateway, authorization=f"Bearer {TOKEN}") as client:
        asking = asyncio.create_task(client.get("/admin/events"))
        async with asyncio.timeout(SECONDS_MAX):
            while not gateway.events.listeners:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await gateway.drain(1.0)
        answer = await asking
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.startswith("event: lines\ndata: {")
        assert (await client.get("/admin/events")).status_code == 503
    await gateway.fleet.close()


# -- the figures of a second ----------------------------------------------------------------------------


async def test_a_slot_shows_who_has_it_and_how_far_it_is(gateway: Gateway) -> None:
    """In prefill: what was predicted and how long it is read; nothing of a prompt."""
    submit(gateway, "p", prompt_tokens=4000, agent="<b>")
    live, task = served(gateway, "p", Phase.PREFILL)
    live.record.lease = gateway.admission.lease("p")
    await asyncio.sleep(0)
    figures = reader(gateway).figures()
    (holder,) = figures.backends[0].holders
    assert (holder.agent, holder.priority, holder.phase) == ("<b>", "agent", "prefill")
    assert (holder.prompt_tokens, holder.cached_tokens, holder.tokens) == (4000, 0, 0)
    assert holder.predicted_seconds == pytest.approx(0.0845 + 4000 / 465, abs=0.3)
    assert holder.read_seconds is not None
    assert 0 <= holder.read_seconds < holder.predicted_seconds
    assert "secret" not in figures.model_dump_json()
    task.cancel()
    await asyncio.wait([task])


async def test_a_slot_tells_that_its_prompt_is_not_read_yet(gateway: Gateway) -> None:
    """An engine reads one prompt at a time: the second has no progress."""
    gateway.admission.resize(
        "small", gateway.dispatcher.clock(), slots=2, source=Source.REPORTED, context_tokens=None
    )
    submit(gateway, "a")
    submit(gateway, "b")
    first, second = reader(gateway).figures().backends[0].holders
    assert first.read_seconds is not None
    assert second.read_seconds is None


async def test_a_stream_shows_its_tokens_and_their_rate(gateway: Gateway) -> None:
    """By events times what each carried of late: 1 until something is known; the first has no duration."""
    submit(gateway, "d")
    live, task = served(gateway, "d", Phase.DECODE)
    await asyncio.sleep(0)
    record = live.record
    record.events, record.first_token, record.last_token = 21, record.arrived, record.arrived + 2.0
    (holder,) = reader(gateway).figures().backends[0].holders
    assert (holder.phase, holder.tokens, holder.tokens_per_second) == ("decode", 21, 10.0)
    task.cancel()
    await asyncio.wait([task])


async def test_a_slot_whose_client_left_is_leaving(gateway: Gateway) -> None:
    """The gateway serves nobody there any more; the engine may still be at it."""
    submit(gateway, "a")
    gateway.admission.leave("a", gateway.dispatcher.clock())
    (holder,) = reader(gateway).figures().backends[0].holders
    assert holder.phase == "leaving"


async def test_the_queue_is_told_with_reasons(gateway: Gateway) -> None:
    """As `GET /admin/queue` has it, with sums by class."""
    submit(gateway, "running")
    submit(gateway, "waiting", priority=Priority.BATCH)
    figures = reader(gateway).figures()
    assert figures.waiting == {"interactive": 0, "agent": 0, "batch": 1}
    assert figures.oldest_seconds is not None
    assert [(one.id, one.why) for one in figures.queue] == [
        ("waiting", {"small": "slots", "large": "not_ready"})
    ]
    assert (figures.ready, figures.reason) == (True, "")


# -- the lines of ten minutes ---------------------------------------------------------------------------


def ended(at: float, **fields: Any) -> Record:
    """A stream that ended then."""
    record = Record("x", CHAT, at - 3)
    defaults: dict[str, Any] = {
        "streamed": True,
        "agent": "someone",
        "backend": "small",
        "dispatched": at - 3,
        "first_token": at - 2,
        "last_token": at,
        "ended": at,
        "source": TokenSource.REPORTED,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 20,
    }
    for name, value in (defaults | fields).items():
        setattr(record, name, value)
    return record


def none_so_far(record: Record) -> int:
    """Nothing runs."""
    raise AssertionError(record)


def begin() -> tuple[History, float]:
    """A history whose clocks stand still, and a time that begins one of its steps."""
    start = 200.0 * STEP_SECONDS
    return History(lambda: start, lambda: start), start


def old(gateway: Gateway) -> History:
    """A history that began five minutes ago."""
    return History(lambda: gateway.dispatcher.clock() - 300, lambda: time.time() - 300)


def last(steps: dict[int, Step]) -> Step:
    """The step of now."""
    return steps[max(steps)]


def test_tokens_count_where_they_came() -> None:
    """An answer that took four steps adds to each of them, not to the one in which it ended."""
    history, start = begin()
    history.observe(ended(start + 17.5, first_token=start + 2.5, arrived=start, completion_tokens=150))
    steps = history.steps(start + 18, (), none_so_far)
    first = history.number(start)
    assert {number - first: round(step.tokens["small"], 6) for number, step in steps.items()} == {
        0: 25.0,
        1: 50.0,
        2: 50.0,
        3: 25.0,
    }
    assert steps[first].ttfts == [2.5]


def test_a_burst_counts_at_once() -> None:
    """All tokens in one event have no duration to be spread over."""
    history, start = begin()
    history.observe(ended(start + 1, first_token=start + 1, last_token=start + 1, completion_tokens=9))
    step = last(history.steps(start + 2, (), none_so_far))
    assert step.tokens == {"small": 9}


def test_streams_that_run_are_in_the_lines_and_stay_out_of_the_books() -> None:
    """They are added for the reader only, or they would count again when they end."""
    history, start = begin()
    running = ended(start + 4, ended=None, source=None, completion_tokens=None, prompt_tokens=None)
    for _ in range(2):
        step = last(history.steps(start + 4, [running], lambda _: 12))
        assert (step.tokens, step.ttfts, step.agents) == ({"small": pytest.approx(12)}, [1.0], {})
    assert last(history.steps(start + 4, (), none_so_far)) == Step()


def test_what_is_not_known_adds_nothing() -> None:
    """A request that was refused has no tokens, no first one, and no agent in the sums."""
    history, start = begin()
    history.observe(
        ended(start, source=None, first_token=None, last_token=None, dispatched=None, completion_tokens=None)
    )
    assert last(history.steps(start, (), none_so_far)) == Step()


def test_history_has_limits() -> None:
    """Ten minutes; of each step so many agents and times to first token; of a long answer its end."""
    history, start = begin()
    for number in range(AGENTS_MAX + TTFTS_MAX):
        history.observe(ended(start + 4, agent=f"agent {number}"))
    step = last(history.steps(start + 4, (), none_so_far))
    assert len(step.agents) == AGENTS_MAX + 1
    assert step.agents[OTHERS].requests == TTFTS_MAX
    assert len(step.ttfts) == TTFTS_MAX
    for number in range(5 * STEPS):
        history.observe(ended(start + number * STEP_SECONDS))
    assert len(history._steps) <= 2 * STEPS + 1
    end = start + 5 * STEPS * STEP_SECONDS
    assert len(history.steps(end, (), none_so_far)) == STEPS + 1
    history.observe(ended(end + 100 * STEPS * STEP_SECONDS, first_token=start))
    assert len(history._steps) <= 2 * STEPS + 1


async def test_times_to_first_token_are_those_of_a_minute(gateway: Gateway) -> None:
    """A quiet step has those before it; after a minute without any there are none."""
    history = old(gateway)
    at = gateway.dispatcher.clock() - 150
    history.observe(ended(at, arrived=at - 4))
    points = {point.number: point for point in reader(gateway, history).lines().steps}
    first = history.number(at - 2)
    told = [points[first + number].ttft_p50 for number in (-1, 0, 11, 12)]
    assert told == [None, 2.0, 2.0, None]


async def test_lines_are_rates_percentiles_and_sums(gateway: Gateway) -> None:
    """Steps by number, tokens per second, the last minute's times, and who used most."""
    history = old(gateway)
    now = gateway.dispatcher.clock()
    for number in range(AGENTS_SHOWN_MAX + 5):
        history.observe(ended(now, agent=f"a{number}", prompt_tokens=1000 + number))
    lines = reader(gateway, history).lines()
    assert lines.step_seconds == STEP_SECONDS
    numbers = [point.number for point in lines.steps]
    assert numbers == list(range(numbers[0], history.number(now) + 1))
    assert numbers[-1] == pytest.approx(time.time() / STEP_SECONDS, abs=2)
    total = sum(point.tokens_per_second.get("small", 0) for point in lines.steps) * STEP_SECONDS
    assert total == pytest.approx(20 * (AGENTS_SHOWN_MAX + 5), abs=0.2)
    assert (lines.steps[-1].ttft_p50, lines.steps[-1].ttft_p95) == (1.0, 1.0)
    assert len(lines.agents) == AGENTS_SHOWN_MAX
    first = lines.agents[0]
    assert first.agent == f"a{AGENTS_SHOWN_MAX + 4}"
    assert (first.requests, first.cached_tokens, first.completion_tokens) == (1, 40, 20)


async def test_lines_name_the_agents_that_break_their_prefixes(gateway: Gateway) -> None:
    """Those that cost most, with what to change; how many there are; none whose prompts only grow."""
    findings, now = gateway.prefixes.findings, gateway.dispatcher.clock()
    clock = Difference(Kind.TIME, 1, 12, 34, "messages[0].content", head=True, sure=True)
    for number in range(BREAKING_SHOWN_MAX + 2):
        verdict = Verdict(100, clock, 900)
        findings.add(f"a{number}", verdict, 100 * number, float(number), now)
    findings.add("grows", Verdict(1000), 0, 0.0, now)
    lines = reader(gateway).lines()
    assert lines.breaking_total == BREAKING_SHOWN_MAX + 2
    assert [view.agent for view in lines.breaking] == [f"a{n}" for n in range(BREAKING_SHOWN_MAX + 1, 1, -1)]
    (kind,) = lines.breaking[0].kinds
    assert (kind.kind, kind.path, kind.offset) == ("time", "messages[0].content", 34)
    assert (kind.breaks, kind.tokens, kind.seconds) == (1, 600, 6.0)
    assert kind.stabilise == "all"


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.95, 3.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        (list(map(float, range(100))), 0.95, 95.0),
    ],
)
def test_percentiles_are_values_that_were_seen(
    values: list[float], share: float, expected: float | None
) -> None:
    """None of none; never between two."""
    assert percentile(values, share) == expected


# -- the page's files -----------------------------------------------------------------------------------


async def test_the_page_is_open_and_holds_no_data() -> None:
    """Its files come without the token, with a policy that lets nothing in; other methods are refused."""
    gateway = a_gateway(TOKEN)
    async with connect(gateway, "http://gateway.example") as client:
        page = await client.get("/console")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert "small" not in page.text
        for path in ("console.js", "console.css", "icon.svg"):
            assert f"console/{path}" in page.text
            assert (await client.get(f"/console/{path}")).status_code == 200
        for method, path in (
            ("POST", "/console"),
            ("GET", "/console/"),
            ("GET", "/console/missing.js"),
        ):
            assert (await client.request(method, path)).status_code == 401, (method, path)
    await gateway.fleet.close()


def test_the_page_has_words_for_every_reason_to_wait() -> None:
    """None is shown by the name that the code has for it."""
    words = (FOLDER / "queue.js").read_text()
    assert [reason for reason in Reason if f'\n  {reason}: "' not in words] == []


async def test_what_comes_without_a_token_is_the_page_only(gateway: Gateway) -> None:
    """A page of another site may load these files, as anybody may; the data it may not."""
    foreign = {"sec-fetch-site": "cross-site"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(gateway.admin), base_url="http://127.0.0.1:8401", headers=foreign
    ) as client:
        assert (await client.get("/console")).status_code == 200
        assert (await client.get("/admin/events")).status_code == 403
