"""Requests that were served, as a workload that can be played again.

Conversations are closed loops: a turn comes when the answer before it has been read, so under another fleet
it would have come earlier or later. Each is taken apart into the pauses between answer and next question,
which stay as they were, and the waiting, which the simulation makes anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from policies.prefix import Chain
from policies.simulation.workload import Digests, Program, Segment, Turn
from policies.types import Priority

FRESH = 2**64  # digests from here on are nobody's: those of chains have 64 bits


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that a backend worked on; times on any one clock."""

    arrived: float
    dispatched: float
    first: float | None  # None: it was not streamed
    ended: float
    agent: str
    priority: Priority
    backend: str
    prompt_tokens: int
    cached_tokens: int | None  # of them; None: nobody knows
    output_tokens: int
    conversation: str | None = None
    chain: Chain = ()

    @property
    def tokens(self) -> int:
        """What its slot had to hold."""
        return self.prompt_tokens + self.output_tokens


@dataclass(slots=True, eq=False)
class _Thread:
    """A conversation as far as it is known."""

    rows: list[Asked]
    turns: list[Turn]


def programs(asked: Iterable[Asked]) -> list[Program]:
    """Conversations, in the order of their beginnings, on a clock that starts with the first.

    A request continues the one whose prompt it begins with, message by message, else the one that the
    client named so; if that was still running, it is a conversation of its own.
    """
    rows = sorted(asked, key=lambda row: row.arrived)
    digests = Digests(FRESH)
    threads: list[_Thread] = []
    by_digest: dict[int, _Thread] = {}  # of the last message of a conversation's latest prompt
    by_name: dict[tuple[str, str], _Thread] = {}
    for row in rows:
        name = (row.agent, row.conversation) if row.conversation is not None else None
        found = next(
            (by_digest[link.digest] for link in reversed(row.chain) if link.digest in by_digest), None
        )
        if found is None and name is not None:
            found = by_name.get(name)
        if found is None or not _follows(row, found.rows[-1]):
            found = _Thread([], [])
            threads.append(found)
        _append(found, row, digests)
        if row.chain:
            by_digest[row.chain[-1].digest] = found
        if name is not None:
            by_name[name] = found
    return [
        Program(
            name=f"conversation-{number}",
            tenant=thread.rows[0].agent,
            priority=thread.rows[0].priority,
            starts=thread.rows[0].arrived - rows[0].arrived,
            turns=tuple(thread.turns),
        )
        for number, thread in enumerate(threads)
    ]


def _follows(row: Asked, before: Asked) -> bool:
    return before.ended <= row.arrived and before.priority is row.priority


def _append(thread: _Thread, row: Asked, digests: Digests) -> None:
    pause = 0.0
    if thread.rows:
        before, turn = thread.rows[-1], thread.turns[-1]
        pause = row.arrived - before.ended
        if (answer := _answer(before, row)) is not None:
            thread.turns[-1] = replace(turn, answer=answer)
    thread.rows.append(row)
    thread.turns.append(Turn(_segments(row, digests), row.output_tokens, digests.new(), pause))


def _answer(before: Asked, row: Asked) -> int | None:
    """The message behind the whole earlier prompt, if another one follows it: the answer, which its engine
    made itself and has, too."""
    if not before.chain:
        return None
    last = before.chain[-1].digest
    place = next((number for number, link in enumerate(row.chain) if link.digest == last), len(row.chain))
    return row.chain[place + 1].digest if place + 2 < len(row.chain) else None


def _segments(row: Asked, digests: Digests) -> tuple[Segment, ...]:
    """The prompt in tokens: each message has its share of the bytes."""
    if not row.chain:
        return (Segment(digests.new(), row.prompt_tokens),)
    whole = max(1, row.chain[-1].end_bytes)
    return tuple(Segment(link.digest, row.prompt_tokens * link.end_bytes // whole) for link in row.chain)


def within(asked: Iterable[Asked], context_tokens: int) -> list[Asked]:
    """Those that a window of this size holds, answers included."""
    return [row for row in asked if row.tokens <= context_tokens]


def most(sizes: Iterable[int], part: float) -> int:
    """The size that this part of them stays within."""
    rows = sorted(sizes)
    return rows[max(0, math.ceil(part * len(rows)) - 1)]
