"""The demo's clients: agents with growing conversations, long prompts, and a person who comes late."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.demo import prompts
from gateway.demo.engine import MODEL_NAME

TOKENS_MAX = 24
PATIENCE_SECONDS = 300.0


@dataclass(slots=True)
class Outcome:
    """One request as its client saw it."""

    who: str
    question: str
    backend: str = ""
    queue_seconds: float = 0.0
    first_token_seconds: float | None = None
    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    text: str = ""
    finished: bool = False  # a finish_reason, then [DONE], and usage between
    failure: str = ""


class Clients:
    """All clients of one run; each finished request is told to `tell`."""

    def __init__(self, url: str, tell: Callable[[Outcome], None]) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False)
        self._tell = tell
        self._outcomes: list[Outcome] = []
        self._half = asyncio.Event()

    async def run(self) -> list[Outcome]:
        """Let all of them do their work, at the same time; the outcomes in the order in which they came."""
        async with self._http, asyncio.TaskGroup() as tasks:
            for i, place in enumerate(prompts.LONG, start=1):
                tasks.create_task(self._long(f"long-{i}", place))
            for i, questions in enumerate(prompts.AGENTS, start=1):
                tasks.create_task(self._agent(f"agent-{i}", questions))
            tasks.create_task(self._person())
        return self._outcomes

    async def _agent(self, who: str, questions: tuple[str, ...]) -> None:
        """Ask, put question and answer into the conversation, ask again."""
        messages = [{"role": "system", "content": prompts.SYSTEM}]
        for question in questions:
            messages.append({"role": "user", "content": question})
            outcome = await self._ask(who, "agent", messages, question)
            messages.append({"role": "assistant", "content": outcome.text})

    async def _long(self, who: str, place: str) -> None:
        message = {"role": "user", "content": prompts.long_prompt(place)}
        await self._ask(who, "agent", [message], f"a log of {place}")

    async def _person(self) -> None:
        """Somebody at a keyboard, while the agents keep all slots busy."""
        await self._half.wait()
        system, question = prompts.PERSON
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        await self._ask("person", "interactive", messages, question)

    async def _ask(self, who: str, priority: str, messages: list[dict[str, str]], question: str) -> Outcome:
        outcome = Outcome(who, question)
        body = {
            "model": MODEL_NAME,
            "messages": messages,
            "max_tokens": TOKENS_MAX,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"x-slotgate-agent": who, "x-slotgate-priority": priority}
        begun = time.monotonic()
        try:
            async with self._http.stream(
                "POST", "/v1/chat/completions", json=body, headers=headers
            ) as answer:
                outcome.backend = answer.headers.get("x-slotgate-backend", "")
                outcome.queue_seconds = float(answer.headers.get("x-slotgate-queue-ms", 0)) / 1000
                if answer.status_code == 200:
                    await _read(answer, outcome, begun)
                else:
                    outcome.failure = f"HTTP {answer.status_code} {(await answer.aread()).decode()[:200]}"
        except (
            httpx.HTTPError,
            ValueError,
            LookupError,
            TypeError,
        ) as error:  # lost, or not a stream of events
            outcome.failure = f"{type(error).__name__} {error}"
        if not (outcome.failure or outcome.finished):
            outcome.failure = "the stream ended early"
        outcome.seconds = time.monotonic() - begun
        self._outcomes.append(outcome)
        if len(self._outcomes) >= len(prompts.AGENTS):
            self._half.set()
        self._tell(outcome)
        return outcome


async def _read(answer: httpx.Response, outcome: Outcome, begun: float) -> None:
    """Read the stream to its end into the outcome."""
    reason = None
    async for line in answer.aiter_lines():
        if not line.startswith("data:"):
            continue
        if line == "data: [DONE]":
            outcome.finished = bool(reason and outcome.completion_tokens)
            continue
        event: dict[str, Any] = json.loads(line.removeprefix("data:"))
        if "error" in event:
            outcome.failure = event["error"]["message"]
        for choice in event.get("choices", ()):
            reason = choice.get("finish_reason") or reason
            if text := choice["delta"].get("content"):
                outcome.first_token_seconds = outcome.first_token_seconds or time.monotonic() - begun
                outcome.text += text
        if usage := event.get("usage"):
            outcome.prompt_tokens = usage["prompt_tokens"]
            outcome.completion_tokens = usage["completion_tokens"]
