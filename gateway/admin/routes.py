"""The table of the admin port."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import Response

from gateway import __version__, errors
from gateway.admin.door import Door
from gateway.admin.events import Events, EventStream
from gateway.admin.operations import Operations
from gateway.admin.page import pages
from gateway.admin.prefix import PrefixView
from gateway.admin.views import (
    BackendView,
    DrainRequest,
    DrainView,
    ErrorView,
    ReloadView,
    RequestView,
    ShutdownView,
    WaitingView,
)
from gateway.advising import Answer
from gateway.api import answer_errors, metrics_page
from gateway.auth import AdminGuard
from gateway.intake import Intake
from gateway.options import BackendSettings
from gateway.usage import Account, By


def admin_app(operations: Operations, events: Events, guard: AdminGuard, intake: Intake) -> FastAPI:
    """The application of the admin port."""
    app = FastAPI(
        title="slotgate admin",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={kind: {"model": ErrorView, "description": "The error object."} for kind in ("4XX", "5XX")},
    )
    app.add_middleware(Door, guard=guard, pages=pages(), intake=intake)
    answer_errors(app, misdirected)

    @app.get("/admin/backends")
    async def backends() -> list[BackendView]:
        return await operations.backends()

    @app.get("/admin/backends/{name}")
    async def backend(name: str) -> BackendView:
        return await operations.backend(name)

    @app.post("/admin/backends", status_code=201)
    async def add(body: BackendSettings) -> BackendView:
        """One more engine, of those that the configuration allows to be added."""
        return await operations.add(body)

    @app.delete("/admin/backends/{name}")
    async def remove(name: str) -> DrainView:
        """No new request starts there; when those that run have finished, it is gone."""
        return await operations.remove(name)

    @app.post("/admin/backends/{name}/drain")
    async def drain(name: str, body: DrainRequest | None = None) -> DrainView:
        """From the answer on no new request starts there; those that run finish."""
        return await operations.drain(name, body or DrainRequest())

    @app.post("/admin/backends/{name}/resume")
    async def resume(name: str) -> DrainView:
        """Back to ready by way of a warm-up; nothing happens if it was not drained."""
        return await operations.resume(name)

    @app.get("/admin/queue")
    async def queue() -> list[WaitingView]:
        return await operations.queue()

    @app.get("/admin/requests")
    async def requests() -> list[RequestView]:
        """Those at a backend; the others are in the queue."""
        return await operations.requests()

    @app.delete("/admin/requests/{id}")
    async def end(id: str) -> RequestView:
        """End a request, running or waiting; the answer is what it was."""
        return await operations.end(id)

    @app.get("/admin/events", response_class=Response)
    async def listen() -> Response:
        """Server-sent events: changes of states, figures each second, the lines of the last ten minutes."""
        return EventStream(events)

    @app.get("/admin/usage")
    async def used(by: By = By.AGENT, since: str = "") -> list[Account]:
        """What each agent, model or backend used, by the journal: `since` a time, or so long ago."""
        return await operations.usage(by, since)

    @app.get("/admin/prefix")
    async def prefix() -> list[PrefixView]:
        """What breaks the prefixes of each agent's prompts, the most expensive first."""
        return await operations.prefix()

    @app.get("/admin/advice")
    async def advice() -> Answer:
        """Whether other context windows would have served the traffic better; takes up to a minute."""
        return await operations.advice()

    @app.post("/admin/reload")
    async def reload() -> ReloadView:
        """Read the configuration again; if anything is wrong with it, nothing changes."""
        return await operations.reload()

    @app.post("/admin/shutdown")
    async def shutdown() -> ShutdownView:
        """As SIGTERM does: those that run or wait may finish. A second one does not hurry it."""
        return await operations.shutdown()

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        return metrics_page(await operations.exposition())

    return app


def misdirected(path: str) -> errors.GatewayError:
    """What is wrong with a request that no route takes: it was meant for the page, or for the other port."""
    why = errors.NO_PATH
    if path == "/":
        why = f"{why} Did you mean /console?"
    elif path.startswith("/v1/"):
        why = f"{why} It is one of the client port (server.port)."
    return errors.NotFound(why)
