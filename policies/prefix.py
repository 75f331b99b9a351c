"""What a backend's prefix cache probably holds, by hashes of messages.

A prompt is a chain of links: tools and system prompt first, then one link per message. Each digest
covers everything before it, so two prompts share exactly the links they have in common. The first
N bytes would not do: whole sessions of one agent platform begin with the same 46 KB, and a router
that hashed them sent every session to one GPU while the other stood idle for 14 hours
(NousResearch/hermes-agent#14612).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """One message of a prompt: digest of the chain up to it, and the share of the prompt it ends at."""

    digest: int
    end_bytes: int


class PrefixShadow:
    """The sequences that one backend last worked on, one per slot.

    A sequence that continues another takes its place, as it does in a slot; beyond `sequences_max`
    the one used longest ago is forgotten.
    """

    def __init__(self, sequences_max: int = 1) -> None:
        self.sequences_max = sequences_max
        self._sequences: OrderedDict[int, tuple[Link, ...]] = OrderedDict()  # by last digest, oldest first
        self._holders: dict[int, int] = {}  # digest -> sequences that contain it

    def __len__(self) -> int:
        return len(self._sequences)

    def matched_bytes(self, chain: tuple[Link, ...]) -> int:
        """Bytes of the prompt, from its start, that are probably cached."""
        # Whoever holds a link holds all before it, so the last one held is found by bisection.
        held = bisect_left(chain, True, key=lambda link: link.digest not in self._holders)
        return chain[held - 1].end_bytes if held else 0

    def book(self, chain: tuple[Link, ...]) -> None:
        """Record that the backend starts on this prompt. Booked at dispatch, not at completion:
        followers that arrive during a prefill must already count on it."""
        if not chain:
            return
        for link in reversed(chain):
            if link.digest in self._sequences:  # an earlier sequence is continued, in its own slot
                self._forget(link.digest)
                break
        self._sequences[chain[-1].digest] = chain
        for link in chain:
            self._holders[link.digest] = self._holders.get(link.digest, 0) + 1
        while len(self._sequences) > self.sequences_max:
            self._forget(next(iter(self._sequences)))

    def clear(self) -> None:
        """The engine restarted: nothing is cached."""
        self._sequences.clear()
        self._holders.clear()

    def _forget(self, last: int) -> None:
        for link in self._sequences.pop(last):
            if self._holders[link.digest] == 1:
                del self._holders[link.digest]
            else:
                self._holders[link.digest] -= 1
