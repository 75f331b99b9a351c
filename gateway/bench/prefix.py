"""What it costs to compare prompts and to hold them still: `python -m gateway.bench.prefix`.

Bodies of 64 KB, as agents send them: tools, a system prompt, a conversation. What is timed is what the
gateway does for one request, in processor time of the one thread, so that others at work on the machine count
as little as may be; beside it, in the same run, what the standard library takes to read the same body.
`--memory` shows what 10,000 conversations take instead.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import logging
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from time import thread_time
from typing import Any, cast

from gateway.accounting import Record
from gateway.client import Client
from gateway.collector import GC_THRESHOLDS
from gateway.engines.base import CHAT
from gateway.inflight import Inflight
from gateway.mender import Mender
from gateway.metrics import Metrics
from gateway.options import PrefixSettings
from gateway.prefixes import Prefixes
from gateway.request import Request, parse
from gateway.routes import ROUTES
from policies.admission import Admission
from policies.prefix import PrefixShadow
from policies.service_model import ServiceModel
from policies.types import Backend, Call, Limits, Priority

TOOLS, TOOL_WORDS = 14, 90
SYSTEM_WORDS, MESSAGE_WORDS = 2400, 130
BODY_BYTES = 65_536
ROUNDS = 1500
CONVERSATIONS = 10_000
GOAL_MICROSECONDS = 300

Body = dict[str, Any]
Change = Callable[[Body, int], None]


class Words:
    """Texts as agents have them: words, and something with digits every seventy bytes."""

    def __init__(self) -> None:
        self._chance = random.Random(1)
        letters = "etaoinshrdlucmfwygpb"
        self._words = ["".join(self._chance.choices(letters, k=1 + n % 11)) for n in range(4000)]
        self._words += [f"{n}" for n in range(0, 4000, 14)] + [f"src/{n}.py:{n % 97}" for n in range(60)]

    def text(self, words: int) -> str:
        """So many of them."""
        return " ".join(self._chance.choices(self._words, k=words)) + ".\n"


def conversation(words: Words, name: str) -> Body:
    """A body of about BODY_BYTES, whose agent has this name."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": words.text(TOOL_WORDS),
                "parameters": {
                    "type": "object",
                    "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
                    "required": ["path"],
                },
            },
        }
        for number in range(TOOLS)
    ]
    system = f"It is 2026-11-30T10:00:00Z. You are {name}. " + words.text(SYSTEM_WORDS)
    body: Body = {"model": "m", "stream": True, "messages": [{"role": "system", "content": system}]}
    body |= {"tools": tools, "user": name, "max_tokens": 65_536}
    while len(json.dumps(body)) < BODY_BYTES:
        grow(body, words)
    return body


def grow(body: Body, words: Words) -> None:
    """One more turn: a call, its result."""
    place = len(body["messages"])
    call = {"path": f"src/{place}.py", "line": place}
    function = {"name": "tool_3", "arguments": json.dumps(call)}
    body["messages"] += [
        {"role": "user" if place == 1 else "assistant", "content": words.text(20)}
        | (
            {"tool_calls": [{"id": f"call_{place}", "type": "function", "function": function}]}
            if place > 1
            else {}
        ),
        {"role": "tool", "tool_call_id": f"call_{place}", "content": words.text(MESSAGE_WORDS)},
    ]


def nothing(body: Body, turn: int) -> None:
    """It only grew."""


def clock(body: Body, turn: int) -> None:
    """The time at the head of the system prompt."""
    system = body["messages"][0]
    now = f"{10 + turn // 3600 % 12}:{turn // 60 % 60:02}:{turn % 60:02}"
    body["messages"][0] = system | {"content": system["content"].replace("10:00:00", now, 1)}


def shuffle(body: Body, turn: int) -> None:
    """Tools in another order."""
    body["tools"] = body["tools"][turn % TOOLS :] + body["tools"][: turn % TOOLS]


def rewrite(body: Body, turn: int) -> None:
    """A word in the middle of the history."""
    said = body["messages"][len(body["messages"]) // 2]
    body["messages"][len(body["messages"]) // 2] = said | {"content": f"{turn} {said['content']}"}


def compact(body: Body, turn: int) -> None:
    """Most of the history is a summary."""
    body["messages"][1:-2] = [{"role": "user", "content": f"[summary {turn}] of what was said."}]


def begin(body: Body, turn: int) -> None:
    """Another conversation of the same agent."""
    head = len(json.dumps(body | {"messages": body["messages"][:1]}))
    text = "".join(str(said["content"]) for said in body["messages"][1:])
    body["messages"][1:] = [{"role": "user", "content": f"Task {turn}. " + text[: BODY_BYTES - head - 100]}]


def begin_at(body: Body, turn: int) -> None:
    """Another conversation, which tells the time."""
    begin(body, turn)
    clock(body, turn)


CHANGES: dict[str, Change] = {
    "grows": nothing,
    "tells the time": clock,
    "shuffles its tools": shuffle,
    "rewrites its past": rewrite,
    "is compacted": compact,
    "begins anew": begin,
    "begins anew, tells the time": begin_at,
}


class Stage:
    """What the gateway has for it, and one backend."""

    def __init__(self, **settings: Any) -> None:
        metrics = Metrics(Admission(Limits()), "bench")
        self.prefixes = Prefixes(metrics, lambda: 0.0)
        self.mender = Mender(PrefixSettings(**settings), self.prefixes)
        self._backend = Backend("b", ServiceModel(), PrefixShadow())

    def mend(self, request: Request, agent: str) -> Request:
        """Hold its head still."""
        return self.mender.mended(request, agent, {})

    def sent(self, request: Request, agent: str) -> tuple[Inflight, Call]:
        """A request as it goes out; nobody waits for its answer."""
        record = Record("r", CHAT, 0.0)
        record.agent = agent
        live = Inflight(record, cast(Client, None), request, [], 0.0)
        call = Call("r", "m", CHAT, Priority.AGENT, agent, 0.0, 16_000, chain=request.chain())
        return live, call

    def look(self, live: Inflight, call: Call) -> None:
        """Compare it with the turn before."""
        self.prefixes.look(live, call, self._backend)


def bodies(change: Change, rounds: int) -> Iterator[bytes]:
    """Turns of an agent, each changed; when a conversation has become half as long again, it begins anew."""
    words = Words()
    body = first = conversation(words, "agent")
    for turn in range(rounds):
        if len(json.dumps(body)) > 1.5 * BODY_BYTES:
            body = first
        body = body | {"messages": [*body["messages"]]}
        grow(body, words)
        changed = copy.copy(body) | {"messages": [*body["messages"]]}
        change(changed, turn)
        yield json.dumps(changed).encode()


def timed(work: Callable[[], object]) -> float:
    """Microseconds that this takes."""
    start = thread_time()
    work()
    return 1e6 * (thread_time() - start)


def compared(change: Change, rounds: int) -> Iterator[tuple[float, float, int]]:
    """Of each turn: to compare it, to read it by the standard library, its bytes."""
    stage = Stage()
    for raw in bodies(change, rounds):
        live, call = stage.sent(parse(raw, ROUTES[CHAT]), "agent")
        yield timed(partial(stage.look, live, call)), timed(partial(json.loads, raw)), len(raw)


def mended(
    stabilise: str, change: Change, rounds: int, patterns: tuple[str, ...] = ()
) -> Iterator[tuple[float, float, int]]:
    """Of each turn: to hold its head still, to read it by the standard library, its bytes."""
    stage = Stage(stabilise=stabilise, patterns=patterns)
    for raw in bodies(change, rounds):
        request = parse(raw, ROUTES[CHAT])
        yield timed(partial(stage.mend, request, "agent")), timed(partial(json.loads, raw)), len(raw)


def row(name: str, samples: list[tuple[float, float, int]]) -> float:
    """Print a line of the table, per 64 KB; its 99th percentile."""
    costs = sorted(cost * BODY_BYTES / size for cost, _, size in samples)
    read = sorted(read * BODY_BYTES / size for _, read, size in samples)
    p50, p99, median, late = (of[int(share * len(of))] for of in (costs, read) for share in (0.5, 0.99))
    print(f"{name:<46}{p50:>8.0f}{p99:>8.0f}{median:>12.0f}{late:>8.0f}{p99 / late:>8.2f}")
    return p99


def memory(conversations: int) -> None:
    """Print what so many conversations take, all bounds on."""
    words = Words()
    body = conversation(words, "agent")
    stage = Stage(stabilise="all")
    stability = stage.prefixes._stability
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(conversations):
        one = copy.copy(body) | {"messages": [*body["messages"]]}
        begin_at(one, number)
        agent = f"agent-{number % 100}"
        stage.look(*stage.sent(stage.mend(parse(json.dumps(one).encode(), ROUTES[CHAT]), agent), agent))
    after, _ = tracemalloc.get_traced_memory()
    print(
        f"{conversations:,} conversations: {(after - before) / 2**20:.0f} MiB; {len(stability):,} turns are "
        f"held, counted as {stability.memory_bytes / 2**20:.0f} MiB"
    )


def main() -> None:
    """Print the table."""
    logging.disable()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    parser = argparse.ArgumentParser(
        prog="python -m gateway.bench.prefix", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each kind")
    parser.add_argument("--memory", action="store_true", help="what many conversations take")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    options = parser.parse_args()
    if options.memory:
        memory(options.conversations)
        return
    print(f"microseconds per 64 KB, beside those of json.loads; Python {sys.version.split()[0]}")
    print(f"{'an agent that':<46}{'p50':>8}{'p99':>8}{'loads p50':>12}{'p99':>8}{'of p99':>8}")
    worst = max(row(name, list(compared(change, options.rounds))) for name, change in CHANGES.items())
    for stabilise in ("tools", "all"):
        for name in ("grows", "shuffles its tools", "tells the time", "begins anew, tells the time"):
            samples = list(mended(stabilise, CHANGES[name], options.rounds))
            worst = max(worst, row(f"{name}: stabilise = {stabilise}", samples))
    own = mended("all", clock, options.rounds, ("build [0-9.]+",))
    worst = max(worst, row("tells the time: all, own pattern", list(own)))
    print(f"worst p99: {worst:.0f}, goal: {GOAL_MICROSECONDS}")


if __name__ == "__main__":
    main()
