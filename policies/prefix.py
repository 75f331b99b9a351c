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
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

SIMILAR = 0.1  # share of a prompt that llama.cpp wants in common with a slot before it prefers that slot
INSIDE_BYTES_MIN = 1024  # a shorter message is read again faster than its loss can be noticed
CUT_BYTES = 256  # between the first places inside a message; further in they are an eighth of the way apart
PAST_LINKS_MAX = 20_000  # of sequences that gave way
MARGIN = 4  # what is proven to fit, and a quarter: conversations grow
FINDS_MIN = 2  # of what gave way, before more is believed: an engine may once have chosen otherwise


class Link(NamedTuple):
    """One message of a prompt: digest of the chain up to it, and the share of the prompt it ends at.

    A tuple, since a long conversation has hundreds: to make a frozen dataclass takes twice as long.
    """

    digest: int
    end_bytes: int


Chain = tuple[Link, ...]


def inside(digest: Callable[[bytes, int], int], text: bytes, before: Link) -> Chain:
    """Places inside a long last message, as links behind the one before it: two prompts may ask different
    things of the same document. Where they stand does not depend on how the message ends."""
    if len(text) < INSIDE_BYTES_MIN:
        return ()
    links: list[Link] = []
    start, known = 0, before.digest
    for end in _cuts(len(text)):
        known = digest(text[start:end], known)
        links.append(Link(known, before.end_bytes + end))
        start = end
    return tuple(links)


def _cuts(size: int) -> Iterator[int]:
    at = CUT_BYTES
    while at < size:
        yield at
        at += max(CUT_BYTES, 1 << (at.bit_length() - 4))


class Booking(NamedTuple):
    """What was believed to be cached when a prompt was sent; and what would be, held the cache more than it
    is taken to hold."""

    matched_bytes: int  # of the prompt, from its start
    used: int  # when that had last been used, as a serial number of bookings
    depth: int = 0  # how much the cache must hold for that, in the shadow's own measure
    beyond_bytes: int = 0  # of the prompt, found in what gave way
    beyond: int = 0  # how much it must hold for that


NOTHING = Booking(0, 0)


class Shadow(Protocol):
    """One backend's cache as the gateway pictures it.

    How much it holds is at first what the engine says. What an engine then finds, or does not, moves that:
    it may put away in host memory or on disk what its slots had to give up, and it may have other users.
    """

    def __len__(self) -> int: ...

    @property
    def room(self) -> int | None:
        """How much it is taken to hold: sequences, or tokens where requests share blocks; None: no bound."""
        ...

    def matched_bytes(self, chain: Chain, inside: Chain = ()) -> int:
        """Bytes of the prompt, from its start, that are probably cached; `inside`: places in its last
        message."""
        ...

    def displaced(self, chain: Chain, inside: Chain = ()) -> Sequence | None:
        """The sequence that would give way to this prompt."""
        ...

    def book(self, chain: Chain, prompt_tokens: int, inside: Chain = ()) -> Booking:
        """Record that the backend starts on this prompt. Booked at dispatch, not at completion:
        followers that arrive during a prefill must already count on it."""
        ...

    def ended(self, chain: Chain) -> None:
        """A request with this prompt has left its slot; its tokens stay."""
        ...

    def missed(self, booking: Booking) -> None:
        """What was believed turned out not to be cached; so nothing is that was used even longer ago, and
        the cache holds less than it was taken to."""
        ...

    def surpassed(self, booking: Booking) -> None:
        """What was believed to have given way turned out to be cached: the cache holds that much."""
        ...

    def resize(self, slots: int, kv_tokens: int | None) -> None:
        """How much the engine says that it holds."""
        ...

    def clear(self) -> None:
        """The engine restarted: nothing is cached, and how much it holds is what it says."""
        ...


def held(chain: Chain, digests: Container[int]) -> int:
    """How many links of the chain are held. Whoever holds a link holds all before it, so the last one
    is found by bisection; but many prompts are quite new, or the same once more."""
    if not chain or chain[0].digest not in digests:
        return 0
    if chain[-1].digest in digests:
        return len(chain)
    return bisect_left(chain, True, key=lambda link: link.digest not in digests)


@dataclass(slots=True, eq=False)
class Sequence:
    """What one slot has worked on."""

    chain: Chain
    inside: tuple[Chain, ...]  # places in its first prompt's last message, and in its last one's
    used: int
    tokens: int
    running: int = 1  # requests that are at it
    gone: int = 0  # when it gave way, as a serial number

    @property
    def key(self) -> int:
        """Where it ends."""
        return self.chain[-1].digest


class Holders:
    """Sequences by the digests of their links."""

    def __init__(self) -> None:
        self._by_digest: dict[int, list[Sequence]] = {}
        self.links = 0

    def __contains__(self, digest: object) -> bool:
        return digest in self._by_digest

    def latest(self, link: Link) -> Sequence:
        """Of those that contain this link, the one used last."""
        return max(self._by_digest[link.digest], key=lambda sequence: sequence.used)

    def add(self, sequence: Sequence, *chains: Chain) -> None:
        """Prompts may go on from these links of it."""
        for chain in chains:
            self.links += len(chain)
            for link in chain:
                self._by_digest.setdefault(link.digest, []).append(sequence)

    def remove(self, sequence: Sequence, *chains: Chain) -> None:
        """None can any more. What others tell of prompts may contradict itself: some may not be there."""
        for chain in chains:
            self.links -= len(chain)
            for link in chain:
                holders = self._by_digest.get(link.digest)
                if holders is not None and sequence in holders:
                    holders.remove(sequence)
                    if not holders:
                        del self._by_digest[link.digest]


class PrefixShadow:
    """The sequences that one backend last worked on, one per slot.

    A sequence that continues another takes its place, as it does in a slot; beyond `room` the idle one used
    longest ago gives way. `copies`: the engine copies what a new prompt shares with another slot, be that
    one at work (ds4's banks). Without it (llama.cpp) only an idle slot's sequence can be used again, and
    whoever shares a good part of it takes the slot over.
    """

    def __init__(self, sequences_max: int = 1, *, copies: bool = True) -> None:
        self.sequences_max = sequences_max
        self._learnt: int | None = None  # the same, as the engine's finds tell
        self._copies = copies
        self._sequences: dict[int, Sequence] = {}  # by last digest, the one used longest ago first
        self._holders = Holders()  # of those that can be used
        self._past: dict[int, Sequence] = {}  # those that gave way, the first of them first
        self._past_holders = Holders()
        self._gone = 0
        self._finds = 0  # among them, since something was missed
        self._bookings = 0

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def room(self) -> int:
        """Sequences that it is taken to hold."""
        return self.sequences_max if self._learnt is None else self._learnt

    def matched_bytes(self, chain: Chain, inside: Chain = ()) -> int:
        """Bytes of the prompt, from its start, that are probably cached."""
        place = self._place(chain, inside)
        return self._matched_bytes(chain, place) if place is not None else 0

    def displaced(self, chain: Chain, inside: Chain = ()) -> Sequence | None:
        """The sequence that would give way to this prompt: none while there is room, or where it goes on
        from what an idle slot holds."""
        if not chain or len(self._sequences) < self.room:
            return None
        place = self._place(chain, inside)
        if place is not None and not self._copies:
            basis = self._holders.latest(place)
            if self._takes_over(basis, place, chain):
                return None if basis.chain[-1] == place else basis
        elif place is not None:
            for link in chain:
                sequence = self._sequences.get(link.digest)
                if sequence is not None and not sequence.running:
                    return None
        return next((s for s in self._sequences.values() if not s.running), None)

    def book(self, chain: Chain, prompt_tokens: int = 0, inside: Chain = ()) -> Booking:
        """The backend starts on this prompt."""
        if not chain:
            return NOTHING
        self._bookings += 1
        booking, place = NOTHING, self._place(chain, inside)
        if place is not None:
            basis = self._holders.latest(place)
            since = sum(sequence.used >= basis.used for sequence in self._sequences.values())
            booking = Booking(self._matched_bytes(chain, place), basis.used, since)
            if self._takes_over(basis, place, chain) and basis.chain[-1] != place:
                self._give_way(basis)
        booking = self._beyond(booking, chain)
        self._continue(chain, prompt_tokens, inside)
        while len(self._sequences) > self.room:
            idle = (sequence for sequence in self._sequences.values() if not sequence.running)
            self._give_way(next(idle, None) or next(iter(self._sequences.values())))
        return booking

    def ended(self, chain: Chain) -> None:
        """A request with this prompt has left its slot."""
        sequence = self._sequences.get(chain[-1].digest) if chain else None
        if sequence is not None and sequence.running:
            sequence.running -= 1
            if not self._copies and not sequence.running:
                self._holders.add(sequence, sequence.chain, *sequence.inside)

    def missed(self, booking: Booking) -> None:
        """What was believed turned out not to be cached. The bound moves half of the way, since others'
        requests may have come between. If it is what was used last, room is not what the cache lacks."""
        for sequence in [s for s in self._sequences.values() if s.used <= booking.used and not s.running]:
            self._forget(sequence)
        self._past.clear()
        self._past_holders = Holders()
        self._finds = 0
        if 1 < booking.depth <= self.room:
            self._learnt = (self.room + booking.depth - 1) // 2

    def surpassed(self, booking: Booking) -> None:
        """What gave way turned out to be cached."""
        self._finds += 1
        if self._finds >= FINDS_MIN:
            self._learnt = max(self.room + 1, booking.beyond + booking.beyond // MARGIN)

    def resize(self, slots: int, kv_tokens: int | None) -> None:
        """One sequence per slot."""
        if slots != self.sequences_max:
            self.sequences_max, self._learnt = slots, None

    def clear(self) -> None:
        """The engine restarted: nothing is cached."""
        self._sequences.clear()
        self._past.clear()
        self._holders, self._past_holders = Holders(), Holders()
        self._learnt, self._finds = None, 0

    # -- what a prompt finds ------------------------------------------------------------------------

    def _place(self, chain: Chain, inside: Chain) -> Link | None:
        """The last link of the prompt that is there."""
        links = held(chain, self._holders)
        if inside and links + 1 == len(chain) and (more := held(inside, self._holders)):
            return inside[more - 1]
        return chain[links - 1] if links else None

    def _matched_bytes(self, chain: Chain, place: Link) -> int:
        """Up to there; behind a whole prompt that was answered stands the answer, which the engine made
        itself and has, too."""
        whole = self._sequences.get(place.digest)
        return place.end_bytes if whole is None or whole.running else _answered_bytes(chain, place)

    def _takes_over(self, basis: Sequence, place: Link, chain: Chain) -> bool:
        """Whether the prompt is read into the slot of this sequence, and nobody keeps what was there."""
        similar = place.end_bytes > SIMILAR * chain[-1].end_bytes
        return similar and not (self._copies or basis.running or self.room > self.sequences_max)

    def _beyond(self, booking: Booking, chain: Chain) -> Booking:
        """Also what the prompt has in common with a sequence that gave way; one that it continues is past
        no more."""
        if links := held(chain, self._past_holders):
            place = chain[links - 1]
            sequence = self._past_holders.latest(place)
            matched = _answered_bytes(chain, place) if sequence.chain[-1] == place else place.end_bytes
            if matched > booking.matched_bytes:
                since = len(self._sequences) + self._gone - sequence.gone
                booking = booking._replace(beyond_bytes=matched, beyond=since + 1)
            for link in chain[:links]:
                if link.digest in self._past:
                    self._drop(self._past[link.digest])
        return booking

    # -- what it holds ------------------------------------------------------------------------------

    def _continue(self, chain: Chain, prompt_tokens: int, inside: Chain) -> None:
        """The prompt's sequence, in the place of the one that it continues."""
        places = (inside,) if inside else ()
        sequence, known = Sequence(chain, places, self._bookings, prompt_tokens), 0
        for link in reversed(chain):
            earlier = self._sequences.get(link.digest)
            if earlier is None:
                continue
            if link is chain[-1]:
                sequence.running += earlier.running
            elif earlier.running:
                continue
            sequence.inside = earlier.inside[:1] + places
            if self._copies:  # the same one, grown: a long conversation is not offered anew at each turn
                del self._sequences[link.digest]
                known = len(earlier.chain)
                self._holders.remove(earlier, *earlier.inside)
                earlier.chain, earlier.used, earlier.tokens = chain, sequence.used, prompt_tokens
                earlier.inside, earlier.running, sequence = sequence.inside, sequence.running, earlier
            else:
                self._forget(earlier)
            break
        self._sequences[sequence.key] = sequence
        if self._copies:
            self._holders.add(sequence, chain[known:], *sequence.inside)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.key]
        if self._copies or not sequence.running:  # else it was not on offer
            self._holders.remove(sequence, sequence.chain, *sequence.inside)

    def _give_way(self, sequence: Sequence) -> None:
        """It is believed in no more, and remembered: the engine may have put it away."""
        self._forget(sequence)
        self._gone += 1
        sequence.gone = self._gone
        if sequence.key in self._past:
            self._drop(self._past[sequence.key])
        self._past[sequence.key] = sequence
        self._past_holders.add(sequence, sequence.chain)
        while self._past_holders.links > PAST_LINKS_MAX:
            self._drop(next(iter(self._past.values())))

    def _drop(self, past: Sequence) -> None:
        del self._past[past.key]
        self._past_holders.remove(past, past.chain)


def _answered_bytes(chain: Chain, place: Link) -> int:
    """Up to the end of what follows that place, unless that is the newest message, or it is inside that."""
    if place not in chain:
        return place.end_bytes
    links = chain.index(place) + 1
    return chain[links if links + 1 < len(chain) else links - 1].end_bytes
