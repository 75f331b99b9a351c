"""Runs one scenario: the real Admission and Dispatcher, simulated engines and clients, virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gateway.errors import BackendFailed, GatewayError
from policies.admission import Admission
from policies.prefix import PrefixShadow
from policies.service_model import ServiceModel
from policies.types import Backend, Source, State
from tests.simulation import virtual
from tests.simulation.engine import Died, NotStarted, Sick, SimulatedEngine
from tests.simulation.invariants import Invariants, ObservedDispatcher
from tests.simulation.scenario import ROUTE, CallPlan, EnginePlan, Happening, Kind, Leave, Scenario, draw

MENDED_SECONDS_MAX = 20_000.0  # after all engines are well again every call must end in this time

Trace = Callable[[str], None]


@dataclass(slots=True)
class Result:
    """How a run went."""

    outcomes: Counter[str] = field(default_factory=Counter)
    violation: str | None = None


class World:
    """Everything of one run."""

    def __init__(
        self,
        scenario: Scenario,
        admission_type: type[Admission],
        dispatcher_type: type[ObservedDispatcher],
        trace: Trace | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.result = Result()
        self._scenario = scenario
        self._trace = trace
        self._clock = loop.time
        self._violated = asyncio.Event()
        self._engines: dict[str, SimulatedEngine] = {}
        self._admission = admission_type(scenario.limits)
        self._invariants = Invariants(
            self._admission, self._engines, loop.time, scenario.tick_seconds, self.violated
        )
        self._dispatcher = dispatcher_type(self._admission, loop.time, self._invariants)
        self._dispatcher.state_changed.append(lambda changed: self._note(str(changed)))
        loop.set_exception_handler(lambda _, context: self.violated(f"{context}"))

    async def run(self) -> Result:
        """Until every call has ended, or something was wrong."""
        story = asyncio.create_task(self._story())
        watch = asyncio.create_task(self._violated.wait())
        await asyncio.wait((story, watch), return_when=asyncio.FIRST_COMPLETED)
        if story.done():
            story.result()
        return self.result

    def violated(self, what: str) -> None:
        """Note the first violation and end the run."""
        if self.result.violation is None:
            self.result.violation = f"at {self._clock():g} s: {what}"
            self._note(f"VIOLATION {what}")
            self._violated.set()

    async def _story(self) -> None:
        scenario = self._scenario
        clients = [asyncio.create_task(self._client(plan)) for plan in scenario.calls]
        background = [asyncio.create_task(self._ticks()), asyncio.create_task(self._probes())]
        if scenario.closes_at is not None:
            asyncio.get_running_loop().call_at(scenario.closes_at, self._close)
        joins = [self._join(plan) for plan in scenario.engines]
        await asyncio.gather(*joins, *(self._happen(happening) for happening in scenario.happenings))
        self._mend()
        _, endless = await asyncio.wait(clients, timeout=MENDED_SECONDS_MAX)
        if endless:
            self.violated(f"{len(endless)} calls never ended although every engine is well")
        await asyncio.sleep(4 * scenario.unit)  # the last engines stop
        for task in background:
            task.cancel()
        self._nothing_left()

    def _nothing_left(self) -> None:
        self._invariants.settled(frozenset(self._dispatcher._waiters))
        waiting = [waiting.call.id for waiting in self._admission.queue]
        if waiting or self._admission._leases:
            self.violated(f"left: {waiting} wait, {list(self._admission._leases)} run")
        if any(b.free != b.slots for b in self._admission.backends.values()):
            self.violated("a slot is not free at the end")
        if any(engine.active for engine in self._engines.values()):
            self.violated("an engine works at the end")
        if self.result.outcomes.total() != len(self._scenario.calls):
            self.violated(f"{len(self._scenario.calls)} calls, outcomes {self.result.outcomes}")

    # -- clients ------------------------------------------------------------------------------------

    async def _client(self, plan: CallPlan) -> None:
        await asyncio.sleep(plan.call.arrived)
        request = asyncio.create_task(self._request(plan))
        leaves = [asyncio.create_task(self._leave(request, leave)) for leave in plan.leaves]
        await asyncio.wait([request])
        outcome = "client_gone" if request.cancelled() else request.result()
        self._invariants.ended.add(plan.call.id)
        self._note(f"{plan.call.id} {outcome}")
        self.result.outcomes[outcome] += 1
        await asyncio.gather(*leaves)

    async def _leave(self, request: asyncio.Task[str], leave: Leave) -> None:
        await asyncio.sleep(leave.after)
        await turns(leave.turns)
        request.cancel()

    async def _request(self, plan: CallPlan) -> str:
        self._note(f"{plan.call.id} arrives: {plan}")
        try:
            async with self._dispatcher.slot(plan.call) as slot:
                refusals, repeats = plan.refusals, plan.repeats
                while True:
                    engine, lease = self._engines[slot.lease.backend], slot.lease
                    self._note(f"{plan.call.id} starts on {engine.name}{' as a trial' * lease.trial}")
                    try:
                        await engine.generate(slot, plan, refusals > 0, self._invariants.begun)
                        return "completed"
                    except NotStarted as refused:
                        refusals -= 1
                        if refused.failed:
                            self._failed(engine, lease.trial)
                        await slot.again(refused.pause_seconds)
                    except (Died, Sick) as broken:
                        self._failed(engine, lease.trial)
                        if isinstance(broken, Sick) or not repeats:
                            raise BackendFailed("simulated", started=True) from broken
                        repeats = False
                        await slot.again(0.0)
        except GatewayError as error:
            return error.outcome

    def _failed(self, engine: SimulatedEngine, trial: bool) -> None:
        self._dispatcher.apply(self._admission.failed(engine.name, self._clock(), "simulated", trial=trial))

    # -- engines ------------------------------------------------------------------------------------

    async def _join(self, plan: EnginePlan) -> None:
        await asyncio.sleep(plan.joins)
        self._engines[plan.name] = SimulatedEngine(plan.name, self._scenario.unit)
        apply, now = self._dispatcher.apply, self._clock
        apply(self._admission.add(_backend(plan), now()))
        if not plan.models_known:
            await asyncio.sleep(self._scenario.unit)
            apply(self._admission.serve_models(plan.name, plan.models, now()))
        self._resize(plan.name, plan.slots, plan.context_tokens, plan.kv_tokens)
        apply(self._admission.set_state(plan.name, State.READY, now()))

    async def _happen(self, happening: Happening) -> None:
        await asyncio.sleep(happening.at)
        await turns(happening.turns)
        if happening.engine in self._engines:  # else it has not joined yet
            self._note(str(happening))
            happen: dict[Kind, Callable[[Happening], Awaitable[None]]] = {
                Kind.LOSS: self._loss,
                Kind.SICKNESS: self._sickness,
                Kind.OVERLOAD: self._overload,
                Kind.RESIZE: self._resizing,
                Kind.FOREIGN: self._foreign,
                Kind.DRAIN: self._drain,
                Kind.REPLACE: self._replace,
            }
            await happen[happening.kind](happening)

    async def _loss(self, happening: Happening) -> None:
        name = happening.engine
        self._engines[name].kill()
        await asyncio.sleep(happening.delay)
        self._enter(name, State.DOWN)
        await asyncio.sleep(happening.lasts)
        self._engines[name].alive = True
        self._enter(name, State.STARTING)
        await asyncio.sleep(happening.delay)
        self._admission.restarted(name)
        self._resize(name, happening.number, happening.context_tokens, happening.kv_tokens)
        self._enter(name, State.WARMING)
        await asyncio.sleep(happening.delay)
        self._enter(name, State.READY)

    async def _sickness(self, happening: Happening) -> None:
        engine = self._engines[happening.engine]
        engine.well = False
        await asyncio.sleep(happening.lasts)
        engine.well = True

    async def _overload(self, happening: Happening) -> None:
        engine = self._engines[happening.engine]
        engine.overloaded = True
        await asyncio.sleep(happening.lasts)
        engine.overloaded = False

    async def _resizing(self, happening: Happening) -> None:
        self._resize(happening.engine, happening.number, happening.context_tokens, happening.kv_tokens)

    async def _foreign(self, happening: Happening) -> None:
        self._observe(happening.engine, happening.number)
        await asyncio.sleep(happening.lasts)
        self._observe(happening.engine, 0)

    async def _drain(self, happening: Happening) -> None:
        self._enter(happening.engine, State.DRAINING)
        await asyncio.sleep(happening.lasts)
        self._enter(happening.engine, State.WARMING)
        await asyncio.sleep(happening.delay)
        self._enter(happening.engine, State.READY)

    async def _replace(self, happening: Happening) -> None:
        name = happening.engine
        backend = self._admission.backends[name]
        while backend.leases:
            self._enter(name, State.DRAINING)  # whatever else has happened to it
            await asyncio.sleep(self._scenario.unit)
            if self._admission.backends[name] is not backend:
                return  # somebody else was faster
        (plan,) = [plan for plan in self._scenario.engines if plan.name == name]
        self._admission.remove(name)
        self._dispatcher.apply(self._admission.add(_backend(plan), self._clock()))
        await asyncio.sleep(happening.delay)
        self._resize(name, happening.number, happening.context_tokens, happening.kv_tokens)
        self._dispatcher.apply(self._admission.serve_models(name, plan.models, self._clock()))
        self._enter(name, State.READY)

    def _mend(self) -> None:
        """Every engine is well from now on; those ejected come back by themselves."""
        self._note("every engine is well")
        for name, engine in self._engines.items():
            engine.alive = engine.well = True
            engine.overloaded = False
            self._observe(name, 0)
            if self._admission.backends[name].state is not State.EJECTED:
                self._enter(name, State.READY)

    def _enter(self, name: str, state: State) -> None:
        self._dispatcher.apply(self._admission.set_state(name, state, self._clock()))

    def _observe(self, name: str, foreign: int) -> None:
        self._dispatcher.apply(self._admission.observe(name, foreign, self._clock()))

    def _resize(self, name: str, slots: int, context_tokens: int | None, kv_tokens: int | None) -> None:
        self._engines[name].kv_tokens = kv_tokens
        self._dispatcher.apply(
            self._admission.resize(
                name,
                self._clock(),
                slots=slots,
                source=Source.REPORTED,
                context_tokens=context_tokens,
                kv_tokens=kv_tokens,
            )
        )

    # -- clocks -------------------------------------------------------------------------------------

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(self._scenario.tick_seconds)
            self._dispatcher.apply(self._admission.tick(self._clock()))

    async def _probes(self) -> None:
        while True:
            await asyncio.sleep(self._scenario.unit)
            for name, engine in self._engines.items():
                if engine.alive:
                    self._dispatcher.apply(self._admission.answered(name, self._clock()))

    def _close(self) -> None:
        self._note("the gateway shuts down")
        self._admission.close()

    def _note(self, what: str) -> None:
        if self._trace is not None:
            self._trace(f"{self._clock():8g}  {what}")


def _backend(plan: EnginePlan) -> Backend:
    return Backend(
        plan.name,
        ServiceModel(),
        PrefixShadow(),
        models=plan.models if plan.models_known else None,
        routes=frozenset({ROUTE}),
        backup=plan.backup,
    )


async def turns(count: int) -> None:
    """Let the loop turn this many times; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)


def simulate(
    seed: int,
    *,
    admission_type: type[Admission] = Admission,
    dispatcher_type: type[ObservedDispatcher] = ObservedDispatcher,
    trace: Trace | None = None,
) -> Result:
    """Run the scenario of this seed."""

    async def main() -> Result:
        return await World(draw(seed), admission_type, dispatcher_type, trace).run()

    return virtual.run(main())
