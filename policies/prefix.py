"""What a backend's prefix cache probably holds, by hashes of messages.

A prompt is a chain of links: tools and system prompt first, then one link per message. Each digest
covers everything before it, so two prompts share exactly the links they have in common. The first
N bytes would not do: whole sessions of one agent platform begin with the same 46 KB, and a router
that hashed them sent every session to one GPU while the other stood idle for 14 hours
(NousResearch/hermes-agent#14612). So nothing here assigns a conversation to a backend: what is cached
counts as seconds saved, and where nothing but a shared head is, load decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple, Protocol

SIMILAR = 0.1  # share of a prompt that llama.cpp wants in common with a slot before it prefers that slot


class Link(NamedTuple):
    """One message of a prompt: digest of the chain up to it, and the share of the prompt it ends at.

    A tuple, since a long conversation has hundreds: to make a frozen dataclass takes twice as long.
    """

    digest: int
    end_bytes: int


Chain = tuple[Link, ...]


class Booking(NamedTuple):
    """What was believed to be cached when a prompt was sent."""

    matched_bytes: int  # of the prompt, from its start
    used: int  # when that had last been used, as a serial number of bookings


NOTHING = Booking(0, 0)


class Shadow(Protocol):
    """One backend's cache as the gateway pictures it."""

    def __len__(self) -> int: ...

    def matched_bytes(self, chain: Chain) -> int:
        """Bytes of the prompt, from its start, that are probably cached."""
        ...

    def displaced_tokens(self, chain: Chain) -> int:
        """Tokens of the sequence that would give way to this prompt."""
        ...

    def book(self, chain: Chain, prompt_tokens: int) -> Booking:
        """Record that the backend starts on this prompt. Booked at dispatch, not at completion:
        followers that arrive during a prefill must already count on it."""
        ...

    def ended(self, chain: Chain) -> None:
        """A request with this prompt has left its slot; its tokens stay."""
        ...

    def missed(self, booking: Booking) -> None:
        """What was believed turned out not to be cached; so nothing is that was used even longer ago."""
        ...

    def resize(self, slots: int, kv_tokens: int | None) -> None:
        """How much the engine holds."""
        ...

    def clear(self) -> None:
        """The engine restarted: nothing is cached."""
        ...


def held(chain: Chain, digests: Container[int]) -> int:
    """How many links of the chain are held. Whoever holds a link holds all before it, so the last one
    is found by bisection."""
    return bisect_left(chain, True, key=lambda link: link.digest not in digests)


@dataclass(slots=True, eq=False)
class Sequence:
    """What one slot has worked on."""

    chain: Chain
    used: int
    tokens: int
    running: int = 1  # requests that are at it


class PrefixShadow:
    """The sequences that one backend last worked on, one per slot.

    A sequence that continues another takes its place, as it does in a slot; beyond `sequences_max`
    the idle one used longest ago is forgotten. `copies`: the engine copies what a new prompt shares with
    another slot, be that one at work (ds4's banks). Without it (llama.cpp) only an idle slot's sequence
    can be used again, and whoever shares a good part of it takes the slot over.
    """

    def __init__(self, sequences_max: int = 1, *, copies: bool = True) -> None:
        self.sequences_max = sequences_max
        self._copies = copies
        self._sequences: dict[int, Sequence] = {}  # by last digest, the one used longest ago first
        self._holders: dict[int, list[Sequence]] = {}  # digest -> usable sequences that contain it
        self._bookings = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def matched_bytes(self, chain: Chain) -> int:
        """Bytes of the prompt, from its start, that are probably cached."""
        links = held(chain, self._holders)
        return self._matched_bytes(chain, links) if links else 0

    def displaced_tokens(self, chain: Chain) -> int:
        """Tokens of the sequence that would give way to this prompt: nothing while there is room, or where
        it goes on from what an idle slot holds."""
        if not chain or len(self._sequences) < self.sequences_max:
            return 0
        links = held(chain, self._holders)
        if links and not self._copies:
            last = chain[links - 1]
            basis = max(self._holders[last.digest], key=lambda sequence: sequence.used)
            if not basis.running and last.end_bytes > SIMILAR * chain[-1].end_bytes:
                return 0 if basis.chain[-1] == last else basis.tokens
        elif any((s := self._sequences.get(link.digest)) and not s.running for link in chain[:links]):
            return 0
        return next((s.tokens for s in self._sequences.values() if not s.running), 0)

    def book(self, chain: Chain, prompt_tokens: int = 0) -> Booking:
        """The backend starts on this prompt."""
        if not chain:
            return NOTHING
        self._bookings += 1
        booking = NOTHING
        if links := held(chain, self._holders):
            last = chain[links - 1]
            basis = max(self._holders[last.digest], key=lambda sequence: sequence.used)
            booking = Booking(self._matched_bytes(chain, links), basis.used)
            if not self._copies and not basis.running and last.end_bytes > SIMILAR * chain[-1].end_bytes:
                self._forget(basis)
        self._continue(chain, prompt_tokens)
        while len(self._sequences) > self.sequences_max:
            idle = (sequence for sequence in self._sequences.values() if not sequence.running)
            self._forget(next(idle, None) or next(iter(self._sequences.values())))
        return booking

    def ended(self, chain: Chain) -> None:
        """A request with this prompt has left its slot."""
        sequence = self._sequences.get(chain[-1].digest) if chain else None
        if sequence is not None and sequence.running:
            sequence.running -= 1
            if not self._copies and not sequence.running:
                self._offer(sequence)

    def missed(self, booking: Booking) -> None:
        """What was believed turned out not to be cached."""
        for sequence in [s for s in self._sequences.values() if s.used <= booking.used and not s.running]:
            self._forget(sequence)

    def resize(self, slots: int, kv_tokens: int | None) -> None:
        """One sequence per slot."""
        self.sequences_max = slots

    def clear(self) -> None:
        """The engine restarted: nothing is cached."""
        self._sequences.clear()
        self._holders.clear()

    def _matched_bytes(self, chain: Chain, links: int) -> int:
        """Of so many links; behind a whole prompt that was answered stands the answer, which the engine made
        itself and has, too."""
        whole = self._sequences.get(chain[links - 1].digest)
        answer = whole is not None and not whole.running and links + 1 < len(chain)
        return chain[links if answer else links - 1].end_bytes

    def _continue(self, chain: Chain, prompt_tokens: int) -> None:
        """The prompt's sequence, in the place of the one that it continues."""
        sequence, known = Sequence(chain, self._bookings, prompt_tokens), 0
        for link in reversed(chain):
            earlier = self._sequences.get(link.digest)
            if earlier is None:
                continue
            if link is chain[-1]:
                sequence.running += earlier.running
            elif earlier.running:
                continue
            if self._copies:  # the same one, grown: a long conversation is not offered anew at each turn
                del self._sequences[link.digest]
                known = len(earlier.chain)
                earlier.chain, earlier.used, earlier.tokens = chain, sequence.used, prompt_tokens
                earlier.running, sequence = sequence.running, earlier
            else:
                self._forget(earlier)
            break
        self._sequences[chain[-1].digest] = sequence
        if self._copies:
            self._offer(sequence, known)

    def _offer(self, sequence: Sequence, known: int = 0) -> None:
        """Prompts may go on from it, and do already from so many of its links."""
        for link in sequence.chain[known:]:
            self._holders.setdefault(link.digest, []).append(sequence)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.chain[-1].digest]
        if not self._copies and sequence.running:
            return  # it was not on offer
        for link in sequence.chain:
            holders = self._holders[link.digest]
            holders.remove(sequence)
            if not holders:
                del self._holders[link.digest]
