"""The asyncio face of admission: who waits is woken, who is cancelled gives back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway import errors
from gateway.dispatcher import TICK_SECONDS, Dispatcher, refusal
from policies.types import Backend, Priority, Refusal, Rejected, State, StateChanged
from tests.simulation import virtual
from tests.unit.fleet import a_backend, a_call, an_admission

Body = Callable[[Dispatcher], Awaitable[None]]


def on(*backends: Backend, **limits: float) -> Callable[[Body], None]:
    """Run the test in virtual time, with a dispatcher over these backends; nothing may be left."""

    def decorate(body: Body) -> None:
        async def main() -> None:
            dispatcher = Dispatcher(an_admission(*backends, **limits), asyncio.get_running_loop().time)
            await body(dispatcher)
            assert dispatcher.admission.queue.ordered(0.0) == []
            assert all(not backend.leases for backend in dispatcher.admission.backends.values())
            assert dispatcher._waiters == {}

        virtual.run(main())

    return decorate


async def hold(dispatcher: Dispatcher, id: str, seconds: float, order: list[str] | None = None) -> None:
    async with dispatcher.slot(a_call(id)):
        if order is not None:
            order.append(id)
        await asyncio.sleep(seconds)


async def settle() -> None:
    """Let everything run that can run now."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_slot_is_held_while_inside() -> None:
    """Entering takes it, leaving gives it back, also by an exception."""

    @on(a_backend())
    async def _(dispatcher: Dispatcher) -> None:
        backend = dispatcher.admission.backends["backend"]
        async with dispatcher.slot(a_call()) as slot:
            assert (slot.lease.backend, backend.free) == ("backend", 0)
        assert backend.free == 1
        with pytest.raises(RuntimeError, match="inside"):
            async with dispatcher.slot(a_call()):
                raise RuntimeError("inside")
        assert backend.free == 1


def test_waiters_are_woken_one_after_another() -> None:
    """One slot: each starts when the one before has ended."""

    @on(a_backend())
    async def _(dispatcher: Dispatcher) -> None:
        order: list[str] = []
        await asyncio.gather(*(hold(dispatcher, id, 1.0, order) for id in "abc"))
        assert order == ["a", "b", "c"]
        assert dispatcher.clock() == 3.0


def test_a_waiter_that_is_cancelled_leaves_the_queue() -> None:
    """Its place goes to the next."""

    @on(a_backend())
    async def _(dispatcher: Dispatcher) -> None:
        order: list[str] = []
        tasks = [asyncio.create_task(hold(dispatcher, id, 1.0, order)) for id in "abc"]
        await settle()
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert order == ["a", "c"] and tasks[1].cancelled()


def test_a_waiter_cancelled_at_the_instant_of_its_grant_gives_the_slot_back() -> None:
    """It was granted and never woke: the next one has the slot. Twice cancelled is once."""

    @on(a_backend())
    async def _(dispatcher: Dispatcher) -> None:
        order: list[str] = []
        holder = dispatcher.slot(a_call("holder"))
        await holder.__aenter__()
        tasks = [asyncio.create_task(hold(dispatcher, id, 1.0, order)) for id in "ab"]
        await settle()
        await holder.__aexit__(None, None, None)
        assert dispatcher.admission.lease("a") is not None
        tasks[0].cancel()
        tasks[0].cancel()
        await asyncio.wait(tasks)
        assert order == ["b"] and tasks[0].cancelled()


def test_a_rejection_is_raised_where_the_call_waits() -> None:
    """On arrival and later, by the ticks of `run`."""

    @on(a_backend(), wait_seconds_max=5.0)
    async def _(dispatcher: Dispatcher) -> None:
        ticks = asyncio.create_task(dispatcher.run())
        with pytest.raises(errors.ModelNotFound):
            async with dispatcher.slot(a_call("x", model="x")):
                pass
        holder = asyncio.create_task(hold(dispatcher, "holder", 20.0))
        await settle()
        with pytest.raises(errors.WaitTooLong):
            await hold(dispatcher, "waiter", 0.0)
        assert 5.0 <= dispatcher.clock() <= 5.0 + TICK_SECONDS
        await holder
        ticks.cancel()


def test_a_waiter_cancelled_at_the_instant_of_its_rejection_is_cancelled() -> None:
    """The error that nobody reads is no complaint of asyncio's at the end."""

    @on(a_backend(state=State.DOWN))
    async def _(dispatcher: Dispatcher) -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        task = asyncio.create_task(hold(dispatcher, "a", 0.0))
        await settle()
        dispatcher.apply(dispatcher.admission.tick(901.0))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        del task
        await settle()
        assert complaints == []


def test_a_second_call_of_the_same_id_fails_alone() -> None:
    """Ids are the caller's promise; who breaks it does not take the other's slot away."""

    @on(a_backend(slots=2))
    async def _(dispatcher: Dispatcher) -> None:
        async with dispatcher.slot(a_call("same")):
            with pytest.raises(AssertionError):
                async with dispatcher.slot(a_call("same")):
                    pass
            assert dispatcher.admission.lease("same") is not None


def test_again_waits_in_the_old_place() -> None:
    """The engine did not begin: after its pause the call starts before one that came later, and what
    was said of the first attempt's end is forgotten."""

    @on(a_backend())
    async def _(dispatcher: Dispatcher) -> None:
        order: list[str] = []
        ticks = asyncio.create_task(dispatcher.run())
        async with dispatcher.slot(a_call("a")) as slot:
            later = asyncio.create_task(hold(dispatcher, "b", 1.0, order))
            await settle()
            slot.stopping = asyncio.get_running_loop().create_future()
            await slot.again(2.0, 777)
            order.append("a")
            assert dispatcher.clock() == 2.0
            assert (slot.stopping, slot.call.prompt_tokens, slot.call.prompt_counted) == (None, 777, True)
            assert slot.lease.call is slot.call
        await later
        assert order == ["a", "b"]
        ticks.cancel()


def test_again_can_be_cancelled_and_rejected() -> None:
    """It waits like any other."""

    @on(a_backend(), wait_seconds_max=30.0)
    async def _(dispatcher: Dispatcher) -> None:
        ticks = asyncio.create_task(dispatcher.run())

        async def refused() -> None:
            async with dispatcher.slot(a_call("a")) as slot:
                await slot.again(100.0)

        task = asyncio.create_task(refused())
        await settle()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and dispatcher.admission.queue.ordered(0.0) == []
        dispatcher.admission.backends["backend"].paused_until = 0.0
        with pytest.raises(errors.WaitTooLong):
            await refused()
        ticks.cancel()


def test_the_slot_is_held_until_the_engine_has_stopped() -> None:
    """The client is gone at 1, the engine at 4: the next starts at 4."""

    @on(a_backend())
    async def _(dispatcher: Dispatcher) -> None:
        loop = asyncio.get_running_loop()
        stopping: asyncio.Future[None] = loop.create_future()

        async def leaves() -> None:
            async with dispatcher.slot(a_call("a")) as slot:
                await asyncio.sleep(1.0)
                slot.stopping = stopping
                loop.call_later(3.0, stopping.set_result, None)

        first = asyncio.create_task(leaves())
        await asyncio.sleep(0)
        second = asyncio.create_task(hold(dispatcher, "b", 0.0))
        await first
        assert dispatcher.clock() == 1.0
        assert dispatcher.admission.backends["backend"].leaving == {"a"}
        await second
        assert dispatcher.clock() == 4.0


def test_an_engine_that_has_stopped_already_frees_the_slot_at_once() -> None:
    """Nothing to wait for."""

    @on(a_backend())
    async def _(dispatcher: Dispatcher) -> None:
        async with dispatcher.slot(a_call()) as slot:
            slot.stopping = asyncio.get_running_loop().create_future()
            slot.stopping.set_result(None)
        assert dispatcher.admission.backends["backend"].free == 1


def test_the_first_token_opens_the_gate() -> None:
    """Who waits behind a long prefill is woken by its first token."""

    @on(a_backend(slots=2))
    async def _(dispatcher: Dispatcher) -> None:
        long = {id: a_call(id, prompt_tokens=5000) for id in "ab"}
        entered = asyncio.Event()

        async def second() -> None:
            async with dispatcher.slot(long["b"]):
                entered.set()

        async with dispatcher.slot(long["a"]) as slot:
            task = asyncio.create_task(second())
            await settle()
            assert not entered.is_set()
            slot.first_token()
            await task
        assert entered.is_set()


def test_state_changes_reach_every_listener() -> None:
    """Metrics and the fleet both want to know."""

    @on(a_backend())
    async def _(dispatcher: Dispatcher) -> None:
        heard: list[StateChanged] = []
        dispatcher.state_changed += [heard.append, heard.append]
        dispatcher.apply(dispatcher.admission.set_state("backend", State.DRAINING, 0.0, "update"))
        assert heard == [StateChanged("backend", State.DRAINED, "update")] * 2


@pytest.mark.parametrize(
    ("rejected", "error", "status", "retry_after"),
    [
        (
            Rejected(a_call(model="x"), Refusal.MODEL_NOT_FOUND, models=("m",)),
            errors.ModelNotFound,
            404,
            None,
        ),
        (
            Rejected(a_call(), Refusal.CONTEXT_LENGTH_EXCEEDED, limit_tokens=4096),
            errors.ContextLengthExceeded,
            400,
            None,
        ),
        (Rejected(a_call(), Refusal.QUEUE_FULL), errors.QueueFull, 429, b"1"),
        (Rejected(a_call(), Refusal.QUEUE_FULL, 7.2), errors.QueueFull, 429, b"8"),
        (Rejected(a_call(), Refusal.WAIT_TOO_LONG, 500.0), errors.WaitTooLong, 429, b"60"),
        (Rejected(a_call(), Refusal.NO_BACKEND_READY, 5.0), errors.NoBackendReady, 503, b"5"),
        (Rejected(a_call(), Refusal.SHUTTING_DOWN), errors.ShuttingDown, 503, b"5"),
    ],
)
def test_each_refusal_is_an_error_of_the_interface(
    rejected: Rejected, error: type[errors.GatewayError], status: int, retry_after: bytes | None
) -> None:
    """Status, code and a Retry-After of 1 to 60 seconds."""
    raised = refusal(rejected)
    assert type(raised) is error
    assert (raised.status, raised.code) == (status, rejected.refusal.value)
    assert dict(raised.headers()).get(b"retry-after") == retry_after


def test_an_interactive_call_passes_agents_in_the_queue() -> None:
    """Order is admission's; waking follows it."""

    @on(a_backend())
    async def _(dispatcher: Dispatcher) -> None:
        order: list[str] = []

        async def person() -> None:
            async with dispatcher.slot(a_call("person", priority=Priority.INTERACTIVE)):
                order.append("person")

        tasks = [asyncio.create_task(hold(dispatcher, id, 1.0, order)) for id in "ab"]
        await settle()
        await asyncio.gather(person(), *tasks)
        assert order == ["a", "person", "b"]
