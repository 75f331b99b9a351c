"""Requests that simulated engines served, as the gateway would have written them down."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from gateway.journal import Journal
from gateway.row import Row, packed
from policies.prefix import Link
from policies.simulation.profile import Profile
from policies.simulation.scenarios import Maker
from policies.simulation.traces import sessions
from policies.simulation.workload import Workload
from policies.simulation.world import Record
from policies.simulator import simulate
from policies.traffic import Asked

SINCE = 1_800_000_000.0  # when they began, in seconds since 1970


def traffic(profiles: list[Profile], agents: int, policy: str = "slotgate") -> list[Asked]:
    """What agents asked, every second one with a document of its own."""
    recorded = sessions(
        files("gateway").joinpath("traces", "coding_agents.jsonl").read_text("utf-8").splitlines()
    )
    load = Workload(Maker(recorded, random.Random(1)).burst(agents))
    return [asked(record) for record in simulate(profiles, load, policy).records]


def asked(record: Record) -> Asked:
    """One of them."""
    turn = record.turn
    return Asked(
        arrived=record.arrived,
        dispatched=record.started,
        first=record.first,
        ended=record.ended,
        agent=record.program.tenant,
        priority=record.program.priority,
        backend=record.engine,
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=turn.output_tokens,
        chain=tuple(Link(segment.digest, 4 * segment.end_tokens) for segment in turn.prompt),
    )


def row(one: Asked) -> Row:
    """As a row of the journal."""
    first, output = one.first, one.output_tokens
    known: dict[str, object] = {
        "id": f"{one.arrived}",
        "request_id": f"{one.arrived}",
        "arrived": SINCE + one.arrived,
        "key": "",
        "agent": one.agent,
        "conversation": one.conversation,
        "priority": one.priority.label,
        "route": "/v1/chat/completions",
        "model": "m",
        "served_model": "m",
        "backend": one.backend,
        "streamed": 1,
        "outcome": "completed",
        "retries": 0,
        "prompt_bytes": 4 * one.prompt_tokens,
        "prompt_tokens": one.prompt_tokens,
        "cached_tokens": one.cached_tokens,
        "completion_tokens": output,
        "source": "reported",
        "events": output,
        "answer_bytes": 240 * output,
        "queue_seconds": one.dispatched - one.arrived,
        "ttft_seconds": None if first is None else first - one.arrived,
        "backend_ttft_seconds": None if first is None else first - one.dispatched,
        "tpot_seconds": (one.ended - first) / (output - 1) if first is not None and output > 1 else None,
        "seconds": one.ended - one.arrived,
        "slot_seconds": one.ended - one.dispatched,
        "chain": packed(one.chain),
    }
    return Row._make(known.get(name) for name in Row._fields)


def write(path: Path, some: Iterable[Asked]) -> None:
    """A journal of them."""
    with closing(Journal(str(path), 30, 2**30)) as journal:
        journal.append([row(one) for one in some], SINCE)
