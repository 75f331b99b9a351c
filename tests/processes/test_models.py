"""Models and aliases: what clients are told, which engine serves them, and what it is sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from tests.processes.asking import Reply, arrival, ask, counted, fault, metric, of, waits
from tests.processes.fleet import becomes
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway

SECRET = "sk-agent-canary-4711"
BEARER = [("Authorization", f"Bearer {SECRET}")]
KEY = {"name": "team", "sha256": hashlib.sha256(SECRET.encode()).hexdigest(), "models": ["agent"]}
# What Hermes 0.19.0 asks, without a key, before its first request: each waits up to 2 s for its answer.
PROBES = ("/api/v1/models", "/api/tags", "/v1/props", "/props", "/version", "/models", "/api/show")


def backends(*engines: Engine, **of_last: Any) -> list[dict[str, Any]]:
    """b0, b1, ... as engines that tell neither slots nor context; `of_last` are options of the last one."""
    tables: list[dict[str, Any]] = [
        {
            "name": f"b{i}",
            "url": one.url,
            "engine": "openai",
            "slots": one.options.get("slots", 1),
            "context_tokens": one.options["context_tokens"],
        }
        for i, one in enumerate(engines)
    ]
    tables[-1] |= of_last
    return tables


def serving(reply: Reply) -> str:
    """The backend that gave a good answer."""
    assert reply.head.status == 200, reply
    return reply.head.headers["x-slotgate-backend"]


async def models(front: Gateway, headers: Any = ()) -> dict[str, int | None]:
    """Listed models with their contexts."""
    reply = await ask(front, b"", headers, path="/v1/models", method="GET")
    assert reply.head.status == 200
    return {one["id"]: one.get("context_length") for one in json.loads(reply.body)["data"]}


async def test_an_alias_is_served_by_its_target_and_by_its_fallback_while_that_is_away() -> None:
    """The engine is sent its own model's name in the client's bytes; the client keeps using the alias."""
    async with (
        engine("openai", model=["big"], slots=2, context_tokens=8000) as big,
        engine("openai", model=["spare"], slots=2, context_tokens=4000) as spare,
        gateway(
            {
                "backends": backends(big, spare),
                "models": {"agent": {"targets": ["big"], "fallbacks": ["spare"]}},
            }
        ) as front,
    ):
        for name in ("b0", "b1"):
            await becomes(front, name, "ready")
        assert await models(front) == {"agent": 4000, "big": 8000, "spare": 4000}
        body = b'{ "messages":[{"role":"user","content":"hi"}], "model" : "agent",  "x":1.50 }'
        for number in range(4):
            assert serving(await ask(front, body)) == "b0", number
        assert (await big.requests())[0]["body"] == body.replace(b'"agent"', b'"big"')
        streamed = await ask(front, chat("streamed") | {"model": "agent"})
        assert (serving(streamed), streamed.ended) == ("b0", "clean")
        assert serving(await ask(front, body.replace(b"agent", b"spare"))) == "b1"

        await big.process.kill()
        assert serving(await ask(front, body)) == "b1"  # as soon as nobody listens there
        await becomes(front, "b0", "down")
        assert serving(await ask(front, body)) == "b1"
        assert (await spare.requests())[0]["body"] == body.replace(b'"agent"', b'"spare"')

        await big.restart()
        await becomes(front, "b0", "ready")
        assert serving(await ask(front, body)) == "b0"
        requests = "slotgate_requests_total"
        await counted(front, requests, 6, model="agent", backend="b0", outcome="completed")
        await counted(front, requests, 2, model="agent", backend="b1", outcome="completed")
        await counted(front, requests, 1, model="spare", backend="b1", outcome="completed")


async def test_a_key_for_an_alias_need_not_name_its_targets() -> None:
    """It may use the alias, and neither use nor see what stands behind it."""
    async with (
        engine("openai", model=["big", "other"], context_tokens=8000) as one,
        gateway(
            {
                "backends": backends(one),
                "keys": [KEY],
                "models": {"agent": {"targets": ["big"], "advertise_context": 64_000}},
            }
        ) as front,
    ):
        assert serving(await ask(front, chat("x") | {"model": "agent"}, BEARER)) == "b0"
        for model in ("big", "other", "nobody-has-it"):
            answer = await ask(front, chat("x") | {"model": model}, BEARER)
            assert "big" not in fault(answer, 403, "forbidden")["message"]
        assert await models(front, BEARER) == {"agent": 64_000}
        page = await ask(front, b"", BEARER, path="/v1/models/agent", method="GET")
        assert json.loads(page.body)["max_model_len"] == 64_000
        hidden = await ask(front, b"", BEARER, path="/v1/models/big", method="GET")
        assert fault(hidden, 404, "model_not_found")["message"].endswith("These exist: agent.")
        assert await metric(front, "slotgate_requests_total", model="nobody-has-it") == 0


async def test_everything_but_requests_is_answered_while_engines_load() -> None:
    """The list of models, with the alias; probes for other servers get their 404 before any key check."""
    alias = {"agent": {"targets": ["big"], "advertise_context": 64_000}}
    async with (
        engine("llamacpp", model=["big"], loading_seconds=600.0) as one,
        gateway(
            {"backends": [{"name": "b0", "url": one.url}], "keys": [KEY], "models": alias},
            wait_for="/health",
        ) as front,
    ):
        async with asyncio.timeout(30.0):
            assert await models(front, BEARER) == {"agent": 64_000}
            for headers in ([], BEARER, [("Authorization", "Bearer wrong")]):
                for path in PROBES:
                    for method in ("GET", "POST"):
                        fault(await ask(front, b"", headers, path=path, method=method), 404, "not_found")
            fault(await ask(front, b"", path="/v1/models", method="GET"), 401, "invalid_api_key")


async def test_a_backup_serves_only_while_no_other_can() -> None:
    """Not when the others are full; at once when they are gone, also those who wait already."""
    async with (
        engine("openai", model=["big"], context_tokens=8000) as main,
        engine("openai", model=["big"], slots=2, context_tokens=8000) as backup,
        gateway({"backends": backends(main, backup, backup=True)}) as front,
    ):
        for name in ("b0", "b1"):
            await becomes(front, name, "ready")
        await main.script(match="runs", token_seconds=60.0)
        async with (
            await RawClient.connect(front.url) as first,
            await RawClient.connect(front.url) as second,
        ):
            await first.post(CHAT, chat("runs") | {"model": "big"})
            await arrival(main, "runs")
            await second.post(CHAT, chat("waits") | {"model": "big"})
            await waits(front)
            (waiting,) = (await front.operator.get("/admin/queue")).json()
            assert waiting["why"] == {"b0": "slots", "b1": "standby"}
            await main.process.kill()
            assert (await second.head()).headers["x-slotgate-backend"] == "b1"
            await second.body()
        assert await of(backup, "waits")
        await main.restart()
        await becomes(front, "b0", "ready")
        assert serving(await ask(front, chat("again") | {"model": "big"})) == "b0"


async def test_an_engine_that_serves_a_model_named_as_an_alias() -> None:
    """The alias wins, and one line of the log says so: the configuration was read long before."""
    async with (
        engine("openai", model=["agent"], context_tokens=8000) as namesake,
        engine("openai", model=["big"], context_tokens=4000) as big,
        gateway({"backends": backends(namesake, big), "models": {"agent": {"targets": ["big"]}}}) as front,
    ):
        for name in ("b0", "b1"):
            await becomes(front, name, "ready")
        assert await models(front) == {"agent": 4000, "big": 4000}
        for _ in range(3):
            assert serving(await ask(front, chat("x") | {"model": "agent"})) == "b1"
        await namesake.restart()
        await becomes(front, "b0", "ready")
        warning = "b0 serves a model 'agent', which is also an alias"
        messages = [json.loads(line)["message"] for line in front.process.errors.splitlines()]
        assert len([message for message in messages if message.startswith(warning)]) == 1


async def test_an_alias_is_served_on_every_route() -> None:
    """Each engine refuses a model that it does not know, so it was told its own; a route that the target's
    engine lacks is served by the fallback's."""
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    bodies: dict[str, dict[str, Any]] = {
        CHAT: asked,
        COMPLETIONS: {"prompt": "hi"},
        RESPONSES: {"input": "hi"},
        MESSAGES: asked,
        COUNT_TOKENS: asked,
        TOKENIZE: {"prompt": "hi"},
        EMBEDDINGS: {"input": "hi"},
    }
    async with (
        engine("vllm", model=["big"]) as big,
        engine("sglang", model=["spare"], embeddings=True) as spare,
        gateway(
            {
                "backends": [{"name": "b0", "url": big.url}, {"name": "b1", "url": spare.url}],
                "models": {"agent": {"targets": ["big"], "fallbacks": ["spare"]}},
            }
        ) as front,
    ):
        for name in ("b0", "b1"):
            await becomes(front, name, "ready")
        for path, body in bodies.items():
            reply = await ask(front, body | {"model": "agent"}, path=path)
            assert serving(reply) == ("b1" if path == EMBEDDINGS else "b0"), path


@pytest.mark.parametrize("streams", [True, False])
async def test_tokens_in_flight_stay_within_the_budget(streams: bool) -> None:
    """Eight slots, room for two prompts with their answers: never three at once, and all are served."""
    async with (
        engine(
            "openai", model=["big"], slots=8, context_tokens=8000, prefill_tps=1e6, decode_tps=100.0
        ) as one,
        gateway(
            {"backends": backends(one, kv_tokens=2500), "routing": {"prefill_gate_seconds": 60.0}}
        ) as front,
    ):
        await becomes(front, "b0", "ready")
        await one.reset()
        body = {"model": "big", "max_tokens": 20, "stream": streams}
        asking = (ask(front, chat(f"{number} " + "word" * 1000) | body) for number in range(12))
        for reply in await asyncio.gather(*asking):
            assert serving(reply) == "b0"
        state = await one.state()
        assert (state["received"], state["max_concurrent"]) == (12, 2)
        assert state["max_held"] <= 2500
