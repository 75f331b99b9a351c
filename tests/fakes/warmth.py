"""What an engine keeps of past prompts, and what of a new one is therefore not computed again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

Kind = Literal["slot", "bank", "block"]


class Warmth:
    """The sequences that are kept, the one used longest ago first.

    slot   one for each slot, of use in that slot only (llama.cpp)
    bank   one for each slot, which a free slot may copy (ds4)
    block  of all sequences, as many tokens as memory holds, in whole blocks (vLLM, SGLang)

    What gives way is put away, as many tokens as the host holds, and comes back to whoever goes on from it.
    """

    def __init__(self, kind: Kind, block_tokens: int, kv_tokens: int, host_tokens: int = 0) -> None:
        self._kind = kind
        self._block_tokens = block_tokens
        self._kv_tokens = kv_tokens
        self._texts: dict[int, bytes] = {}  # by slot, or by a number of its own
        self._kept = 0  # sequences so far
        self._host_tokens = host_tokens
        self._away: list[bytes] = []  # what gave way, longest ago first

    def choose(self, words: str, free: Collection[int]) -> tuple[int, int]:
        """A free slot for a prompt, and how many of its tokens are warm there; the last one never is."""
        prompt = words.encode()
        away = max((_common(text, prompt) for text in self._away), default=0)
        shared = {key: _common(text, prompt) for key, text in self._texts.items()}
        oldest = list(self._texts)
        lru = min(free, key=lambda slot: oldest.index(slot) if slot in shared else -1)
        if self._kind == "block":
            return min(free), self._tokens(max((away, *shared.values())), prompt)
        best = max(free, key=lambda slot: shared.get(slot, 0))
        # A bank whose sequence the prompt does not continue is copied, and a slot taken over.
        least = len(self._texts.get(best, b"")) // 2 if self._kind == "bank" else len(prompt) // 10
        here = best if shared.get(best, 0) > least else lru
        elsewhere = max((away, *shared.values())) if self._kind == "bank" else away
        return here, self._tokens(max(shared.get(here, 0), elsewhere), prompt)

    def keep(self, slot: int, sequence: str) -> None:
        """Keep a prompt and its answer."""
        self._kept += 1
        key = self._kept if self._kind == "block" else slot
        text = sequence.encode()
        self._put_away(self._texts.pop(key, b""), text)
        self._texts[key] = text
        while self._kind == "block" and sum(map(len, self._texts.values())) // 4 > self._kv_tokens:
            self._put_away(self._texts.pop(next(iter(self._texts))), text)

    def clear(self) -> None:
        """Lose all of it, as at a restart."""
        self._texts.clear()
        self._away.clear()

    def _put_away(self, text: bytes, latest: bytes) -> None:
        """Keep what gives way, unless the latest one has it; and of what is kept what is newest."""
        self._away = [one for one in self._away if not latest.startswith(one)]
        if text and not latest.startswith(text):
            self._away.append(text)
        while sum(map(len, self._away)) // 4 > self._host_tokens:
            del self._away[0]

    def _tokens(self, shared: int, prompt: bytes) -> int:
        tokens = min(shared // 4, max(1, len(prompt) // 4) - 1)
        return tokens // self._block_tokens * self._block_tokens


def _common(a: bytes, b: bytes) -> int:
    """The length of the common beginning of two texts, by bisection: they are long and almost equal."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
