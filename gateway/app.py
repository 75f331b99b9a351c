"""Builds every object and lists every route; the only place that knows all.

clients ... POST to one of ROUTES                     -> Handler, before any router
            GET /health, /ready, /metrics, /v1/models -> FastAPI
operators . /admin/*, /metrics                        -> FastAPI, on its own port
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from gateway import __version__, errors
from gateway.accounting import Accounts
from gateway.admin.door import BODIES_BYTES_MAX, BODY_BYTES_MAX
from gateway.admin.events import Events
from gateway.admin.figures import Reader
from gateway.admin.history import History
from gateway.admin.operations import Whole
from gateway.admin.own import Own
from gateway.admin.routes import admin_app
from gateway.advisor import Advisor
from gateway.api import answer_errors, metrics_page
from gateway.auth import AdminGuard, Keys
from gateway.bookkeeper import Bookkeeper
from gateway.counting import Counting
from gateway.edge import AsgiArrival, Receive, Scope, Send
from gateway.fleet import Fleet
from gateway.handler import Handler
from gateway.inflight import Inflight, Inflights, Phase
from gateway.intake import Intake
from gateway.ledger import dispatcher_of, lessons_of
from gateway.lessons import Lessons
from gateway.member import Member
from gateway.mender import Mender
from gateway.metrics import Metrics
from gateway.models import Models
from gateway.prefixes import Prefixes
from gateway.probes import Probes
from gateway.relay import Relay
from gateway.reload import Read, Reload
from gateway.routes import ROUTES
from gateway.settings import Settings
from gateway.tokenizer import Tokenizers
from gateway.traffic import Window
from policies.admission import Admission
from policies.types import State


class Gateway:
    """The whole application. Itself the ASGI app of the client port; `admin` is that of the admin port."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        read: Read | None = None,
        where: str = "",
    ) -> None:
        self.settings = settings
        self.keys = Keys(settings.keys)
        self.admission = Admission(settings.limits())
        self.dispatcher = dispatcher_of(settings.redis, self.admission, clock, self._url_of)
        queue = settings.queue
        self.inflights = Inflights(queue.heartbeat, queue.heartbeat_seconds, self._may_beat, clock)
        self.fleet = Fleet(self.dispatcher, self.inflights, Probes(), clock)
        self.models = Models(settings.models, self.admission)
        self.dispatcher.state_changed.append(self.models.look)
        self.metrics = Metrics(
            self.admission,
            __version__,
            aliases=settings.models,
            running=self.inflights.records,
            sharing=lambda: self.dispatcher.sharing,
            differences=self.dispatcher.differences,
            accepted=self.fleet.accepted,
            clock=clock,
        )
        self.prefixes = Prefixes(self.metrics, clock)
        self.mender = Mender(settings.prefix, self.prefixes)
        lessons = Lessons(self.admission.backends)
        self._shared_lessons = lessons_of(
            settings.redis, self.dispatcher, lessons, self._url_of, lambda: self.settings.models
        )
        history = History(clock)
        self.bookkeeper = Bookkeeper(settings.accounting, clock)
        window = None if settings.accounting.journal else Window()
        self.advisor = Advisor(self.fleet, self.admission, settings.accounting.journal, window)
        self.dispatcher.state_changed.append(self.advisor.look)
        self.handler = Handler(
            settings,
            self.keys,
            self.models,
            self.dispatcher,
            Tokenizers(self.fleet, self.admission),
            self.mender,
            Relay(self.fleet, self.dispatcher, self.prefixes, self.metrics, clock),
            Counting(self.fleet, self.admission),
            self.inflights,
            lessons,
            Accounts(
                self.metrics,
                lessons,
                self.bookkeeper,
                history,
                *([] if window is None else [window]),
                *self.dispatcher.observers,
            ),
            clock,
        )
        self.reader = Reader(
            self.admission,
            self.fleet,
            self.inflights,
            self.metrics,
            history,
            self.prefixes.findings,
            self.mender,
            self.why_not_ready,
            clock,
        )
        self.own = Own(self)
        self.whole: Whole = self.own  # what answers clients for all processes of the gateway
        self.events = Events(self.own)
        self.dispatcher.state_changed.append(self.events.state_changed)
        self.stopping = False  # not ready any more, whatever the backends say
        self.stop: Callable[[], None] = partial(signal.raise_signal, signal.SIGTERM)  # whoever runs it
        self.api = client_api(self)
        self.reload = Reload(self, read or (lambda: settings), where)
        self.guard = AdminGuard(settings.server.admin_token.get_secret_value())
        self.admin_intake = Intake(BODY_BYTES_MAX, BODIES_BYTES_MAX)
        self.admin = admin_app(self.own, self.events, self.guard, self.admin_intake)
        for backend in settings.backends:
            self.fleet.add(backend)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in ROUTES and scope["method"] == "POST":
            with suppress(asyncio.CancelledError):  # at the very end; uvicorn takes it for a defect
                await self.handler.serve(AsgiArrival(scope, receive, send))
        else:
            await self.api(scope, receive, send)

    def follow(self, settings: Settings, members: Sequence[Member]) -> None:
        """Go by these settings, whose backends are these, from now on. What is made once stays as it was."""
        self.settings = settings
        self.guard.follow(settings.server.admin_token.get_secret_value())
        self.keys.follow(settings.keys)
        self.models.follow(settings.models)
        self.metrics.follow(settings.models)
        self.mender.follow(settings.prefix)
        self.inflights.follow(settings.queue.heartbeat, settings.queue.heartbeat_seconds)
        self.handler.follow(settings)
        self.fleet.follow(members)
        self.dispatcher.apply(self.admission.follow(settings.limits(), self.dispatcher.clock()))

    def why_not_ready(self) -> str:
        """Why no request can be served now; "" while a backend is ready, be its slots full."""
        if self.stopping:
            return "the gateway is shutting down"
        backends = self.admission.backends.values()
        if any(backend.state is State.READY for backend in backends):
            return ""
        states = ", ".join(f"{backend.name} {backend.state}" for backend in backends)
        return f"no backend is ready: {states or 'none is configured'}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Probe, tick, sweep and keep books inside."""
        self.bookkeeper.start()
        self.fleet.start()
        loops = [asyncio.create_task(self.dispatcher.run()), asyncio.create_task(self.inflights.run())]
        if self._shared_lessons is not None:
            loops.append(asyncio.create_task(self._shared_lessons.run()))
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.wait(loops)
            await self.advisor.close()
            await self.fleet.close()
            await self.bookkeeper.close()

    async def drain(self, seconds: float) -> None:
        """No new requests; those that wait or run have this long to finish, then they are ended."""
        self.stopping = True
        self.admission.close()
        self.handler.intake.close()
        if not await self.inflights.ended(seconds):
            self.inflights.interrupt(errors.ShuttingDown)
            await self.inflights.ended(5.0)
        self.events.close()
        self.admin_intake.close()

    def _url_of(self, name: str) -> str:
        """Which engine a backend is, in the words of all gateways."""
        return self.fleet.members[name].settings.url

    def _may_beat(self, live: Inflight, now: float) -> bool:
        """Whether a queued request's head may go out: not while a 503 may still have to be its status."""
        call = live.call
        if live.phase is not Phase.QUEUED or live.client.head_sent:
            return True
        if call is None:
            return False
        if self.admission.has_ready(call):
            return True
        grace = self.settings.queue.unavailable_grace_seconds
        return not self.admission.unavailable(call) and now - live.record.arrived > grace


def create_app(
    settings: Settings,
    clock: Callable[[], float] = time.monotonic,
    read: Read | None = None,
    where: str = "",
) -> Gateway:
    """The gateway as a complete ASGI application. `clock`: seconds, as fast as those of its event loop;
    `read`: reads the settings again, from `where`, for a reload."""
    return Gateway(settings, clock, read, where)


def client_api(gateway: Gateway) -> FastAPI:
    """The rare routes of the client port. No CORS, no documentation pages, no redirects."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    api = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    @api.api_route("/health", methods=["GET", "HEAD"])  # uptime checks ask with HEAD
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @api.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> JSONResponse:
        # A balancer asks whichever process takes its connection: others may serve while this one cannot.
        why = gateway.why_not_ready() and await gateway.whole.why_not_ready()
        reason = why or gateway.dispatcher.fault
        return JSONResponse({"ready": not why} | ({"reason": reason} if reason else {}), 503 if why else 200)

    @api.get("/metrics")
    async def metrics(request: Request) -> Response:
        gateway.keys.identify(request.scope["headers"])
        return metrics_page(await gateway.whole.exposition())

    @api.get("/v1/models")
    async def models(request: Request) -> JSONResponse:
        return JSONResponse(gateway.models.listed(gateway.keys.identify(request.scope["headers"])))

    @api.get("/v1/models/{id:path}")
    async def model(request: Request, id: str) -> JSONResponse:
        return JSONResponse(gateway.models.one(id, gateway.keys.identify(request.scope["headers"])))

    answer_errors(api, misdirected)
    return api


def misdirected(path: str) -> errors.GatewayError:
    """What is wrong with a request that no route takes; a base URL without /v1, or with it for a
    client of Anthropic's, is the usual mistake, the other port the next one."""
    if path in ROUTES:
        return errors.MethodNotAllowed(path, "POST")
    why = errors.NO_PATH
    if f"/v1{path}" in {*ROUTES, "/v1/models"}:
        why = f"{why} Did you mean /v1{path}? A client's base URL must end in /v1."
    elif path.startswith("/v1/v1/"):
        why = f"{why} Did you mean {path[3:]}? This client's base URL must not end in /v1."
    elif path == "/console" or path.startswith("/admin/"):
        why = f"{why} It is one of the admin port (server.admin_port)."
    return errors.NotFound(why)
