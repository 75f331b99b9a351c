"""What fits into an engine: who tells it, how it changes, and what a process takes with it when it ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from tests.processes.asking import CHAT, ask, backend, checked, metric
from tests.processes.fleet import becomes, settled, states
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway, until
from tests.processes.load import PACE, load, worked


def told(*engines: Engine, **more: Any) -> dict[str, Any]:
    """A configuration that leaves it to the engines to tell their capacity."""
    return {"backends": [{"name": f"b{i}", "url": one.url} | more for i, one in enumerate(engines)]}


async def slots(front: Gateway, total: int, source: str) -> None:
    """Wait until the gateway knows so many slots of b0 from there, and uses them."""

    async def so() -> bool:
        one = await backend(front, "b0")
        seen = one["slots"]
        return bool(one["state"] == "ready" and (seen["total"], seen["source"]) == (total, source))

    await until(so, f"{total} slots, {source}", 15.0)


async def probes_to_know(front: Gateway, one: Engine, total: int) -> int:
    """Wait until the gateway knows so many slots of b0; how often it has asked this process until then."""

    async def known() -> bool:
        return bool((await backend(front, "b0"))["slots"]["total"] == total)

    await until(known, f"{total} slots", 15.0)
    return int((await one.state())["probes"]["GET /v1/stats"])


# -- restarts -----------------------------------------------------------------------------------------


async def test_ds4_restarts_with_as_many_slots_as_its_memory_holds_then() -> None:
    """11, 2, 9 banks under load: its first probe tells, from its first moment on the new process never has
    more requests than banks, soon it uses them all, and everybody gets an answer in the end; only what it
    had begun is lost."""
    asked: list[int] = []
    async with engine("ds4", slots=11, **PACE) as one, gateway(told(one)) as front:
        await slots(front, 11, "reported")
        async with load(front) as clients:
            await worked(one, 60)
            for banks in (2, 9):
                await one.restart(slots=banks)
                asked.append(await probes_to_know(front, one, banks))
                await slots(front, banks, "reported")
                state = await worked(one, 10 * banks)
                assert state["over_slots"] == 0, (banks, state)
                assert state["max_concurrent"] == banks
        await settled(front, "b0")
        print({"probes": asked, "lost with the process": clients.lost.total()})  # noqa: T201
        assert min(asked) == 1  # the next one comes two seconds later, and this test may have slept so long
        assert clients.lost.total() <= 11 + 2
        assert (await one.state())["over_slots"] == 0


async def test_a_restart_that_nobody_saw_shows_in_the_uptime() -> None:
    """The engine came back with other banks between two probes, on an open port: the next probe tells."""
    async with engine("ds4", slots=4, **PACE) as one, gateway(told(one)) as front:
        await slots(front, 4, "reported")
        await asyncio.sleep(4.0)  # old enough for its uptime to fall
        await one.resize(2)
        await slots(front, 2, "reported")
        assert states(front, "b0") == ["warming", "ready", "starting", "warming", "ready"]
        await one.reset()
        async with load(front):
            await worked(one, 30)
        state = await one.state()
        assert (state["over_slots"], state["max_concurrent"]) == (0, 2)


# -- who tells ----------------------------------------------------------------------------------------


async def test_slots_that_nobody_tells_are_learnt_from_others() -> None:
    """vLLM keeps its number of slots to itself; as soon as somebody else has filled it, it is known. Its
    budget of tokens it tells."""
    async with (
        engine("vllm", slots=3, kv_tokens=100_000, decode_tps=20.0) as one,
        gateway(told(one)) as front,
    ):
        await slots(front, 1, "assumed")
        seen = await backend(front, "b0")
        assert (seen["kv_tokens"], seen["kv_source"]) == (100_000, "reported")
        assert (seen["context_tokens"], seen["context_source"]) == (65_536, "reported")
        await one.script(times=5, match="foreign", token_seconds=30.0)
        async with AsyncExitStack() as others:
            for _ in range(5):
                other = await others.enter_async_context(await RawClient.connect(one.url))
                await other.post(CHAT, chat("foreign"))
            await slots(front, 3, "learnt")
        await one.idle()
        await one.reset()
        replies = await asyncio.gather(*(ask(front, chat(f"own {i}", max_tokens=6)) for i in range(12)))
        assert [answer.head.status for answer in replies] == [200] * 12
        state = await one.state()
        assert (state["over_slots"], state["max_concurrent"]) == (0, 3)
        assert (await backend(front, "b0"))["slots"]["sources"] == {"learnt": 3}


async def test_a_configured_number_stands_beside_what_the_engine_says() -> None:
    """Both are shown."""
    async with engine("llamacpp", slots=4) as one, gateway(told(one, slots=2, kv_tokens=9000)) as front:
        await slots(front, 2, "configured")
        seen = await backend(front, "b0")
        assert seen["slots"]["sources"] == {"configured": 2, "reported": 4}
        assert (seen["kv_tokens"], seen["kv_source"]) == (9000, "configured")


async def test_that_slots_share_one_memory_shows_when_it_is_full() -> None:
    """llama.cpp tells the whole of a unified KV as the context of each slot. When answers fail for want of
    it, that is the budget of all from then on; nobody blames the engine."""
    full = {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}
    event = "data: " + json.dumps({"error": full}) + "\n\n"
    async with engine("llamacpp", slots=4, context_tokens=8192) as one, gateway(told(one)) as front:
        await slots(front, 4, "reported")
        assert (await backend(front, "b0"))["kv_tokens"] is None
        await one.script(times=4, match="long", raw=[event])
        await asyncio.gather(*(ask(front, chat(f"long {i}")) for i in range(4)))

        async def learnt() -> bool:
            seen = await backend(front, "b0")
            return (seen["kv_tokens"], seen["kv_source"]) == (8192, "learnt")

        await until(learnt, "a budget of all slots")
        assert (await ask(front, chat("short"))).head.status == 200
        seen = await backend(front, "b0")
        assert (seen["state"], seen["context_tokens"]) == ("ready", 8192)


# -- limits that the engine wants in the body ---------------------------------------------------------


async def test_an_engine_that_reserves_by_max_tokens_gets_one() -> None:
    """ds4 lets a request in only if memory holds all that it may write: a client that gives no limit gets
    the operator's; one that does keeps its own, byte for byte."""
    async with (
        engine("ds4", slots=1) as one,
        gateway(told(one, max_tokens_default=1234, warmup={"requests": 0})) as front,
    ):
        await becomes(front, "b0", "ready")
        assert (await ask(front, chat("none"))).head.status == 200
        assert (await ask(front, chat("some", max_tokens=65_536))).head.status == 200
        bodies = [request["body"] for request in await one.requests(2)]
        assert b'"max_tokens":1234' in bodies[0]
        assert b'"max_tokens": 65536' in bodies[1]
        assert b"1234" not in bodies[1]


# -- what a process takes with it ---------------------------------------------------------------------


class Vanishing:
    """An engine whose process is killed in the middle of answers, and leaves its connections as they are:
    its port closes, its clients hear neither data nor error nor end."""

    def __init__(self) -> None:
        self.streams = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self, port: int = 0) -> asyncio.Server:
        """From now on."""
        return await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        if head.startswith(b"GET"):
            body = b'{"data":[{"id":"fake-model"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
            writer.write(body)
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b'data: {"choices":[{"index":0,"delta":{"content":"so far"}}]}\n\n')
        self.streams += 1

    async def close(self) -> None:
        """Let its connections go."""
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


async def test_streams_end_soon_after_their_engine_is_gone() -> None:
    """With an error event, although the time for silence is not over by far; the next process, which is up
    by then, has nothing to do with it."""
    one = Vanishing()
    server = await one.listen()
    port = server.sockets[0].getsockname()[1]
    config = {"name": "b0", "url": f"http://127.0.0.1:{port}", "slots": 4, "warmup": {"requests": 0}}
    try:
        async with gateway({"backends": [config]}) as front, AsyncExitStack() as stack:
            await becomes(front, "b0", "ready")
            clients = [await stack.enter_async_context(await RawClient.connect(front.url)) for _ in range(3)]
            for client in clients:
                await client.post(CHAT, chat("long"))
                await client.head()
                assert (await client.first_token()).token == "so far"
            server.close()
            await becomes(front, "b0", "down")
            server = await one.listen(port)
            await becomes(front, "b0", "ready")
            for client in clients:
                *others, last = await client.events()
                checked(last.json(), "backend_failed")
                assert not any(event.done for event in (*others, last))
            assert await metric(front, "slotgate_requests_total", outcome="backend_failed") == 3
            assert await metric(front, "slotgate_ejections_total") == 0
            seen = await backend(front, "b0")
            assert (seen["state"], seen["slots"]["free"]) == ("ready", 4)
            assert seen["last_error"] == "connection: silent since the engine's process ended"
    finally:
        server.close()
        await one.close()
