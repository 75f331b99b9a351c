"""What operators see and steer, whoever answers for it: one gateway, or all the workers of one."""

from __future__ import annotations

from typing import Protocol

from gateway.admin.figures import Figures, Lines
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
from gateway.options import BackendSettings
from gateway.usage import Account, By


class Whole(Protocol):
    """What clients may know of the gateway as a whole, whichever of its processes they reach."""

    async def why_not_ready(self) -> str:
        """Why no request can be served now; "" while one can."""
        ...

    async def exposition(self) -> bytes:
        """The metrics as Prometheus reads them."""
        ...


class Source(Protocol):
    """What the live page is told."""

    async def figures(self) -> Figures:
        """Those of this second."""
        ...

    async def lines(self) -> Lines:
        """Those of the last ten minutes."""
        ...


class Operations(Whole, Source, Protocol):
    """Each may raise a GatewayError: NotFound of a name or id, InvalidRequest, Forbidden."""

    async def backends(self) -> list[BackendView]:
        """All of them."""
        ...

    async def backend(self, name: str) -> BackendView:
        """One of them."""
        ...

    async def add(self, settings: BackendSettings) -> BackendView:
        """One more engine, of those that the configuration allows to be added."""
        ...

    async def remove(self, name: str) -> DrainView:
        """No new request starts there; when those that run have finished, it is gone."""
        ...

    async def drain(self, name: str, how: DrainRequest) -> DrainView:
        """From the answer on no new request starts there; those that run finish."""
        ...

    async def resume(self, name: str) -> DrainView:
        """Back to ready by way of a warm-up; nothing happens if it was not drained."""
        ...

    async def queue(self) -> list[WaitingView]:
        """Requests that wait, in the order in which they start."""
        ...

    async def requests(self) -> list[RequestView]:
        """Those at a backend; the others are in the queue."""
        ...

    async def end(self, id: str) -> RequestView:
        """End a request, running or waiting; the answer is what it was."""
        ...

    async def usage(self, by: By, since: str) -> list[Account]:
        """What each agent, model or backend used, by the journal: `since` a time, or so long ago."""
        ...

    async def prefix(self) -> list[PrefixView]:
        """What breaks the prefixes of each agent's prompts, the most expensive first."""
        ...

    async def advice(self) -> Answer:
        """Whether other context windows would have served the traffic better; takes up to a minute."""
        ...

    async def reload(self) -> ReloadView:
        """Read the configuration again; if anything is wrong with it, nothing changes."""
        ...

    async def shutdown(self) -> ShutdownView:
        """As SIGTERM does: those that run or wait may finish. A second one does not hurry it."""
        ...
