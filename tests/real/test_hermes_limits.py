"""Real Hermes agents at their limits: prefills longer than their patience, contexts that are full, and the
65,536 tokens of output that they ask for each time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.processes.asking import CHAT, metric
from tests.processes.fleet import becomes
from tests.processes.harness import Engine, engine, gateway
from tests.real.hermes import CONTEXT_TOKENS, Hermes, Run, install

ASKED = "Run echo hi in the terminal and report"


@pytest.fixture(scope="session")
def environment() -> Path:
    """Hermes, installed from its lock file unless it is there already."""
    return install()


def remote(url: str) -> str:
    """The same place by a name that Hermes does not take for a local one, towards which it is patient: a
    name with a dot that is no address to it, but one to every system's resolver."""
    assert "//127.0.0.1:" in url
    return url.replace("//127.0.0.1:", "//127.1:") + "/v1"


# -- a prefill that is longer than an agent's patience --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a prefill takes, and how long Hermes waits for a sign of life."""

    prefill_seconds: float
    heartbeat_seconds: float
    limits: Mapping[str, str] = field(default_factory=dict)  # Hermes' own: 180 s for a name with a dot


LONG = Patience(200.0, 10.0)
SHORT = Patience(11.0, 1.0, {"HERMES_STREAM_STALE_TIMEOUT": "5", "HERMES_STREAM_READ_TIMEOUT": "5"})


async def waited(
    environment: Path, home: Path, patience: Patience, heartbeat: str
) -> tuple[Run, list[dict[str, Any]]]:
    """One question to ds4, which sends a head and comments while it reads the prompt; what the agent says
    of it, and the requests that the engine had, without those of the warm-up."""
    queue = {"heartbeat": heartbeat, "heartbeat_seconds": patience.heartbeat_seconds}
    async with (
        engine("ds4", slots=2, context_tokens=CONTEXT_TOKENS, prefill_tps=1e6) as one,
        gateway({"backends": [{"name": "ds4", "url": one.url}], "queue": queue}) as front,
    ):
        await becomes(front, "ds4", "ready")
        await one.reset()
        await one.script(match="Run echo hi", prefill_seconds=patience.prefill_seconds)
        url, seconds = remote(front.url), patience.prefill_seconds + 100.0
        hermes = Hermes(environment, home, url, "fake-model", limits=patience.limits, seconds=seconds)
        assert not hermes.takes_for_local()
        started = time.monotonic()
        run = await asyncio.to_thread(hermes.ask, ASKED, toolsets="terminal")
        print(f"{time.monotonic() - started:.1f} s")  # noqa: T201
        return run, await one.records()


@pytest.mark.parametrize(
    "patience",
    [pytest.param(SHORT, id="11 s"), pytest.param(LONG, id="200 s", marks=pytest.mark.long)],
)
async def test_an_agent_waits_for_a_prefill_that_outlasts_its_patience(
    environment: Path, tmp_path: Path, patience: Patience
) -> None:
    """It asks once: the engine generates what it needs, and nothing twice."""
    run, records = await waited(environment, tmp_path, patience, "auto")
    assert (run.completed, run.api_calls) == (True, 2), run
    assert [record["outcome"] for record in records] == ["completed", "completed"]
    first = records[0]
    assert first["first_token"] - first["started"] >= patience.prefill_seconds
    assert first["first_byte"] < first["first_token"] - patience.prefill_seconds / 2  # head and comments


async def test_an_agent_loses_patience_with_comments(environment: Path, tmp_path: Path) -> None:
    """Why the gateway sends chunks without choices instead: with comments the agent throws the whole
    answer away and asks again."""
    run, records = await waited(environment, tmp_path, SHORT, "comment")
    assert run.completed
    assert len(records) > 2, records


# -- a context that is full -----------------------------------------------------------------------------


async def test_an_agent_understands_that_its_conversation_is_too_long(
    environment: Path, tmp_path: Path
) -> None:
    """It is told of a larger context than the engine's slots have; when its conversation outgrows them, the
    refusal makes it summarise what was said and go on."""
    slot, told = 70_000, 262_144
    words = "The river runs past the mill and under the old bridge before it meets the sea at noon. " * 1150
    alias = {"agent": {"targets": ["fake-model"], "advertise_context": told}}
    async with (
        engine("ds4", slots=1, context_tokens=slot, prefill_tps=1e6) as one,
        gateway({"backends": [{"name": "ds4", "url": one.url}], "models": alias}) as front,
    ):
        await becomes(front, "ds4", "ready")
        await one.reset()
        hermes = Hermes(environment, tmp_path, f"{front.url}/v1", "agent", context_tokens=told)
        turns = [f"Turn {number}: run echo hi and report. {words}" for number in range(4)]
        (run,) = await asyncio.to_thread(hermes.converse, [turns])
        assert run.completed, run
        assert await metric(front, "slotgate_requests_total", outcome="rejected") == 1
        bodies = [json.loads(request["body"]) for request in await one.requests(1000)]
        sizes = [record["prompt_tokens"] for record in await one.records()]
        print(sizes)  # noqa: T201
        with_tools = ["tools" in body for body in bodies]
        summary = with_tools.index(False)
        assert with_tools[summary - 1 : summary + 2] == [True, False, True]
        assert all(size < slot for size in sizes[summary:])


# -- what an agent asks for each time -------------------------------------------------------------------


async def test_the_output_that_agents_ask_for_is_accepted_by_every_engine(
    environment: Path, tmp_path: Path
) -> None:
    """65,536 tokens, in slots of 64,000: ds4 and llama.cpp cut it to their room, for vLLM and SGLang the
    gateway does."""
    kinds = ("ds4", "ds4-upstream", "llamacpp", "vllm", "sglang")
    context = 64_000
    async with AsyncExitStack() as stack:
        engines: dict[str, Engine] = {
            kind: await stack.enter_async_context(
                engine(kind, model=[kind], context_tokens=context, prefill_tps=1e6)
            )
            for kind in kinds
        }
        backends = [{"name": kind, "url": one.url} for kind, one in engines.items()]
        front = await stack.enter_async_context(gateway({"backends": backends}))
        for kind, one in engines.items():
            await becomes(front, kind, "ready")
            await one.reset()
        hermes = Hermes(environment, tmp_path, f"{front.url}/v1", kinds[0])
        runs = await asyncio.to_thread(hermes.converse, [[ASKED]] * len(kinds), kinds)
        assert [(run.completed, run.api_calls) for run in runs] == [(True, 2)] * len(kinds), runs
        for kind, one in engines.items():
            sent = [json.loads(request["body"])["max_tokens"] for request in await one.requests(1000)]
            answered = [r for r in await one.records() if r["outcome"] == "completed" and r["path"] == CHAT]
            assert len(answered) == 2, kind
            if kind == "sglang":
                assert all(1000 < limit < context for limit in sent), sent
            else:
                assert set(sent) == {context if kind == "vllm" else 65_536}, (kind, sent)
