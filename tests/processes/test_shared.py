"""Several gateways before the same engines, with a real Redis: the engines count."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.debian import needs
from tests.ledger.guard import guarded
from tests.ledger.server import Server, redis_server
from tests.processes import harness
from tests.processes.asking import Reply, ask, backend, metric
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import (
    Engine,
    Gateway,
    Process,
    RawClient,
    engine,
    free_port,
    gateway,
    until,
)

pytestmark = needs("redis-server")

LEASE_SECONDS = 2


def chat(content: str, max_tokens: int = 8) -> dict[str, Any]:
    """A body; the engines say as much as they may."""
    return harness.chat(content, max_tokens=max_tokens)


class Stage:
    """A Redis, engines of so many slots, and gateways before them."""

    def __init__(self, server: Server, engines: list[Engine], gateways: list[Gateway]) -> None:
        self.server = server
        self.engines = engines
        self.gateways = gateways

    async def ask(self, number: int, content: str, max_tokens: int = 8) -> Reply:
        """One request, by turns through each gateway."""
        return await ask(self.gateways[number % len(self.gateways)], chat(content, max_tokens))

    async def leases(self) -> int:
        """Slots that the ledger says are in use."""
        async with self.server.client() as client:
            return sum([await client.zcard(f"{{slotgate:default}}:leases:{one.url}") for one in self.engines])

    async def thawed(self) -> bool:
        """Whether slots are given: a request that wants one has one."""
        async with self.server.client() as client:
            said = await client.hmget("{slotgate:default}:epoch", "thaws", "regroup_until")
            now = (await client.time())[0] * 1000
        return all(float(one or 0) < now for one in said)

    async def never_too_many(self) -> None:
        """No engine ever had more requests than slots."""
        for one in self.engines:
            state = await one.state()
            assert state["over_slots"] == 0, state

    async def settled(self) -> None:
        """Everything is given back, here and there."""

        async def nothing() -> bool:
            return await self.leases() == 0

        await until(nothing, "an empty ledger")
        for one in self.engines:
            await one.idle()

    async def sharing(self, number: int, state: str) -> None:
        """Wait until a gateway counts slots there."""

        async def so() -> bool:
            return await metric(self.gateways[number], "slotgate_shared_state", state=state) == 1

        await until(so, f"gateway {number} {state}")


@asynccontextmanager
async def stage(
    *slots: int,
    gateways: int = 2,
    arguments: tuple[str, ...] = (),
    listens: str = "",
    url: str = "",
    environment: dict[str, str] | None = None,
    server: dict[str, Any] | None = None,
    keys: Sequence[dict[str, Any]] = (),
    personality: str = "openai",
    **options: Any,
) -> AsyncIterator[Stage]:
    """It, with every gateway and every backend ready. `arguments`: of Redis, which then `listens` there;
    `url`: where the gateways believe that it does; `environment`: of the first gateway."""
    options = {"decode_tps": 200.0, "prefill_tps": 50_000.0, "tokens": 10_000} | options
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(redis_server(*arguments, url=listens))
        engines = [
            await stack.enter_async_context(engine(personality, slots=one, **options)) for one in slots
        ]
        redis = {"url": url or store.url, "lease_seconds": LEASE_SECONDS}
        config = configured(*engines, redis=redis, routing={"hold_seconds_max": 0}, server=server or {})
        config |= {"keys": keys} if keys else {}
        fronts: list[Gateway] = []
        while len(fronts) < gateways:  # one by one: the first warms the engines up for all
            front = gateway(config, environment=None if fronts else environment)
            fronts.append(await stack.enter_async_context(front))
            for i in range(len(engines)):
                await becomes(fronts[-1], f"b{i}", "ready")
        yield Stage(store, engines, fronts)


@pytest.mark.parametrize("guard", [False, pytest.param(True, marks=[pytest.mark.long, needs("openssl")])])
async def test_two_gateways_never_give_more_slots_than_there_are(guard: bool, tmp_path: Path) -> None:
    """160 requests through both: each engine had all its slots in use and never one more, each request is
    answered, the ledger is empty at the end, and the engines were warmed up once. Also where Redis takes but
    one user, who may do but this, over TLS."""
    arguments, url = guarded(tmp_path) if guard else ((), "")
    async with stage(2, 1, arguments=arguments, listens=url) as scene:
        replies = await asyncio.gather(*(scene.ask(i, f"request {i}", max_tokens=8) for i in range(160)))
        assert {reply.head.status for reply in replies} == {200}
        assert {reply.ended for reply in replies} == {"clean"}
        for one in scene.engines:
            state = await one.state()
            assert (state["over_slots"], state["max_concurrent"]) == (0, state["slots"])
        assert sum([(await one.state())["received"] for one in scene.engines]) == 160 + 2 * 2
        assert [await metric(one, "slotgate_shared_state", state="shared") for one in scene.gateways] == [
            1,
            1,
        ]
        await scene.settled()


async def test_the_slots_of_a_killed_gateway_come_back() -> None:
    """kill -9 of the gateway that has every slot: the other one has them as soon as the leases are over, and
    no engine ever had more. The one that was killed serves again on its port, and waits for nothing."""
    async with stage(2) as scene:
        dead, alive = scene.gateways
        (one,) = scene.engines
        await one.script(times=None, match="long", token_seconds=30.0)
        async with AsyncExitStack() as stack:
            for i in range(2):
                client = await stack.enter_async_context(await RawClient.connect(dead.url))
                await client.post("/v1/chat/completions", chat(f"long {i}"))
                await client.head()
            await one.busy(2)
            assert await scene.leases() == 2
            waiting = [asyncio.create_task(ask(alive, chat(f"short {i}"))) for i in range(2)]
            await asyncio.sleep(0.1)
            dead.expect_end()
            await dead.process.kill()
            replies = await asyncio.gather(*waiting)
        assert [reply.head.status for reply in replies] == [200, 200]
        await scene.never_too_many()
        dead.process.start()
        await until(lambda: dead.answers("/ready"), "the gateway that was killed")
        assert (await ask(dead, chat("again"))).head.status == 200
        await scene.settled()


async def test_requests_survive_a_redis_that_dies() -> None:
    """It is killed while requests run and wait on both gateways, and comes back without its data: each
    request is answered, the gateways say that they are degraded, then that they share, and nothing is left.
    Meanwhile each gives its share, so no engine has twice its slots; with Redis back, no more than it has."""
    async with stage(2, 2) as scene:
        first = [asyncio.create_task(scene.ask(i, f"first {i}", max_tokens=60)) for i in range(16)]
        for one in scene.engines:
            await one.busy(2)
        await scene.server.process.kill()
        for number in range(2):
            await scene.sharing(number, "degraded")
            ready = (await scene.gateways[number].client.get("/ready")).json()
            assert ready["ready"] is True
            assert "Redis cannot be asked" in ready["reason"]
        assert {reply.head.status for reply in await asyncio.gather(*first)} == {200}
        for one in scene.engines:
            state = await one.state()
            assert state["max_concurrent"] <= 2 * state["slots"]
            await one.reset()
        await scene.server.restart(empty=True)
        for number in range(2):
            await scene.sharing(number, "shared")
        second = await asyncio.gather(*(scene.ask(i, f"second {i}", max_tokens=8) for i in range(60)))
        assert {reply.head.status for reply in second} == {200}
        await scene.never_too_many()
        await scene.settled()


async def test_a_gateway_starts_and_serves_without_redis() -> None:
    """Nobody listens at its URL: it becomes ready, gives half of the slots, and says why, in the log once."""
    async with stage(4, gateways=1, url="redis://127.0.0.1:9") as scene:
        (one,) = scene.engines
        await one.reset()
        replies = await asyncio.gather(*(scene.ask(i, f"request {i}", max_tokens=20) for i in range(8)))
        assert {reply.head.status for reply in replies} == {200}
        assert (await one.state())["max_concurrent"] == 2
        ready = (await scene.gateways[0].client.get("/ready")).json()
        assert ready["ready"] is True
        assert "Redis cannot be asked" in ready["reason"]
        assert await metric(scene.gateways[0], "slotgate_shared_state", state="degraded") == 1
        told = [line for line in scene.gateways[0].process.errors.splitlines() if "Redis" in line]
        assert len(told) == 1
        assert "Traceback" not in told[0]


async def test_requests_survive_a_redis_that_hangs() -> None:
    """SIGSTOP: whoever asks waits a quarter of a second, once, not for ever; SIGCONT, and all is well."""
    async with stage(2) as scene:
        scene.server.process.signal(signal.SIGSTOP)
        try:
            replies = await asyncio.gather(*(scene.ask(i, f"request {i}", max_tokens=8) for i in range(12)))
        finally:
            scene.server.process.signal(signal.SIGCONT)
        assert {reply.head.status for reply in replies} == {200}
        assert (await scene.engines[0].state())["max_concurrent"] <= 4
        for number in range(2):
            await scene.sharing(number, "shared")
        replies = await asyncio.gather(*(scene.ask(i, f"again {i}", max_tokens=8) for i in range(12)))
        assert {reply.head.status for reply in replies} == {200}
        await scene.settled()


async def test_who_comes_back_waits_for_the_others() -> None:
    """SIGSTOP of Redis for longer than a lease: each gateway gives its share of four slots, which run on when
    Redis goes on. Who is first to be back knows nothing of the other's, and takes none of them for free."""
    async with stage(4) as scene:
        (one,) = scene.engines
        for number in range(2):  # so that both have heard of each other
            await scene.ask(number, "hello")
        scene.server.process.signal(signal.SIGSTOP)
        try:
            for number in range(2):
                await scene.sharing(number, "degraded")
            await one.reset()
            asked = [asyncio.create_task(scene.ask(i, f"request {i}", max_tokens=600)) for i in range(8)]
            await one.busy(4)
            await asyncio.sleep(LEASE_SECONDS)
        finally:
            scene.server.process.signal(signal.SIGCONT)
        assert {reply.head.status for reply in await asyncio.gather(*asked)} == {200}
        await scene.never_too_many()
        await scene.settled()


async def test_a_key_has_its_limit_in_all_gateways_together() -> None:
    """However many come at once to both: no more than three are let in, the rest is told to come again.
    While Redis is away each gateway lets in its share, which makes one more; with it, three again."""
    secret = [("Authorization", "Bearer sg-alice")]
    keys = [{"name": "alice", "sha256": hashlib.sha256(b"sg-alice").hexdigest(), "concurrency_max": 3}]
    async with stage(8, keys=keys) as scene:
        (one,) = scene.engines
        await one.script(times=None, match="long", token_seconds=30.0)

        async def let_in(most: int) -> int:
            """Of 20 at once, those that are not turned away; they leave when they all run."""
            async with asyncio.TaskGroup() as group:
                asking = [
                    group.create_task(ask(scene.gateways[i % 2], chat(f"long {i}"), secret))
                    for i in range(20)
                ]
                await until(lambda: sum(task.done() for task in asking) >= 20 - most, "the rest turned away")
                running = [task for task in asking if not task.done()]
                await one.busy(len(running))
                assert {task.result().head.status for task in asking if task.done()} == {429}
                for task in running:
                    task.cancel()
            await one.idle()
            return len(running)

        assert await let_in(3) == 3
        await scene.settled()
        await scene.server.process.kill()
        for number in range(2):
            await scene.sharing(number, "degraded")
        assert await let_in(4) == 4
        await scene.server.restart(empty=True)
        for number in range(2):
            await scene.sharing(number, "shared")
        await until(scene.thawed, "slots that are given")
        assert await let_in(3) == 3
        assert (await one.state())["max_concurrent"] == 4


async def test_a_paused_gateway_keeps_what_runs() -> None:
    """SIGSTOP of a gateway for longer than a lease while its requests run: the other one takes no more than
    the slots and those; afterwards both serve, and everything is given back."""
    async with stage(2) as scene:
        paused, other = scene.gateways
        (one,) = scene.engines
        running = [asyncio.create_task(ask(paused, chat(f"long {i}", max_tokens=900))) for i in range(2)]
        await one.busy(2)
        paused.process.signal(signal.SIGSTOP)
        try:
            replies = await asyncio.gather(*(ask(other, chat(f"other {i}", max_tokens=8)) for i in range(6)))
        finally:
            paused.process.signal(signal.SIGCONT)
        assert {reply.head.status for reply in [*replies, *await asyncio.gather(*running)]} == {200}
        assert (await one.state())["max_concurrent"] <= 4
        await one.reset()
        replies = await asyncio.gather(*(scene.ask(i, f"after {i}", max_tokens=8) for i in range(20)))
        assert {reply.head.status for reply in replies} == {200}
        await scene.never_too_many()
        await scene.settled()


async def test_clients_that_leave_give_their_slots_to_the_other_gateway() -> None:
    """Queued or running, through either gateway; what the other one waits for is free at once."""
    async with stage(1) as scene:
        (one,) = scene.engines
        await one.script(times=None, match="leaves", token_seconds=30.0)
        for turn in range(3):
            holder, other = scene.gateways[turn % 2], scene.gateways[(turn + 1) % 2]
            async with await RawClient.connect(holder.url) as client:
                await client.post("/v1/chat/completions", chat("leaves"))
                await client.head()
                await one.busy()
                waiting = asyncio.create_task(ask(other, chat(f"follows {turn}")))
                await asyncio.sleep(0.1)
                client.close()
            assert (await waiting).head.status == 200
        await scene.never_too_many()
        await scene.settled()
        for front in scene.gateways:
            await settled(front, "b0")


async def test_forgotten_scripts_are_told_again() -> None:
    """SCRIPT FLUSH in a loop while requests run: nobody notices, and no gateway falls back on itself."""
    async with stage(2) as scene:
        answered = asyncio.Event()

        async def flush() -> None:
            async with scene.server.client() as client:
                while not answered.is_set():
                    await client.script_flush()
                    await asyncio.sleep(0.01)

        flushing = asyncio.create_task(flush())
        replies = await asyncio.gather(*(scene.ask(i, f"request {i}", max_tokens=8) for i in range(40)))
        answered.set()
        await flushing
        assert {reply.head.status for reply in replies} == {200}
        await scene.never_too_many()
        assert all("cannot be asked" not in one.process.errors for one in scene.gateways)


async def test_all_gateways_follow_a_drain() -> None:
    """Said to one, it holds for both, also for one that was killed and starts again, and after Redis has lost
    it; resumed by the other one, both send requests there again."""
    async with stage(2, 2) as scene:
        first, second = scene.gateways
        await first.operator.post("/admin/backends/b0/drain", json={"reason": "new model"})
        await becomes(second, "b0", "drained")
        assert (await backend(second, "b0"))["reason"] == "new model"
        await scene.server.process.kill()
        await scene.server.restart(empty=True)
        for number in range(2):
            await scene.sharing(number, "shared")
        second.expect_end()
        await second.process.kill()
        second.process.start()
        await until(lambda: second.answers("/ready"), "the gateway that was killed")
        await becomes(second, "b0", "drained")
        await scene.engines[0].reset()
        await asyncio.gather(*(scene.ask(i, f"request {i}", max_tokens=4) for i in range(12)))
        assert (await scene.engines[0].state())["received"] == 0
        await second.operator.post("/admin/backends/b0/resume")
        for front in scene.gateways:
            await becomes(front, "b0", "ready")


# -- longer ---------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_nobody_fails_when_redis_is_restarted_with_its_data() -> None:
    """60 requests run and 60 wait, on two gateways, while Redis is stopped, and started with its data two
    seconds later: all are answered, and none waited five seconds longer than it must."""
    arguments = ("--appendonly", "yes", "--appendfsync", "always")
    async with stage(30, 30, arguments=arguments, decode_tps=10.0) as scene:
        begun = time.monotonic()
        asked = [asyncio.create_task(scene.ask(i, f"request {i}", max_tokens=40)) for i in range(120)]
        for one in scene.engines:
            await one.busy(30)
        scene.server.process.signal(signal.SIGTERM)
        await scene.server.process.ended()
        await asyncio.sleep(2.0)
        await scene.server.restart()
        replies = await asyncio.gather(*asked)
        assert {reply.head.status for reply in replies} == {200}
        assert {reply.ended for reply in replies} == {"clean"}
        assert (
            time.monotonic() - begun < 2 * 4.0 + 5.0 + 5.0
        )  # two rounds of 4 s; the last 5 s are the machine's
        await scene.settled()


@pytest.mark.long
async def test_four_gateways_never_give_more_slots_than_there_are() -> None:
    """600 requests, of which many leave: as with two."""
    async with stage(3, 1, 2, gateways=4) as scene:

        async def client(number: int) -> None:
            for turn in range(20):
                asking = asyncio.create_task(scene.ask(number, f"{number} {turn}", max_tokens=8))
                if (number + turn) % 4 == 0:
                    await asyncio.wait([asking], timeout=0.05)
                    asking.cancel()
                    await asyncio.wait([asking])
                else:
                    assert (await asking).head.status == 200

        await asyncio.gather(*(client(number) for number in range(30)))
        await scene.never_too_many()
        await scene.settled()


LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")


@pytest.mark.long
@needs("faketime")
async def test_a_wall_clock_that_jumps_changes_nothing(tmp_path: Path) -> None:
    """One gateway's clock goes an hour ahead, then an hour back, while requests run and wait: no lease, limit
    or timeout notices."""
    (library,) = [
        path for path in (Path(f"{one}/faketime/libfaketime.so.1") for one in LIBRARIES) if path.is_file()
    ]
    clock = tmp_path / "clock"
    clock.write_text("+0")
    fake = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    async with stage(2, environment=os.environ | fake) as scene:
        for jump in ("+3600", "-3600", "+0"):
            asked = [asyncio.create_task(scene.ask(i, f"{jump} {i}", max_tokens=60)) for i in range(16)]
            await scene.engines[0].busy(2)
            clock.write_text(jump)
            assert {reply.head.status for reply in await asyncio.gather(*asked)} == {200}
        await scene.never_too_many()
        assert all("cannot be asked" not in one.process.errors for one in scene.gateways)
        told = scene.gateways[0].process.errors
        hours = {line[10:24].partition("T")[2][:2] for line in told.splitlines()}
        assert len(hours) > 1  # it did jump
        await scene.settled()


BALANCER = Path(__file__).parents[2] / "docker" / "haproxy.cfg"
CLIENTS, ROUNDS = 50, 2


@pytest.mark.long
@needs("haproxy")
async def test_nobody_fails_while_gateways_are_restarted_one_by_one(tmp_path: Path) -> None:
    """50 clients stream through the balancer of the compose file while each gateway in turn is ended by
    SIGTERM and started again, twice: no request fails, and no engine has more than its slots."""
    server = {"shutdown_pause_seconds": 3, "shutdown_seconds": 30}
    async with stage(16, 16, server=server) as scene:
        port = free_port()
        config = BALANCER.read_text().replace("bind :8400", f"bind 127.0.0.1:{port}")
        for number, front in enumerate(scene.gateways, 1):
            config = config.replace(f"gateway-{number}:8400", front.url.removeprefix("http://"))
        (tmp_path / "haproxy.cfg").write_text(config)
        balancer = Process(["-f", "haproxy.cfg"], tmp_path, dict(os.environ), program="haproxy")
        ended = asyncio.Event()
        outcomes: Counter[tuple[int, str]] = Counter()

        async def client(number: int) -> None:
            turn = 0
            while not ended.is_set():
                turn += 1
                async with await RawClient.connect(f"http://127.0.0.1:{port}") as line:
                    await line.post("/v1/chat/completions", chat(f"{number} {turn}", max_tokens=40))
                    head = await line.head()
                    events = await line.events()
                    outcomes[head.status, "done" if events and events[-1].done else "broken"] += 1

        try:
            await until(lambda: reachable(port), "a balancer")
            await asyncio.sleep(2.5)  # it looks at each gateway once a second
            clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
            for front in scene.gateways * ROUNDS:
                await asyncio.sleep(3.0)
                assert await front.stop(seconds=60.0) == 0
                front.process.start()
                await until(lambda front=front: front.answers("/ready"), "the gateway that was restarted")
            await asyncio.sleep(3.0)
            ended.set()
            await asyncio.gather(*clients)
        finally:
            await balancer.kill()
        assert outcomes.keys() == {(200, "done")}, outcomes
        assert outcomes.total() > 2 * CLIENTS
        await scene.never_too_many()
        await scene.settled()


def reachable(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
