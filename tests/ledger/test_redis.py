"""The ledger's connection to a real Redis: one step for a slot, nothing lost, nothing foreign, few rights."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.ledger.ledger import Ledger, Mode
from gateway.ledger.step import Unavailable
from gateway.ledger.stream import RedisStream
from tests.debian import needs
from tests.faults.toxics import Proxy, Toxics, forward, proxy, spoil
from tests.ledger.account import ENGINE, LEASES, POOL, account, take, taken
from tests.ledger.guard import RIGHTS, USER, guarded
from tests.ledger.server import Server, redis_server
from tests.processes.process import free_port, until
from tests.readme import README

pytestmark = needs("redis-server")

DELAY_SECONDS = 0.02
CANCELLED, CANCELLED_LONG = 600, 10_000
BROKEN_MIN = 8  # toxics on connections


async def leases(server: Server) -> int:
    """Slots in use."""
    async with server.client() as client:
        return int(await client.zcard(LEASES))


async def emptied(server: Server) -> None:
    """Wait until none is."""

    async def empty() -> bool:
        return await leases(server) == 0

    await until(empty, "an empty ledger")


def defects(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the gateway says of itself; asyncio also speaks of the proxy's connections that were cut."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("slotgate")]


async def test_a_unix_socket_will_do(tmp_path: Path) -> None:
    """`redis.url` may name one."""
    socket = tmp_path / "redis.sock"
    url = f"unix://{socket}"
    async with redis_server("--unixsocket", str(socket), url=url) as server, account(url) as ledger:
        await taken(ledger, "a")
        assert await leases(server) == 1


# -- what a slot costs ----------------------------------------------------------------------------------


async def test_a_slot_costs_one_step() -> None:
    """To take one is one command, to give it back another; a hundred at once are a few."""
    async with redis_server() as server, server.client() as client, account(server.url, 200) as ledger:
        await taken(ledger, "first", 200)

        async def steps() -> int:
            return int((await client.info("commandstats"))["cmdstat_evalsha"]["calls"])

        before = await steps()
        assert await asyncio.gather(*(take(ledger, str(i), 200) for i in range(100))) == [True] * 100
        for i in range(100):
            ledger.release(str(i))
        ledger.release("first")
        await emptied(server)
        assert await steps() - before < 20
        assert "cmdstat_eval" in await client.info("commandstats")  # once, as it knew no script yet


async def test_who_is_refused_is_told_at_once() -> None:
    """Two gateways and two slots: a third call gets none, and one as soon as it is given back; a second
    release frees nothing of another's."""
    async with redis_server() as server, account(server.url, 2) as one, account(server.url, 2) as other:
        await taken(one, "a", 2)
        await taken(other, "b", 2)
        assert await take(one, "c", 2) is False
        one.release("a")
        one.release("a")
        await taken(other, "c", 2)
        one.release("a")
        assert await take(one, "d", 2) is False
        assert await leases(server) == 2


async def test_hints_come_to_those_who_wait() -> None:
    """A slot that is given back while another gateway waits is told at once."""
    hint = asyncio.Event()
    async with redis_server() as server, account(server.url) as one, account(server.url, hints=hint):
        async with server.client() as client:

            async def listening() -> bool:
                return bool((await client.pubsub_numsub(f"{LEASES.partition(':leases')[0]}:freed"))[0][1])

            await until(listening, "a gateway that listens")
        for turn in range(20):  # one hint may be lost
            await taken(one, str(turn))
            one.release(str(turn))
            if hint.is_set():
                break
            await asyncio.sleep(0.05)
        await asyncio.wait_for(hint.wait(), 10)


# -- cancelled and broken -------------------------------------------------------------------------------


class Delaying(Proxy):
    """Every reply comes late, and every connection is otherwise well."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        back, forth = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(
                forward(reader, forth),
                spoil(back, writer, Toxics(latency=DELAY_SECONDS)),
                return_exceptions=True,
            )
        finally:
            writer.transport.abort()
            forth.transport.abort()


@asynccontextmanager
async def delaying(port: int) -> AsyncIterator[str]:
    """Run one; its URL."""
    one = Delaying(port, 0)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def ask_and_leave(ledger: Ledger, dice: random.Random, count: int, slots: int) -> Counter[str]:
    """So many calls, most of which leave at any moment, and what became of them. They hold what the ledger
    gave, never more than there is."""
    outcomes: Counter[str] = Counter()
    holding: set[str] = set()

    async def call(id: str) -> None:
        given = await take(ledger, id, slots)
        if given:
            holding.add(id)
            assert len(holding) <= slots
            try:
                await asyncio.sleep(dice.uniform(0, DELAY_SECONDS))
            finally:
                holding.discard(id)
        outcomes[str(given)] += 1

    async def client(number: int) -> None:
        for turn in range(count // 32):
            id = f"{number}-{turn}"
            task = asyncio.create_task(call(id))
            if dice.random() < 0.7:
                asyncio.get_running_loop().call_later(dice.uniform(0, 3 * DELAY_SECONDS), task.cancel)
            await asyncio.wait([task])
            ledger.release(id)
            if task.cancelled():
                outcomes["left"] += 1
            else:
                task.result()

    await asyncio.gather(*(client(number) for number in range(32)))
    return outcomes


async def calls_that_leave(count: int) -> None:
    async with redis_server() as server, delaying(server.port) as url, account(url) as ledger:
        await taken(ledger, "first")
        ledger.release("first")
        outcomes = await ask_and_leave(ledger, random.Random(1), count, 4)
        assert outcomes["left"] > count / 10
        assert outcomes["True"] > count / 30
        await emptied(server)


async def test_calls_that_leave_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Cancelled at any offset while every reply takes 20 ms: each answer is that to its own question, nobody
    holds more than there is, and in the end the ledger is empty."""
    with caplog.at_level(logging.ERROR):
        await calls_that_leave(CANCELLED)
    assert not defects(caplog)


@pytest.mark.long
async def test_ten_thousand_calls_that_leave_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """The same with more of them."""
    with caplog.at_level(logging.ERROR):
        await calls_that_leave(CANCELLED_LONG)
    assert not defects(caplog)


async def test_a_connection_that_breaks_at_any_byte_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """Replies that are late, in pieces, cut, reset, or held for ever, on one connection after another: the
    account falls back on its share and shares again, and in the end the ledger is empty."""
    async with redis_server() as server, server.client() as client, proxy(server.port, 7) as line:
        line.share = 0.7
        with caplog.at_level(logging.ERROR, "slotgate"):
            async with account(line.url.replace("http", "redis")) as ledger:
                outcomes: Counter[str] = Counter()
                for turn in range(2000):
                    outcomes += await ask_and_leave(ledger, random.Random(turn), 64, 4)
                    await client.client_kill_filter(_type="normal", skipme=True)
                    await asyncio.sleep(0.02)
                    if line.suffered.total() >= BROKEN_MIN and outcomes["True"] and outcomes["None"]:
                        break
                line.share = 0.0
                await client.client_kill_filter(_type="normal", skipme=True)
                await taken(ledger, "last")
                assert ledger.mode is Mode.SHARED
                ledger.release("last")
                await emptied(server)
        assert not defects(caplog)
        assert line.suffered.total() >= BROKEN_MIN
        assert outcomes["True"] > 0
        assert outcomes["None"] > 0


# -- few rights, TLS, a cluster ---------------------------------------------------------------------------


@needs("openssl")
async def test_few_rights_suffice(tmp_path: Path) -> None:
    """A user with the commands and keys of the README's line, over TLS with a checked certificate: slots are
    taken and given back, hints come, notes are left and read. With another password the account says so,
    without saying it."""
    arguments, url = guarded(tmp_path)
    async with redis_server(*arguments, url=url) as server:
        hint = asyncio.Event()
        async with account(url) as one, account(url, hints=hint) as other:
            await taken(one, "a")
            for turn in range(40):
                await taken(one, str(turn))
                one.release(str(turn))
                if hint.is_set():
                    break
                await asyncio.sleep(0.05)
            assert hint.is_set()
            assert (one.mode, other.mode) == (Mode.SHARED, Mode.SHARED)
            assert one.elsewhere[ENGINE] == 0
        notes = RedisStream(url, POOL)
        assert [note for _, note in await notes.exchange([b"a", b"b"], await notes.recent())] == [b"a", b"b"]
        await notes.close()
        async with account(url.replace("hush", "wrong")) as stranger:
            await until(lambda: stranger.fault, "a fault")
            assert "invalid username-password" in stranger.fault
            assert "wrong" not in stranger.fault
        assert server.process.exit_code is None


def test_the_readme_gives_these_rights() -> None:
    """In one line that can be copied."""
    assert f"user {USER} on >PASSWORD {RIGHTS}\n" in README.read_text()


async def test_all_keys_are_in_one_slot_of_a_cluster() -> None:
    """Two nodes, one of which has all slots: also who asks the other one gets his, as it follows."""
    buses = free_port(), free_port()  # else the ports above theirs by 10,000, which may be taken
    options = [("--cluster-enabled", "yes", "--cluster-port", str(bus)) for bus in buses]
    async with redis_server(*options[0]) as one, redis_server(*options[1]) as other:
        async with one.client() as first, other.client() as second:
            await first.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            await second.execute_command("CLUSTER MEET", "127.0.0.1", one.port, buses[0])

            async def joined() -> bool:
                return (await second.execute_command("CLUSTER INFO"))["cluster_state"] == "ok"

            await until(joined, "a cluster")
        async with account(other.url) as a, account(one.url) as b:
            await taken(a, "x", 1)
            assert await take(b, "y", 1) is False
            a.release("x")
            await taken(b, "y", 1)
            assert (a.mode, b.mode) == (Mode.SHARED, Mode.SHARED)
        notes = RedisStream(other.url, POOL)
        with pytest.raises(Unavailable):
            await notes.exchange([b"a"], "0")
        assert [note for _, note in await notes.exchange([b"b"], "0")] == [b"b"]
        await notes.close()
