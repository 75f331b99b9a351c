"""Response headers that tell a client where and how its request was served, and on request why."""

from __future__ import annotations

from gateway.dispatcher import Slot
from gateway.errors import Headers
from gateway.inflight import Inflight
from policies.types import Backend


def describe(slot: Slot, live: Inflight, backend: Backend) -> Headers:
    """Backend, wait and length; for clients that ask, also the reason and what became of the prefix."""
    lease, record = slot.lease, live.record
    waited = (record.dispatched or record.arrived) - record.arrived
    headers = [
        (b"x-slotgate-backend", lease.backend.encode()),
        (b"x-slotgate-queue-ms", b"%d" % round(waited * 1000)),
        (b"x-slotgate-prompt-tokens", b"%d" % slot.call.prompt_tokens),
    ]
    if live.request.mends:
        headers.append((b"x-slotgate-stabilised", ", ".join(live.request.mends).encode()))
    if live.explains:
        headers += [
            (b"x-slotgate-reason", _reason(slot, backend).encode()),
            (b"x-slotgate-prefix", _prefix(slot, live, backend).encode()),
        ]
    return headers


def _reason(slot: Slot, backend: Backend) -> str:
    """Why the call went where it went, in one line."""
    lease = slot.lease
    rates = "the engine's own rates" if backend.calibration.learnt else "rates that are not learnt yet"
    reason = (
        f"cheapest of those that could start, by {rates}: {lease.cost_seconds:.2f} s, "
        f"of which prefill {lease.prefill_seconds:.2f} s"
    )
    if lease.held_seconds:
        reason += f"; left other slots free for {lease.held_seconds:.2f} s"
    return f"{reason}; {lease.rival} was next, with {lease.rival_seconds:.2f} s" if lease.rival else reason


def _prefix(slot: Slot, live: Inflight, backend: Backend) -> str:
    """Whether the prompt continues the one before, as far as they were compared, and what is expected of
    the backend's cache."""
    lease, call, verdict = slot.lease, slot.call, live.verdict
    broken = verdict.difference if verdict is not None else None
    parts = ["append" if broken is None else f"break; kind={broken.kind}; offset={broken.offset}"]
    if broken is not None:
        parts.append(f"path={broken.path}")
    if verdict is not None and verdict.between:
        parts.append("between=conversations")
    parts += [
        f"cached={lease.cached_tokens}/{call.prompt_tokens}",
        f"efficiency={backend.service.cache_efficiency:.2f}",
    ]
    return "; ".join(parts)
