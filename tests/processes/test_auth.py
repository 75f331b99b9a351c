"""Client keys: what is open without one, what each may do, and where a key never turns up."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.processes.asking import CHAT, COMPLETIONS, Headers, arrival, ask, fault, metric, of, waits
from tests.processes.fleet import becomes
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

FULL, NARROW, SLOW, OLD = (f"sk-{name}-canary-4711" for name in ("full", "narrow", "slow", "old"))
ENGINE_KEY = "engine-canary-4711"


def key(secret: str, **more: object) -> dict[str, object]:
    """A key as it is configured: by its hash."""
    return {"sha256": hashlib.sha256(secret.encode()).hexdigest()} | more


KEYS = [
    key(FULL, name="team-full"),
    key(NARROW, name="team-narrow", models=["small"]),
    key(SLOW, name="team-slow", priority="batch"),
    key(OLD, name="team-old", expires="2020-01-01"),
]


def bearer(secret: str) -> list[tuple[str, str]]:
    """The header that presents it."""
    return [("Authorization", f"Bearer {secret}")]


@dataclass(frozen=True)
class Stage:
    """A gateway with keys, and an engine with one slot that serves two models."""

    gateway: Gateway
    engine: Engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Stage]:
    """The processes, for all tests of this module."""
    async with engine("openai", model=["large", "small"], tokens=3, decode_tps=500.0) as one:
        backends = [{"name": "one", "url": one.url, "slots": 1, "api_key": ENGINE_KEY}]
        async with gateway({"backends": backends, "keys": KEYS}) as front:
            await becomes(front, "one", "ready", 30.0)
            yield Stage(front, one)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: Stage) -> Stage:
    """An engine that counts from here."""
    await running.engine.idle()
    await running.engine.reset()
    return running


WRONG: dict[str, list[tuple[str, str]]] = {
    "none": [],
    "empty": bearer(""),
    "unknown": bearer("sk-unknown"),
    "expired": bearer(OLD),
    "the hash": bearer(hashlib.sha256(FULL.encode()).hexdigest()),
    "the name": bearer("team-full"),
    "cut": bearer(FULL[:-1]),
    "other case": bearer(FULL.upper()),
    "basic": [("Authorization", f"Basic {FULL}")],
    "no scheme": [("Authorization", FULL)],
    "of the engine": bearer(ENGINE_KEY),
    "very long": bearer("x" * 60_000),
    "not ASCII": [("X-Api-Key", "schl\u00fcssel")],
    "in a cookie": [("Cookie", f"api_key={FULL}")],
}
CLOSED = [
    ("POST", CHAT),
    ("POST", COMPLETIONS),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/small"),
    ("GET", "/metrics"),
]


@pytest.mark.parametrize("case", WRONG)
async def test_without_a_valid_key_nothing_is_answered(stage: Stage, case: str) -> None:
    """401 with the same words whatever is wrong, on every route that is not open."""
    words = set()
    for method, path in CLOSED:
        value = json.dumps(chat("x") | {"model": "small"}).encode() if method == "POST" else b""
        answer = await ask(stage.gateway, value, WRONG[case], path=path, method=method)
        error = fault(answer, 401, "invalid_api_key")
        assert error["type"] == "authentication_error"
        words.add(error["message"])
    assert len(words) == 1
    assert not (await stage.engine.state())["received"]


async def test_a_wrong_key_is_told_before_a_wrong_body(stage: Stage) -> None:
    """Who may not ask learns nothing of models or of what a body must be."""
    for value in (b"{bad", json.dumps(chat("x") | {"model": "nobody-has-it"}).encode(), b""):
        headers = [("Content-Length", "0")] * (not value)
        fault(await ask(stage.gateway, value, headers), 401, "invalid_api_key")


async def test_what_is_open(stage: Stage) -> None:
    """Health and readiness; an unknown path is unknown before any key is looked at."""
    for path in ("/health", "/ready"):
        for headers in ([], bearer("sk-unknown")):
            assert (await ask(stage.gateway, b"", headers, path=path, method="GET")).head.status == 200
    for path in ("/admin/backends", "/nothing", "/slots"):
        fault(await ask(stage.gateway, b"", path=path, method="GET"), 404, "not_found")


@pytest.mark.parametrize(
    "headers",
    [
        bearer(FULL),
        [("authorization", f"bearer   {FULL}")],
        [("X-Api-Key", FULL)],
        [("X-API-Key", "sk-unknown"), *bearer(FULL)],
        [*bearer("unused"), ("x-api-key", FULL)],
    ],
    ids=["bearer", "lower case", "x-api-key", "the second of two", "the first is a dummy"],
)
async def test_a_valid_key_opens(stage: Stage, headers: Headers) -> None:
    """By either header; SDKs that send both have a dummy in one of them."""
    for method, path in CLOSED:
        value = b""
        if method == "POST":
            value = json.dumps(
                {"model": "large", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
            ).encode()
        answer = await ask(stage.gateway, value, headers, path=path, method=method)
        assert answer.head.status == 200, (path, answer)


async def test_a_key_for_some_models(stage: Stage) -> None:
    """403 for the others, before they are looked for; the list shows its own only."""
    answer = await ask(stage.gateway, chat("x") | {"model": "small"}, bearer(NARROW))
    assert answer.head.status == 200
    for model in ("large", "nobody-has-it"):
        error = fault(
            await ask(stage.gateway, chat("x") | {"model": model}, bearer(NARROW)), 403, "forbidden"
        )
        assert error["type"] == "permission_error"
        assert "small" not in error["message"]
    listed = json.loads((await ask(stage.gateway, b"", bearer(NARROW), path="/v1/models", method="GET")).body)
    assert [one["id"] for one in listed["data"]] == ["small"]
    answer = await ask(stage.gateway, b"", bearer(NARROW), path="/v1/models/large", method="GET")
    assert "large" not in fault(answer, 404, "model_not_found")["message"].partition("These exist")[2]
    assert not [record for record in await stage.engine.records() if record["outcome"] != "completed"]


async def test_a_key_has_a_highest_class(stage: Stage) -> None:
    """Whatever it asks for: with a batch key nobody overtakes."""
    await stage.engine.script(match="runs", token_seconds=60.0)
    async with await RawClient.connect(stage.gateway.url) as first:
        await first.post(CHAT, chat("runs") | {"model": "large"}, bearer(FULL))
        await arrival(stage.engine, "runs")
        asking = []
        for number, (secret, asked) in enumerate(
            ((SLOW, "interactive"), (FULL, "agent"), (FULL, "interactive"))
        ):
            headers = [*bearer(secret), ("X-Slotgate-Priority", asked)]
            body = chat(f"{number} waits") | {"model": "large"}
            asking.append(asyncio.create_task(ask(stage.gateway, body, headers)))
            await waits(stage.gateway, number + 1)
        queue = (await stage.gateway.operator.get("/admin/queue")).json()
        assert [waiting["class"] for waiting in queue] == ["interactive", "agent", "batch"]
        assert [waiting["agent"] for waiting in queue] == ["team-full", "team-full", "team-slow"]
        first.close()
        assert {answer.head.status for answer in await asyncio.gather(*asking)} == {200}
    order = [record["key"] for record in await stage.engine.records() if record["key"] != "runs"]
    assert order == ["2 waits", "1 waits", "0 waits"]


async def test_keys_turn_up_nowhere(stage: Stage) -> None:
    """Not at the engine, in answers, metrics, log or admin port; the engine's own stays at the engine."""
    seen = []
    for secret in (FULL, NARROW, OLD):
        for headers in (bearer(secret), [("X-Api-Key", secret)]):
            answer = await ask(stage.gateway, chat("x") | {"model": "small"}, headers)
            seen += [answer.body.decode(), str(answer.head.headers)]
    await stage.engine.script(status=500, body="no")
    seen.append((await ask(stage.gateway, chat("x") | {"model": "small"}, bearer(FULL))).body.decode())
    for path in ("/admin/backends", "/admin/queue", "/admin/requests", "/metrics"):
        seen.append((await stage.gateway.operator.get(path)).text)
    received = await stage.engine.requests(100)
    assert received
    for request in received:
        assert dict(request["headers"])["Authorization"] == f"Bearer {ENGINE_KEY}"
        assert "sk-" not in str(request["headers"])
    seen += [stage.gateway.process.errors, stage.gateway.process.output]
    assert not [text for text in seen if "canary" in text]


async def test_refusals_are_counted_without_a_name(stage: Stage) -> None:
    """As rejected; neither the model nor the key that was tried becomes a label."""
    before = await metric(stage.gateway, "slotgate_requests_total", outcome="rejected")
    for _ in range(3):
        await ask(stage.gateway, chat("x") | {"model": "large"}, bearer("sk-guess"))
    after = await metric(stage.gateway, "slotgate_requests_total", outcome="rejected")
    assert after == before + 3
    assert "guess" not in (await stage.gateway.operator.get("/metrics")).text
    assert not await of(stage.engine, "x")
