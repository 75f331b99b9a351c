"""Fetch the model, set the stage, let the clients work, show the table; then serve until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
from rich.console import Console

from gateway.demo.child import DemoFailed
from gateway.demo.clients import Clients, Outcome
from gateway.demo.engine import MODEL_NAME
from gateway.demo.figures import Figures, Scrape, sampled, settled
from gateway.demo.model import cache_folder, fetch
from gateway.demo.stage import Stage, backends, set_up
from gateway.demo.table import figures_table

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHOWN_CHARACTERS = 60

HINTS = """
The engines and the gateway go on serving; Ctrl-C ends them. Try

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Name three fruits."}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  messages = [{{"role": "user", "content": "Name three fruits."}}]
  print(client.chat.completions.create(model="{model}", messages=messages).choices[0].message.content)

Operators look at {admin}/console, or with

  {python} -m gateway status --admin {admin}"""


def main() -> int:
    """0: every request succeeded; 1: one did not, or the demo could not run; 130: stopped before its end."""
    parser = argparse.ArgumentParser(prog="python -m gateway.demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the table")
    once = parser.parse_args().once
    console = Console(highlight=False, markup=False, soft_wrap=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stop in STOPS[1:]:
        signal.signal(stop, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        return _run(console, once)
    except DemoFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130


def _run(console: Console, once: bool) -> int:
    if importlib.util.find_spec("xllamacpp") is None:
        raise DemoFailed("llama.cpp is missing: pip install 'slotgate[demo]', or use `make demo`.")
    model = fetch(cache_folder(), console.print)
    with tempfile.TemporaryDirectory(prefix="slotgate-demo-") as folder, ExitStack() as children:
        try:
            stage = set_up(children, model, Path(folder), console.print)
            code = _show(console, stage)
            if not once:
                console.print(
                    HINTS.format(url=stage.url, admin=stage.admin, model=MODEL_NAME, python=sys.executable)
                )
                _serve(stage)
            return code
        finally:
            for stop in STOPS:  # a second Ctrl-C must not leave engines behind
                signal.signal(stop, signal.SIG_IGN)


def _show(console: Console, stage: Stage) -> int:
    """One run of all clients and its table; the exit code."""
    console.print("Eight agents, two long prompts and, later, a person at a keyboard: four slots for all.\n")
    begun = time.monotonic()

    def tell(outcome: Outcome) -> None:
        console.print(f"{time.monotonic() - begun:5.1f} s  {_sentence(outcome)}")

    try:
        figures, outcomes = asyncio.run(_work(stage, tell))
    except* httpx.HTTPError as lost:
        stage.check()
        raise DemoFailed(f"The figures could not be read: {lost.exceptions[0]!r}.") from None
    failed = [outcome for outcome in outcomes if outcome.failure]
    console.print()
    console.print(figures_table(figures, backends(stage), outcomes))
    console.print(
        f"{len(outcomes)} requests in {time.monotonic() - begun:.0f} s, {len(failed)} failed; "
        f"at most {figures.load.waiting_max} waited in the gateway's queue."
    )
    for outcome in [outcome for outcome in outcomes if outcome.text][:5]:
        console.print(f"  {outcome.who} asked: {outcome.question}\n    {' '.join(outcome.text.split())}")
    return 1 if failed else 0


async def _work(stage: Stage, tell: Callable[[Outcome], None]) -> tuple[Figures, list[Outcome]]:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        before = await Scrape.take(http, stage)
        async with sampled(http, stage) as load:
            outcomes = await Clients(stage.url, tell).run()
        return Figures(before, await settled(http, stage), load), outcomes


def _sentence(outcome: Outcome) -> str:
    if outcome.failure:
        return f"{outcome.who:<8} FAILED: {outcome.failure}"
    text = " ".join(outcome.text.split())
    short = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
    return (
        f"{outcome.who:<8} on {outcome.backend}: waited {outcome.queue_seconds:4.1f} s, "
        f"read {outcome.prompt_tokens:,} tokens, wrote {outcome.completion_tokens}: {short}"
    )


def _serve(stage: Stage) -> None:
    """Until Ctrl-C, which is the expected end; DemoFailed if a child is gone."""
    try:
        while True:
            stage.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        print("\nStopping.")


if __name__ == "__main__":
    sys.exit(main())
