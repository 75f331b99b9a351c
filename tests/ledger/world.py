"""Three gateways, their engines and one ledger in virtual time, with everything going wrong that can.

The gateways' Admission, SharedDispatcher and Ledger are the real ones; the ledger's other end is the double.
Engines count for themselves. All times are multiples of a unit, so that events fall together.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.errors import GatewayError
from gateway.ledger.dispatcher import SharedDispatcher
from gateway.ledger.ledger import Ledger
from gateway.ledger.step import Reply, Step, Unavailable
from policies.admission import Admission
from policies.prefix import PrefixShadow
from policies.service_model import ServiceModel
from policies.types import Backend, Call, Limits, Priority, Source, State
from tests.ledger.double import Double
from tests.simulation import virtual

GATEWAYS = 3
UNIT = 1 / 16
LEASE_SECONDS = 3.0
TIMEOUT_SECONDS = 0.25
CALLS = 50
IDLE_SECONDS_MAX = 0.95  # a poll of each gateway: who is first in line may have no use for the slot
RUN_SECONDS = 12.0  # in which calls come and things go wrong
ROUTE, MODEL = "/v1/chat/completions", "m"
KINDS = ("calm", "crash", "flush", "pause", "outage", "restart", "stop", "losses", "failover", "everything")
ALONE = ("outage", "restart", "stop", "losses")  # those in which gateways decide alone


@dataclass
class Result:
    """What one seed came to."""

    kind: str
    outcomes: Counter[str] = field(default_factory=Counter)
    violation: str = ""
    excess: int = 0  # the most that an engine ever had beyond its slots
    idle_seconds: float = 0.0  # the longest that a slot was free while a call waited, with nothing wrong
    overtaken: int = 0  # the most calls that came later and started earlier than one
    degraded: bool = False


class Engine:
    """Counts what it works on."""

    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.slots = slots
        self.active: set[str] = set()


class Pool:
    """The server of the ledger."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.double = Double()
        self.up = True
        self.paused = False
        self.lossy = False
        self.published = asyncio.Event()
        self.late: list[str] = []  # steps that were given up and have not happened yet
        self.resumed = asyncio.Event()

    def step(self, text: str) -> str:
        """A step arrives."""
        hints = self.double.hints
        reply = self.double.step(text, round(1000 * asyncio.get_running_loop().time()))
        if self.double.hints > hints:
            self.published.set()
            self.published = asyncio.Event()
        return reply

    def resume(self) -> None:
        """It goes on, first with what came meanwhile, in any order."""
        self.paused = False
        self.dice.shuffle(self.late)
        self.resumed.set()
        self.resumed = asyncio.Event()
        for text in self.late:
            self.step(text)
        self.late.clear()


class Line:
    """One gateway's way to it."""

    channel = "freed"

    def __init__(self, pool: Pool, gateway: Gateway) -> None:
        self.pool = pool
        self.gateway = gateway

    async def step(self, step: Step) -> Reply:
        """As RedisStore does it."""
        pool, dice = self.pool, self.pool.dice
        await self.gateway.runs()
        await asyncio.sleep(dice.choice((1, 1, 2, 8)) / 1024)
        text = step.encoded()
        if not pool.up:
            raise Unavailable("refused")
        fate = dice.choice(("late", "lost", "unanswered", "", "", "", "", "")) if pool.lossy else ""
        if pool.paused and not fate:
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await pool.resumed.wait()
            except TimeoutError:
                pool.late.append(text)
                await self.gateway.runs()
                raise Unavailable("no answer", late=True) from None
        if fate:
            if fate == "late":
                pool.late.append(text)
            elif fate == "unanswered":
                pool.step(text)
            await asyncio.sleep(TIMEOUT_SECONDS)
            await self.gateway.runs()
            raise Unavailable("no answer", late=True)
        reply = pool.step(text)
        await asyncio.sleep(dice.choice((1, 1, 2, 8)) / 1024)
        if pool.late and dice.random() < 0.5:
            pool.step(pool.late.pop())
        await self.gateway.runs()
        return Reply.decoded(reply)

    async def hints(self, hint: Callable[[], None]) -> None:
        """Half of them are lost."""
        while True:
            await self.pool.published.wait()
            await self.gateway.runs()
            if self.pool.dice.random() < 0.5:
                hint()
            await asyncio.sleep(1 / 1024)

    async def close(self) -> None:
        """There is nothing to close."""


class Gateway:
    """One of them: as the real one is built, but for its edges."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"g{number}"
        self.going = asyncio.Event()
        self.going.set()
        self.crashed = False
        clock = asyncio.get_running_loop().time
        self.admission = Admission(Limits(interactive_reserve_slots=0, hold_seconds_max=0.0))
        line = Line(world.pool, self)
        self.dispatcher = world.dispatcher_type(
            self.admission, clock, lambda name: f"http://{name}", line, LEASE_SECONDS
        )
        dice = random.Random(f"{world.seed} {number}")
        self.dispatcher.ledger = world.ledger_type(self.dispatcher, line, LEASE_SECONDS, clock, dice)
        for engine in world.engines.values():
            backend = Backend(
                engine.name,
                ServiceModel(),
                PrefixShadow(),
                state=State.READY,
                slots=engine.slots,
                slots_source=Source.REPORTED,
                models=frozenset({MODEL}),
                routes=frozenset({ROUTE}),
            )
            self.admission.add(backend, clock())
        self.dispatcher.told()
        self.tasks: set[asyncio.Task[object]] = {asyncio.create_task(self.dispatcher.run())}
        if world.reports:
            self.tasks.add(asyncio.create_task(self._probes()))

    @property
    def ledger(self) -> Ledger:
        """Its account."""
        return self.dispatcher.ledger

    def granted(self, id: str) -> bool:
        """Whether the ledger gave the call its slot; else the gateway did, on its own."""
        return self.ledger._held[id].number in self.ledger._entered

    async def runs(self) -> None:
        """Wait while it is paused; for ever once it has crashed."""
        while not self.going.is_set():
            await self.going.wait()

    async def _probes(self) -> None:
        believed: dict[str, int] = {}
        while True:
            await asyncio.sleep(self.world.dice.choice((31, 32, 33)) * UNIT)
            await self.runs()
            for name, engine in self.world.engines.items():
                foreign = max(0, len(engine.active) - len(self.admission.backends[name].leases))
                self.dispatcher.observe(name, min(foreign, believed.get(name, 0)))
                believed[name] = foreign


class World:
    """One seed."""

    def __init__(
        self,
        seed: int,
        kind: str,
        dispatcher_type: type[SharedDispatcher] = SharedDispatcher,
        ledger_type: type[Ledger] = Ledger,
    ) -> None:
        self.seed = seed
        self.kind = kind
        self.dice = random.Random(f"{seed} {kind}")
        self.dispatcher_type = dispatcher_type
        self.ledger_type = ledger_type
        self.result = Result(kind)
        self.reports = self.dice.random() < 0.5
        self.plan = self._faults()
        self.pool = Pool(self.dice)
        slots = self.dice.choice(((1,), (2,), (4,), (1, 3), (2, 2)))
        self.engines = {f"e{i}": Engine(f"e{i}", count) for i, count in enumerate(slots)}
        self.gateways = [Gateway(self, number) for number in range(GATEWAYS)]
        self.waiting: dict[str, float] = {}  # calls that came and did not start, and when they came
        self.started: list[str] = []
        self.came: dict[str, float] = {}
        self.trouble = 0  # things that are wrong right now, or were until a moment ago
        self.held_while_paused: Counter[str] = Counter()  # by engine
        self.granted_lately: Counter[str] = Counter()  # by engine, and lost in a failover

    async def run(self) -> Result:
        """To the end, or to the first violation."""
        watch = asyncio.create_task(self._watch())
        clients = [asyncio.create_task(self._client(number)) for number in range(CALLS)]
        faults = [asyncio.create_task(self._fault(kind)) for kind in self.plan]
        try:
            async with asyncio.timeout(2000):
                await asyncio.gather(*clients, *faults)
        except TimeoutError:
            self.violated("a call never ended")
        await asyncio.sleep(LEASE_SECONDS + 1.0)
        watch.cancel()
        self._check_end()
        for gateway in self.gateways:
            for task in gateway.tasks:
                task.cancel()
        tasks = [task for gateway in self.gateways for task in gateway.tasks if not gateway.crashed]
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.result.violation and any(self.pool.double.leases.values()) and self.pool.up:
            self.violated(f"left in the ledger: {self.pool.double.leases}")
        return self.result

    def violated(self, what: str) -> None:
        """The first violation counts."""
        if not self.result.violation:
            now = asyncio.get_running_loop().time()
            self.result.violation = f"at {now:g} ({self.kind}): {what}"

    # -- calls ------------------------------------------------------------------------------------

    async def _client(self, number: int) -> None:
        dice = self.dice
        gateway = dice.choice(self.gateways)
        seconds = dice.choice((1, 4, 4, 8, 8, 16, 16, 72)) * UNIT  # the last of which outlives a lease
        leaves = dice.choice((1, 4, 12)) * UNIT if dice.random() < 0.2 else None
        await asyncio.sleep(dice.randrange(int(RUN_SECONDS / UNIT)) * UNIT)
        if gateway.crashed:
            self.result.outcomes["refused"] += 1
            return
        task = asyncio.create_task(self._request(gateway, f"{gateway.name}-{number}", seconds))
        gateway.tasks.add(task)
        if leaves is not None:
            asyncio.get_running_loop().call_later(leaves, task.cancel)
        await asyncio.wait([task])
        gateway.tasks.discard(task)
        self.result.outcomes["gone" if task.cancelled() else task.result()] += 1

    async def _request(self, gateway: Gateway, id: str, seconds: float) -> str:
        await gateway.runs()
        now = asyncio.get_running_loop().time()
        call = Call(id, MODEL, ROUTE, Priority.AGENT, "someone", now, prompt_tokens=100)
        self.came[id] = self.waiting[id] = now
        try:
            async with gateway.dispatcher.slot(call) as slot:
                granted = gateway.granted(id)
                await gateway.runs()
                engine = self.engines[slot.lease.backend]
                self._begin(engine, id, granted)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    engine.active.discard(id)
                await gateway.runs()
                return "completed"
        except GatewayError as error:
            return error.outcome
        finally:
            self.waiting.pop(id, None)

    def _begin(self, engine: Engine, id: str, granted: bool) -> None:
        engine.active.add(id)
        self.waiting.pop(id, None)
        self.started.append(id)
        excess = len(engine.active) - engine.slots
        self.result.excess = max(self.result.excess, excess)
        if excess > self._allowed(engine):
            self.violated(f"{engine.name} works on {len(engine.active)} with {engine.slots} slots")
        if self.kind == "stop" and granted and excess > 0:
            self.violated(
                f"{engine.name} was given to {id}, with {len(engine.active)} of {engine.slots} slots"
            )

    def _allowed(self, engine: Engine) -> int:
        """What the engine may have beyond its slots, by what went wrong."""
        # Of each time that nobody can be asked. To engines that do not tell, all shares beside what ran.
        own = GATEWAYS - 1 if self.reports else max(GATEWAYS - 1, engine.slots)
        match self.kind:
            case "calm" | "crash" | "flush":
                return 0
            case "pause":
                return self.held_while_paused[engine.name]
            case "failover":
                return self.granted_lately[engine.name]
        return (
            own * sum(one in ALONE for one in self.plan)
            + self.held_while_paused[engine.name]
            + self.granted_lately[engine.name]
        )

    # -- faults -----------------------------------------------------------------------------------

    def _faults(self) -> list[str]:
        if self.kind == "everything":
            return [self.dice.choice(KINDS[1:-1]) for _ in range(4)]
        return [self.kind]

    async def _fault(self, kind: str) -> None:
        dice, pool = self.dice, self.pool
        await asyncio.sleep(dice.randrange(16, int(RUN_SECONDS / UNIT)) * UNIT)
        self.trouble += 1
        match kind:
            case "crash":
                self._crash(dice.choice(self.gateways))
                await asyncio.sleep(LEASE_SECONDS)
            case "flush":
                pool.double.clear()
            case "pause":
                await self._pause(dice.choice(self.gateways))
            case "outage" | "restart":
                pool.up = False
                if kind == "restart":
                    pool.double.clear()
                await asyncio.sleep(dice.choice((1, 16, 80)) * UNIT)
                pool.up = True
            case "stop":  # SIGSTOP, so that all gateways notice; also for longer than a lease
                pool.paused = True
                await asyncio.sleep(dice.choice((32, 56, 80)) * UNIT)
                pool.resume()
            case "losses":
                pool.lossy = True
                await asyncio.sleep(dice.choice((16, 48)) * UNIT)
                pool.lossy = False
                if dice.random() < 0.5:
                    pool.paused = True
                    await asyncio.sleep(dice.choice((8, 48)) * UNIT)
                    pool.resume()
            case "failover":
                before, begun = copy.deepcopy(pool.double), len(self.started)
                await asyncio.sleep(dice.choice((1, 4, 8)) * UNIT)
                hints = pool.double.hints
                pool.double = before
                pool.double.hints = hints
                for id in self.started[begun:]:
                    for engine in self.engines.values():
                        self.granted_lately[engine.name] += id in engine.active
        await asyncio.sleep(LEASE_SECONDS + 2.0)
        self.trouble -= 1

    def _crash(self, gateway: Gateway) -> None:
        """kill -9: nothing of it is ever heard again; its connections to engines break."""
        if sum(not one.crashed for one in self.gateways) < 2:
            return
        gateway.crashed = True
        gateway.going.clear()
        for task in gateway.tasks:
            task.cancel()

    async def _pause(self, gateway: Gateway) -> None:
        """SIGSTOP: its requests go on at the engines."""
        if gateway.crashed or not gateway.going.is_set():
            return
        gateway.going.clear()
        for name, backend in gateway.admission.backends.items():
            self.held_while_paused[name] += len(backend.leases)
        await asyncio.sleep(self.dice.choice((4, 24, 80)) * UNIT)
        if not gateway.crashed:
            gateway.going.set()

    # -- what must hold ---------------------------------------------------------------------------

    async def _watch(self) -> None:
        """How long a slot is free while a call waits, with nothing wrong."""
        idle = 0.0
        while True:
            await asyncio.sleep(UNIT)
            free = any(len(engine.active) < engine.slots for engine in self.engines.values())
            self.result.degraded |= any(gateway.dispatcher.sharing == "degraded" for gateway in self.gateways)
            begun = asyncio.get_running_loop().time() > LEASE_SECONDS
            idle = idle + UNIT if free and self.waiting and not self.trouble and begun else 0.0
            self.result.idle_seconds = max(self.result.idle_seconds, idle)

    def _check_end(self) -> None:
        if self.result.outcomes.total() != CALLS:
            self.violated(f"{CALLS} calls, outcomes {self.result.outcomes}")
        for engine in self.engines.values():
            if engine.active:
                self.violated(f"{engine.name} works at the end")
        now = round(1000 * asyncio.get_running_loop().time())
        for url, leases in self.pool.double.leases.items():
            if left := [member for member, expiry in leases.items() if expiry > now]:
                self.violated(f"{url} is held by {left} at the end")
        for gateway in self.gateways:
            if gateway.crashed:
                continue
            for name, backend in gateway.admission.backends.items():
                if backend.free != backend.slots:
                    self.violated(f"{gateway.name} has {backend.free} of {backend.slots} slots of {name}")
        order = {id: place for place, id in enumerate(self.started)}
        for id, place in order.items():
            later = sum(order[other] < place for other in order if self.came[other] > self.came[id])
            self.result.overtaken = max(self.result.overtaken, later)
        overtaken_max = GATEWAYS * sum(engine.slots for engine in self.engines.values())
        if self.kind == "calm" and self.result.overtaken > overtaken_max:
            self.violated(f"{self.result.overtaken} calls came later than one and started earlier")
        if self.result.idle_seconds > IDLE_SECONDS_MAX:
            self.violated(f"a slot was free for {self.result.idle_seconds:g} s while a call waited")


def simulate(
    seed: int,
    kind: str,
    dispatcher_type: type[SharedDispatcher] = SharedDispatcher,
    ledger_type: type[Ledger] = Ledger,
) -> Result:
    """Run this seed of this kind."""

    async def main() -> Result:
        return await World(seed, kind, dispatcher_type, ledger_type).run()

    return virtual.run(main())
