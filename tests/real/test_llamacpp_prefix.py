"""Prompts whose heads change, in front of a real llama.cpp server: what it finds in its cache when they are
held still, and what the gateway expects it to find."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes.asking import ask, backend, metric, quiet
from tests.processes.fleet import becomes
from tests.processes.harness import Gateway, gateway
from tests.real.llamacpp_server import llamacpp_server

TURNS = 6
CONTEXT_TOKENS = 512
RULES = "Answer in one short sentence. Never guess. Say so if you do not know. " * 5


async def hit_ratio(front: Gateway, agent: str, *, volatile: bool) -> tuple[float, list[str]]:
    """The share of a short conversation's prompt tokens that the engine had cached; and what it was told of
    each turn's prefix."""
    said: list[dict[str, Any]] = []
    cached = tokens = 0
    told = []
    for turn in range(TURNS):
        minute = turn if volatile else 0
        system = f"I am {agent}. It is 2026-11-30T15:{minute:02}:{7 * minute:02}Z. {RULES}"
        said.append({"role": "user", "content": f"Question {turn} of {agent}: how many legs has a cat?"})
        body = {
            "model": "smollm2-135m",
            "messages": [{"role": "system", "content": system}, *said],
            "max_tokens": 8,
            "temperature": 0,
            "user": agent,
        }
        answer = await ask(front, body, [("X-Slotgate-Explain", "1")])
        assert answer.head.status == 200, answer
        document = json.loads(answer.body)
        said.append({"role": "assistant", "content": document["choices"][0]["message"]["content"]})
        tokens += document["usage"]["prompt_tokens"]
        cached += document["usage"]["prompt_tokens_details"]["cached_tokens"]
        told.append(
            answer.head.headers["x-slotgate-prefix"].partition("; cached")[0].partition("; offset")[0]
        )
    return cached / tokens, told


async def test_a_head_held_still_stays_in_the_cache(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """At least 95 % of what a stable conversation finds, where without it next to nothing is found; and what
    is predicted of all of them is within five points of what the engine reports."""
    agents = {"held": {"stabilise": "all"}}
    with llamacpp_server(tmp_path, slots=1, context_tokens=CONTEXT_TOKENS) as server:
        config = {"backends": [{"name": "llama", "url": server.url}], "prefix": {"agents": agents}}
        async with gateway(config) as front:
            await becomes(front, "llama", "ready", 60.0)
            stable, told_stable = await hit_ratio(front, "stable", volatile=False)
            loose, told_loose = await hit_ratio(front, "loose", volatile=True)
            held, told_held = await hit_ratio(front, "held", volatile=True)
            record_property("hit ratios", {"stable": stable, "off": loose, "all": held})
            assert stable > 0.7
            assert loose < 0.15
            assert held >= 0.95 * stable
            assert told_stable == told_held == ["append"] * TURNS
            assert told_loose == ["append"] + ["break; kind=time"] * (TURNS - 1)
            await quiet(front)
            predicted, reported = [
                await metric(front, "slotgate_prefix_hit_ratio", source=source)
                for source in ("predicted", "reported")
            ]
            assert abs(predicted - reported) <= 0.05, (predicted, reported)


async def test_what_slots_gave_up_is_found_in_the_host_s_memory(tmp_path: Path) -> None:
    """Three conversations take turns in one slot. llama.cpp puts away what the others push out, and finds it
    again; after two finds the gateway counts on it, and is within five points of what is reported."""
    with llamacpp_server(tmp_path, slots=1, context_tokens=1024) as server:
        async with gateway({"backends": [{"name": "llama", "url": server.url}]}) as front:
            await becomes(front, "llama", "ready", 60.0)
            talks = [Talk(front, name) for name in ("one", "two", "three")]
            rounds = [[await talk.turn() for talk in talks] for _ in range(4)]
            for number, turns in enumerate(rounds):
                predicted, reported = (sum(shares) / len(talks) for shares in zip(*turns, strict=True))
                print(f"round {number}: predicted {predicted:.3f}, reported {reported:.3f}")  # noqa: T201
            assert reported > 0.8
            assert abs(predicted - reported) <= 0.05
            await quiet(front)
            shown = (await backend(front, "llama"))["prefix"]
            assert shown["room"] >= len(talks)
            assert shown["found_more"] >= 2


class Talk:
    """A conversation that begins with a long text of its own."""

    def __init__(self, front: Gateway, name: str) -> None:
        self._front = front
        self._name = name
        rules = " ".join(f"Rule {number} of {name}: never say {number * 37} words." for number in range(18))
        self._said: list[dict[str, Any]] = [{"role": "system", "content": rules}]

    async def turn(self) -> tuple[float, float]:
        """The cached shares of its next prompt, as predicted and as reported."""
        self._said.append({"role": "user", "content": f"Question {len(self._said)}: is that so?"})
        body = {"model": "smollm2-135m", "messages": self._said, "max_tokens": 4, "temperature": 0}
        headers = [("X-Slotgate-Explain", "1"), ("X-Slotgate-Session", self._name)]
        answer = await ask(self._front, body, headers)
        assert answer.head.status == 200, answer
        document = json.loads(answer.body)
        self._said.append({"role": "assistant", "content": document["choices"][0]["message"]["content"]})
        told = re.search(r"; cached=(\d+)/(\d+)", answer.head.headers["x-slotgate-prefix"])
        assert told is not None
        usage = document["usage"]
        reported = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
        return int(told[1]) / int(told[2]), reported
