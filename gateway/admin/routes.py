"""Backends, queue and requests, as operators see and steer them: the table of the admin port."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.responses import Response

from gateway import __version__, errors
from gateway.admin.door import Door
from gateway.admin.events import EventStream
from gateway.admin.page import pages
from gateway.admin.prefix import PrefixView, prefix_view
from gateway.admin.usage import usage
from gateway.admin.views import (
    BackendView,
    DrainRequest,
    DrainView,
    ErrorView,
    ReloadView,
    RequestView,
    ShutdownView,
    WaitingView,
    backend_view,
    request_view,
    waiting_view,
)
from gateway.advising import Answer
from gateway.api import answer_errors, exposition
from gateway.auth import AdminGuard, may_add
from gateway.inflight import Phase
from gateway.intake import Intake
from gateway.member import Member
from gateway.options import BackendSettings
from gateway.settings import ConfigError, contradictions, dotted
from gateway.usage import Account, By
from policies.foresight import starts
from policies.types import Backend

if TYPE_CHECKING:
    from gateway.app import Gateway


def admin_app(gateway: Gateway, guard: AdminGuard, intake: Intake) -> FastAPI:
    """The application of the admin port."""
    clock = gateway.dispatcher.clock
    admission, fleet, inflights = gateway.admission, gateway.fleet, gateway.inflights
    app = FastAPI(
        title="slotgate admin",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={kind: {"model": ErrorView, "description": "The error object."} for kind in ("4XX", "5XX")},
    )
    app.add_middleware(Door, guard=guard, pages=pages(), intake=intake)
    answer_errors(app)

    def existing(name: str) -> Backend:
        backend = admission.backends.get(name)
        if backend is None:
            exist = ", ".join(admission.backends) or "none"
            raise errors.NotFound(f"There is no backend {name[:100]!r}. These exist: {exist}.")
        return backend

    def view(backend: Backend) -> BackendView:
        hit_ratio = gateway.metrics.prefix_hit_ratio(backend.name)
        return backend_view(fleet.members[backend.name], backend, hit_ratio, clock())

    def progress(backend: Backend) -> DrainView:
        return DrainView(state=backend.state, in_flight=len(backend.leases))

    @app.get("/admin/backends")
    async def backends() -> list[BackendView]:
        return [view(backend) for backend in admission.backends.values()]

    @app.get("/admin/backends/{name}")
    async def backend(name: str) -> BackendView:
        return view(existing(name))

    @app.post("/admin/backends", status_code=201)
    async def add(body: BackendSettings) -> BackendView:
        """One more engine, of those that the configuration allows to be added."""
        if not may_add(body.url, gateway.settings.server.allowed_backends):
            raise errors.Forbidden("server.allowed_backends does not allow an engine there.")
        try:
            member = await asyncio.to_thread(Member.of, body)
        except OSError as error:
            raise errors.InvalidRequest(
                f"tls_ca_file cannot be used: {error.strerror or error}.", "tls_ca_file"
            ) from None
        if (other := fleet.rival(body)) is not None:
            leaves = ", which is being removed" if other.removal is not None else ""
            raise errors.InvalidRequest(f"It has the name or the engine of {other.name}{leaves}.")
        alone = gateway.settings.model_copy(update={"backends": (body,)})
        for path, reason in contradictions(alone):
            raise errors.InvalidRequest(f"{dotted(path)} {reason}.")
        member.configured = False
        fleet.join(member)
        return view(existing(body.name))

    @app.delete("/admin/backends/{name}")
    async def remove(name: str) -> DrainView:
        """No new request starts there; when those that run have finished, it is gone."""
        backend = existing(name)
        fleet.remove(name)
        return progress(backend)

    @app.post("/admin/backends/{name}/drain")
    async def drain(name: str, body: DrainRequest | None = None) -> DrainView:
        """From the answer on no new request starts there; those that run finish."""
        backend, how = existing(name), body or DrainRequest()
        fleet.drain(name, how.reason)
        gateway.dispatcher.tell_drain(name, how.reason)
        if how.wait_seconds:
            await fleet.drained(name, how.wait_seconds)
        return progress(backend)

    @app.post("/admin/backends/{name}/resume")
    async def resume(name: str) -> DrainView:
        """Back to ready by way of a warm-up; nothing happens if it was not drained."""
        backend = existing(name)
        fleet.resume(name)
        gateway.dispatcher.tell_drain(name, None)
        return progress(backend)

    @app.get("/admin/queue")
    async def queue() -> list[WaitingView]:
        now, everywhere = clock(), admission.backends.values()
        calls = admission.queue.ordered(now)
        return [
            waiting_view(waiting, start, everywhere, admission.limits, now)
            for waiting, start in zip(calls, starts(calls, admission, now), strict=True)
        ]

    @app.get("/admin/requests")
    async def requests() -> list[RequestView]:
        """Those at a backend; the others are in the queue."""
        now = clock()
        return [
            request_view(live, now) for live in inflights.by_id.values() if live.phase is not Phase.QUEUED
        ]

    @app.delete("/admin/requests/{id}")
    async def end(id: str) -> RequestView:
        """End a request, running or waiting; the answer is what it was."""
        live = inflights.by_id.get(id)
        if live is None:
            raise errors.NotFound(f"No request {id[:100]!r} is running or waiting.")
        was = request_view(live, clock())
        live.interrupt(errors.Ended())
        return was

    @app.get("/admin/events", response_class=Response)
    async def events() -> Response:
        """Server-sent events: changes of states, figures each second, the lines of the last ten minutes."""
        return EventStream(gateway.events)

    @app.get("/admin/usage")
    async def used(by: By = By.AGENT, since: str = "") -> list[Account]:
        """What each agent, model or backend used, by the journal: `since` a time, or so long ago."""
        return await usage(gateway.settings.accounting.journal, by, since)

    @app.get("/admin/prefix")
    async def prefix() -> list[PrefixView]:
        """What breaks the prefixes of each agent's prompts, the most expensive first."""
        now, worst = clock(), gateway.prefixes.findings.worst()
        return [prefix_view(agent, finding, gateway.mender, now) for agent, finding in worst]

    @app.get("/admin/advice")
    async def advice() -> Answer:
        """Whether other context windows would have served the traffic better; takes up to a minute."""
        return await gateway.advisor.advice()

    @app.post("/admin/reload")
    async def reload() -> ReloadView:
        """Read the configuration again; if anything is wrong with it, nothing changes."""
        try:
            done = await gateway.reload()
        except ConfigError as error:
            faults = "; ".join(map(str, error.faults))
            raise errors.InvalidRequest(
                f"The configuration is refused and nothing has changed. {faults}"
            ) from None
        return ReloadView(changed=list(done.changed), standing=list(done.standing))

    @app.post("/admin/shutdown")
    async def shutdown() -> ShutdownView:
        """As SIGTERM does: those that run or wait may finish. A second one does not hurry it."""
        if not gateway.stopping:
            gateway.stopping = True
            gateway.stop()
        return ShutdownView(in_flight=len(inflights.by_id))

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        return await exposition(gateway.metrics)

    return app
