"""What operators see and steer of all workers together: each is asked, and what they say is put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from gateway import errors
from gateway.admin.events import Events
from gateway.admin.figures import Figures, Lines, lines_of
from gateway.admin.history import Step
from gateway.admin.own import refused
from gateway.admin.prefix import PrefixView
from gateway.admin.views import (
    BackendView,
    DrainRequest,
    DrainView,
    ReloadView,
    RequestView,
    ShutdownView,
    WaitingView,
)
from gateway.advising import Answer
from gateway.advisor import PLAY_SECONDS_MAX
from gateway.auth import AdminGuard
from gateway.options import BackendSettings
from gateway.reload import Read, Reloaded, with_what_stands
from gateway.settings import ConfigError, Fault, Settings
from gateway.usage import Account, By
from gateway.workers import wire
from gateway.workers.merging import (
    backend_of,
    backends_of,
    drain_of,
    figures_of,
    prefixes_of,
    queue_of,
    steps_of,
)
from gateway.workers.supervisor import Supervisor, Worker
from policies.types import State, StateChanged

log = logging.getLogger("slotgate.workers")

ASK_SECONDS = 3.0
READ_SECONDS = 30.0  # of a journal with millions of requests
GONE_SECONDS = 1.0  # after which a worker that does not answer must be known to have ended


class Crew:
    """The `Operations` of all workers. `read` reads the configuration again; `guard` goes by its token."""

    def __init__(self, supervisor: Supervisor, read: Read, guard: AdminGuard) -> None:
        self.events = Events(self)
        self._supervisor = supervisor
        self._read = read
        self._guard = guard
        self._changing = asyncio.Lock()  # what new workers start with
        self._states: dict[str, State] = {}
        self._looks = False  # for a worker that has seen a change
        self._drains: dict[str, str] = {}  # why backends are drained, as workers last told
        supervisor.catch_up, supervisor.drains = self._catch_up, self._drained

    # -- asking -------------------------------------------------------------------------------------

    async def _ask(self, worker: Worker, call: str, *arguments: object, seconds: float = ASK_SECONDS) -> Any:
        return await wire.ask(worker.assignment.socket_path, call, *arguments, seconds=seconds)

    async def _heard(self, call: str, *arguments: object, seconds: float = ASK_SECONDS) -> dict[Worker, Any]:
        """The answer of each worker that answers: a value, or the GatewayError of the call. Raises
        WorkersSilent if none does."""
        workers = self._supervisor.serving
        asked = (self._ask(worker, call, *arguments, seconds=seconds) for worker in workers)
        told = zip(workers, await asyncio.gather(*asked, return_exceptions=True), strict=True)
        heard = {worker: one for worker, one in told if not isinstance(one, wire.Unanswered)}
        for one in heard.values():
            if isinstance(one, BaseException) and not isinstance(one, errors.GatewayError):
                raise one
        if not heard:
            raise errors.WorkersSilent
        return heard

    async def _all(self, call: str, *arguments: object, seconds: float = ASK_SECONDS) -> list[Any]:
        """What they answer; raises the error of one if all have some."""
        return _answers(await self._heard(call, *arguments, seconds=seconds))

    async def _everywhere(self, call: str, *arguments: object, seconds: float = ASK_SECONDS) -> list[Any]:
        """The same of a thing that is done only when all have done it. Raises WorkerSilent."""
        before = self._supervisor.serving
        heard = await self._heard(call, *arguments, seconds=seconds)
        for worker in await self._hanging(before, heard):
            raise errors.WorkerSilent(worker.number)
        return _answers(heard)

    async def _hanging(self, asked: Iterable[Worker], heard: Collection[Worker]) -> list[Worker]:
        """Those that did not answer although they live."""
        silent = [one for one in asked if one not in heard]
        ends = [asyncio.create_task(one.process.wait()) for one in silent]
        if ends:
            await asyncio.wait(ends, timeout=GONE_SECONDS)
        for end in ends:
            end.cancel()
        return [one for one in silent if one.process.returncode is None]

    async def _told(self, worker: Worker, call: str, *arguments: object) -> Any:
        """What one of them answers. Raises WorkerSilent."""
        try:
            return await self._ask(worker, call, *arguments, seconds=READ_SECONDS)
        except wire.Unanswered:
            raise errors.WorkerSilent(worker.number) from None

    async def _any(self, call: str, *arguments: object, seconds: float) -> Any:
        """What the first one answers who does."""
        for worker in self._supervisor.serving:
            try:
                return await self._ask(worker, call, *arguments, seconds=seconds)
            except wire.Unanswered as fault:
                log.warning("worker %d does not answer: %s", worker.number, fault)
        raise errors.WorkersSilent

    # -- for clients --------------------------------------------------------------------------------

    async def why_not_ready(self) -> str:
        """See `Whole`."""
        if self._supervisor.stopping.is_set():
            return "the gateway is shutting down"
        if not self._supervisor.serving:
            return "no worker serves yet"
        reasons: list[str] = await self._all("why_not_ready")
        return "" if "" in reasons else reasons[0]

    async def exposition(self) -> bytes:
        """See `Whole`."""
        heard = await self._heard("exposition")
        told = {worker.serial: one for worker, one in heard.items() if isinstance(one, bytes)}
        return self._supervisor.expositions.merged(told)

    def calls(self) -> dict[str, wire.Call]:
        """What workers ask for."""
        return {
            "why_not_ready": self.why_not_ready,
            "exposition": self.exposition,
            "changed": self.changed,
        }

    # -- for the live page --------------------------------------------------------------------------

    async def figures(self) -> Figures:
        """See `Source`. Changes of states are seen here, and told."""
        figures = figures_of(await self._all("figures"))
        views = [one.backend for one in figures.backends]
        before, self._states = self._states, {view.name: view.state for view in views}
        for view in views:
            if before.get(view.name, view.state) is not view.state:
                self.events.state_changed(StateChanged(view.name, view.state, view.reason))
        return figures

    async def changed(self) -> None:
        """A worker sees a backend in another state: pages need not wait for the figures of next second."""
        if self.events.listeners and not self._looks:
            self._looks = True
            try:
                await self.figures()
            finally:
                self._looks = False

    async def lines(self) -> Lines:
        """See `Source`."""
        told: list[dict[int, Step]] = await self._all("steps")
        breaking = [view for view in await self.prefix() if view.breaks]
        return lines_of(steps_of(told), breaking, len(breaking))

    # -- for operators ------------------------------------------------------------------------------

    async def backends(self) -> list[BackendView]:
        """See `Operations`, as all that follows."""
        return backends_of(await self._all("backends"))

    async def backend(self, name: str) -> BackendView:
        return backend_of(await self._all("backend", name))

    async def add(self, settings: BackendSettings) -> BackendView:
        async with self._changing:
            before = self._supervisor.serving
            heard = await self._heard("add", settings)
            refusals = [one for one in heard.values() if isinstance(one, errors.GatewayError)]
            refusals += [errors.WorkerSilent(one.number) for one in await self._hanging(before, heard)]
            if refusals:  # nowhere, rather than here and there
                for worker, one in heard.items():
                    if not isinstance(one, errors.GatewayError):
                        await self._told(worker, "remove", settings.name)
                raise refusals[0]
            self._supervisor.added[settings.name] = settings
        return backend_of(list(heard.values()))

    async def remove(self, name: str) -> DrainView:
        async with self._changing:
            try:
                views = await self._everywhere("remove", name)
            except errors.WorkerSilent:  # who takes the place of that one must not bring it back
                self._forget(name)
                raise
            self._forget(name)
        return drain_of(views)

    def _forget(self, name: str) -> None:
        supervisor = self._supervisor
        supervisor.added.pop(name, None)
        stay = tuple(backend for backend in supervisor.settings.backends if backend.name != name)
        if len(stay) < len(supervisor.settings.backends):  # until the configuration is read again
            supervisor.settings = supervisor.settings.model_copy(update={"backends": stay})

    async def drain(self, name: str, how: DrainRequest) -> DrainView:
        async with self._changing:
            views = await self._everywhere("drain", name, how.model_copy(update={"wait_seconds": 0}))
            self._drains[name] = how.reason
        if how.wait_seconds:  # outside of the lock: new workers need not wait for requests to end
            limit = how.wait_seconds + ASK_SECONDS
            views = await self._everywhere("drained", name, how.wait_seconds, seconds=limit)
        return drain_of(views)

    async def resume(self, name: str) -> DrainView:
        async with self._changing:
            views = await self._everywhere("resume", name)
            self._drains.pop(name, None)
        return drain_of(views)

    async def _drained(self) -> dict[str, str]:
        """Why backends are drained, by an operator of this gateway or of another one, as workers know."""
        if self._supervisor.serving:
            with suppress(errors.WorkersSilent):
                told: list[dict[str, str]] = await self._all("drains")
                self._drains = {name: why for one in told for name, why in one.items()}
        return dict(self._drains)

    async def queue(self) -> list[WaitingView]:
        return queue_of(await self._all("queue"))

    async def requests(self) -> list[RequestView]:
        told: list[list[RequestView]] = await self._all("requests")
        return sorted((view for views in told for view in views), key=lambda view: -view.age_seconds)

    async def end(self, id: str) -> RequestView:
        (view,) = await self._all("end", id)
        assert isinstance(view, RequestView)
        return view

    async def usage(self, by: By, since: str) -> list[Account]:
        told: list[Account] = await self._any("usage", by, since, seconds=READ_SECONDS)
        return told

    async def prefix(self) -> list[PrefixView]:
        return prefixes_of(await self._all("prefix"))

    async def advice(self) -> Answer:
        told: Answer = await self._any("advice", seconds=PLAY_SECONDS_MAX + ASK_SECONDS)
        return told

    async def reload(self) -> ReloadView:
        try:
            done = await self.follow()
        except ConfigError as error:
            raise refused(error) from None
        return ReloadView(changed=list(done.changed), standing=list(done.standing))

    async def shutdown(self) -> ShutdownView:
        if not self._supervisor.stopping.is_set():
            self._supervisor.stop()
        try:
            in_flight = sum(await self._all("in_flight"))
        except errors.WorkersSilent:  # the idle ones have ended by now
            in_flight = 0
        return ShutdownView(in_flight=in_flight)

    # -- the configuration ----------------------------------------------------------------------------

    async def follow(self) -> Reloaded:
        """Read it once, and let all workers go by it: the first one tells what is wrong with it. Raises
        ConfigError, and everything is as it was; WorkerSilent, if all but a worker that hangs go by it."""
        supervisor = self._supervisor
        async with self._changing:
            try:
                settings = await asyncio.to_thread(self._read)
                done, hanging = await self._handed_down(settings)
            except ConfigError as error:
                for fault in error.faults:
                    log.warning("the configuration is refused, the one before stays: %s", fault)
                await self._heard("refuse")
                raise
            supervisor.settings = with_what_stands(supervisor.settings, settings)
            configured = {backend.name for backend in settings.backends}
            supervisor.added = {name: one for name, one in supervisor.added.items() if name not in configured}
            self._guard.follow(settings.server.admin_token.get_secret_value())
        for worker in hanging:
            raise errors.WorkerSilent(worker.number)
        return done

    async def _handed_down(self, settings: Settings) -> tuple[Reloaded, list[Worker]]:
        """What has changed, and who could not be told."""
        serving = self._supervisor.serving
        if not serving:
            raise errors.WorkersSilent
        first, *others = serving
        done: Reloaded | tuple[Fault, ...] = await self._told(first, "follow", settings)
        if not isinstance(done, Reloaded):
            raise ConfigError(done)
        asked = [self._ask(worker, "follow", settings) for worker in others]
        told = zip(others, await asyncio.gather(*asked, return_exceptions=True), strict=True)
        heard = {worker for worker, one in told if not isinstance(one, wire.Unanswered)}
        return done, await self._hanging(others, heard)

    async def _catch_up(self, worker: Worker) -> None:
        """Tell it what has changed since it was started."""
        async with self._changing:
            assignment, supervisor = worker.assignment, self._supervisor
            try:
                if assignment.settings is not supervisor.settings:
                    await self._ask(worker, "follow", supervisor.settings, seconds=READ_SECONDS)
                known = {settings.name: settings for settings in assignment.added}
                for name in known.keys() - supervisor.added.keys():
                    await self._ask(worker, "remove", name)
                for name in supervisor.added.keys() - known.keys():
                    await self._ask(worker, "add", supervisor.added[name])
                await self._ask(worker, "follow_drains", await self._drained())
            except (wire.Unanswered, errors.GatewayError) as fault:
                log.warning("worker %d cannot be told what has changed: %s", worker.number, fault)


def _answers(heard: dict[Worker, Any]) -> list[Any]:
    """The values among what was heard. Raises the first error if there is none."""
    answers = [one for one in heard.values() if not isinstance(one, errors.GatewayError)]
    if not answers:
        raise next(iter(heard.values()))
    return answers
