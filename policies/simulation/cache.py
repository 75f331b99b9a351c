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

    pooled: bool  # a running request finds what others compute meanwhile

    def matched(self, prompt: Sequence) -> int:
        """Tokens of the prompt that a request would find if it started now."""

    def start(self, id: str, prompt: Sequence) -> int:
        """A request takes a slot; tokens that it finds."""

    def computed(self, id: str, prompt: Sequence) -> None:
        """Its prefill is over."""

    def end(self, id: str, sequence: Sequence) -> None:
        """It left its slot; the engine holds this sequence."""


def cache(profile: Profile) -> Cache:
    """An empty one, of the engine's kind."""
    if profile.cache is CacheKind.BLOCK:
        return BlockCache(profile.pool_tokens, profile.cache_tokens)
    return SlotCache(profile.slots, profile.cache_tokens)


def shared_tokens(prompt: Sequence, held: Set[int]) -> int:
    """Tokens up to the last segment that is held: who holds a segment holds all before it."""
    for segment in reversed(prompt):
        if segment.digest in held:
            return segment.end_tokens
    return 0


@dataclass(slots=True, eq=False)
class _Slot:
    held: frozenset[int] = field(default_factory=frozenset)
    used: int = 0  # serial number of its last use
    busy: bool = False


class SlotCache:
    """One sequence per slot; the next request there replaces it."""

    pooled = False

    def __init__(self, slots: int, granularity: int) -> None:
        self._slots = [_Slot() for _ in range(slots)]
        self._granularity = granularity
        self._taken: dict[str, _Slot] = {}
        self._uses = 0

    def matched(self, prompt: Sequence) -> int:
        free = [slot for slot in self._slots if not slot.busy]
        return self._whole(max(shared_tokens(prompt, slot.held) for slot in free or self._slots))

    def start(self, id: str, prompt: Sequence) -> int:
        free = [slot for slot in self._slots if not slot.busy]
        slot = max(free, key=lambda slot: (shared_tokens(prompt, slot.held), -slot.used))
        shared = shared_tokens(prompt, slot.held)
        if shared < SIMILAR * prompt[-1].end_tokens:
            slot = min(free, key=lambda slot: slot.used)
            shared = shared_tokens(prompt, slot.held)
        self._taken[id] = slot
        self._use(slot, prompt, busy=True)
        return self._whole(shared)

    def computed(self, id: str, prompt: Sequence) -> None:
        """Its slot already counts as its own."""

    def end(self, id: str, sequence: Sequence) -> None:
        self._use(self._taken.pop(id), sequence, busy=False)

    def _use(self, slot: _Slot, sequence: Sequence, *, busy: bool) -> None:
        self._uses += 1
        slot.held = frozenset(segment.digest for segment in sequence)
        slot.used, slot.busy = self._uses, busy

    def _whole(self, tokens: int) -> int:
        return tokens // self._granularity * self._granularity


class BlockCache:
    """A pool that all sequences share. Of what was unused for longest the end goes first, so that what is
    held is always a prefix."""

    pooled = True

    def __init__(self, pool_tokens: int, granularity: int) -> None:
        self._pool_tokens = pool_tokens
        self._granularity = granularity
        self._held: OrderedDict[int, int] = OrderedDict()  # tokens by digest, the longest unused first
        self._tokens = 0

    def matched(self, prompt: Sequence) -> int:
        return shared_tokens(prompt, self._held.keys()) // self._granularity * self._granularity

    def start(self, id: str, prompt: Sequence) -> int:
        self._use([segment for segment in prompt if segment.digest in self._held])
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
