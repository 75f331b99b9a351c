"""Another configuration while it runs: nobody notices, but those whose key is gone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import signal
from collections import Counter
from typing import Any

from tests.processes.asking import CHAT, ask, backend, fault, metric, reply
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway, toml, until

log = logging.getLogger("tests.reload")

RELOADS = 100
CLIENTS = 8
WARM = {"warmup": {"requests": 0}}


def rewrite(front: Gateway, config: dict[str, Any]) -> None:
    """Another configuration in the gateway's file; addresses stay."""
    server = {"port": int(front.url.rpartition(":")[2]), "admin_port": int(front.admin.rpartition(":")[2])}
    front.config.write_text(toml(config | {"server": server | config.get("server", {})}))


async def reload(front: Gateway, config: dict[str, Any]) -> dict[str, Any]:
    """Have it followed."""
    rewrite(front, config)
    response = await front.operator.post("/admin/reload")
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


def named(one: Engine, name: str, slots: int = 2) -> dict[str, Any]:
    """An engine as it is configured."""
    return {"name": name, "url": one.url, "slots": slots} | WARM


async def test_a_hundred_reloads_under_load() -> None:
    """Engines come and go, get other slots and other names: no request fails, no connection is dropped, and
    no engine ever has more than its slots."""
    async with (
        engine(slots=2, tokens=4, decode_tps=200.0) as a,
        engine(slots=2, tokens=4, decode_tps=200.0) as b,
        engine(slots=2, tokens=4, decode_tps=200.0) as c,
    ):
        fleets = [
            [named(a, "a"), named(b, "b"), named(c, "c")],  # add
            [named(a, "a"), named(c, "c")],  # remove
            [named(a, "a", 1), named(c, "c")],  # resize
            [named(a, "a", 1), named(c, "d")],  # rename
            [named(a, "a"), named(b, "c")],  # a name that was another's
        ]
        async with gateway({"backends": fleets[1]}) as front:
            stop, answered = asyncio.Event(), 0

            async def client(number: int) -> None:
                nonlocal answered
                async with await RawClient.connect(front.url) as connection:
                    while not stop.is_set():
                        await connection.post(CHAT, chat(f"{number} asks", stream=number % 2 == 0))
                        answer = await reply(connection)
                        assert answer.head.status == 200 and answer.ended == "clean" and answer.text, answer
                        answered += 1
                        connection.ended = None

            async with asyncio.TaskGroup() as clients:
                for number in range(CLIENTS):
                    clients.create_task(client(number))
                for number in range(RELOADS):
                    told = await reload(front, {"backends": fleets[number % len(fleets)]})
                    assert told["standing"] == []
                    await asyncio.sleep(0.02)
                stop.set()
            log.info("%d requests answered over %d reloads", answered, RELOADS)
            assert answered >= RELOADS
            assert (await reload(front, {"backends": fleets[0]}))["changed"] == ["backends"]
            for name in "abc":
                await becomes(front, name, "ready")
            await settled(front, *"abc")
            listed = (await front.operator.get("/admin/backends")).json()
            assert sorted(one["name"] for one in listed) == ["a", "b", "c"]
        counts = [await one.state() for one in (a, b, c)]
        assert not any(state["over_slots"] for state in counts)
        assert sum((Counter(state["outcomes"]) for state in counts), Counter()) == {"completed": answered}


def key(secret: str, **more: Any) -> dict[str, Any]:
    """A key as it is configured."""
    return {"name": secret, "sha256": hashlib.sha256(secret.encode()).hexdigest()} | more


def bearer(secret: str) -> list[tuple[str, str]]:
    """The header that presents it."""
    return [("Authorization", f"Bearer {secret}")]


async def test_a_key_is_revoked_and_a_broken_file_changes_nothing() -> None:
    """By SIGHUP: a stream that runs goes on, the next request is refused. A file that is wrong is told by
    answer, log and metric, and the right one after it is followed."""
    async with engine(slots=2, tokens=20, decode_tps=20.0) as one:
        config = configured(one, backend=WARM)
        async with gateway(config | {"keys": [key("alice"), key("bob")]}) as front:
            running = asyncio.create_task(ask(front, chat("runs"), bearer("alice")))
            await one.busy()
            rewrite(front, config | {"keys": [key("bob")]})
            front.process.signal(signal.SIGHUP)

            async def refused() -> bool:
                return (await ask(front, b"{}", bearer("alice"))).head.status == 401

            await until(refused, "a key that opens nothing", 5.0)
            assert (await ask(front, chat("x", max_tokens=1), bearer("bob"))).head.status == 200
            assert (await running).events[-1].done

            front.config.write_text("[queue]\nwaiting_max = 0\n")
            response = await front.operator.post("/admin/reload")
            told = response.json()["error"]
            assert (response.status_code, told["code"]) == (400, "invalid_request")
            assert str(front.config) in told["message"] and "queue.waiting_max" in told["message"]
            assert await metric(front, "slotgate_config_invalid") == 1
            assert "queue.waiting_max" in front.process.errors
            assert (await ask(front, chat("x", max_tokens=1), bearer("bob"))).head.status == 200
            await reload(front, config | {"keys": [key("carol")]})
            assert await metric(front, "slotgate_config_invalid") == 0
            fault(await ask(front, b"{}", bearer("bob")), 401, "invalid_api_key")


async def test_a_key_has_no_more_requests_at_a_time_than_it_may() -> None:
    """However many come at once: exactly so many are let in, waiting ones too; the rest hears when to come
    back, takes no slot, and those of other keys are served."""
    most = 3
    async with engine(slots=2, tokens=4, decode_tps=100.0) as one:
        keys = [key("alice", concurrency_max=most), key("bob")]
        async with gateway(configured(one, backend=WARM, keys=keys)) as front:
            await one.script(match="alice", token_seconds=60.0)
            async with asyncio.TaskGroup() as group:
                asking = [
                    group.create_task(ask(front, chat(f"alice {i}", stream=i % 2 == 0), bearer("alice")))
                    for i in range(20)
                ]

                async def turned_away() -> bool:
                    return sum(task.done() for task in asking) == len(asking) - most

                await until(turned_away, "all but three answered")
                for task in asking:
                    if task.done():
                        answer = task.result()
                        fault(answer, 429, "key_concurrency")
                        assert 1 <= int(answer.head.headers["retry-after"]) <= 60
                assert (await one.state())["received"] == 2  # two run, one waits
                bob = group.create_task(ask(front, chat("bob"), bearer("bob")))
                await one.script()
                for id in [r["id"] for r in (await front.operator.get("/admin/requests")).json()]:
                    await front.operator.delete(f"/admin/requests/{id}")
                assert (await bob).head.status == 200
            await settled(front, "b0")
            assert (await ask(front, chat("x"), bearer("alice"))).head.status == 200


async def test_engines_are_added_and_removed_by_call() -> None:
    """Only where the configuration allows it; an added one outlasts a reload, and a removed one drains."""
    async with (
        engine(slots=1, tokens=40, decode_tps=20.0) as a,
        engine(slots=1, tokens=4, decode_tps=100.0) as b,
    ):
        allowed = [b.url.removeprefix("http://")]
        config = configured(a, backend=WARM) | {"server": {"allowed_backends": allowed}}
        async with gateway(config) as front:
            add = front.operator.post
            new = {"name": "new", "url": b.url + "/v1", "slots": 1, "api_key": "canary"} | WARM
            for body, status in (
                (new | {"url": "http://127.0.0.1:1"}, 403),
                (new | {"url": "http://localhost:" + b.url.rpartition(":")[2]}, 403),
                (new | {"url": "file:///etc/passwd"}, 400),
                (new | {"name": "b0"}, 400),
                (new | {"slots": 0}, 400),
                (new | {"unknown": 1}, 400),
            ):
                response = await add("/admin/backends", json=body)
                assert response.status_code == status, (body, response.text)
                assert "canary" not in response.text
            response = await add("/admin/backends", json=new)
            assert response.status_code == 201 and response.json()["url"] == b.url
            await becomes(front, "new", "ready")
            await reload(front, config)
            assert (await backend(front, "new"))["state"] == "ready"
            running = asyncio.create_task(ask(front, chat("runs")))
            await until(lambda: _takes(front, "b0"), "a request at b0")
            gone = await front.operator.delete("/admin/backends/b0")
            assert gone.json() == {"state": "draining", "in_flight": 1}
            for _ in range(3):
                assert (await ask(front, chat("x"))).head.headers["x-slotgate-backend"] == "new"
            assert (await running).events[-1].done

            async def left() -> bool:
                names = [one["name"] for one in (await front.operator.get("/admin/backends")).json()]
                return names == ["new"]

            await until(left, "only the new one")
            assert "canary" not in front.process.errors + (await front.operator.get("/metrics")).text


async def _takes(front: Gateway, name: str) -> bool:
    return bool((await backend(front, name))["slots"]["in_use"])


async def test_it_is_stopped_by_call() -> None:
    """As by SIGTERM: not ready at once, what runs is finished; a second call hurries nothing."""
    async with (
        engine(slots=1, tokens=30, decode_tps=20.0) as one,
        gateway(configured(one, backend=WARM, server={"shutdown_pause_seconds": 0.5})) as front,
    ):
        running = asyncio.create_task(ask(front, chat("runs")))
        await one.busy()
        front.expect_end()
        for _ in range(2):
            response = await front.operator.post("/admin/shutdown")
            assert (response.status_code, response.json()) == (200, {"in_flight": 1})
        assert (await front.client.get("/ready")).status_code == 503
        assert (await running).events[-1].done
        assert await front.process.ended(10.0) == 0
        assert json.loads(front.process.errors.splitlines()[-1])["message"] == "stopped"


async def test_whatever_is_wrong_with_its_engines_it_starts_and_finds_them_later() -> None:
    """One is down, one has no address, one wants another key: each is told, and is used when it is mended."""
    async with engine(slots=1) as down, engine(slots=1) as locked, engine(slots=1) as other:
        await down.process.kill()
        await locked.script(path="/v1/models", status=401, body='{"error": "key"}', times=None)
        nowhere = {"name": "nowhere", "url": "http://no-such-host.invalid:8000", "slots": 1} | WARM
        backends = [named(down, "down", 1), nowhere, named(locked, "locked", 1)]
        async with gateway({"backends": backends}, wait_for="/health") as front:
            await becomes(front, "down", "down")
            await becomes(front, "nowhere", "down")
            assert "host name" in (await backend(front, "nowhere"))["reason"]
            assert (await backend(front, "locked"))["state"] != "ready"
            assert (await front.client.get("/ready")).status_code == 503
            await down.restart()
            await locked.reset()
            await reload(front, {"backends": [backends[0], named(other, "nowhere", 1), backends[2]]})
            for name in ("down", "nowhere", "locked"):
                await becomes(front, name, "ready")
