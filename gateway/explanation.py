"""Response headers that tell a client where and how its request was served, and on request why."""

from __future__ import annotations

from gateway.dispatcher import Slot
from gateway.errors import Headers
from gateway.inflight import Inflight
from policies.admission import Admission


def describe(slot: Slot, live: Inflight, admission: Admission) -> Headers:
    """Backend, wait and length; for clients that ask, also the reason and what of the prompt is cached."""
    lease, record = slot.lease, live.record
    waited = (record.dispatched or record.arrived) - record.arrived
    headers = [
        (b"x-slotgate-backend", lease.backend.encode()),
        (b"x-slotgate-queue-ms", b"%d" % round(waited * 1000)),
        (b"x-slotgate-prompt-tokens", b"%d" % slot.call.prompt_tokens),
    ]
    if live.explains:
        headers += [
            (b"x-slotgate-reason", _reason(slot, admission).encode()),
            (b"x-slotgate-prefix", _prefix(slot, admission).encode()),
        ]
    return headers


def _reason(slot: Slot, admission: Admission) -> str:
    """Why the call went where it went, in one line."""
    lease = slot.lease
    calibration = admission.backends[lease.backend].calibration
    rates = "the engine's own rates" if calibration.learnt else "rates that are not learnt yet"
    return (
        f"cheapest of those that could start, by {rates}: {lease.cost_seconds:.2f} s, "
        f"of which prefill {lease.prefill_seconds:.2f} s"
    )


def _prefix(slot: Slot, admission: Admission) -> str:
    """What is expected of the backend's cache."""
    lease, call = slot.lease, slot.call
    efficiency = admission.backends[lease.backend].service.cache_efficiency
    found = f"{lease.cached_tokens} of {call.prompt_tokens} tokens"
    return f"{found}; the engine finds {efficiency:.0%} of what matches"
