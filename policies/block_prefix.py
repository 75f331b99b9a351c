"""The prefix cache of an engine that shares blocks between all requests (vLLM, SGLang)."""

from __future__ import annotations

from collections import OrderedDict

from policies.prefix import NOTHING, Booking, Chain, held

LINKS_MAX = 50_000  # where the engine does not tell how many tokens it holds


class BlockShadow:
    """Links of all prompts, each with its tokens; beyond `tokens_max` those used longest ago are forgotten.

    The links of one prompt are forgotten from its end, as the engines do it: a block whose predecessor is
    gone could never be found again.
    """

    def __init__(self, tokens_max: int | None = None) -> None:
        self.tokens_max = tokens_max
        self._links: OrderedDict[int, tuple[int, int]] = OrderedDict()  # digest -> tokens, last use
        self._answered: set[int] = set()  # last digests of prompts whose answers are there, too
        self._tokens = 0
        self._bookings = 0

    def __len__(self) -> int:
        return len(self._links)

    def matched_bytes(self, chain: Chain) -> int:
        """Bytes of the prompt, from its start, that are probably cached."""
        links = held(chain, self._links)
        return self._matched_bytes(chain, links) if links else 0

    def displaced_tokens(self, chain: Chain) -> int:
        """Of a pool that all share only what nobody has asked for longest gives way."""
        return 0

    def book(self, chain: Chain, prompt_tokens: int) -> Booking:
        """The backend starts on this prompt."""
        if not chain:
            return NOTHING
        self._bookings += 1
        links = held(chain, self._links)
        booking = NOTHING
        if links:
            used = self._links[chain[links - 1].digest][1]
            booking = Booking(self._matched_bytes(chain, links), used)
        whole = max(1, chain[-1].end_bytes)
        for place in range(len(chain) - 1, -1, -1):
            link = chain[place]
            tokens, _ = self._links.pop(link.digest, (None, 0))
            if tokens is None:
                start = chain[place - 1].end_bytes if place else 0
                tokens = prompt_tokens * (link.end_bytes - start) // whole
                self._tokens += tokens
            self._links[link.digest] = (tokens, self._bookings)
        while self._full():
            self._forget_oldest()
        return booking

    def ended(self, chain: Chain) -> None:
        """Blocks of an ended request stay until others need their place, those of its answer too."""
        if chain and chain[-1].digest in self._links:
            self._answered.add(chain[-1].digest)

    def missed(self, booking: Booking) -> None:
        """What was believed turned out not to be cached, so nothing is that was used even longer ago."""
        while self._links and next(iter(self._links.values()))[1] <= booking.used:
            self._forget_oldest()

    def resize(self, slots: int, kv_tokens: int | None) -> None:
        """As many tokens as the engine says."""
        self.tokens_max = kv_tokens

    def clear(self) -> None:
        """The engine restarted: nothing is cached."""
        self._links.clear()
        self._answered.clear()
        self._tokens = 0

    def _matched_bytes(self, chain: Chain, links: int) -> int:
        answer = links + 1 < len(chain) and chain[links - 1].digest in self._answered
        return chain[links if answer else links - 1].end_bytes

    def _full(self) -> bool:
        too_many = self.tokens_max is not None and self._tokens > self.tokens_max
        return bool(self._links) and (too_many or len(self._links) > LINKS_MAX)

    def _forget_oldest(self) -> None:
        digest, (tokens, _) = self._links.popitem(last=False)
        self._answered.discard(digest)
        self._tokens -= tokens
