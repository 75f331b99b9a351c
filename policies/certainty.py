"""Which backend a call will surely get, before anything else about the call is known.

Most calls find one backend that serves their model, a slot free there, and nobody before them. Then what they
cost decides nothing, and the engine need not wait until that is worked out.
"""

from __future__ import annotations

from policies import filters
from policies.admission import Admission
from policies.types import Backend, State


def certain(admission: Admission, model: str, route: str, tokens_max: int, now: float) -> Backend | None:
    """The backend that any call of this model, which is no alias, gets if it is submitted now; None: unknown.
    `tokens_max`: its prompt is not estimated at more."""
    if admission.closed or admission.queue:
        return None
    only: Backend | None = None
    for backend in admission.backends.values():
        if route in backend.routes and (backend.models is None or model in backend.models):
            if only is not None:
                return None
            only = backend
    return only if only is not None and _takes_any(admission, only, tokens_max, now) else None


def _takes_any(admission: Admission, backend: Backend, tokens_max: int, now: float) -> bool:
    """Whether it would take any call so long now. A long prefill in progress might keep out another one, a
    budget of tokens a larger call, the reserve one that is not interactive."""
    limits, window = admission.limits, backend.window
    return (
        backend.state is State.READY
        and now >= backend.paused_until
        and not backend.resting
        and not backend.long_prefills
        and not filters.gated(backend, limits)
        and (backend.kv_tokens is None or not backend.leases)
        and backend.free > filters.reserve_max(backend, limits)
        and (window is None or tokens_max * filters.ESTIMATE_HIGH < window)
    )
