"""The kinds of prefix caches that engines have, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from policies.block_prefix import BlockShadow
from policies.prefix import PrefixShadow, Shadow

SHADOWS: Mapping[str, Callable[[], Shadow]] = {
    "slot": partial(PrefixShadow, copies=False),  # each slot keeps its own last sequence
    "bank": PrefixShadow,  # the same, and a new sequence copies what it shares with another
    "block": BlockShadow,  # all share the blocks of all
}
