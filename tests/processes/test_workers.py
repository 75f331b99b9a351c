"""One gateway in several processes, with a real Redis: nobody can tell, but by what the loss of one costs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from gateway.lifecycle import bind
from tests.debian import needs
from tests.ledger.server import Server, redis_server
from tests.processes.asking import Headers, Reply, ask, backend, counted, metric
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import Engine, Gateway, Head, RawClient, chat, engine, gateway, until
from tests.processes.test_handover import Unit, clients
from tests.processes.test_reload import rewrite

pytestmark = needs("redis-server")

LEASE_SECONDS = 2
WORKERS = ("--workers", "2")
COUNTED = "slotgate_requests_total"


class Stage:
    """A Redis, engines, and a gateway of two workers before them."""

    def __init__(
        self, server: Server, engines: Sequence[Engine], front: Gateway, config: dict[str, Any]
    ) -> None:
        self.server = server
        self.engines = engines
        self.front = front
        self.config = config

    async def leases(self) -> int:
        """Slots that the ledger says are in use."""
        async with self.server.client() as client:
            return sum([await client.zcard(f"{{slotgate:default}}:leases:{one.url}") for one in self.engines])

    async def settled(self) -> None:
        """Nobody holds a slot any more, and no engine ever had too many requests."""

        async def nothing() -> bool:
            return await self.leases() == 0

        await until(nothing, "an empty ledger")
        for one in self.engines:
            await one.idle()
            state = await one.state()
            assert state["over_slots"] == 0, state


async def ready(front: Gateway, name: str) -> None:
    """Wait until a backend is ready, to both workers."""

    async def so() -> bool:
        view = await backend(front, name)
        return (view["state"], view["reason"]) == ("ready", "")

    await until(so, f"{name} ready")


@asynccontextmanager
async def stage(*slots: int, **tables: Any) -> AsyncIterator[Stage]:
    """It, with every backend ready."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server())
        engines = [
            await stack.enter_async_context(
                engine("openai", slots=one, decode_tps=200.0, prefill_tps=50_000.0)
            )
            for one in slots
        ]
        redis = {"url": server.url, "lease_seconds": LEASE_SECONDS}
        config = configured(*engines, redis=redis, routing={"hold_seconds_max": 0}, **tables)
        front = await stack.enter_async_context(gateway(config, *WORKERS))
        await until(lambda: len(workers(front)) == 2, "two workers")
        for number in range(len(engines)):
            await ready(front, f"b{number}")
        yield Stage(server, engines, front, config)


def workers(front: Gateway) -> list[int]:
    """The processes that serve its clients."""
    pid = front.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lives(pid: int) -> bool:
    """Whether a process is neither gone nor waited for."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def free(url: str) -> bool:
    """Whether another process could have this port."""
    try:
        bind("127.0.0.1", int(url.rpartition(":")[2])).close()
    except OSError:
        return False
    return True


def worker_of(id: str) -> str:
    """What the ids of all requests of one worker begin with."""
    return id.rpartition("-")[0]


def id_of(head: Head) -> str:
    """The id that the gateway gave a request."""
    return head.headers["x-request-id"]


async def both(front: Gateway, content: str, headers: Headers = ()) -> list[Reply]:
    """Short requests, until both workers have answered one: which of them takes a connection is chance."""
    replies: list[Reply] = []

    async def answered() -> bool:
        replies.append(await ask(front, chat(content, max_tokens=8), headers))
        assert replies[-1].head.status == 200, replies[-1]
        return len({worker_of(id_of(reply.head)) for reply in replies}) == 2

    await until(answered, "answers of both workers")
    return replies


async def end_of(client: RawClient) -> str | None:
    """How an answer ends, as in `RawClient.ended`."""
    await client.body()
    return client.ended


async def test_two_workers_are_one_gateway() -> None:
    """Both serve the port, and together never more requests than there are slots; what metrics, accounts and
    the admin port say is the sum of what clients saw, where it is a sum; a drain said once holds for both."""
    async with stage(3, 1) as scene:
        front = scene.front
        replies = await asyncio.gather(*(ask(front, chat(f"request {i}", max_tokens=8)) for i in range(80)))
        replies += await both(front, "one more")
        asked = len(replies)
        assert {reply.head.status for reply in replies} == {200}
        assert {reply.ended for reply in replies} == {"clean"}
        for one in scene.engines:
            state = await one.state()
            assert (state["over_slots"], state["max_concurrent"]) == (0, state["slots"])

        for port in (front.client, front.operator):
            assert (await port.get("/metrics")).status_code == 200
        await counted(front, COUNTED, asked, outcome="completed")
        for histogram in ("queue_wait", "ttft", "request"):
            assert await metric(front, f"slotgate_{histogram}_seconds_count") == asked
        assert await metric(front, "slotgate_tokens_total", kind="completion") == 8 * asked
        assert await metric(front, "slotgate_slots", state="total") == 4
        assert await metric(front, "slotgate_backend_state") == 2
        assert await metric(front, "slotgate_shared_state", state="shared") == 1

        async def written() -> bool:
            (account,) = (await front.operator.get("/admin/usage")).json()
            return (account["requests"], account["completion_tokens"]) == (asked, 8 * asked)

        await until(written, "all requests in the journal")

        drained = await front.operator.post("/admin/backends/b0/drain", json={"wait_seconds": 20})
        assert drained.json() == {"state": "drained", "in_flight": 0}
        before = (await scene.engines[0].state())["received"]
        await asyncio.gather(*(ask(front, chat(f"again {i}", max_tokens=2)) for i in range(12)))
        assert (await scene.engines[0].state())["received"] == before
        await front.operator.post("/admin/backends/b0/resume")
        await ready(front, "b0")
        await scene.settled()
        await settled(front, "b0", "b1")


async def test_all_that_runs_and_waits_is_seen_and_can_be_ended() -> None:
    """Slots, requests and queue are those of both workers, on the page too; a request is ended whichever of
    them has it."""
    async with stage(2) as scene, AsyncExitStack() as stack:
        front, (one,) = scene.front, scene.engines
        await one.script(times=None, match="long", token_seconds=30.0)
        asked = 0

        async def seen() -> list[dict[str, Any]]:
            running = (await front.operator.get("/admin/requests")).json()
            return [*running, *(await front.operator.get("/admin/queue")).json()]

        async def spread() -> bool:
            nonlocal asked
            client = await stack.enter_async_context(await RawClient.connect(front.url))
            await client.post("/v1/chat/completions", chat(f"long {asked}"))
            asked += 1
            await until(lambda: known(asked), f"{asked} requests")
            return asked >= 4 and len({worker_of(view["id"]) for view in await seen()}) == 2

        async def known(count: int) -> bool:
            return len(await seen()) == count

        await until(spread, "requests at both workers")
        await one.busy(2)

        async def told() -> bool:
            slots = (await backend(front, "b0"))["slots"]
            running = (await front.operator.get("/admin/requests")).json()
            return (slots["in_use"], slots["foreign"], len(running)) == (2, 0, 2)

        await until(told, "two that run")
        assert await metric(front, "slotgate_slots", state="in_use") == 2
        assert await metric(front, "slotgate_slots", state="foreign") == 0
        assert await metric(front, "slotgate_queue_length") == asked - 2
        async with front.operator.stream("GET", "/admin/events") as events:
            async for line in events.aiter_lines():
                if '"holders"' in line:
                    (figures,) = json.loads(line.removeprefix("data: "))["backends"]
                    assert len(figures["holders"]) == 2
                    break

        for view in reversed(await seen()):  # those that wait first: nobody takes the place of one that ran
            ended = await front.operator.delete(f"/admin/requests/{view['id']}")
            assert (ended.status_code, ended.json()["id"]) == (200, view["id"])
        assert (await front.operator.delete("/admin/requests/nobody")).status_code == 404
        await scene.settled()
        assert await seen() == []


async def test_a_killed_worker_costs_its_own_streams() -> None:
    """kill -9 of one of them: the streams of the other go on to their end, the gateway stays ready, what was
    counted stays counted, the slots come back with the lease, and another worker takes its place."""
    async with stage(60) as scene, AsyncExitStack() as stack:
        front, (one,) = scene.front, scene.engines
        await one.script(times=None, match="long", token_seconds=0.25)
        served = defaultdict[str, list[RawClient]](list)

        async def spread() -> bool:
            client = await stack.enter_async_context(await RawClient.connect(front.url))
            await client.post("/v1/chat/completions", chat("long", max_tokens=40))
            served[worker_of(id_of(await client.head()))].append(client)
            return len(served) == 2

        assert (await ask(front, chat("short", max_tokens=1))).head.status == 200
        await until(spread, "streams of both workers", 6.0)
        await counted(front, COUNTED, 1)

        before = workers(front)
        os.kill(before[0], signal.SIGKILL)
        waiting = [asyncio.create_task(ask(front, chat(f"short {i}", max_tokens=1))) for i in range(4)]
        assert (await ask(front, b"", path="/ready", method="GET")).head.status == 200
        ended = {worker: await asyncio.gather(*map(end_of, clients)) for worker, clients in served.items()}
        ways = sorted(sorted(set(ways)) for ways in ended.values())
        assert ways in ([["clean"], ["cut"]], [["clean"], ["reset"]], [["clean"], ["cut", "reset"]])
        assert {reply.head.status for reply in await asyncio.gather(*waiting)} == {200}
        assert await metric(front, COUNTED) >= 1

        await until(lambda: len(set(workers(front)) - {before[0]}) == 2, "another worker")
        assert before[1] in workers(front)
        assert await metric(front, "slotgate_worker_restarts_total") == 1
        answered = {worker_of(id_of(reply.head)) for reply in await both(front, "after")}
        assert len(answered & served.keys()) == 1
        assert "ended by signal 9; another one is started" in front.process.errors
        await scene.settled()


async def test_all_workers_follow_the_configuration_and_the_end() -> None:
    """SIGHUP and POST reach both, and one that was started again knows what they were told; a file that is
    refused changes nothing. SIGTERM: what runs and waits at either is finished, and no process is left."""
    server = {"shutdown_pause_seconds": 0, "shutdown_seconds": 20}
    async with engine("openai", slots=2) as more, stage(2, server=server) as scene:
        front, (one,) = scene.front, scene.engines
        key = {"name": "team", "sha256": sha256(b"secret").hexdigest()}
        opened = scene.config | {"keys": [key]}
        opened |= {"server": server | {"allowed_backends": [more.url.removeprefix("http://")]}}
        rewrite(front, opened)
        front.process.signal(signal.SIGHUP)

        async def closed() -> bool:
            answers = await asyncio.gather(*(ask(front, chat("x", max_tokens=1)) for _ in range(12)))
            return {answer.head.status for answer in answers} == {401}

        await until(closed, "401 of both workers")
        named = {"name": "more", "url": more.url, "slots": 2, "warmup": {"requests": 0}}
        assert (await front.operator.post("/admin/backends", json=named)).status_code == 201
        await becomes(front, "more", "ready")

        rewrite(front, opened | {"queue": {"waiting_max": "many"}})
        refused = await front.operator.post("/admin/reload")
        assert refused.status_code == 400
        assert "queue.waiting_max" in refused.json()["error"]["message"]
        assert await metric(front, "slotgate_config_invalid") == 1

        before = workers(front)
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: len(set(workers(front)) - {before[0]}) == 2, "another worker")
        await becomes(front, "more", "ready")
        bearer = [("Authorization", "Bearer secret")]
        await both(front, "with a key", bearer)
        removed = await front.operator.delete("/admin/backends/more")
        assert removed.status_code == 200

        await one.script(times=None, match="long", token_seconds=0.1)
        asked = [asyncio.create_task(ask(front, chat(f"long {i}", max_tokens=10), bearer)) for i in range(8)]
        await one.busy(2)
        pids = workers(front)
        assert await front.stop(seconds=60.0) == 0
        answers = await asyncio.gather(*asked)
        assert {(answer.head.status, answer.ended) for answer in answers} == {(200, "clean")}
        assert not [pid for pid in pids if lives(pid)]
        await scene.settled()


async def test_a_worker_that_hangs_and_a_parent_that_dies() -> None:
    """SIGSTOP of one worker: what is read is that of the other, a drain cannot be promised, and is told so;
    SIGCONT, and it can. kill -9 of the process that started them: they let go of the port, finish what they
    have, and end by themselves."""
    async with stage(1) as scene:
        front, pids = scene.front, workers(scene.front)
        os.kill(pids[0], signal.SIGSTOP)
        try:
            assert (await backend(front, "b0"))["state"] == "ready"
            told = await front.operator.post("/admin/backends/b0/drain")
            assert told.status_code == 500
            assert re.match("Worker [12] does not answer", told.json()["error"]["message"])
        finally:
            os.kill(pids[0], signal.SIGCONT)
        drained = await front.operator.post("/admin/backends/b0/drain", json={"wait_seconds": 20})
        assert drained.json() == {"state": "drained", "in_flight": 0}
        assert (await front.operator.post("/admin/backends/b0/resume")).status_code == 200
        await ready(front, "b0")
        async with await RawClient.connect(front.url) as client:
            await scene.engines[0].script(times=1, token_seconds=0.25)
            await client.post("/v1/chat/completions", chat("long", max_tokens=40))
            await client.head()
            scene.front.expect_end()
            await scene.front.process.kill()
            await until(lambda: free(front.url), "a port for who starts anew")
            assert (await scene.engines[0].state())["running"] == 1
            assert await end_of(client) == "clean"
        await until(lambda: not any(map(lives, pids)), "the end of the workers")
        await scene.settled()


async def test_workers_share_sockets_that_outlive_them(tmp_path: Path) -> None:
    """As under systemd, which is told when all of them serve: ended and started again, and nobody is refused
    who connects meanwhile."""
    async with redis_server() as server, engine(slots=2, tokens=4, decode_tps=100.0) as one:
        redis = {"url": server.url, "lease_seconds": LEASE_SECONDS}
        unit = Unit(tmp_path, one, *WORKERS, redis=redis)
        try:
            await unit.start()
            async with clients(unit) as seen:
                await until(lambda: seen[200] > 4, "answers")
                assert await unit.end(signal.SIGTERM) == 0
                await unit.told(b"STOPPING=1")
                await unit.start()
                before = seen[200]
                await until(lambda: seen[200] > before + 4, "answers after the restart")
            assert await unit.end(signal.SIGTERM) == 0
        finally:
            unit.close()
