"""The gateway in front of a real vLLM, and the fake one beside it; `make test-vllm` asks for this.

The engine is the witness: what it answers when asked directly, and what its `/metrics` say of what it did.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.questions import TOO_LONG, USAGE, VLLM, Question, chat, respond, text
from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES, TOKENIZE
from tests.fakes.shape import differences
from tests.processes import harness
from tests.processes.asking import Reply, ask, backend, fault, metric, queued, quiet
from tests.processes.fleet import becomes, settled
from tests.processes.harness import Gateway, RawClient, free_port, gateway, until
from tests.real.vllm import CONTEXT_TOKENS, NAME, SLOTS, VllmServer, install, vllm_server

ASKED = "SLOTGATE_TEST_VLLM"
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        not os.environ.get(ASKED),
        reason="a real vLLM is a download of 0.6 GB and 2.5 GB on disk: `make test-vllm` asks for it",
    ),
]
KV_TOKENS = 131_072  # of 64 MiB of cache, for this model
BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat(),
    COMPLETIONS: text(),
    MESSAGES: chat(),
    RESPONSES: respond(),
}


@dataclass(frozen=True)
class Stage:
    """The real engine, asked directly; the fake one; the gateway in front of the real one."""

    server: VllmServer
    direct: httpx.AsyncClient
    fake: httpx.AsyncClient
    gateway: Gateway

    async def counts(self) -> dict[str, float]:
        """The real one's counters and gauges, without prefix and labels."""
        families = text_string_to_metric_families((await self.direct.get("/metrics")).text)
        samples = (sample for family in families for sample in family.samples)
        return {s.name.removeprefix("vllm:"): s.value for s in samples if s.name.startswith("vllm:")}

    async def idle(self) -> None:
        """Wait until the real one works on nothing."""

        async def nothing() -> bool:
            counts = await self.counts()
            return counts["num_requests_running"] + counts["num_requests_waiting"] == 0

        await until(nothing, "an idle engine")


def http(url: str) -> httpx.AsyncClient:
    """A client of one engine."""
    return httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=60)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The processes, for all tests of this module."""
    folder = tmp_path_factory.mktemp("vllm")
    with vllm_server(install(), free_port(), folder) as server:
        fake = harness.engine("vllm", model=NAME, slots=SLOTS, context_tokens=CONTEXT_TOKENS, tokens=4000)
        real = {"name": "real", "url": server.url, "slots": SLOTS}
        config = {"backends": [real], "routing": {"interactive_reserve_slots": 0}}
        async with (
            fake as pretender,
            gateway(config) as one,
            http(server.url) as direct,
            http(pretender.url) as other,
        ):
            await becomes(one, "real", "ready", 60.0)
            yield Stage(server, direct, other, one)


def usage_of(answer: Reply) -> dict[str, Any]:
    """What an answer tells of its tokens, document or stream, on any route."""
    if answer.head.headers["content-type"].startswith("application/json"):
        values = [json.loads(answer.body)]
    else:
        values = [event.json() for event in answer.events if event.data and not event.done]
    found: dict[str, Any] = {}
    for value in values:
        inner = value.get("response") or value.get("message") or {}
        found |= inner.get("usage") or value.get("usage") or {}
    return found


@pytest.mark.parametrize("question", VLLM, ids=lambda question: question.name)
async def test_the_fake_one_answers_in_the_shapes_of_the_real_one(stage: Stage, question: Question) -> None:
    """Status, header, members, kinds of values and the order of events."""
    wrong = differences(await question.ask(stage.fake), await question.ask(stage.direct), question.but)
    assert not wrong, "\n".join(wrong)


async def test_the_gateway_knows_what_the_engine_tells(stage: Stage) -> None:
    """Kind, models and context; its slots it does not tell."""
    told = await backend(stage.gateway, "real")
    assert (told["engine"], told["models"], told["context_tokens"]) == ("vllm", [NAME], CONTEXT_TOKENS)
    assert (told["slots"]["total"], told["slots"]["source"]) == (SLOTS, "configured")


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("route", BODIES)
async def test_an_answer_and_its_usage_are_the_engines(stage: Stage, route: str, streams: bool) -> None:
    """The same words, and the tokens that the engine reports and counts."""
    body = BODIES[route]
    if streams:
        body = body | (USAGE if route in (CHAT, COMPLETIONS) else {"stream": True})
    kind = {"kind": "completion", "source": "reported"}
    await quiet(stage.gateway)
    await stage.idle()
    before, noted = await stage.counts(), await metric(stage.gateway, "slotgate_tokens_total", **kind)
    answer = await ask(stage.gateway, body, path=route)
    await quiet(stage.gateway)
    await stage.idle()
    after = await stage.counts()
    own = await stage.direct.post(route, json=body)
    assert (answer.head.status, own.status_code) == (200, 200)
    found = usage_of(answer)
    generated = found.get("completion_tokens", found.get("output_tokens"))
    prompt = found.get("prompt_tokens", found.get("input_tokens"))
    assert generated == 8 == after["generation_tokens_total"] - before["generation_tokens_total"]
    assert prompt == after["prompt_tokens_total"] - before["prompt_tokens_total"]
    assert await metric(stage.gateway, "slotgate_tokens_total", **kind) == noted + generated
    if not streams:
        mine, theirs = json.loads(answer.body), own.json()
        assert set(mine) == set(theirs)
        for words in ("choices", "content"):
            assert mine.get(words) == theirs.get(words)


async def test_tokens_are_counted_as_the_engine_counts(stage: Stage) -> None:
    """`/v1/messages/count_tokens` and `/tokenize` pass through, also while all slots are taken."""
    async with RawClients(stage, SLOTS) as clients:
        await clients.start(chat(max_tokens=1900, ignore_eos=True, stream=True))
        for route, body in ((COUNT_TOKENS, chat()), (TOKENIZE, chat(return_token_strs=True))):
            answer = await ask(stage.gateway, body, path=route)
            assert json.loads(answer.body) == (await stage.direct.post(route, json=body)).json()


class RawClients:
    """Some clients of the gateway that may leave in the middle of their answers."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._number = number
        self.clients: list[RawClient] = []

    async def __aenter__(self) -> RawClients:
        url = self._stage.gateway.url
        self.clients = [await RawClient.connect(url) for _ in range(self._number)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self.clients:
            client.close()
        await settled(self._stage.gateway, "real")
        await self._stage.idle()

    async def start(self, body: dict[str, Any]) -> None:
        """Send this from each and wait for each one's first token."""
        for client in self.clients:
            await client.post(CHAT, body)
        for client in self.clients:
            assert (await client.head()).status == 200
            await client.first_token()


async def test_clients_that_leave_free_the_engine(stage: Stage) -> None:
    """Streams of 1,900 tokens are given up within seconds of their clients' close: nothing runs on."""
    before = await stage.counts()
    async with RawClients(stage, SLOTS) as clients:
        await clients.start(chat(max_tokens=1900, ignore_eos=True, stream=True))
        assert (await stage.counts())["num_requests_running"] == SLOTS
    after = await stage.counts()
    generated = after["generation_tokens_total"] - before["generation_tokens_total"]
    assert generated < SLOTS * 1900
    assert (await backend(stage.gateway, "real"))["slots"]["free"] == SLOTS


async def test_nothing_ever_waits_in_the_engine(stage: Stage) -> None:
    """Nine requests on three slots: all are answered, the engine's own queue stays empty."""
    body = chat(max_tokens=300, ignore_eos=True, stream=True)
    asked = [asyncio.create_task(ask(stage.gateway, body)) for _ in range(3 * SLOTS)]
    waiting, waited = [], 0
    while not all(task.done() for task in asked):
        counts = await stage.counts()
        waiting.append(counts["num_requests_waiting"])
        assert counts["num_requests_running"] <= SLOTS
        waited = max(waited, await queued(stage.gateway))
        await asyncio.sleep(0.05)
    assert [(await task).head.status for task in asked] == [200] * len(asked)
    assert max(waiting) == 0
    assert waited > 0


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
async def test_a_prompt_too_long_is_told_in_one_form(stage: Stage, route: str, streams: bool) -> None:
    """`context_length_exceeded` with the engine's limit, before the engine has the prompt or after."""
    body = {CHAT: chat(TOO_LONG, stream=streams), COMPLETIONS: text(TOO_LONG, stream=streams)}[route]
    error = fault(await ask(stage.gateway, body, path=route), 400, "context_length_exceeded")
    assert str(CONTEXT_TOKENS) in error["message"].replace(",", "")


async def test_a_prompt_of_exactly_the_limit_is_refused_in_some_words(stage: Stage) -> None:
    """vLLM has no room for one token then, and says so of `max_tokens`: a 400 in any case."""
    answer = await ask(stage.gateway, text([300] * CONTEXT_TOKENS), path=COMPLETIONS)
    assert answer.head.status == 400


async def test_a_message_too_long_is_told_in_anthropics_form(stage: Stage) -> None:
    """Its clients read `type` and `error.type`."""
    answer = await ask(stage.gateway, chat(TOO_LONG), path=MESSAGES)
    value = json.loads(answer.body)
    assert (answer.head.status, value["type"]) == (400, "error")
    assert {"type", "message"} <= set(value["error"])


async def test_a_limit_above_the_context_is_lowered_to_it(stage: Stage) -> None:
    """Agents ask for 65,536 tokens on every call: vLLM refuses that, the gateway's client is answered."""
    body = chat(max_tokens=65_536)
    assert (await stage.direct.post(CHAT, json=body)).status_code == 400
    answer = await ask(stage.gateway, body)
    assert answer.head.status == 200
    assert usage_of(answer)["total_tokens"] == CONTEXT_TOKENS


async def test_an_answer_aborted_by_the_engines_end_is_a_failure(stage: Stage) -> None:
    """At SIGTERM vLLM ends its answers with `abort` under 200, or falls silent: the client gets an error.

    The last test on this stage: it ends the engine.
    """
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.post(CHAT, chat(max_tokens=1900, ignore_eos=True, stream=True))
        await client.head()
        await client.first_token()
        os.kill(stage.server.pid, signal.SIGTERM)
        got = await client.events()
        assert "error" in got[-1].json()
        assert not any(event.done for event in got)
    await becomes(stage.gateway, "real", "down", 60.0)


async def test_an_engine_that_drains_finishes_what_runs_and_costs_nobody_a_call(tmp_path: Path) -> None:
    """With `--shutdown-timeout` vLLM refuses new requests by 500 while `/health` stays green.

    What runs there is completed; what comes meanwhile is answered by another engine.
    """
    fake = harness.engine("vllm", model=NAME, slots=SLOTS, context_tokens=CONTEXT_TOKENS)
    with vllm_server(install(), free_port(), tmp_path, "--shutdown-timeout", "20") as server:
        async with fake as other:
            real = {"name": "real", "url": server.url, "slots": SLOTS}
            spare = {"name": "spare", "url": other.url, "slots": SLOTS, "backup": True}
            async with gateway({"backends": [real, spare]}) as one:
                await becomes(one, "real", "ready", 60.0)
                await becomes(one, "spare", "ready")
                async with await RawClient.connect(one.url) as client:
                    await client.post(CHAT, chat(max_tokens=1900, ignore_eos=True, **USAGE))
                    assert (await client.head()).headers["x-slotgate-backend"] == "real"
                    await client.first_token()
                    os.kill(server.pid, signal.SIGTERM)
                    meanwhile = [await ask(one, chat(f"Number {number}")) for number in range(4)]
                    assert [answer.head.status for answer in meanwhile] == [200] * 4
                    assert meanwhile[-1].head.headers["x-slotgate-backend"] == "spare"
                    got = await client.events()
                    assert got[-1].done
                    assert got[-2].json()["usage"]["completion_tokens"] == 1900
