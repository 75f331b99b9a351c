"""What an engine keeps of the prompts it has computed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Protocol

from policies.simulation.profile import CacheKind, Profile
from policies.simulation.workload import Segment

SIMILAR = 0.1  # a slot whose sequence shares less of the prompt is chosen by age (llama.cpp's default)

Sequence = tuple[Segment, ...]


class Cache(Protocol):
    """Prefixes of one engine."""

    def matched(self, prompt: Sequence) -> int:
        """Tokens of the prompt that a request would find if it started now."""

    def start(self, id: str, prompt: Sequence) -> None:
        """A request takes a slot."""

    def found(self, id: str, prompt: Sequence) -> int:
        """Tokens that it finds if its prefill begins now; others may have brought them meanwhile."""

    def computed(self, id: str, prompt: Sequence) -> None:
        """Its prefill is over."""

    def end(self, id: str, sequence: Sequence) -> None:
        """It left its slot; the engine holds this sequence."""


def cache(profile: Profile) -> Cache:
    """An empty one, of the engine's kind."""
    if profile.cache is CacheKind.BLOCK:
        return BlockCache(profile.pool_tokens, profile.cache_tokens)
    copies = profile.cache is CacheKind.BANK
    return SlotCache(profile.slots, profile.cache_tokens, copies=copies)


def shared_tokens(prompt: Sequence, held: Set[int]) -> int:
    """Tokens up to the last segment that is held: who holds a segment holds all before it."""
    for segment in reversed(prompt):
        if segment.digest in held:
            return segment.end_tokens
    return 0


@dataclass(slots=True, eq=False)
class _Slot:
    held: frozenset[int] = field(default_factory=frozenset)
    tokens: int = 0  # of its sequence
    used: int = 0  # serial number of its last use
    busy: bool = False
    computed: bool = True  # all of its sequence
    found: int = 0  # tokens that were there for the request that runs in it


class SlotCache:
    """One sequence per slot; the next request there replaces it.

    `copies`: the engine copies what a prompt shares with another slot, be that one at work, and leaves that
    one as it is (ds4's banks). Without it only a free slot's sequence is of use, to whoever takes the slot.
    """

    def __init__(self, slots: int, granularity: int, *, copies: bool = False) -> None:
        self._slots = [_Slot() for _ in range(slots)]
        self._granularity = granularity
        self._copies = copies
        self._taken: dict[str, _Slot] = {}
        self._uses = 0

    def matched(self, prompt: Sequence) -> int:
        usable = [slot for slot in self._slots if slot.computed and (self._copies or not slot.busy)]
        return self._most(prompt, usable or self._slots)

    def start(self, id: str, prompt: Sequence) -> None:
        free = [slot for slot in self._slots if not slot.busy]
        slot = max(free, key=lambda slot: (shared_tokens(prompt, slot.held), -slot.used))
        shared = shared_tokens(prompt, slot.held)
        other = shared < (slot.tokens if self._copies else SIMILAR * prompt[-1].end_tokens)
        if other:  # a sequence that this one does not continue is left to those who do, as long as may be
            slot = min(free, key=lambda slot: slot.used)
        found = self.matched(prompt) if self._copies else self._most(prompt, [slot])
        self._use(slot, prompt)
        slot.busy, slot.computed, slot.found = True, False, found
        self._taken[id] = slot

    def found(self, id: str, prompt: Sequence) -> int:
        found = self._taken[id].found
        return (
            max(found, self._most(prompt, [s for s in self._slots if s.computed])) if self._copies else found
        )

    def computed(self, id: str, prompt: Sequence) -> None:
        self._taken[id].computed = True

    def end(self, id: str, sequence: Sequence) -> None:
        slot = self._taken.pop(id)
        self._use(slot, sequence)
        slot.busy = False

    def _use(self, slot: _Slot, sequence: Sequence) -> None:
        self._uses += 1
        slot.held = frozenset(segment.digest for segment in sequence)
        slot.tokens, slot.used = sequence[-1].end_tokens, self._uses

    def _most(self, prompt: Sequence, slots: list[_Slot]) -> int:
        """Tokens that one of these slots shares with the prompt, in whole checkpoints."""
        shared = max((shared_tokens(prompt, slot.held) for slot in slots), default=0)
        return shared // self._granularity * self._granularity


class BlockCache:
    """A pool that all sequences share. Of what was unused for longest the end goes first, so that what is
    held is always a prefix."""

    def __init__(self, pool_tokens: int, granularity: int) -> None:
        self._pool_tokens = pool_tokens
        self._granularity = granularity
        self._held: OrderedDict[int, int] = OrderedDict()  # tokens by digest, the longest unused first
        self._tokens = 0

    def matched(self, prompt: Sequence) -> int:
        return shared_tokens(prompt, self._held.keys()) // self._granularity * self._granularity

    def start(self, id: str, prompt: Sequence) -> None:
        self._use([segment for segment in prompt if segment.digest in self._held])

    def found(self, id: str, prompt: Sequence) -> int:
        return self.matched(prompt)

    def computed(self, id: str, prompt: Sequence) -> None:
        self._put(prompt)

    def end(self, id: str, sequence: Sequence) -> None:
        self._put(sequence)

    def _put(self, sequence: Sequence) -> None:
        start = 0
        for segment in sequence:
            if segment.digest not in self._held:
                self._held[segment.digest] = segment.end_tokens - start
                self._tokens += segment.end_tokens - start
            start = segment.end_tokens
        self._use(list(sequence))
        while self._tokens > self._pool_tokens:
            self._tokens -= self._held.popitem(last=False)[1]

    def _use(self, segments: list[Segment]) -> None:
        for segment in reversed(segments):
            self._held.move_to_end(segment.digest)
