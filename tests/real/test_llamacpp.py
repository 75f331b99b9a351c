"""The gateway in front of a real llama.cpp server. The engine is the witness: what it answers when it is
asked directly, and what its `/slots`, `/metrics` and log say of what it did."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from gateway.demo.child import start_engine
from gateway.demo.model import cache_folder, fetch
from gateway.engines.llamacpp import LlamaCpp
from tests.processes.asking import CHAT, COMPLETIONS, Reply, ask, backend, fault, metric, queued, reply, waits
from tests.processes.harness import Gateway, Head, RawClient, gateway, until
from tests.real.llamacpp_server import LlamaCppServer, llamacpp_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOTS = 2
CONTEXT_TOKENS = 1024
TOKENS_MAX = 24
SECONDS = 60.0  # for what takes a second or two on an idle machine
KINDS = ("prompt", "cached", "completion")
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
ROUTES = pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=["chat", "completions"])

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# What differs between two runs of one request: the names of the run and its times.
OF_ONE_RUN = re.compile(rb'"(id|created|\w+_ms|\w+_per_second)":("[^"]*"|[\d.e+-]+)')


def request(content: str = "Name three colours.", path: str = CHAT, **more: Any) -> dict[str, Any]:
    """A request whose answer is always the same, however warm the engine is."""
    prompt = {"messages": [{"role": "user", "content": content}]} if path == CHAT else {"prompt": content}
    body = {
        "model": "smollm2-135m",
        "max_tokens": TOKENS_MAX,
        "temperature": 0,
        "seed": 7,
        "cache_prompt": False,
    }
    return body | prompt | more


def story(content: str = "Tell a long story.", **more: Any) -> dict[str, Any]:
    """A request that keeps its slot for ten seconds or more, unless its client leaves."""
    return request(content, **{"max_tokens": 900, "ignore_eos": True, "stream": True} | more)


class Engine:
    """The real one, asked directly."""

    def __init__(self, server: LlamaCppServer, log: Path, http: httpx.AsyncClient) -> None:
        self.server = server
        self._log = log
        self._http = http

    async def get(self, path: str) -> Any:
        """A page of its own."""
        return (await self._http.get(path)).raise_for_status().json()

    async def ask(self, path: str, body: dict[str, Any]) -> Reply:
        """Its own answer to a request."""
        answer = await self._http.post(path, json=body)
        return Reply(
            Head(answer.status_code, dict(answer.headers), time.monotonic()), answer.content, "clean"
        )

    async def tasks(self) -> set[int]:
        """What it works on. Nobody may ask in a loop faster than once a second."""
        return {slot["id_task"] for slot in await self.get("/slots") if slot["is_processing"]}

    async def counts(self) -> dict[str, float]:
        """Its counters and gauges, without the prefix; tokens by the gateway's names too."""
        families = text_string_to_metric_families((await self._http.get("/metrics")).text)
        counts = {s.name.removeprefix("llamacpp:"): s.value for family in families for s in family.samples}
        counts["cached"] = counts["prompt_tokens_cached_total"]
        counts["prompt"] = counts["prompt_tokens_total"] + counts["cached"]
        counts["completion"] = counts["tokens_predicted_total"]
        return counts

    def refused_as_too_long(self) -> int:
        """How many requests it refused for their length."""
        return self._log.read_text(errors="replace").count("exceeds the available context size")


Tokens = dict[str, float]


async def tokens(engine: Engine, one: Gateway) -> tuple[Tokens, Tokens]:
    """What the engine counted by kind; what the gateway says that engines reported, `all` from any source."""
    name, counts = "slotgate_tokens_total", await engine.counts()
    reported = {kind: await metric(one, name, kind=kind, source="reported") for kind in KINDS}
    return {kind: counts[kind] for kind in KINDS}, reported | {"all": await metric(one, name)}


async def accounted(
    engine: Engine, one: Gateway, before: tuple[Tokens, Tokens], *usages: dict[str, Any]
) -> None:
    """Wait until the gateway has counted this usage; the engine has too, and reported each token of it."""
    expected: Tokens = {
        "prompt": sum(usage["prompt_tokens"] for usage in usages),
        "cached": sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
        "completion": sum(usage["completion_tokens"] for usage in usages),
    }
    wanted = expected | {"all": sum(expected.values())}
    counted: Tokens = {}

    async def so() -> bool:  # a client has its answer a moment before the gateway has its record
        nonlocal counted
        now = await tokens(engine, one)
        counted, reported = ({kind: now[i][kind] - before[i][kind] for kind in now[i]} for i in (0, 1))
        return reported == wanted

    await until(so, f"{wanted} in slotgate_tokens_total")
    assert counted == expected


def config(url: str) -> dict[str, Any]:
    """One backend of which nothing but its URL is told; no heartbeat disturbs the heads."""
    return {"backends": [{"name": "llama", "url": url}], "queue": {"heartbeat_seconds": 300}}


async def state(one: Gateway, wanted: str) -> list[str]:
    """Wait for a state of the backend; all those seen on the way there."""
    seen: list[str] = []

    async def there() -> bool:
        now = str((await backend(one, "llama"))["state"])
        if seen[-1:] != [now]:
            seen.append(now)
        return now == wanted

    await until(there, f"the state {wanted}", SECONDS)
    return seen


async def outcomes(one: Gateway, outcome: str, number: float) -> None:
    """Wait until so many requests have ended so."""

    async def so() -> bool:
        return await metric(one, "slotgate_requests_total", outcome=outcome) == number

    await until(so, f"{number} {outcome}")


async def slots(one: Gateway, **wanted: int) -> None:
    """Wait until the gateway counts the backend's slots so."""

    async def so() -> bool:
        counted: dict[str, int] = (await backend(one, "llama"))["slots"]
        return wanted.items() <= counted.items()

    await until(so, f"slots {wanted}", SECONDS)


async def begins(client: RawClient) -> None:
    """Read on to the first token of a stream."""
    assert (await client.head()).status == 200
    await client.first_token()


async def decodes(one: Gateway, requests: int) -> None:
    """Wait until so many requests have their first token."""

    async def so() -> bool:
        running = (await one.operator.get("/admin/requests")).json()
        return [request["phase"] for request in running] == ["decode"] * requests

    await until(so, f"{requests} requests that decode", SECONDS)


def usage_of(answer: Reply) -> dict[str, Any]:
    """What a document, or a stream's last event before its end, says of tokens."""
    streamed = answer.head.headers["content-type"].startswith("text/event-stream")
    last = answer.events[-2].json() if streamed else json.loads(answer.body)
    usage: dict[str, Any] = last["usage"]
    return usage


def same_run(data: bytes) -> bytes:
    """Without what differs between two runs."""
    return OF_ONE_RUN.sub(rb'"\1":0', data)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llama(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """One real server for the whole module."""
    folder = tmp_path_factory.mktemp("llamacpp")
    with llamacpp_server(folder, slots=SLOTS, context_tokens=CONTEXT_TOKENS) as server:
        # It closes the connections that it promises to keep.
        headers = {"connection": "close"}
        async with httpx.AsyncClient(
            base_url=server.url, headers=headers, trust_env=False, timeout=SECONDS
        ) as http:
            yield Engine(server, next(folder.glob("*.log")), http)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(llama: Engine) -> AsyncIterator[Gateway]:
    """One gateway in front of it, ready."""
    async with gateway(config(llama.server.url)) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def front(llama: Engine, running: Gateway) -> AsyncIterator[Gateway]:
    """The gateway; when the test is over nothing of it may be left, at the engine neither."""
    yield running
    await slots(running, in_use=0, leaving=0, foreign=0, free=SLOTS)
    assert await queued(running) == 0
    for _ in range(10):
        if not await llama.tasks():
            return
        await asyncio.sleep(1)
    raise AssertionError("the engine still works on something")


async def test_its_url_is_all_that_must_be_told(llama: Engine) -> None:
    """The gateway waits for a server that does not answer, warms it up, and knows its slots and context."""
    before = await llama.counts()
    os.kill(llama.server.pid, signal.SIGSTOP)
    try:
        async with gateway(config(llama.server.url), wait_for="/health") as one:
            assert (await backend(one, "llama"))["state"] == "starting"
            os.kill(llama.server.pid, signal.SIGCONT)
            assert ["starting", *await state(one, "ready")][-3:] == ["starting", "warming", "ready"]

            known, props = await backend(one, "llama"), await llama.get("/props")
            assert (known["engine"], known["models"]) == ("llamacpp", [llama.server.model])
            assert (known["slots"]["total"], known["slots"]["source"]) == (props["total_slots"], "reported")
            assert known["context_tokens"] == props["default_generation_settings"]["n_ctx"]
            assert (props["total_slots"], known["context_tokens"]) == (SLOTS, CONTEXT_TOKENS)
            warmed = (await llama.counts())["completion"] - before["completion"]
            assert warmed > 0
            assert await metric(one, "slotgate_tokens_total") == 0  # a warm-up is nobody's request
    finally:
        os.kill(llama.server.pid, signal.SIGCONT)


@ROUTES
@pytest.mark.parametrize("asks", [True, False], ids=["usage", "no usage"])
async def test_a_stream_is_the_engines_own(llama: Engine, front: Gateway, path: str, asks: bool) -> None:
    """Each byte is as the engine sends it, but for a usage chunk nobody asked for; each token is counted."""
    body = request(path=path, stream=True)
    with_usage = body | {"stream_options": {"include_usage": True}}
    direct = await llama.ask(path, with_usage)
    before = await tokens(llama, front)
    passed = await ask(front, with_usage if asks else body, path=path)

    assert (passed.head.status, passed.ended) == (200, "clean")
    wanted = [event.raw for event in direct.events if asks or event.done or event.json()["choices"]]
    assert same_run(passed.body) == same_run(b"".join(wanted))
    assert passed.body.count(b"data: [DONE]\n\n") == 1
    assert passed.text == direct.text != ""
    last = direct.events[-2].json()
    usage, timings = last["usage"], last["timings"]
    assert usage["prompt_tokens"] == timings["prompt_n"] + timings["cache_n"]
    assert usage["completion_tokens"] == timings["predicted_n"] > 0
    await accounted(llama, front, before, usage)


@ROUTES
async def test_a_document_is_the_engines_own(llama: Engine, front: Gateway, path: str) -> None:
    """An answer assembled from a stream has what the engine's own document has, and `logprobs` as OpenAI."""
    body = request(path=path)
    direct = await llama.ask(path, body)
    before = await tokens(llama, front)
    passed = await ask(front, body, path=path)

    assert (passed.head.status, passed.ended) == (200, "clean")
    assert passed.head.headers["content-type"] == "application/json"
    ours, theirs = json.loads(same_run(passed.body)), json.loads(same_run(direct.body))
    theirs["choices"][0].setdefault("logprobs", None)
    assert ours == theirs
    await accounted(llama, front, before, ours["usage"])


async def test_tools_pass(llama: Engine, front: Gateway) -> None:
    """A request with tools is answered as the engine answers it, streaming and not."""
    body = request("What is the weather in Rome?", tools=[TOOL], tool_choice="auto")
    for one in (body, body | STREAM):
        passed, direct = await ask(front, one), await llama.ask(CHAT, one)
        assert (passed.head.status, direct.head.status) == (200, 200)
        assert passed.text == direct.text != ""
    assert same_run(passed.body) == same_run(direct.body)


@pytest.mark.parametrize(
    ("stream", "leave"), [(True, "close"), (True, "reset"), (False, "close")], ids=["FIN", "RST", "document"]
)
async def test_the_slot_of_a_client_that_left_is_used_again(
    llama: Engine, front: Gateway, stream: bool, leave: str
) -> None:
    """The engine stops soon, while another request streams on, and the next one starts."""
    gone = await metric(front, "slotgate_requests_total", outcome="client_gone")
    connect = RawClient.connect
    async with (
        await connect(front.url) as stays,
        await connect(front.url) as leaves,
        await connect(front.url) as comes,
    ):
        await stays.post(CHAT, story())
        await begins(stays)
        theirs = await llama.tasks()
        await leaves.post(CHAT, story("Tell a sad story.", stream=stream))
        await decodes(front, 2)
        both = await llama.tasks()
        assert (len(theirs), len(both), theirs < both) == (1, 2, True)
        await comes.post(CHAT, request(**STREAM))
        await waits(front)

        left = getattr(leaves, leave)()
        head, first = await comes.head(), await comes.first_token()
        assert first.at - left < LlamaCpp.cancel_seconds / 2
        assert int(head.headers["x-slotgate-queue-ms"]) > 0
        now = await llama.tasks()
        assert theirs < now and not (both - theirs) & now
        assert (await comes.events())[-1].done
    await outcomes(front, "client_gone", gone + 2)


async def test_a_slot_that_is_left_in_prefill_is_free_when_it_is(llama: Engine, front: Gateway) -> None:
    """llama.cpp closes at once, but cancels behind the batch at hand: only then is the slot used again."""
    async with await RawClient.connect(front.url) as leaves:
        await leaves.post(CHAT, request("one two three four " * 200, **STREAM))
        await slots(front, in_use=1)
        await asyncio.sleep(0.5)  # a question to the engine would wait for the end of its batch
        leaves.close()
        await slots(front, in_use=0, leaving=1)
        await slots(front, leaving=0)
        assert await llama.tasks() == set()


async def test_the_engine_never_has_more_than_its_slots(llama: Engine, front: Gateway) -> None:
    """Of eight requests at once two run and none waits inside the engine; all of them complete."""
    before = await tokens(llama, front)
    names = ("red", "blue", "green", "white", "black", "brown", "pink", "grey")
    bodies = [
        request(f"Say something about {name}.", ignore_eos=True, max_tokens=40, **(STREAM if i % 2 else {}))
        for i, name in enumerate(names)
    ]
    tasks = [asyncio.create_task(ask(front, body)) for body in bodies]
    samples = []
    while (await asyncio.wait(tasks, timeout=0.5))[1]:
        samples.append(await llama.counts())

    assert max(sample["requests_processing"] for sample in samples) == SLOTS
    assert [sample["requests_deferred"] for sample in samples] == [0] * len(samples)
    assert 1 < samples[-1]["n_busy_slots_per_decode"] <= SLOTS
    replies = [task.result() for task in tasks]
    assert [(one.head.status, one.ended) for one in replies] == [(200, "clean")] * len(names)
    assert all(one.text for one in replies)
    usages = [usage_of(one) for one in replies]
    assert [usage["completion_tokens"] for usage in usages] == [40] * len(names)
    await accounted(llama, front, before, *usages)


async def test_a_drained_engine_is_idle_until_it_is_resumed(llama: Engine, front: Gateway) -> None:
    """A drain that waits returns when the running ones have ended; after a resume the queue goes on."""
    async with await RawClient.connect(front.url) as runs, await RawClient.connect(front.url) as stays:
        await runs.post(CHAT, story(max_tokens=150))
        await begins(runs)
        drain = asyncio.create_task(
            front.operator.post("/admin/backends/llama/drain", json={"wait_seconds": 30})
        )
        await state(front, "draining")
        await stays.post(CHAT, request(**STREAM))
        await waits(front)
        assert not drain.done()
        answer = await drain
        assert (answer.status_code, answer.json()) == (200, {"state": "drained", "in_flight": 0})
        assert await llama.tasks() == set()
        assert (await queued(front), (await runs.events())[-1].done) == (1, True)

        before = await llama.counts()
        assert (await front.operator.post("/admin/backends/llama/resume")).status_code == 200
        assert (await state(front, "ready"))[-2:] == ["warming", "ready"]
        assert (await stays.head()).status == 200
        assert (await stays.events())[-1].done
        assert (await llama.counts())["completion"] > before["completion"] + TOKENS_MAX  # and the warm-up's


@ROUTES
async def test_a_prompt_over_the_context_never_reaches_a_slot(
    llama: Engine, front: Gateway, path: str
) -> None:
    """The engine's tokenizer decides, near the limit and far beyond it; the engine refuses nothing."""
    refused = llama.refused_as_too_long()
    near = request("word " * (CONTEXT_TOKENS + 5), path)
    for body in (near, near | {"stream": True}):
        error = fault(await ask(front, body, path=path), 400, "context_length_exceeded")
        assert "estimated" not in error
        assert str(CONTEXT_TOKENS) in error["message"]
    far = request("word " * CONTEXT_TOKENS * 4, path)
    assert "estimated" not in fault(await ask(front, far, path=path), 400, "context_length_exceeded")

    direct = json.loads((await llama.ask(path, near)).body)["error"]
    assert direct["n_ctx"] == CONTEXT_TOKENS
    assert str(direct["n_prompt_tokens"]) in error["message"]
    await until(lambda: llama.refused_as_too_long() > refused, "a refusal in the engine's log")
    assert llama.refused_as_too_long() == refused + 1  # this one; the gateway's would stand before it


async def test_a_second_turn_reports_what_was_cached(llama: Engine, front: Gateway) -> None:
    """The engine's cached tokens reach the client's usage and the gateway's counts and hit ratio."""
    system = "You are a patient teacher. Answer each question in one short sentence. " * 3
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "What is rain?"}]
    body = request(cache_prompt=True)
    first = json.loads((await ask(front, body | {"messages": messages})).body)
    messages += [first["choices"][0]["message"], {"role": "user", "content": "And snow?"}]
    before = await tokens(llama, front)
    usage = usage_of(await ask(front, body | {"messages": messages}))

    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens"] // 2 < cached < usage["prompt_tokens"]
    await accounted(llama, front, before, usage)
    assert 0 < await metric(front, "slotgate_prefix_hit_ratio", source="reported") < 1


async def test_an_engine_that_dies_and_returns(tmp_path: Path) -> None:
    """The stream it cut ends with an error; what had no token yet, and what comes meanwhile, waits for it."""
    with llamacpp_server(tmp_path, slots=SLOTS, context_tokens=CONTEXT_TOKENS) as dies:
        async with (
            gateway(config(dies.url)) as one,
            await RawClient.connect(one.url) as cut,
            await RawClient.connect(one.url) as prefill,
            await RawClient.connect(one.url) as late,
        ):
            await state(one, "ready")
            await cut.post(CHAT, story())
            await begins(cut)
            await prefill.post(CHAT, request("word " * 300, **STREAM))
            await slots(one, in_use=2)
            os.kill(dies.pid, signal.SIGKILL)
            *_, last = await cut.events()
            assert (last.json()["error"]["code"], cut.ended) == ("backend_failed", "clean")
            await state(one, "down")
            await late.post(CHAT, request(**STREAM))
            await waits(one, 2)

            port = urlsplit(dies.url).port
            assert port is not None
            model = fetch(cache_folder(), print)
            with start_engine(
                "again", port, slots=1, context_tokens=CONTEXT_TOKENS, model=model, folder=tmp_path
            ):
                assert (await state(one, "ready"))[-2:] == ["warming", "ready"]
                for waited in (prefill, late):
                    answer = await reply(waited)
                    assert (answer.head.status, answer.events[-1].done) == (200, True)
                    assert usage_of(answer)["completion_tokens"] > 0
                assert (await backend(one, "llama"))["slots"]["total"] == 1
                await outcomes(one, "completed", 2)
                assert await metric(one, "slotgate_retries_total", reason="backend_died") == 1
