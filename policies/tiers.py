"""Which backends may serve a call at all, in tiers: a later tier is only for want of an earlier one.

Targets come before fallbacks, each fallback before the next, and among those of one model a backup last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies import filters
from policies.types import Backend, Call, State

Tiers = list[Sequence[Backend]]


def tiers(call: Call, backends: Sequence[Backend]) -> Tiers:
    """The backends whose slots hold the call, the preferred ones first; empty: no slot holds it.

    `backends` serve the call. A backup counts when no other backend of its model that holds the call is
    ready. Those that are not ready stay in, as one of them may be due for its trial.
    """
    if not call.fallbacks and not [b for b in backends if b.backup]:
        fits = filters.fitting(call, backends)
        return [fits] if fits else []
    found: Tiers = []
    for level in levels(call, backends):
        for backup in (False, True):
            fits = filters.fitting(call, [backend for backend in level if backend.backup is backup])
            if fits:
                found.append(fits)
            if _ready(fits):
                break
    return found


def standby(call: Call, backend: Backend) -> bool:
    """Whether the backend, which serves the call, is there only for want of others."""
    return backend.backup or not backend.may_serve(call.wanted)


def levels(call: Call, backends: Sequence[Backend]) -> Iterator[Sequence[Backend]]:
    """Those that serve a target, then those of each fallback, until there is a ready one: be its slots full
    or too small, since a prompt that is too long must not change the model."""
    left = list(backends)
    for models in (call.wanted, *((fallback,) for fallback in call.fallbacks)):
        level = [backend for backend in left if backend.may_serve(models)]
        left = [b for b in left if b not in level]
        yield level
        if _ready(level):
            return


def _ready(backends: Sequence[Backend]) -> bool:
    return any(backend.state is State.READY for backend in backends)
