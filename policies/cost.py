"""What a call costs on a backend, in seconds: the one currency that holds across unlike engines."""

from __future__ import annotations

from typing import NamedTuple

from policies.types import Backend, Call


class Cost(NamedTuple):
    """A call's predicted seconds on one backend, were it to start now."""

    cached_tokens: int
    prefill_seconds: float
    decode_seconds: float

    @property
    def seconds(self) -> float:
        """Everything together."""
        return self.prefill_seconds + self.decode_seconds


def cost(call: Call, backend: Backend) -> Cost:
    """Prefill of what is not cached there, and decode at the batch that results."""
    cached = cached_tokens(call, backend)
    service, batch = backend.service, len(backend.leases) + backend.foreign + 1
    limit, usual = call.output_tokens_max, call.outputs.median
    output = usual if limit is None else min(limit, usual)
    return Cost(
        cached_tokens=cached,
        prefill_seconds=service.prefill_seconds(call.prompt_tokens, cached),
        decode_seconds=service.decode_seconds(output, batch, call.prompt_tokens),
    )


def cached_tokens(call: Call, backend: Backend) -> int:
    """Tokens of the prompt that the backend's cache probably holds.

    Bytes of the shared links, taken as the same share of the tokens; the last token is always
    computed, since the engine needs its logits.
    """
    if not call.chain:
        return 0
    whole = call.chain[-1].end_bytes
    matched = backend.shadow.matched_bytes(call.chain)
    if not whole or not matched:
        return 0
    return min(call.prompt_tokens - 1, backend.service.found(call.prompt_tokens * matched // whole))
