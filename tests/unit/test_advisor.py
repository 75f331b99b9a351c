"""Who is asked what advice is made of: engines' sizes, groups of backends, the latest requests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.accounting import Record
from gateway.advising import NO_BACKEND, NO_TRAFFIC, Task, answer
from gateway.advisor import Advisor, law_of
from gateway.app import Gateway
from gateway.capacity import Capacity, Experience
from gateway.engines.base import Report
from gateway.member import Member
from gateway.options import AccountingSettings, BackendSettings
from gateway.settings import Settings
from gateway.traffic import LINKS_MAX, RECORDS_MAX, Window, remembered
from policies.capacity import Room
from policies.types import Limits, Source, State
from tests.unit.fleet import a_backend, a_call, a_chain, an_admission


def a_member(engine: Any, report: Report, experience: Experience | None = None, **options: Any) -> Member:
    """An engine that says this of itself."""
    settings = BackendSettings(name="a", url="http://127.0.0.1:9", engine=engine, **options)
    member = Member.of(settings)
    member.capacity = Capacity.of(settings, report, experience)
    return member


@pytest.mark.parametrize(
    ("member", "sizes", "room"),
    [
        (a_member("llamacpp", Report(slots=4, context_tokens=8192)), {}, Room(16_384, 2, estimate=True)),
        # The operator uses two of the four.
        (
            a_member("llamacpp", Report(slots=4, context_tokens=8192), slots=2),
            {},
            Room(16_384, 2, estimate=True),
        ),
        (
            a_member("llamacpp", Report(slots=4, context_tokens=32_768, kv_tokens=32_768)),
            {},
            Room(16_384, 2, 2.0),
        ),
        (a_member("vllm", Report(context_tokens=8192, kv_tokens=40_960)), {}, Room(16_384, 2, 2.5)),
        (a_member("ds4", Report(slots=2)), {32_768: 2, 8192: 11}, Room(16_384, 5, estimate=True)),
    ],
)
def test_a_law_is_what_the_engine_told(member: Member, sizes: Mapping[int, int], room: Room) -> None:
    """Its division, and the sizes that it reports rather than those that an operator set."""
    law, why = law_of(member, sizes)
    assert law is not None
    assert law.room(16_384) == room
    assert why == ""


@pytest.mark.parametrize(
    ("member", "sizes", "words"),
    [
        (a_member("ds4", Report(slots=2)), {8192: 2}, "was not seen with two"),
        (a_member("ds4", Report(slots=2)), {8192: 2, 16_384: 4}, "was not seen with two"),
        (a_member("vllm", Report(context_tokens=8192)), {}, "does not tell how much it holds"),
        (a_member("llamacpp", Report(slots=2)), {}, "does not tell how much it holds"),
        (a_member("openai", Report(context_tokens=8192)), {}, "nobody knows"),
    ],
)
def test_an_unknown_law_has_its_reason(member: Member, sizes: Mapping[int, int], words: str) -> None:
    """Never a guess."""
    law, why = law_of(member, sizes)
    assert law is None
    assert words in why


# -- the latest requests -----------------------------------------------------------------------------------


def a_record(number: int, links: int) -> Record:
    """A request that held a slot for a second."""
    admission = an_admission(a_backend())
    admission.submit(a_call(str(number), chain=a_chain(*range(1, links + 1))), float(number))
    record = Record(str(number), "/v1/chat/completions", float(number))
    record.lease, record.backend, record.outcome = admission.lease(str(number)), "a", "completed"
    record.dispatched, record.ended, record.prompt_tokens = number + 0.5, number + 1.0, 100
    return record


def test_memory_is_bounded_by_requests_and_by_messages() -> None:
    """The oldest go first; requests without a slot are none."""
    window, short, long = Window(), a_record(0, 1), a_record(0, 1000)
    for _ in range(RECORDS_MAX + 10):
        window.observe(short)
    assert len(window.records()) == RECORDS_MAX
    for _ in range(2 * LINKS_MAX // 1000):
        window.observe(long)
    assert window.records() == [long] * (LINKS_MAX // 1000)
    window.observe(Record("refused", "/v1/chat/completions", 0.0))
    assert len(window.records()) == LINKS_MAX // 1000


def test_what_is_remembered_can_be_played() -> None:
    """On the clock of the process."""
    (one,) = remembered([a_record(5, 3)])
    assert (one.arrived, one.dispatched, one.ended) == (5.0, 5.5, 6.0)
    assert (one.backend, one.prompt_tokens, len(one.chain)) == ("a", 100, 3)


# -- who plays ---------------------------------------------------------------------------------------------


def a_gateway(journal: str = "") -> Gateway:
    """Three ready backends: two have a model in common; and one that is down."""
    settings = Settings(
        accounting=AccountingSettings(journal=journal),
        backends=tuple(
            BackendSettings(name=name, url=f"http://127.0.0.1:{9 + i}") for i, name in enumerate("abcd")
        ),
    )
    gateway = Gateway(settings)
    now = gateway.dispatcher.clock()
    for name, models in {"a": ["x"], "b": ["y"], "c": ["x", "z"], "d": ["x"]}.items():
        gateway.admission.resize(name, now, slots=1, source=Source.CONFIGURED, context_tokens=8192)
        gateway.admission.serve_models(name, models, now)
        gateway.admission.set_state(name, State.DOWN if name == "d" else State.READY, now)
    return gateway


async def test_backends_with_a_model_in_common_are_one_group() -> None:
    """Each group has its own requests; one without any has no advice."""
    gateway = a_gateway()
    window = Window()
    for number in range(3):
        window.observe(a_record(number, 2))
    found = await Advisor(gateway.fleet, gateway.admission, "", window).advice()
    assert found.problem == ""
    groups = {group.backends: group.advice for group in found.groups}
    assert set(groups) == {("b",), ("a", "c")}
    assert groups["b",] is None
    told = groups["a", "c"]
    assert told is not None
    assert told.requests == 3
    await gateway.fleet.close()


@pytest.mark.parametrize(
    ("code", "seconds", "problem"),
    [
        ("raise SystemExit('a defect')", 30.0, "could not be played; the log says why"),
        ("import time; time.sleep(60)", 0.1, "could not be played within 0.1 seconds"),
    ],
)
async def test_a_play_that_fails_is_a_sentence(
    code: str, seconds: float, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And its process is gone. The next question tries anew."""
    gateway = a_gateway()
    advisor = Advisor(
        gateway.fleet,
        gateway.admission,
        "",
        Window(),
        player=(sys.executable, "-c", code),
        seconds_max=seconds,
    )
    for _ in range(2):
        found = await advisor.advice()
        assert (found.groups, found.source) == ((), "memory")
        assert problem in found.problem
    assert ("a defect" in caplog.text) == ("log" in problem)
    await gateway.fleet.close()


async def test_it_ends_with_the_gateway() -> None:
    """What is being played is not waited for."""
    gateway = a_gateway()
    advisor = Advisor(
        gateway.fleet,
        gateway.admission,
        "",
        Window(),
        player=(sys.executable, "-c", "import time; time.sleep(60)"),
    )
    asking = asyncio.create_task(advisor.advice())
    await asyncio.sleep(0.2)
    await advisor.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await gateway.fleet.close()


def test_a_journal_that_is_not_there_is_a_sentence() -> None:
    """Nothing was written yet, or it cannot be read."""
    found = answer(Task((), Limits(), "/nowhere/slotgate.db", 0.0))
    assert (found.source, found.groups) == ("journal", ())
    assert found.problem == "The journal cannot be read: /nowhere/slotgate.db: there is no such file."


async def test_before_any_request_it_says_so() -> None:
    """Groups without advice alone would leave the reader to guess; so would no groups at all."""
    gateway = a_gateway()
    found = await Advisor(gateway.fleet, gateway.admission, "", Window()).advice()
    assert [group.advice for group in found.groups] == [None, None]
    assert found.problem == NO_TRAFFIC
    assert answer(Task((), Limits(), "", 0.0)).problem == NO_BACKEND
    await gateway.fleet.close()
