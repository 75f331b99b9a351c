"""Whether the estimate of a prompt's length decides anything that it is too vague for."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from policies.cost import cached_tokens
from policies.filters import ESTIMATE_HIGH, ESTIMATE_LOW, gated
from policies.types import Backend, Call, Limits


class Doubt(enum.Enum):
    """What the estimate would decide."""

    LIMIT = "limit"  # whether a backend holds the prompt, or all refuse it
    GATE = "gate"  # whether it waits for the prefill of another


def doubt(call: Call, backends: Iterable[Backend], limits: Limits) -> Doubt | None:
    """What only an engine's own tokenizer can tell; None where the estimate will do.

    It will not where it is too near a context, or would have the call refused: an estimate alone must not
    make an agent rewrite its conversation.
    """
    refused, found = True, None
    for backend in backends:
        if not backend.serves(call):
            continue
        if uncertain(call, backend):
            return Doubt.LIMIT
        refused = refused and outgrown(call, backend)
        if backend.long_prefills and at_gate(call, backend, limits):
            found = Doubt.GATE
    return Doubt.LIMIT if refused else found


def uncertain(call: Call, backend: Backend) -> bool:
    """Whether the estimate is so near the context that only the engine's tokenizer can tell the side."""
    context = backend.window
    return (
        context is not None
        and not call.prompt_counted
        and call.prompt_tokens * ESTIMATE_LOW < context <= call.prompt_tokens * ESTIMATE_HIGH
    )


def outgrown(call: Call, backend: Backend) -> bool:
    """Whether the prompt, by its estimate, is longer than the backend's context in any case."""
    context = backend.window
    return context is not None and context <= call.prompt_tokens * ESTIMATE_LOW


def at_gate(call: Call, backend: Backend, limits: Limits) -> bool:
    """Whether a long prefill is in progress there, and the estimate is so near the gate that only the
    engine's tokenizer can tell whether this one is long too."""
    service, gate_seconds = backend.service, limits.prefill_gate_seconds
    longest = int(call.prompt_tokens * ESTIMATE_HIGH)
    if call.prompt_counted or service.prefill_seconds(longest, 0) <= gate_seconds:  # as most are
        return False
    if not gated(backend, limits):
        return False
    cached = cached_tokens(call, backend)
    uncached = call.prompt_tokens - cached
    least, most = (
        service.prefill_seconds(cached + int(uncached * factor), cached)
        for factor in (ESTIMATE_LOW, ESTIMATE_HIGH)
    )
    return least <= gate_seconds < most
