"""Real Hermes agents behind the gateway: the engine counts, not the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.processes import harness
from tests.real.hermes import CONTEXT_TOKENS, Hermes, Run, install

MODEL = "fake-model"


@pytest.fixture(scope="session")
def environment() -> Path:
    """Hermes, installed from its lock file unless it is there already."""
    return install()


@asynccontextmanager
async def one_slot() -> AsyncIterator[tuple[harness.Engine, harness.Gateway]]:
    """An engine with one slot and the gateway in front of it; the engine plays an agent's tool loop."""
    async with harness.engine(
        "llamacpp",
        slots=1,
        context_tokens=CONTEXT_TOKENS,
        model=MODEL,
        prefix_cache=True,
        prefill_tps=2500,
    ) as engine:
        backend = {"name": "one", "url": engine.url, "engine": "llamacpp", "warmup": {"requests": 0}}
        async with harness.gateway({"backends": [backend]}) as gateway:
            yield engine, gateway


async def engine_tokens(engine: harness.Engine) -> tuple[int, int, int]:
    """Prompt, cached and completion tokens of all requests, as the engine counted them."""
    records = await engine.records()
    prompt, cached, completion = (
        sum(record[f"{kind}_tokens"] for record in records) for kind in ("prompt", "cached", "completion")
    )
    return prompt, cached, completion


async def metric(gateway: harness.Gateway, name: str) -> list[Sample]:
    """The samples of one metric other than zero."""
    response = await gateway.operator.get("/metrics")
    response.raise_for_status()
    families = text_string_to_metric_families(response.text)
    return [s for family in families for s in family.samples if s.name == name and s.value]


async def assert_counts_agree(engine: harness.Engine, gateway: harness.Gateway, runs: list[Run]) -> None:
    """Engine, gateway and agents tell the same numbers of tokens, all of them reported ones."""
    prompt, cached, completion = await engine_tokens(engine)
    assert sum(run.prompt_tokens for run in runs) == prompt
    assert sum(run.completion_tokens for run in runs) == completion
    expected = {
        ("prompt", "reported"): prompt,
        ("cached", "reported"): cached,
        ("completion", "reported"): completion,
    }

    async def accounted() -> bool:  # an agent has its answer a moment before the gateway has its record
        samples = await metric(gateway, "slotgate_tokens_total")
        return {(s.labels["kind"], s.labels["source"]): s.value for s in samples} == expected

    await harness.until(accounted, f"{expected} on the gateway's /metrics")
    assert not await metric(gateway, "slotgate_prefix_breaks_total")  # they only ever add to what was said


async def test_three_agents_take_turns_on_one_slot(environment: Path, tmp_path: Path) -> None:
    """Three agents in parallel complete two turns with a tool call each, and never two run at once."""
    async with one_slot() as (engine, gateway):
        hermes = Hermes(environment, tmp_path, f"{gateway.url}/v1", MODEL)
        conversations = [[f"Agent {name}: run echo hi and report", "And again"] for name in ("a", "b", "c")]
        runs = await asyncio.to_thread(hermes.converse, conversations)

        assert [(run.completed, run.api_calls) for run in runs] == [(True, 4)] * 3
        assert all(run.answer for run in runs)
        state = await engine.state()
        assert state["outcomes"] == {"completed": 12}
        assert (state["max_concurrent"], state["over_slots"]) == (1, 0)
        waits = await metric(gateway, "slotgate_queue_wait_seconds_sum")
        assert sum(wait.value for wait in waits) > 0.5  # they did compete: the first prefill takes a second
        await assert_counts_agree(engine, gateway, runs)


async def test_an_agent_with_all_its_tools_completes(environment: Path, tmp_path: Path) -> None:
    """`hermes -z` with the 46 KB prompt of a default installation calls its tool and answers."""
    async with one_slot() as (engine, gateway):
        hermes = Hermes(environment, tmp_path, f"{gateway.url}/v1", MODEL)
        run = await asyncio.to_thread(hermes.ask, "Run echo hi in the terminal and report")

        assert run.completed
        assert (run.api_calls, (await engine.state())["outcomes"]) == (2, {"completed": 2})
        assert run.prompt_tokens > 20_000  # two calls of more than 40 KB at four bytes a token
        await assert_counts_agree(engine, gateway, [run])
