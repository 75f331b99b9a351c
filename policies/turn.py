"""One prompt as it stood in a request, to compare the next one with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from policies.prefix import Chain

# What the objects of a turn and of each of its pieces take in memory, about.
TURN_BYTES = 1500
PIECE_BYTES = 300

SYSTEM = frozenset({b"system", b"developer"})

_role = re.compile(rb'"role"\s*:\s*"([a-z]*)"').search  # within a text, quotes are escaped


class Piece(Protocol):
    """A message of a prompt, its tools, or another part of it, within the body."""

    @property
    def start(self) -> int:
        """Where it begins in the body."""

    def kept(self, body: bytes) -> bytes:
        """What of it the engine reads."""

    def place(self, offset: int) -> int:
        """Where in the body what is kept has this offset."""


class Turn:
    """A prompt: pieces of a body in the order in which they are rendered, with the chain over them."""

    __slots__ = ("_kept", "body", "chain", "first", "labels", "listed", "model", "model_start", "pieces")

    def __init__(
        self,
        body: bytes,
        pieces: Sequence[Piece],
        chain: Chain,
        *,
        labels: tuple[str, ...],
        listed: str,
        model: str,
        model_start: int = 0,
    ) -> None:
        self.body = body
        self.pieces = pieces
        self.chain = chain
        self.labels = labels  # of the pieces before the messages: `tools`, `system`
        self.listed = listed  # the key under which the messages stand
        self.model = model
        self.model_start = model_start
        self._kept: dict[int, bytes] = {}
        self.first = len(labels)  # the first piece that is said; system prompts stand before it
        while self.first < len(pieces):
            role = _role(self.kept(self.first))
            if role is None or role[1] not in SYSTEM:
                break
            self.first += 1

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def size(self) -> int:
        """Bytes of the prompt, as the chain has them."""
        return self.chain[-1].end_bytes

    @property
    def memory_bytes(self) -> int:
        """About what it takes to hold it."""
        return len(self.body) + TURN_BYTES + PIECE_BYTES * len(self.pieces)

    def kept(self, place: int) -> bytes:
        """A piece as the engine reads it."""
        kept = self._kept.get(place)
        if kept is None:
            kept = self._kept[place] = self.pieces[place].kept(self.body)
        return kept

    def settle(self) -> None:
        """Drop what was only needed to compare."""
        self._kept.clear()

    def start(self, place: int) -> int:
        """Bytes of the prompt before a piece."""
        return self.chain[place - 1].end_bytes if place else 0

    def path(self, place: int) -> str:
        """The name of a piece."""
        labels = self.labels
        return labels[place] if place < len(labels) else f"{self.listed}[{place - len(labels)}]"
