"""Prompts that break their prefixes, on real sockets: what the gateway says of them, and what it saves to
hold them still. The engine counts what it found in its cache."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.processes.asking import ask, counted
from tests.processes.fleet import becomes, configured
from tests.processes.harness import Engine, Gateway, engine, gateway
from tests.processes.test_commands import command
from tests.unit.conversations import Body, sessions, tool, turns

OPTIONS: dict[str, Any] = {
    "prefix_cache": True,
    "slots": 4,
    "tokens": 4,
    "prefill_tps": 10_000_000,
    "decode_tps": 10_000,
}
# What the gateway may ask of an engine in its own name.
ASKED = frozenset({"stream", "stream_options", "max_tokens"})
CLOCK = re.compile(r"(?<=The current time is 2024-05-15 )\d\d:\d\d:\d\d")


def workload(agent: str, *, volatile: bool) -> Iterator[tuple[str, Body]]:
    """Three recorded sessions, one after the other, as one agent's requests with their session's name; a
    volatile agent tells the time at the head of its system prompt, and its tools come in any order."""
    tools = [tool(name, f"{name} for {agent}. " * 20) for name in ("book", "cancel", "search", "think")]
    for number, messages in enumerate(sessions()[:3]):
        for turn, body in enumerate(turns(messages)):
            body = copy.deepcopy(body) | {"stream": False, "model": "fake-model", "user": agent}
            body["tools"] = tools
            if volatile:
                body["tools"] = tools[turn % 4 :] + tools[: turn % 4]
                system = body["messages"][0]
                now = f"15:{turn:02}:{7 + number:02}"
                assert system["content"].count("15:00:00") == 1
                body["messages"][0] = system | {"content": system["content"].replace("15:00:00", now)}
            yield f"{agent}-{number}", body


async def hit_ratio(front: Gateway, agent: str, *, volatile: bool) -> float:
    """The share of an agent's prompt tokens that the engine found in its cache."""
    cached = tokens = 0
    for session, body in workload(agent, volatile=volatile):
        answer = await ask(front, body, [("X-Slotgate-Session", session)])
        assert answer.head.status == 200, answer
        usage = json.loads(answer.body)["usage"]
        tokens += usage["prompt_tokens"]
        cached += usage["prompt_tokens_details"]["cached_tokens"]
    return cached / tokens


def as_documented(sent: Body, came: Body) -> None:
    """What reached the engine is what the client sent, but for tools in one order and the time of the first
    turn, or midnight."""
    assert came["tools"] == sorted(sent["tools"], key=lambda one: str(one["function"]["name"]))
    assert came["messages"][1:] == sent["messages"][1:]
    was, now = (str(body["messages"][0].pop("content")) for body in (sent, came))
    assert CLOCK.sub("", was) == CLOCK.sub("", now)
    assert was.count("The current time is 2024-05-15 ") == 1
    others = ASKED | {"tools"}
    assert {key: sent[key] for key in sent if key not in others} == {
        key: came[key] for key in came if key not in others
    }


@pytest.mark.parametrize("personality", ["llamacpp", "ds4", "vllm"], ids=["slots", "banks", "blocks"])
async def test_a_head_held_still_is_found_in_every_kind_of_cache(
    personality: str, record_property: Callable[[str, object], None]
) -> None:
    """At least 95 % of what a stable agent's prompts find, where without it most is lost."""
    details = {"usage_details": True} if personality == "vllm" else {}
    modes = {"held": {"stabilise": "all"}, "tidy": {"stabilise": "tools"}}
    async with engine(personality, **OPTIONS, **details) as one:
        config = configured(one, backend={"models": ["fake-model"]})
        # The harness writes tables of one depth; what is deeper stands inline.
        async with gateway(config | {"prefix": {"agents": modes}}) as front:
            await becomes(front, "b0", "ready")
            stable = await hit_ratio(front, "stable", volatile=False)
            loose = await hit_ratio(front, "loose", volatile=True)
            tidy = await hit_ratio(front, "tidy", volatile=True)
            held = await hit_ratio(front, "held", volatile=True)
            record_property("hit ratios", {"stable": stable, "off": loose, "tools": tidy, "all": held})
            assert stable > 0.7
            assert loose < 0.3
            assert loose < tidy < 0.5 * stable
            assert held >= 0.95 * stable
            sent = [body for _, body in workload("held", volatile=True)]
            came = await one.requests(last=len(sent))
            for mine, theirs in zip(sent, came, strict=True):
                as_documented(mine, json.loads(theirs["body"]))
            await shown_as_it_was(front, one)


async def shown_as_it_was(front: Gateway, one: Engine) -> None:
    """The admin port, the metrics and the command tell the same."""
    found = (await front.operator.get("/admin/prefix")).json()
    by_agent = {agent["agent"]: agent for agent in found}
    assert found[0]["agent"] == "loose"
    requests = len(list(workload("a", volatile=True)))
    assert {agent["turns"] for agent in found} == {requests}
    assert by_agent["stable"]["breaks"] == by_agent["held"]["breaks"] == 0
    loose, tidy = by_agent["loose"], by_agent["tidy"]
    # And once the third conversation begins with a third time of day.
    assert loose["breaks"] == tidy["breaks"] == requests - 3 + 1
    for agent, kind in ((loose, "tool_order"), (tidy, "time")):
        found_of = [(one["kind"], one["between"], one["breaks"]) for one in agent["kinds"]]
        assert found_of == [(kind, False, requests - 3), ("time", True, 1)]
    assert loose["tokens"] > tidy["tokens"] > 0
    assert loose["seconds"] > tidy["seconds"] > 0
    assert set(by_agent["held"]["held"]) >= {"time", "tool_order"}
    await counted(front, "slotgate_prefix_breaks_total", requests - 3, kind="tool_order")
    await counted(front, "slotgate_prefix_mends_total", by_agent["held"]["held"]["time"], kind="time")
    ended = await command("prefix", "--admin", front.admin)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert next(line for line in lines if "loose" in line).split()[:5] == [
        "loose",
        str(requests),
        str(requests - 3),
        "tool",
        "order",
    ]
    ended = await command("prefix", "--agents", "1", "--json", "--admin", front.admin)
    assert [agent["agent"] for agent in json.loads(ended.out)] == ["loose"]
    warnings = [line for line in front.process.errors.splitlines() if "break their cached prefix" in line]
    assert len(warnings) == 3
    assert "Airline" not in front.process.errors


async def test_a_client_that_asks_is_told() -> None:
    """`append`, then what breaks it in which byte; what was held still is told unasked."""
    async with (
        engine(**OPTIONS) as one,
        gateway(configured(one) | {"prefix": {"agents": {"held": {"stabilise": "all"}}}}) as front,
    ):
        await becomes(front, "b0", "ready")
        told, bodies = [], list(turns(sessions()[0]))[:3]
        for agent in ("loose", "held"):
            for turn, body in enumerate(bodies):
                system = body["messages"][0]
                now = system | {"content": system["content"].replace("15:00:00", f"15:0{turn // 2}:00")}
                raw = json.dumps(
                    body | {"model": "fake-model", "messages": [now, *body["messages"][1:]], "user": agent}
                ).encode()
                answer = await ask(front, raw, [("X-Slotgate-Explain", "1")])
                told.append(answer.head.headers)
        assert [head["x-slotgate-prefix"].partition(";")[0] for head in told] == [
            *("append", "append", "break"),
            *("append", "append", "append"),
        ]
        broken = told[2]["x-slotgate-prefix"]
        assert f"kind=time; offset={raw.index(b'15:01:00') + 4};" in broken
        assert [head.get("x-slotgate-stabilised") for head in told] == [None] * 3 + ["tool_key_order"] * 2 + [
            "time, tool_key_order"
        ]
