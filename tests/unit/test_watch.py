"""What the gateway concludes from the answers of probes."""

from __future__ import annotations

import asyncio

from gateway.admin.views import backend_view
from gateway.options import BackendSettings, WarmupSettings
from gateway.probes import NoAnswer
from gateway.watch import OTHER_SECONDS, READY_SECONDS, SILENT_MAX
from policies.types import Source, State
from tests.unit.fleet import MODEL, a_call
from tests.unit.stage import LATER, LOADING, PLAIN, Answers, Stage, llamacpp, over

# -- what an answer means -------------------------------------------------------------------------------


@over(PLAIN)
async def test_an_engine_that_answers_becomes_ready(stage: Stage) -> None:
    """By way of its warm-up; its kind and models are known then."""
    assert stage.states == ["warming", "ready"]
    assert stage.member.engine.name == "openai"
    assert stage.backend.models == {MODEL}


@over(NoAnswer.REFUSED)
async def test_an_engine_that_refuses_is_down(stage: Stage) -> None:
    """At once; when it is up again it is recognised anew, as another engine may sit there."""
    assert (stage.backend.state, stage.backend.why) == (State.DOWN, "connection refused")
    assert await stage.hears(PLAIN) is State.READY
    assert await stage.hears(NoAnswer.REFUSED) is State.DOWN
    assert backend_view(stage.member, stage.backend, None, 0.0).engine == "openai"  # what it was, meanwhile
    assert await stage.hears(llamacpp()) is State.READY
    assert stage.member.engine.name == "llamacpp"
    assert not stage.member.upstream.reuse
    assert stage.states == ["down", "warming", "ready", "down", "warming", "ready"]


@over(NoAnswer.UNREACHABLE)
async def test_an_engine_that_cannot_be_reached_is_down(stage: Stage) -> None:
    """At once, too, and in other words: the engine may well run."""
    assert (stage.backend.state, stage.backend.why) == (State.DOWN, NoAnswer.UNREACHABLE.value)
    assert await stage.hears(PLAIN) is State.READY


@over(llamacpp(), engine="llamacpp")
async def test_a_configured_kind_is_not_forgotten(stage: Stage) -> None:
    """It is asked only what its kind is asked."""
    await stage.hears(NoAnswer.REFUSED)
    await stage.hears(llamacpp())
    assert set(stage.probes.paths) == {("/props", "/v1/models", "/metrics")}


@over(PLAIN)
async def test_silence_is_believed_the_third_time(stage: Stage) -> None:
    """One missed answer means nothing, and an answer in between begins the count anew."""
    for _ in range(SILENT_MAX - 1):
        assert await stage.hears(NoAnswer.SILENT) is State.READY
    assert await stage.hears(PLAIN) is State.READY
    for _ in range(SILENT_MAX - 1):
        assert await stage.hears(NoAnswer.SILENT) is State.READY
    assert await stage.hears(NoAnswer.SILENT) is State.DOWN


@over(PLAIN)
async def test_silence_means_nothing_while_a_request_runs(stage: Stage) -> None:
    """An engine in a long prefill may answer no probe; its request has limits of its own."""
    async with stage.dispatcher.slot(a_call()):
        for _ in range(3 * SILENT_MAX):
            assert await stage.hears(NoAnswer.SILENT) is State.READY
    assert await stage.hears(NoAnswer.SILENT) is State.DOWN


@over(LOADING, engine="llamacpp")
async def test_an_engine_that_loads_is_starting(stage: Stage) -> None:
    """It is waited for, unlike one that is down."""
    assert (stage.backend.state, stage.backend.why) == (State.STARTING, "the engine is loading")
    assert await stage.hears(llamacpp()) is State.READY
    assert await stage.hears(LOADING) is State.STARTING


@over(LOADING)
async def test_an_engine_that_tells_nothing_of_itself_is_starting(stage: Stage) -> None:
    """The reason shows what it answered."""
    assert stage.backend.state is State.STARTING
    assert "not recognised yet" in stage.backend.why
    assert "/v1/models 503" in stage.backend.why


@over(llamacpp(started="1"))
async def test_another_process_is_warmed_up(stage: Stage) -> None:
    """A restart between two probes shows in the start time; nothing of the old process holds any more."""
    ends = stage.member.ends
    assert await stage.hears(llamacpp(slots=8, started="2")) is State.READY
    assert stage.states == ["warming", "ready", "starting", "warming", "ready"]
    assert stage.member.ends == ends + 1
    assert stage.backend.slots == 8
    assert await stage.hears(llamacpp(slots=8, started="2")) is State.READY
    assert stage.member.ends == ends + 1


@over(ValueError("a defect of ours"))
async def test_a_defect_in_a_probe_does_not_end_the_probing(stage: Stage) -> None:
    """It is logged, and the engine is asked again."""
    assert stage.backend.state is State.STARTING
    stage.probes.answers = PLAIN
    await asyncio.sleep(LATER)
    assert stage.backend.state is State.READY


# -- sizes and models -----------------------------------------------------------------------------------


@over(llamacpp(slots=3, context=4096))
async def test_slots_and_context_as_reported(stage: Stage) -> None:
    """They follow the engine; without a figure one slot is assumed."""
    size = stage.backend
    assert (size.slots, size.slots_source, size.context_tokens) == (3, Source.REPORTED, 4096)
    await stage.hears(llamacpp(slots=1, context=8192))
    assert (size.slots, size.slots_source, size.context_tokens) == (1, Source.REPORTED, 8192)
    await stage.hears(PLAIN)
    assert (size.slots, size.slots_source, size.context_tokens) == (1, Source.ASSUMED, None)


@over(llamacpp(slots=3, context=4096), slots=5, context_tokens=1000, models=("mine",))
async def test_what_is_configured_stands(stage: Stage) -> None:
    """Whatever the engine says."""
    size = stage.backend
    assert (size.slots, size.slots_source, size.context_tokens) == (5, Source.CONFIGURED, 1000)
    assert size.models == {"mine"}


@over(NoAnswer.REFUSED, slots=5, context_tokens=1000, models=("mine",))
async def test_what_is_configured_is_known_before_the_engine_is_up(stage: Stage) -> None:
    """A request for another model is refused at once, one that is too long too."""
    size = stage.backend
    assert (size.slots, size.slots_source, size.context_tokens) == (5, Source.CONFIGURED, 1000)
    assert size.models == {"mine"}


# -- what others do there, and what clients leave ---------------------------------------------------------


@over(llamacpp(slots=4))
async def test_requests_of_others_are_believed_when_seen_twice(stage: Stage) -> None:
    """One probe alone may have met a request of ours that had just ended; the smaller figure counts."""
    await stage.hears(llamacpp(slots=4, busy=3))
    assert (stage.backend.foreign, stage.backend.free) == (0, 4)
    await stage.hears(llamacpp(slots=4, busy=2))
    assert (stage.backend.foreign, stage.backend.free) == (2, 2)
    async with stage.dispatcher.slot(a_call()):
        await stage.hears(llamacpp(slots=4, busy=3))
        assert (stage.backend.foreign, stage.backend.free) == (2, 1)
    await stage.hears(llamacpp(slots=4, busy=0))
    assert (stage.backend.foreign, stage.backend.free) == (0, 4)


@over(llamacpp(slots=4))
async def test_requests_of_others_end_with_the_engine(stage: Stage) -> None:
    """Also where the next process does not tell its load."""
    for _ in range(2):
        await stage.hears(llamacpp(slots=4, busy=3))
    assert stage.backend.foreign == 3
    await stage.hears(NoAnswer.REFUSED)
    mute = llamacpp(slots=4)
    del mute["/metrics"]
    assert await stage.hears(mute) is State.READY
    assert (stage.backend.foreign, stage.backend.free) == (0, 4)


@over(llamacpp(slots=4))
async def test_a_probe_that_overlaps_with_a_grant_proves_nothing(stage: Stage) -> None:
    """The engine may have counted a request that was not ours yet when the probe began."""
    stage.probes.seconds = 0.5
    for number in range(4):
        looking = asyncio.create_task(stage.hears(llamacpp(slots=4, busy=1)))
        await asyncio.sleep(0.25)
        async with stage.dispatcher.slot(a_call(str(number))):
            await looking
            assert stage.backend.foreign == 0


@over(llamacpp(slots=4))
async def test_a_probe_that_proves_nothing_confirms_nothing(stage: Stage) -> None:
    """What one probe saw is not believed for another one that could not tell."""
    await stage.hears(llamacpp(slots=4, busy=1))
    stage.probes.seconds = 0.5
    looking = asyncio.create_task(stage.hears(llamacpp(slots=4, busy=1)))
    await asyncio.sleep(0.25)
    async with stage.dispatcher.slot(a_call()):
        await looking
        assert stage.backend.foreign == 0


@over(llamacpp(slots=1))
async def test_an_idle_engine_has_stopped_what_was_left(stage: Stage) -> None:
    """The slot of a client that is gone is free when the engine says that it does nothing; not by an
    answer to a question that came before the client left."""
    stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stage.probes.seconds = 0.5
    early = asyncio.create_task(stage.hears(llamacpp(slots=1, busy=0)))
    async with stage.dispatcher.slot(a_call()) as slot:
        await asyncio.sleep(0.25)
        slot.stopping = stopping
    await early
    assert stage.backend.leaving == {"call"}
    await stage.hears(llamacpp(slots=1, busy=1))
    assert stage.backend.leaving == {"call"}
    await stage.hears(llamacpp(slots=1, busy=0))
    assert (stage.backend.leaving, stage.backend.free) == (set(), 1)
    stopping.set_result(None)


# -- is the process gone? ---------------------------------------------------------------------------------


@over(llamacpp(started="1"))
async def test_which_answers_prove_the_end_of_a_process(stage: Stage) -> None:
    """A refused connection, loading, another start time; not silence, not the answer of the same one, and not
    a name or network that fails: behind it the engine may generate on."""
    proofs: list[tuple[Answers, bool]] = [
        (llamacpp(started="1"), False),
        (NoAnswer.SILENT, False),
        (llamacpp(started="2"), True),
        (LOADING, True),
        (NoAnswer.REFUSED, True),
    ]
    for answers, gone in proofs:
        assert await stage.hears(llamacpp(started="1")) is State.READY
        stage.probes.answers = answers
        assert await stage.fleet.is_gone(stage.member, stage.member.ends) is gone, answers
        assert (stage.backend.state is not State.READY) is gone
    assert await stage.hears(llamacpp(started="1")) is State.READY
    stage.probes.answers = NoAnswer.UNREACHABLE
    assert not await stage.fleet.is_gone(stage.member, stage.member.ends)
    assert stage.backend.state is State.DOWN


@over(llamacpp(started="1"))
async def test_an_end_that_somebody_noticed_is_known(stage: Stage) -> None:
    """A fast restart: the probe saw it before the request asks, and all is well again by then."""
    ends = stage.member.ends
    assert await stage.hears(NoAnswer.REFUSED) is State.DOWN
    assert await stage.hears(llamacpp(started="1")) is State.READY
    asked = len(stage.probes.times)
    assert await stage.fleet.is_gone(stage.member, ends)
    assert len(stage.probes.times) == asked


@over(PLAIN)
async def test_an_answer_of_the_process_before_is_not_believed(stage: Stage) -> None:
    """A probe that was answered just before the engine died must not make it ready again."""
    stage.probes.seconds = 1.0
    ends = stage.member.ends
    late = asyncio.create_task(stage.look())
    await asyncio.sleep(0.5)
    stage.probes.seconds, stage.probes.answers = 0.1, NoAnswer.REFUSED
    assert await stage.fleet.is_gone(stage.member, ends)
    await late
    assert stage.backend.state is State.DOWN


@over(PLAIN)
async def test_an_end_that_was_noticed_meanwhile_is_not_noticed_twice(stage: Stage) -> None:
    """A request that asked in vain for long must not take down what has come back since."""
    ends = stage.member.ends
    stage.probes.seconds, stage.probes.answers = 1.0, NoAnswer.REFUSED
    asking = asyncio.create_task(stage.fleet.is_gone(stage.member, ends))
    await asyncio.sleep(0.5)
    stage.probes.seconds = 0.1
    assert await stage.hears(NoAnswer.REFUSED) is State.DOWN
    assert await stage.hears(PLAIN) is State.READY
    assert await asking
    assert stage.backend.state is State.READY


# -- how often --------------------------------------------------------------------------------------------


@over(PLAIN)
async def test_how_often_engines_are_asked(stage: Stage) -> None:
    """Every two seconds while ready, every second else, and at once where something failed."""
    await asyncio.sleep(10.0)
    assert stage.probes.times == [READY_SECONDS * i for i in range(6)]
    await stage.hears(NoAnswer.REFUSED)
    stage.probes.times.clear()
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(5.5 * OTHER_SECONDS)
    assert len(stage.probes.times) == 5
    assert stage.probes.times[0] - began < OTHER_SECONDS
    await stage.hears(PLAIN)
    asked = len(stage.probes.times)
    stage.fleet.suspect(stage.member)
    await asyncio.sleep(0.01)
    assert len(stage.probes.times) == asked + 1


@over(PLAIN)
async def test_the_last_backend_of_a_model_is_not_left_ejected(stage: Stage) -> None:
    """At the first answer after its ejection one request may try it; with another backend it must wait."""
    admission, now = stage.dispatcher.admission, stage.dispatcher.clock
    for _ in range(3):
        stage.dispatcher.apply(admission.failed("a", now(), "status"))
    assert stage.backend.state is State.EJECTED
    async with asyncio.timeout(LATER), stage.dispatcher.slot(a_call()) as slot:
        assert slot.lease.trial
        slot.first_token()
    assert stage.backend.state is State.READY

    none = WarmupSettings(requests=0)
    other = stage.fleet.add(BackendSettings(name="b", url="http://127.0.0.1:2", models=(MODEL,), warmup=none))
    stage.dispatcher.apply(admission.set_state("b", State.READY, now()))
    for _ in range(3):
        stage.dispatcher.apply(admission.failed("a", now(), "status"))
    assert await stage.hears(PLAIN) is State.EJECTED
    assert stage.backend.ejection.until > now() + LATER
    assert other.name == "b"
