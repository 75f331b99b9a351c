"""The asyncio face of Admission: calls wait here, decisions wake them.

State first, then effects: Admission has recorded a grant before the waiter's future resolves. A waiter
that is cancelled at that very instant gives the slot back by the same `finish` that it calls anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from types import TracebackType

from gateway import errors
from gateway.accounting import Observer
from policies.admission import Admission
from policies.certainty import certain
from policies.types import Backend, Call, Decision, Granted, Lease, Refusal, Rejected, StateChanged

log = logging.getLogger("slotgate.dispatcher")

TICK_SECONDS = 0.25
DIFFERENCES = ("lost", "unknown", "idle")  # kinds of them


class Slot:
    """One call's place: in the queue until `async with` is entered, then at a backend until it ends."""

    __slots__ = ("_backend", "_dispatcher", "call", "lease", "stopping")

    lease: Lease

    def __init__(self, dispatcher: Dispatcher, call: Call, backend: str | None = None) -> None:
        self._dispatcher = dispatcher
        self._backend = backend
        self.call = call
        self.stopping: asyncio.Future[None] | None = None  # resolves when the engine has stopped

    async def __aenter__(self) -> Slot:
        dispatcher = self._dispatcher
        admission, now = dispatcher.admission, dispatcher.clock()
        if self._backend is None:
            decisions = admission.submit(self.call, now)
        else:
            decisions = admission.start(self.call, self._backend, now)
        first = decisions[0] if len(decisions) == 1 else None
        if isinstance(first, Granted) and first.lease.call is self.call:  # as usual; no future is needed
            dispatcher.apply(decisions)
            self.lease = first.lease
            return self
        try:
            self.lease = await dispatcher.granted(self.call.id, decisions)
        except BaseException:
            dispatcher.finish(self.call.id)
            raise
        return self

    async def again(self, pause_seconds: float, prompt_tokens: int | None = None) -> None:
        """The engine did not begin: wait in the old place for any backend, for this one after a pause.

        `prompt_tokens`: the engine counted the prompt while it refused it.
        """
        dispatcher, self.stopping = self._dispatcher, None
        if prompt_tokens is not None:
            self.call = replace(self.call, prompt_tokens=prompt_tokens, prompt_counted=True)
        self.lease = await dispatcher.granted(
            self.call.id, dispatcher.admission.not_started(self.call, dispatcher.clock(), pause_seconds)
        )

    def first_token(self) -> None:
        """The engine's prefill is over."""
        dispatcher = self._dispatcher
        dispatcher.apply(dispatcher.admission.first_token(self.call.id, dispatcher.clock()))

    def prefilled(self, lease: Lease) -> None:
        """The prefill of an answer that does not stream is over by now, if the call is still there."""
        dispatcher = self._dispatcher
        if dispatcher.admission.lease(self.call.id) is lease:
            dispatcher.apply(dispatcher.admission.prefilled(self.call.id, dispatcher.clock()))

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.stopping is None or self.stopping.done():
            self._dispatcher.finish(self.call.id)
        else:
            self._dispatcher.leave(self.call.id, self.stopping)


class Dispatcher:
    """Waiters by call id, and the ticks of a clock."""

    def __init__(self, admission: Admission, clock: Callable[[], float]) -> None:
        self.admission = admission
        self.clock = clock
        self.state_changed: list[Callable[[StateChanged], None]] = []
        self.observers: list[Observer] = []  # of requests that ended, for other gateways
        self.drain_told: list[Callable[[str, str | None], None]] = []  # an operator of another gateway did
        self._waiters: dict[str, asyncio.Future[Lease]] = {}

    def slot(self, call: Call, backend: str | None = None) -> Slot:
        """A slot for this call: `async with dispatcher.slot(call) as slot`. Entering raises the
        `GatewayError` of a refusal. `backend`: the one that was `certain` in this turn of the loop."""
        return Slot(self, call, backend)

    def certain(self, model: str, route: str, tokens_max: int) -> Backend | None:
        """The backend that a call of this model, which is no alias, surely gets if it asks for a slot in this
        turn of the loop; None: that is to be decided. `tokens_max`: its prompt is not estimated at more."""
        return certain(self.admission, model, route, tokens_max, self.clock())

    def granted(self, id: str, decisions: list[Decision]) -> asyncio.Future[Lease]:
        """The lease of a call that was just handed to Admission, as a future."""
        future = self._waiters[id] = asyncio.get_running_loop().create_future()
        self.apply(decisions)
        return future

    def apply(self, decisions: list[Decision]) -> None:
        """Tell those concerned what Admission decided."""
        for decision in decisions:
            if isinstance(decision, StateChanged):
                self._tell(decision)
                continue
            call = decision.lease.call if isinstance(decision, Granted) else decision.call
            future = self._waiters.pop(call.id, None)
            if future is None or future.done():
                continue
            if isinstance(decision, Granted):
                future.set_result(decision.lease)
            else:
                future.set_exception(refusal(decision))
                future.exception()  # read once: a waiter cancelled just now will not

    @property
    def sharing(self) -> str:
        """Where slots are counted: `local`, `shared`, or `degraded`."""
        return "local"

    @property
    def fault(self) -> str:
        """Why they are not counted where they should be; "" if they are."""
        return ""

    def observe(self, name: str, foreign: int) -> None:
        """The engine works on so many requests that are not this gateway's."""
        if foreign != self.admission.backends[name].foreign:
            self.apply(self.admission.observe(name, foreign, self.clock()))

    def reported(self, name: str, foreign: int) -> None:
        """The engine says that it works on so many requests that are not this gateway's, none of which began
        or ended meanwhile."""

    def differences(self) -> Mapping[tuple[str, str], int]:
        """How often what is shared was found to be wrong, by backend and kind: from 0, so that the first time
        is seen as a rise."""
        return dict.fromkeys(product(self.admission.backends, DIFFERENCES), 0)

    async def borrow(self, name: str) -> bool:
        """A slot for a request of the gateway's own, if there is one: whether there was. `give_back` follows
        in any case."""
        return self.admission.backends[name].free > 0

    def unlent(self, name: str) -> str:
        """Why there was none."""
        return "no slot is free"  # resumed before it was drained: what runs on may have them all

    def give_back(self, name: str) -> None:
        """That request is over."""

    async def claim(self, id: str, key: str, most: int) -> bool:
        """Whether one more request of a client's key may run, of so many at a time in all gateways; to
        be given back by `unclaim`."""
        return True

    def unclaim(self, id: str) -> None:
        """A request that had claimed is over."""

    def warm_elsewhere(self, name: str) -> bool:
        """Whether another gateway has warmed the engine up, and sends it calls."""
        return False

    def among(self, gateways: int, rank: int) -> None:
        """So many gateways share their engines, for certain, and this one has this rank among them."""

    def slots_elsewhere(self, name: str) -> int:
        """Slots of the engine that other gateways know, or else have tried; 0: none says any."""
        return 0

    def tell_drain(self, name: str, why: str | None) -> None:
        """An operator drained a backend, or resumed it (None): other gateways that have it follow."""

    def _tell(self, change: StateChanged) -> None:
        for listener in self.state_changed:
            try:
                listener(change)
            except Exception:  # a defect of ours; the decisions behind it must be applied all the same
                log.exception("a listener to states of backends failed inside the gateway")

    def leave(self, id: str, stopping: asyncio.Future[None]) -> None:
        """The client left: the slot stays taken until the engine has stopped."""
        self.apply(self.admission.leave(id, self.clock()))
        stopping.add_done_callback(lambda _: self.finish(id))

    def finish(self, id: str) -> None:
        """The call is over, wherever it was."""
        self._waiters.pop(id, None)
        self.apply(self.admission.finish(id, self.clock()))

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self.apply(self.admission.tick(self.clock()))
            except Exception:  # a defect of ours; without this clock nobody in the queue would have a limit
                log.exception("a tick of the queue failed inside the gateway")


def refusal(rejected: Rejected) -> errors.GatewayError:
    """The error that a client gets for a rejection."""
    call, after = rejected.call, rejected.retry_after_seconds
    match rejected.refusal:
        case Refusal.MODEL_NOT_FOUND:
            return errors.ModelNotFound(call.model, rejected.models)
        case Refusal.NOT_FOUND:
            return errors.NotFound(f"No backend of this model serves {call.route}.")
        case Refusal.CONTEXT_LENGTH_EXCEEDED:
            assert rejected.limit_tokens is not None
            return errors.ContextLengthExceeded(
                call.prompt_tokens, rejected.limit_tokens, counted=call.prompt_counted
            )
        case Refusal.QUEUE_FULL:
            return errors.QueueFull(after or 1.0)
        case Refusal.WAIT_TOO_LONG:
            return errors.WaitTooLong(after or 1.0)
        case Refusal.NO_BACKEND_READY:
            return errors.NoBackendReady(after)
        case Refusal.SHUTTING_DOWN:
            return errors.ShuttingDown()
