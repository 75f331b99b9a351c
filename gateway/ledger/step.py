"""What one gateway tells the ledger in one step, and what it is told.

A step is one script, so it happens whole or not at all, and a gateway has one under way at a time. Its number
grows: a step that was given up and arrives late, behind the next one, does nothing. So whatever becomes of a
step, the next one sets things right: what it wanted and did not get for certain is given back there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Unavailable(Exception):
    """The ledger cannot be asked; whether the step happened is not known. `late`: no answer came in time;
    `refused`: it answered that it does not do this."""

    def __init__(self, why: str, *, late: bool = False, refused: bool = False) -> None:
        super().__init__(why)
        self.late = late
        self.refused = refused


class Entry(NamedTuple):
    """A slot as it stands in the ledger: its engine's place in the step, this gateway's number for it."""

    engine: int
    number: str


class Want(NamedTuple):
    """A slot that is wanted."""

    engine: int
    number: str
    came_ms: int  # see `Word`
    slots: int  # that the engine has, as this gateway knows


@dataclass(frozen=True, slots=True)
class Word:
    """What a gateway says of one engine."""

    url: str  # which engine it is
    slots: int  # that it has; below 0: nobody knows, and so many are tried there; 0: nothing is known
    ready: bool  # it takes calls
    # When the oldest call that found no slot there came. Each class below interactive counts as if it had
    # come a minute later, so that higher ones go first and none waits for ever. None: nobody waits.
    came_ms: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """Times are milliseconds; those of events by this gateway's own clock: elsewhere only how long ago they
    were counts. Engines are told apart by their place in `words`."""

    owner: str  # this run of this gateway
    number: int
    heard: int  # the last step to which an answer came
    epoch: str  # the last one heard of; "": none
    nonce: str  # the name of a new epoch, if there is none
    clock_ms: int
    lease_ms: int  # what is not held again for so long is free
    freeze_ms: int  # a new epoch gives no slots for so long
    claim_ms: int  # what others said of their waiting calls counts for so long
    lost_ms: int | None  # since when nobody could be asked, so that it decided alone; None: it did not
    channel: str  # where hints go
    words: Sequence[Word]
    freed: Sequence[Entry] = ()
    held: Sequence[Entry] = ()  # all of them, in a full step: also beyond what there is, as they are in use
    wanted: Sequence[Want] = ()
    # Engines that an operator drained here, and why; None: resumed.
    drains: Sequence[tuple[int, str | None]] = ()
    known: Sequence[tuple[int, str]] = ()  # all drains that this gateway knows of, for a new epoch
    full: bool = False
    bye: bool = False  # the last one

    def encoded(self) -> str:
        """As the script reads it."""
        return json.dumps(
            {
                "owner": self.owner,
                "number": self.number,
                "heard": self.heard,
                "epoch": self.epoch,
                "nonce": self.nonce,
                "clock": self.clock_ms,
                "lease": self.lease_ms,
                "freeze": self.freeze_ms,
                "claim": self.claim_ms,
                "lost": False if self.lost_ms is None else self.lost_ms,
                "channel": self.channel,
                "engines": [
                    {
                        "url": word.url,
                        "slots": word.slots,
                        "ready": word.ready,
                        "came": False if word.came_ms is None else word.came_ms,
                    }
                    for word in self.words
                ],
                "freed": [(engine + 1, number) for engine, number in self.freed],
                "held": [(engine + 1, number) for engine, number in self.held],
                "wanted": [(want.engine + 1, *want[1:]) for want in self.wanted],
                "drains": [(engine + 1, False if why is None else why) for engine, why in self.drains],
                "known": [(engine + 1, why) for engine, why in self.known],
                "full": self.full,
                "bye": self.bye,
            },
            separators=(",", ":"),
        )


class Standing(NamedTuple):
    """What the ledger knows of one engine."""

    held: int  # slots in use, by all gateways
    slots: int  # the least that any other gateway knows; 0: none knows any
    tried: int  # the most that others, who do not know, give it at a time; 0: none does
    ahead: int  # other gateways whose oldest call has waited longer than this one's
    gateways: int  # that have this engine, this one included
    rank: int  # of this one among them
    ready_elsewhere: bool  # it takes calls of another gateway
    drain: str | None = None  # why an operator drained it; None: nobody did


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a step."""

    again: bool = False  # nothing was done: say everything, in a full step
    stale: bool = False  # nothing was done: a later step was before it
    epoch: str = ""
    frozen_ms: int = 0  # until slots are given
    had: tuple[bool, ...] = ()  # of a full step: for each that is held, whether it stood there
    given: tuple[bool, ...] = ()
    standings: tuple[Standing, ...] = ()

    @classmethod
    def decoded(cls, text: bytes | str) -> Reply:
        """As the script wrote it. Raises Unavailable for anything else."""
        try:
            told: dict[str, Any] = json.loads(text)
            if told.get("again") or told.get("stale"):
                return cls(again=bool(told.get("again")), stale=bool(told.get("stale")))
            return cls(
                epoch=told["epoch"],
                frozen_ms=int(told["frozen"]),
                had=tuple(map(bool, told["had"])),
                given=tuple(map(bool, told["given"])),
                standings=tuple(
                    Standing(
                        held, slots, tried, ahead, gateways, rank, bool(ready), None if why is False else why
                    )
                    for held, slots, tried, ahead, gateways, rank, ready, why in told["engines"]
                ),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as fault:
            raise Unavailable(f"an answer that is none: {fault}") from None


class Store(Protocol):
    """Where the ledger is kept."""

    @property
    def channel(self) -> str:
        """Where hints are published."""

    async def step(self, step: Step) -> Reply:
        """Make one step; one at a time. Raises Unavailable."""

    async def hints(self, hint: Callable[[], None]) -> None:
        """Call `hint` whenever slots may have become free, until cancelled. Some may be lost."""

    async def close(self) -> None:
        """Close all connections."""
