"""Context window against slots: how an engine's memory becomes slots, and how many another window gives.

Engines divide their memory in three ways. An engine with banks measures at its start how many whole windows
fit beside what it keeps free; the published boot lines of one, `free=13.74 GiB headroom=8.00 GiB
per_bank=508.3 MiB -> max_seq 11` at 65,536 tokens and `free=7.45 GiB -> max_seq 2` at 262,144, are one
division and a floor. A split engine cuts one context into as many slots as it is told. A pool is shared by
all requests; its number of slots is a setting of its own.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

ROUNDING = 1e-9  # of a slot: a law that goes through a whole number must give it


class Division(enum.StrEnum):
    """How an engine makes slots of its memory."""

    BANKS = "banks"  # as many whole windows as fit at its start
    SPLIT = "split"  # one context, cut into a configured number of slots
    POOL = "pool"  # blocks that all requests share
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of a kind of engine."""

    division: Division = Division.UNKNOWN
    slots_min: int = 0  # it gives so many, however little fits
    headroom_bytes: int = 0  # that it leaves free


@dataclass(frozen=True, slots=True)
class Room:
    """What one context window gives."""

    context_tokens: int  # of one request
    slots: int
    sequences: float | None = None  # of full length that memory holds at a time, if slots are not just these
    estimate: bool = False  # a law was stretched to get here; else it is the engine's own arithmetic


class Law(Protocol):
    """Slots by window, for one engine on one machine."""

    def room(self, context_tokens: int) -> Room:
        """What this window would give."""
        ...


def banks(free_bytes: int, headroom_bytes: int, slot_bytes: int | None, slots_min: int) -> int | None:
    """Slots of an engine that had so much memory free when it laid out its banks. None: more is free than
    must be kept so, and nobody says how much a bank takes."""
    spare = free_bytes - headroom_bytes
    if spare <= 0:
        return slots_min
    return None if slot_bytes is None else max(slots_min, spare // slot_bytes)


@dataclass(frozen=True, slots=True)
class BootLine:
    """One start of an engine with banks. Another window is an estimate: a bank grows with the window, and
    what is free is taken to stay, although the engine's own buffers leave more of it at a smaller window."""

    context_tokens: int
    free_bytes: int
    headroom_bytes: int
    slot_bytes: int  # a whole window
    slots_min: int = 1

    def room(self, context_tokens: int) -> Room:
        """At least so many below the window of that start, at most so many above it."""
        slot_bytes = max(1, self.slot_bytes * context_tokens // self.context_tokens)
        slots = banks(self.free_bytes, self.headroom_bytes, slot_bytes, self.slots_min)
        assert slots is not None
        return Room(context_tokens, slots, estimate=context_tokens != self.context_tokens)


@dataclass(frozen=True, slots=True)
class Split:
    """One context that is cut into slots."""

    tokens: int
    estimate: bool = False  # whether the whole is one

    def room(self, context_tokens: int) -> Room:
        """As many slots as hold this window; each has its part of the whole, which may be more."""
        return self.among(max(1, self.tokens // context_tokens))

    def among(self, slots: int) -> Room:
        """The window that so many slots leave to each."""
        return Room(self.tokens // slots, slots, estimate=self.estimate)


@dataclass(frozen=True, slots=True)
class Pool:
    """Tokens that all running requests hold together."""

    tokens: int

    def room(self, context_tokens: int) -> Room:
        """Whole windows; shorter requests share the same memory among more of them."""
        sequences = self.tokens / context_tokens
        return Room(context_tokens, max(1, int(sequences)), sequences)


@dataclass(frozen=True, slots=True)
class Budget:
    """Nothing but sizes: what weights leave of a machine's memory, at so many bytes a token. Engines need
    more than that for themselves, so it is an estimate, and an optimistic one."""

    memory_bytes: int
    weights_bytes: int
    headroom_bytes: int
    token_bytes: int
    slots_min: int = 0

    def room(self, context_tokens: int) -> Room:
        """Whole windows in what is left."""
        spare = self.memory_bytes - self.weights_bytes - self.headroom_bytes
        sequences = max(0.0, spare / (self.token_bytes * context_tokens))
        return Room(context_tokens, max(self.slots_min, int(sequences)), sequences, estimate=True)


class Contradiction(Exception):
    """Sizes that no law gives: a larger window with more slots, or fewer than two windows."""


class Seen:
    """Windows with which an engine has started, and the slots that each gave.

    If each slot takes memory in proportion to the window, and the engine's own buffers take theirs, slots
    are `a / window - b`. Between two sizes that were seen the law goes through both, beyond them it goes on
    as between the nearest two.
    """

    def __init__(self, slots_by_context: Mapping[int, int], slots_min: int = 1) -> None:
        self._sizes = sorted(slots_by_context.items())
        self._slots_min = slots_min
        slots = [number for _, number in self._sizes]
        if len(slots) < 2 or slots != sorted(slots, reverse=True):
            raise Contradiction(f"no law gives {dict(self._sizes)}")

    def room(self, context_tokens: int) -> Room:
        """Exact where it was seen, else an estimate."""
        windows = [window for window, _ in self._sizes]
        upper = min(max(bisect_left(windows, context_tokens), 1), len(windows) - 1)
        (small, many), (large, few) = self._sizes[upper - 1 : upper + 1]
        slope = (many - few) / (1 / small - 1 / large)
        slots = many + slope * (1 / context_tokens - 1 / small)
        whole = max(self._slots_min, math.floor(slots + ROUNDING))
        return Room(context_tokens, whole, estimate=context_tokens not in windows)
