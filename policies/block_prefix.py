"""The prefix cache of an engine that shares blocks between all requests (vLLM, SGLang)."""

from __future__ import annotations

from collections import OrderedDict

from policies.prefix import FINDS_MIN, MARGIN, NOTHING, Booking, Chain, held

LINKS_MAX = 50_000  # where the engine does not tell how many tokens it holds


class BlockShadow:
    """Links of all prompts, each with its tokens; beyond `room` those used longest ago are forgotten.

    The links of one prompt are forgotten from its end, as the engines do it: a block whose predecessor is
    gone could never be found again. Places inside a message have no tokens of their own.
    """

    def __init__(self, tokens_max: int | None = None) -> None:
        self.tokens_max = tokens_max
        self._learnt: int | None = None  # the same, as the engine's finds tell
        self._links: OrderedDict[int, tuple[int, int]] = OrderedDict()  # digest -> tokens, last use
        self._answered: set[int] = set()  # last digests of prompts whose answers are there, too
        self._tokens = 0
        # Those that gave way: digest -> tokens that had given way before it, and with it.
        self._past: OrderedDict[int, int] = OrderedDict()
        self._gone = 0
        self._finds = 0  # among them, since something was missed
        self._bookings = 0

    def __len__(self) -> int:
        return len(self._links)

    @property
    def room(self) -> int | None:
        """Tokens that it is taken to hold; None: no bound is known."""
        return self.tokens_max if self._learnt is None else self._learnt

    def matched_bytes(self, chain: Chain, inside: Chain = ()) -> int:
        """Bytes of the prompt, from its start, that are probably cached."""
        return self._matched_bytes(chain, held(chain, self._links), inside)

    def displaced(self, chain: Chain, inside: Chain = ()) -> None:
        """Of a pool that all share only what nobody has asked for longest gives way."""

    def book(self, chain: Chain, prompt_tokens: int, inside: Chain = ()) -> Booking:
        """The backend starts on this prompt."""
        if not chain:
            return NOTHING
        self._bookings += 1
        links = held(chain, self._links)
        booking = NOTHING
        if links:
            used = self._links[chain[links - 1].digest][1]
            booking = Booking(self._matched_bytes(chain, links, inside), used, prompt_tokens)
        if past := held(chain[links:], self._past):
            place = chain[links + past - 1]
            beyond = self._tokens + self._gone - self._past[place.digest]
            booking = booking._replace(beyond_bytes=place.end_bytes, beyond=beyond)
        self._use(chain, prompt_tokens, inside)
        while self._full():
            self._forget_oldest(away=True)
        return booking

    def ended(self, chain: Chain) -> None:
        """Blocks of an ended request stay until others need their place, those of its answer too."""
        if chain and chain[-1].digest in self._links:
            self._answered.add(chain[-1].digest)

    def missed(self, booking: Booking) -> None:
        """What was believed turned out not to be cached, so nothing is that was used even longer ago. The
        bound moves half of the way to what was used since: that much is surely too much."""
        room = self._tokens if self.room is None else self.room
        while self._links and next(iter(self._links.values()))[1] <= booking.used:
            self._forget_oldest()
        self._past.clear()
        self._finds = 0
        since = self._tokens - booking.depth
        if 0 < since < room:
            self._learnt = (room + since) // 2

    def surpassed(self, booking: Booking) -> None:
        """What gave way turned out to be cached."""
        self._finds += 1
        if self._finds >= FINDS_MIN:
            self._learnt = max(self.room or 0, booking.beyond + booking.beyond // MARGIN)

    def resize(self, slots: int, kv_tokens: int | None) -> None:
        """As many tokens as the engine says."""
        if kv_tokens != self.tokens_max:
            self.tokens_max, self._learnt = kv_tokens, None

    def clear(self) -> None:
        """The engine restarted: nothing is cached."""
        self._links.clear()
        self._answered.clear()
        self._past.clear()
        self._tokens, self._learnt, self._finds = 0, None, 0

    def _matched_bytes(self, chain: Chain, links: int, inside: Chain) -> int:
        if inside and links + 1 == len(chain) and (more := held(inside, self._links)):
            return inside[more - 1].end_bytes
        answer = links and links + 1 < len(chain) and chain[links - 1].digest in self._answered
        return chain[links if answer else links - 1].end_bytes if links else 0

    def _use(self, chain: Chain, prompt_tokens: int, inside: Chain) -> None:
        """All of the prompt is used last now, its beginning last of all."""
        whole = max(1, chain[-1].end_bytes)
        for place in range(len(chain) - 1, -1, -1):
            link = chain[place]
            self._past.pop(link.digest, None)
            tokens, _ = self._links.pop(link.digest, (None, 0))
            if tokens is None:
                start = chain[place - 1].end_bytes if place else 0
                tokens = prompt_tokens * (link.end_bytes - start) // whole
                self._tokens += tokens
            self._links[link.digest] = (tokens, self._bookings)
            if link is chain[-1]:
                for cut in reversed(inside):
                    self._links.pop(cut.digest, None)
                    self._links[cut.digest] = (0, self._bookings)

    def _full(self) -> bool:
        room = self.room
        too_many = room is not None and self._tokens > room
        return bool(self._links) and (too_many or len(self._links) > LINKS_MAX)

    def _forget_oldest(self, *, away: bool = False) -> None:
        """`away`: the engine may have put it on disk, or in another memory."""
        digest, (tokens, _) = self._links.popitem(last=False)
        self._answered.discard(digest)
        self._tokens -= tokens
        if away:
            self._past[digest] = self._gone
            self._gone += tokens
            if len(self._past) > LINKS_MAX:
                self._past.popitem(last=False)
