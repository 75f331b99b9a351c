"""What operators see and steer of one gateway: read off its objects, on the event loop's thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway import errors
from gateway.admin.figures import Figures, Lines
from gateway.admin.history import Step
from gateway.admin.prefix import PrefixView, prefix_view
from gateway.admin.usage import usage
from gateway.admin.views import (
    BackendView,
    DrainRequest,
    DrainView,
    ReloadView,
    RequestView,
    ShutdownView,
    WaitingView,
    backend_view,
    request_view,
    waiting_view,
)
from gateway.advising import Answer
from gateway.api import exposition
from gateway.auth import may_add
from gateway.inflight import Phase
from gateway.member import Member
from gateway.options import BackendSettings
from gateway.settings import ConfigError, contradictions, dotted
from gateway.usage import Account, By
from policies.foresight import starts
from policies.types import Backend

if TYPE_CHECKING:
    from gateway.app import Gateway


class Own:
    """Its `Operations`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._admission = gateway.admission
        self._fleet = gateway.fleet
        self._inflights = gateway.inflights
        self._clock = gateway.dispatcher.clock

    async def why_not_ready(self) -> str:
        """See `Whole`."""
        return self._gateway.why_not_ready()

    async def exposition(self) -> bytes:
        """See `Whole`."""
        return await exposition(self._gateway.metrics)

    async def figures(self) -> Figures:
        """See `Source`."""
        return self._gateway.reader.figures()

    async def lines(self) -> Lines:
        """See `Source`."""
        return self._gateway.reader.lines()

    async def steps(self) -> dict[int, Step]:
        """What the lines are drawn from."""
        return self._gateway.reader.steps()

    async def backends(self) -> list[BackendView]:
        """See `Operations`, as all that follows."""
        return [self._view(backend) for backend in self._admission.backends.values()]

    async def backend(self, name: str) -> BackendView:
        return self._view(self._existing(name))

    async def add(self, settings: BackendSettings) -> BackendView:
        gateway, fleet = self._gateway, self._fleet
        if not may_add(settings.url, gateway.settings.server.allowed_backends):
            raise errors.Forbidden("server.allowed_backends does not allow an engine there.")
        try:
            member = await asyncio.to_thread(Member.of, settings)
        except OSError as error:
            raise errors.InvalidRequest(
                f"tls_ca_file cannot be used: {error.strerror or error}.", "tls_ca_file"
            ) from None
        if (other := fleet.rival(settings)) is not None:
            leaves = ", which is being removed" if other.removal is not None else ""
            raise errors.InvalidRequest(f"It has the name or the engine of {other.name}{leaves}.")
        alone = gateway.settings.model_copy(update={"backends": (settings,)})
        for path, reason in contradictions(alone):
            raise errors.InvalidRequest(f"{dotted(path)} {reason}.")
        member.configured = False
        fleet.join(member)
        return self._view(self._existing(settings.name))

    async def remove(self, name: str) -> DrainView:
        backend = self._existing(name)
        self._fleet.remove(name)
        return _progress(backend)

    async def drain(self, name: str, how: DrainRequest) -> DrainView:
        backend = self._existing(name)
        self._fleet.drain(name, how.reason)
        self._gateway.dispatcher.tell_drain(name, how.reason)
        if how.wait_seconds:
            await self._fleet.drained(name, how.wait_seconds)
        return _progress(backend)

    async def resume(self, name: str) -> DrainView:
        backend = self._existing(name)
        self._fleet.resume(name)
        self._gateway.dispatcher.tell_drain(name, None)
        return _progress(backend)

    async def queue(self) -> list[WaitingView]:
        admission, now = self._admission, self._clock()
        everywhere, calls = admission.backends.values(), admission.queue.ordered(now)
        return [
            waiting_view(waiting, start, everywhere, admission.limits, now)
            for waiting, start in zip(calls, starts(calls, admission, now), strict=True)
        ]

    async def requests(self) -> list[RequestView]:
        now, lives = self._clock(), self._inflights.by_id.values()
        return [request_view(live, now) for live in lives if live.phase is not Phase.QUEUED]

    async def end(self, id: str) -> RequestView:
        live = self._inflights.by_id.get(id)
        if live is None:
            raise errors.NotFound(f"No request {id[:100]!r} is running or waiting.")
        was = request_view(live, self._clock())
        live.interrupt(errors.Ended())
        return was

    async def usage(self, by: By, since: str) -> list[Account]:
        return await usage(self._gateway.settings.accounting.journal, by, since)

    async def prefix(self) -> list[PrefixView]:
        now, worst = self._clock(), self._gateway.prefixes.findings.worst()
        return [prefix_view(agent, finding, self._gateway.mender, now) for agent, finding in worst]

    async def advice(self) -> Answer:
        return await self._gateway.advisor.advice()

    async def reload(self) -> ReloadView:
        try:
            done = await self._gateway.reload()
        except ConfigError as error:
            raise refused(error) from None
        return ReloadView(changed=list(done.changed), standing=list(done.standing))

    async def shutdown(self) -> ShutdownView:
        if not self._gateway.stopping:
            self._gateway.stopping = True
            self._gateway.stop()
        return ShutdownView(in_flight=len(self._inflights.by_id))

    def _existing(self, name: str) -> Backend:
        backend = self._admission.backends.get(name)
        if backend is None:
            exist = ", ".join(self._admission.backends) or "none"
            raise errors.NotFound(f"There is no backend {name[:100]!r}. These exist: {exist}.")
        return backend

    def _view(self, backend: Backend) -> BackendView:
        hit_ratio = self._gateway.metrics.prefix_hit_ratio(backend.name)
        return backend_view(self._fleet.members[backend.name], backend, hit_ratio, self._clock())


def refused(error: ConfigError) -> errors.InvalidRequest:
    """What an operator is told of a configuration that is not followed."""
    faults = "; ".join(map(str, error.faults))
    return errors.InvalidRequest(f"The configuration is refused and nothing has changed. {faults}")


def _progress(backend: Backend) -> DrainView:
    return DrainView(state=backend.state, in_flight=len(backend.leases))
