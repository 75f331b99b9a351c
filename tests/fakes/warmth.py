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
    """

    def __init__(self, kind: Kind, block_tokens: int, kv_tokens: int) -> None:
        self._kind = kind
        self._block_tokens = block_tokens
        self._kv_tokens = kv_tokens
        self._texts: dict[int, bytes] = {}  # by slot, or by a number of its own
        self._kept = 0  # sequences so far

    def choose(self, words: str, free: Collection[int]) -> tuple[int, int]:
        """A free slot for a prompt, and how many of its tokens are warm there; the last one never is."""
        prompt = words.encode()
        shared = {key: _common(text, prompt) for key, text in self._texts.items()}
        oldest = list(self._texts)
        lru = min(free, key=lambda slot: oldest.index(slot) if slot in shared else -1)
        if self._kind == "block":
            return min(free), self._tokens(max(shared.values(), default=0), prompt)
        best = max(free, key=lambda slot: shared.get(slot, 0))
        here = best if shared.get(best, 0) * 10 > len(prompt) else lru
        elsewhere = max(shared.values(), default=0) if self._kind == "bank" else 0
        return here, self._tokens(max(shared.get(here, 0), elsewhere), prompt)

    def keep(self, slot: int, sequence: str) -> None:
        """Keep a prompt and its answer."""
        self._kept += 1
        key = self._kept if self._kind == "block" else slot
        self._texts.pop(key, None)
        self._texts[key] = sequence.encode()
        while self._kind == "block" and sum(map(len, self._texts.values())) // 4 > self._kv_tokens:
            del self._texts[next(iter(self._texts))]

    def clear(self) -> None:
        """Lose all of it, as at a restart."""
        self._texts.clear()

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
