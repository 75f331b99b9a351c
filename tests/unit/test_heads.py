"""What keeps an agent's conversations from sharing their head, and what does not."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import xxhash

from gateway.engines.base import CHAT
from gateway.prefixes import turn_of
from gateway.request import parse
from gateway.routes import ROUTES
from policies.heads import AGENTS_MAX, BYTES_MAX, Drift, SharedHeads
from policies.volatility import Kind
from tests.unit.conversations import TOOLS, Body, body_of, coding_sessions, of_blocks, sessions, tool, turns

RULES = "Read the policy before you answer. Never promise what it does not say. " * 60
TASKS = ("Book a flight to Rome.", "Fix the build.", "Write a poem about rain.", "Sort these names.")

WORDS = ("Book", "Cancel", "Write", "Sort", "Mend", "Find", "Count", "Draw", "Read")


class Watch:
    """Looks at conversations as they begin."""

    def __init__(self, **bounds: int) -> None:
        self.heads = SharedHeads(xxhash.xxh3_64_intdigest, **bounds)
        self.now = 0.0
        self.raw = b""

    def begins(self, body: Body, agent: str = "a") -> Drift | None:
        """The next one, a second after the one before."""
        self.now += 1.0
        self.raw = json.dumps(body).encode()
        request = parse(self.raw, ROUTES[CHAT])
        turn = turn_of(request, request.chain())
        assert turn is not None
        return self.heads.look(agent, turn, self.now)


def a_conversation(number: int, system: str, tools: list[Any] = TOOLS) -> Body:
    """A new one, about something else."""
    said = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"{number}: {TASKS[number % 4]}"},
    ]
    return body_of(said, tools=tools)


Head = Callable[[int], str]
VOLATILE: dict[str, tuple[Kind, Head]] = {
    "time": (Kind.TIME, lambda n: f"It is 2026-11-30T09:{n:02}:17Z. {RULES}"),
    "clock within": (Kind.TIME, lambda n: f"{RULES} It is {9 + n}:05. {RULES}"),
    "uuid": (Kind.UUID, lambda n: f"Session {uuid.uuid5(uuid.NAMESPACE_URL, str(n))}. {RULES}"),
    "random id": (Kind.RANDOM_ID, lambda n: f"Request x{n}kq{7 * n}zp. {RULES}"),
    "counter": (Kind.COUNTER, lambda n: f"This is conversation {n + 97}. {RULES}"),
    "date": (Kind.DATE, lambda n: f"It is 2026-11-{10 + n}. {RULES}"),
    "time and counter": (Kind.TIME, lambda n: f"At 9:{n + 10} you were asked {n} times. {RULES}"),
    "whitespace": (Kind.WHITESPACE, lambda n: "\n" * n + RULES),
}


@pytest.mark.parametrize("case", VOLATILE)
def test_names_what_keeps_a_head_from_being_shared(case: str) -> None:
    """From the third conversation on that has a head of its own: kind, path, byte, and what stands behind."""
    kind, head = VOLATILE[case]
    watch = Watch()
    drifts = [watch.begins(a_conversation(n, head(n))) for n in range(5)]
    assert drifts[:2] == [None, None]
    for number, drift in enumerate(drifts[2:], 2):
        assert drift is not None
        assert (drift.difference.kind, drift.difference.path) == (kind, "messages[0].content")
        assert drift.difference.head
        before, now = (json.dumps(a_conversation(n, head(n))["messages"][0]) for n in (number - 1, number))
        at = next(place for place, (a, b) in enumerate(zip(before, now, strict=False)) if a != b)
        raw = json.dumps(a_conversation(number, head(number)))
        assert drift.difference.offset == raw.index(now) + at
        assert drift.lost_bytes == len(now) - at
        assert drift.shared_bytes == len(json.dumps(TOOLS)) + at


def test_names_tools_that_come_in_any_order() -> None:
    """All that a prompt has stands behind them."""
    tools = [tool(name, f"It does {name}. " * 20) for name in ("book", "cancel", "search", "think")]
    watch = Watch()
    drifts = [watch.begins(a_conversation(n, RULES, tools[n:] + tools[:n])) for n in range(4)]
    assert [drift and drift.difference.kind for drift in drifts] == [None, None, *[Kind.TOOL_ORDER] * 2]
    assert drifts[3] is not None
    assert drifts[3].difference.path.startswith("tools[")
    assert drifts[3].lost_bytes > len(RULES)


LEGITIMATE: dict[str, Callable[[int], Body]] = {
    "the same head": lambda n: a_conversation(n, RULES),
    "other tasks": lambda n: a_conversation(n, f"Your task: {TASKS[n % 4]} {RULES}"),
    "numbered tasks": lambda n: a_conversation(n, f"Task {n}: {WORDS[n]} it. {RULES}"),
    "other tools": lambda n: a_conversation(n, RULES, [*TOOLS, *(tool(f"more_{m}") for m in range(n))]),
    "a time at its end": lambda n: a_conversation(n, f"{RULES} It is 9:{n + 10}."),
    "a time before another task": lambda n: a_conversation(n, f"It is 9:{n + 10}. {WORDS[n]} it. {RULES}"),
    "a head of two lines": lambda n: a_conversation(n, f"It is 9:{n + 10}. You help.", []),
    "two users in turn": lambda n: a_conversation(n, f"User {n % 2 + 400}. {RULES}"),
    "helpers of four kinds": lambda n: a_conversation(n, f"{TASKS[n % 4]} " * 100),
}


@pytest.mark.parametrize("case", LEGITIMATE)
def test_heads_that_are_meant_to_differ_raise_no_alarm(case: str) -> None:
    """And what costs nothing does not either."""
    watch = Watch()
    assert [watch.begins(LEGITIMATE[case](n)) for n in range(9)] == [None] * 9


def test_a_new_day_is_no_alarm() -> None:
    """Its first conversation reads the head anew, and the others have it."""
    watch = Watch()
    days = [10, 10, 10, 11, 11, 12, 12, 12]
    heads = (a_conversation(n, f"It is 2026-11-{day}. {RULES}") for n, day in enumerate(days))
    assert [watch.begins(body) for body in heads] == [None] * len(days)


def test_what_was_used_long_ago_is_no_loss() -> None:
    """A conversation each other hour finds nothing in the cache, whatever it begins with."""
    watch = Watch()
    for number in range(5):
        watch.now += 7200.0
        assert watch.begins(a_conversation(number, f"It is 9:{number + 10}. {RULES}")) is None


def test_agents_and_models_are_not_compared() -> None:
    """They share nothing."""
    watch = Watch()
    for number in range(6):
        body = a_conversation(number, f"It is 9:{number + 10}. {RULES}")
        assert watch.begins(body, f"agent-{number}") is None
        assert watch.begins(body | {"model": f"m{number}"}) is None


def every_beginning() -> Iterator[tuple[str, Body]]:
    """First requests of the recorded sessions, by agent."""
    for messages in sessions():
        yield "airline", next(turns(messages))
    for _, requests in coding_sessions():
        yield "coding", of_blocks(requests[0])


def test_recorded_sessions_raise_no_alarm() -> None:
    """Those of one agent begin alike."""
    watch = Watch()
    assert {watch.begins(copy.deepcopy(body), agent) for agent, body in every_beginning()} == {None}


def test_memory_is_bounded() -> None:
    """By agents, by bytes, by heads of an agent."""
    watch = Watch(bytes_max=1 << 18)
    for number in range(2 * AGENTS_MAX):
        watch.begins(a_conversation(number, f"{TASKS[number % 4]} {number} {RULES}"), f"a{number % 1500}")
        assert watch.heads.memory_bytes <= 1 << 18
    agents = watch.heads._agents
    held = sum(len(piece) for families in agents.values() for family in families for piece in family.pieces)
    assert held == watch.heads.memory_bytes
    assert len(agents) <= AGENTS_MAX
    assert watch.begins(a_conversation(1, "x" * (1 << 18))) is None
    assert BYTES_MAX <= 1 << 24
