"""The kinds of prefix caches that engines have, by name; and what other gateways do to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from policies.block_prefix import BlockShadow
from policies.learner import FOUND_MIN
from policies.prefix import Booking, Chain, PrefixShadow, Shadow
from policies.types import Backend

SHADOWS: Mapping[str, Callable[[], Shadow]] = {
    "slot": partial(PrefixShadow, copies=False),  # each slot keeps its own last sequence
    "bank": PrefixShadow,  # the same, and a new sequence copies what it shares with another
    "block": BlockShadow,  # all share the blocks of all
}


def sent_elsewhere(backend: Backend, chain: Chain, prompt_tokens: int, inside: Chain) -> Booking:
    """Another gateway sent this prompt to the backend. Its end is not told, so it is booked as if it had been
    answered at once."""
    booking = backend.shadow.book(chain, prompt_tokens, inside)
    backend.shadow.ended(chain)
    backend.changes += 1
    return booking


def found_elsewhere(
    backend: Backend, booking: Booking, prompt_bytes: int, prompt_tokens: int, cached_tokens: int
) -> None:
    """The engine told another gateway how much of such a prompt it had cached: what was believed here is
    given up as if it had been told here."""
    matched = prompt_tokens * booking.matched_bytes // max(1, prompt_bytes)
    share = backend.calibration.share(matched, cached_tokens)
    if share is not None and share < FOUND_MIN * backend.service.cache_efficiency:
        backend.shadow.missed(booking)
        backend.changes += 1
