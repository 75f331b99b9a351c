"""Journal rows as a trace in Mooncake's format: arrivals, lengths, and which prompts begin alike."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from gateway.row import Row, links
from policies.prefix import Chain
from policies.simulation.traces import MOONCAKE_BLOCK_TOKENS


def trace(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each of the rows that an engine answered, which must come by arrival. Times are in
    milliseconds from the first one."""
    blocks = Blocks()
    start: float | None = None
    for row in rows:
        if not row.chain or not row.prompt_tokens or row.completion_tokens is None:
            continue
        start = row.arrived if start is None else start
        line = {
            "timestamp": round((row.arrived - start) * 1000),
            "input_length": row.prompt_tokens,
            "output_length": row.completion_tokens,
            "hash_ids": blocks.of(links(row.chain), row.prompt_tokens),
        }
        yield json.dumps(line)


class Blocks:
    """Blocks of a fixed number of tokens, cut from messages of any length.

    A block's id is that of the chain up to the message in which it ends, with its place: it is the same in
    two prompts only if they are the same up to the end of that message. That its place is the same, too,
    needs a message to end at the same token in each prompt, where only bytes were kept of it: so it stays
    where it was put first.
    """

    def __init__(self) -> None:
        self._ends: dict[int, float] = {}  # tokens up to the end of a message, by digest
        self._ids: dict[tuple[int, int], int] = {}

    def of(self, chain: Chain, prompt_tokens: int) -> list[int]:
        """The ids of a prompt's blocks; the last one may not be full, and belongs to this prompt alone."""
        ends = self._placed(chain, prompt_tokens)
        count = -(-prompt_tokens // MOONCAKE_BLOCK_TOKENS)
        ids: list[int] = []
        for place in range(count):
            holder = bisect_left(ends, (place + 1) * MOONCAKE_BLOCK_TOKENS)
            last = place == count - 1 or holder >= len(chain)
            digest = chain[-1 if last else holder].digest
            ids.append(self._ids.setdefault((digest, place), len(self._ids)))
        return ids

    def _placed(self, chain: Chain, prompt_tokens: int) -> list[float]:
        """Where each message ends: those known stay, the others share what is left by their bytes."""
        ends: list[float] = []
        bytes_before, tokens_before = 0, 0.0
        for link in chain:
            end = self._ends.get(link.digest)
            if end is None:
                share = (link.end_bytes - bytes_before) / max(1, chain[-1].end_bytes - bytes_before)
                end = tokens_before + share * max(0.0, prompt_tokens - tokens_before)
                self._ends[link.digest] = end
            bytes_before, tokens_before = link.end_bytes, end
            ends.append(end)
        return ends
