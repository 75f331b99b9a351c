"""Calls and backends with the few fields that a test is about."""

from __future__ import annotations

from typing import Any

from policies.admission import Admission
from policies.prefix import Link, PrefixShadow
from policies.service_model import ServiceModel
from policies.types import Backend, Call, Decision, Granted, Limits, Priority, Rejected, State

ROUTE = "/v1/chat/completions"
MODEL = "m"
SHORT, LONG = 100, 5000  # prompt tokens: 0.2 and 5.1 seconds at the prior rates, the gate is at 1


def a_call(id: str = "call", **fields: Any) -> Call:
    """A short `agent` call that arrived at 0."""
    defaults: dict[str, Any] = {
        "model": MODEL,
        "route": ROUTE,
        "priority": Priority.AGENT,
        "agent": "someone",
        "arrived": 0.0,
        "prompt_tokens": SHORT,
    }
    return Call(id=id, **(defaults | fields))


def a_backend(name: str = "backend", **fields: Any) -> Backend:
    """A ready backend with one slot and no known context."""
    defaults: dict[str, Any] = {
        "state": State.READY,
        "models": frozenset({MODEL}),
        "routes": frozenset({ROUTE}),
    }
    return Backend(name, ServiceModel(), PrefixShadow(), **(defaults | fields))


def an_admission(*backends: Backend, **limits: Any) -> Admission:
    """Admission over these backends; the reserve is off unless the test is about it."""
    admission = Admission(Limits(**({"interactive_reserve_slots": 0} | limits)))
    for backend in backends:
        admission.add(backend, 0.0)
    return admission


def a_chain(*digests: int) -> tuple[Link, ...]:
    """A prompt of these messages, 1,000 bytes each."""
    return tuple(Link(digest, 1000 * (place + 1)) for place, digest in enumerate(digests))


def granted(decisions: list[Decision]) -> dict[str, str]:
    """Which calls start, and where."""
    return {d.lease.call.id: d.lease.backend for d in decisions if isinstance(d, Granted)}


def rejected(decisions: list[Decision]) -> dict[str, Rejected]:
    """Which calls are turned away, and how."""
    return {d.call.id: d for d in decisions if isinstance(d, Rejected)}
