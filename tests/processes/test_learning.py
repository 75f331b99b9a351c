"""What the gateway learns from real requests: lengths and rates; the engines' own counts are the truth."""

from __future__ import annotations

import asyncio

from tests.processes.asking import ask, backend, metric
from tests.processes.fleet import becomes, configured
from tests.processes.harness import Engine, Gateway, chat, engine, gateway

FEW = 5  # as many samples as the prior weighs


def prompt(tokens: int) -> str:
    """Text of so many tokens to the fake engines: four bytes each."""
    return "word" * tokens


async def estimated_and_counted(front: Gateway, one: Engine, text: str) -> tuple[int, int]:
    """Tokens of a prompt as the gateway estimated and as the engine counted them."""
    answer = await ask(front, chat(text, max_tokens=4))
    assert answer.head.status == 200
    (record,) = await one.records(last=1)
    return int(answer.head.headers["x-slotgate-prompt-tokens"]), record["prompt_tokens"]


async def test_lengths_and_rates_become_the_engine_s_own() -> None:
    """After a few prompts estimates agree with the counts, the rates are the backend's own, and the error
    of what they predict is on show."""
    async with (
        engine(slots=2, prefill_tps=50_000) as one,
        gateway(configured(one)) as front,
    ):
        await becomes(front, "b0", "ready")
        assert (await backend(front, "b0"))["rates"]["source"] == "prior"
        estimate, counted = await estimated_and_counted(front, one, prompt(5000))
        assert abs(estimate / counted - 1) > 0.1
        for turn in range(3 * FEW):
            await estimated_and_counted(front, one, prompt(4100 + 300 * turn))
            await asyncio.sleep(0.1)  # lessons of one backend are that far apart
        estimate, counted = await estimated_and_counted(front, one, prompt(5000))
        assert abs(estimate / counted - 1) < 0.03
        shown = await backend(front, "b0")
        assert shown["rates"]["source"] == "learnt"
        assert shown["rates"]["samples"] >= FEW
        error = await metric(front, "slotgate_predicted_ttft_error_ratio", backend="b0")
        assert error == shown["rates"]["error_ratio"] is not None


async def test_an_estimate_at_the_gate_is_counted_by_the_engine() -> None:
    """While a long prompt is read, it decides whether the next one is long too: then the engine counts,
    if it can. Without that, the estimate does."""
    async with (
        engine("llamacpp", slots=3, prefill_tps=2000, context_tokens=60_000) as one,
        gateway(configured(one)) as front,
    ):
        await becomes(front, "b0", "ready")
        text = prompt(450)  # a second of prefill, by what is known of such engines
        estimate, counted = await estimated_and_counted(front, one, text)
        assert estimate != counted
        long = asyncio.create_task(ask(front, chat(prompt(8000), max_tokens=4)))
        await one.busy()
        answer = await ask(front, chat("x" + text, max_tokens=4))
        assert int(answer.head.headers["x-slotgate-prompt-tokens"]) in range(counted, counted + 3)
        assert (await long).head.status == 200
