"""The backends, and what becomes known of them: each change may let a call start.

Probes, operators, warm-ups and requests tell; what follows for the queue is up to `Admission`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable

from policies.calibration import Calibration
from policies.prefix import Shadow
from policies.service_model import ServiceModel
from policies.types import Backend, Call, Decision, Source, State, StateChanged

UNAVAILABLE = (State.DOWN, State.EJECTED)
ELSEWHERE = "elsewhere"  # why it is ejected: requests of another gateway failed


class Roster(ABC):
    """All backends, by name."""

    def __init__(self) -> None:
        self.backends: dict[str, Backend] = {}
        self.ejections: Counter[tuple[str, str]] = Counter()  # by backend and reason
        self._unsettled = False  # a state has changed since calls that hold were all looked at

    @abstractmethod
    def _dispatch(self, now: float) -> list[Decision]:
        """Start every waiting call that can start, in order."""

    def add(self, backend: Backend, now: float) -> list[Decision]:
        """A backend joins the fleet."""
        assert backend.name not in self.backends
        backend.since = now
        self.backends[backend.name] = backend
        return self._dispatch(now)

    def remove(self, name: str) -> None:
        """A drained backend leaves the fleet: one that comes under its name begins anew."""
        assert not self.backends[name].leases
        del self.backends[name]
        for key in [key for key in self.ejections if key[0] == name]:
            del self.ejections[key]

    def set_state(self, name: str, state: State, now: float, why: str = "") -> list[Decision]:
        """Probe, operator or warm-up say what a backend is up to."""
        backend = self.backends[name]
        if state is State.DRAINING and not backend.leases:
            state = State.DRAINED
        return self._enter(backend, state, why, now) + self._dispatch(now)

    def resize(
        self,
        name: str,
        now: float,
        *,
        slots: int,
        source: Source,
        context_tokens: int | None,
        kv_tokens: int | None = None,
    ) -> list[Decision]:
        """The engine's slots, context or kv budget are known, or known better. Less than is in use
        takes effect as requests end."""
        backend = self.backends[name]
        if backend.context_tokens not in (None, context_tokens):  # only another process has another context
            backend.restarted()
        backend.slots, backend.slots_source = slots, source
        backend.resting = min(backend.resting, slots - 1)
        backend.context_tokens, backend.kv_tokens = context_tokens, kv_tokens
        backend.shadow.resize(slots, kv_tokens)
        return self._dispatch(now)

    def recognised(
        self, name: str, service: ServiceModel, shadow: Shadow, routes: frozenset[str], now: float
    ) -> list[Decision]:
        """The kind of the engine is known: its priors, what its cache is like, and the routes it serves.

        What was learnt of an engine of the same priors is kept.
        """
        backend = self.backends[name]
        if service != backend.calibration.prior:
            backend.service, backend.calibration = service, Calibration(service)
        shadow.resize(backend.slots, backend.kv_tokens)
        backend.shadow, backend.routes = shadow, routes
        return self._dispatch(now)

    def serve_models(self, name: str, models: Iterable[str] | None, now: float) -> list[Decision]:
        """The engine or the operator told which models it serves; None: nobody knows any more."""
        self.backends[name].models = None if models is None else frozenset(models)
        return self._dispatch(now)

    def stand_by(self, name: str, *, backup: bool) -> None:
        """The operator made it a backup, or a backend like others."""
        self.backends[name].backup = backup

    def serve_routes(self, name: str, routes: frozenset[str], now: float) -> list[Decision]:
        """The engine showed which routes it serves."""
        self.backends[name].routes = routes
        return self._dispatch(now)

    def observe(self, name: str, foreign: int, now: float, withheld: int = 0) -> list[Decision]:
        """The engine also works on so many requests that are not ours; so many free slots are for others."""
        self.backends[name].foreign, self.backends[name].withheld = foreign, withheld
        self.backends[name].turn(now)
        return self._dispatch(now)

    def failed(self, name: str, now: float, reason: str, *, trial: bool = False) -> list[Decision]:
        """A request failed by the engine's fault."""
        backend = self.backends.get(name)
        if backend is None or backend.state not in (State.READY, State.EJECTED):
            return []
        ejected = backend.state is State.EJECTED
        if ejected and not trial:  # it ran when the backend was ejected: the same failure once more
            return []
        if not backend.ejection.failed(now, trial=ejected):
            return []
        self.ejections[name, reason] += 1
        return self._enter(backend, State.EJECTED, reason, now) + self._dispatch(now)  # backups may be due

    def answered(self, name: str, now: float) -> list[Decision]:
        """A probe succeeded. A model's last backend need not wait for its pause to end: one
        request tries it now."""
        backend = self.backends[name]
        if backend.state is not State.EJECTED or self._others_ready(backend):
            return []
        backend.ejection.until = min(backend.ejection.until, now)
        return self._dispatch(now)

    def ejected_elsewhere(self, name: str, now: float) -> list[Decision]:
        """Another gateway has ejected it."""
        backend = self.backends[name]
        if backend.state is not State.READY or not backend.ejection.told(now):
            return []
        self.ejections[name, ELSEWHERE] += 1
        decisions = self._enter(backend, State.EJECTED, "another gateway ejected it", now)
        return decisions + self._dispatch(now)

    def recovered_elsewhere(self, name: str, now: float) -> list[Decision]:
        """It works again for another gateway: one request tries it now."""
        backend = self.backends[name]
        if backend.state is not State.EJECTED:
            return []
        backend.ejection.until = min(backend.ejection.until, now)
        return self._dispatch(now)

    def restarted(self, name: str) -> None:
        """The engine is a new process: its cache is empty, its speed is to be learnt anew, its failures are
        the old one's."""
        self.backends[name].restarted()
        self.backends[name].ejection.succeeded()

    def has_ready(self, call: Call) -> bool:
        """Whether a backend of this call's model is ready, be its slots full."""
        return any(b.state is State.READY and b.serves(call) for b in self.backends.values())

    def unavailable(self, call: Call) -> bool:
        """Whether every backend of this call's model is down or ejected."""
        return all(b.state in UNAVAILABLE for b in self.backends.values() if b.serves(call))

    def _enter(self, backend: Backend, state: State, why: str, now: float) -> list[Decision]:
        if backend.state is state and backend.why == why:
            return []
        if backend.state is not state:
            backend.since, self._unsettled = now, True
        backend.state, backend.why = state, why
        return [StateChanged(backend.name, state, why)]

    def _others_ready(self, backend: Backend) -> bool:
        """Whether each model of this backend has another one that is ready."""
        ready = [b for b in self.backends.values() if b is not backend and b.state is State.READY]
        if backend.models is None:
            return bool(ready)
        return all(any(b.models is None or model in b.models for b in ready) for model in backend.models)
