"""From the first listening socket to the last answer: how the process starts and stops.

SIGTERM: not ready at once, but still serving for `shutdown_pause_seconds`, so that balancers notice;
then no new requests, while those that wait or run have `shutdown_seconds`; then an error event for
what is left, and the end. SIGINT does the same without the pause; a second signal stops waiting.
SIGHUP reads the configuration again.
uvicorn alone would close its listener first and cancel without waiting for the cleanup.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import uvicorn

from gateway import errors, systemd
from gateway.app import Gateway
from gateway.collector import Collector
from gateway.direct import Serve
from gateway.outbox import Outbox
from gateway.routes import ROUTES
from gateway.server import LAST_REQUEST_SECONDS, EdgeProtocol, Ending
from gateway.settings import ConfigError
from policies.types import State, StateChanged

log = logging.getLogger("slotgate.lifecycle")

BACKLOG = 2048  # agents come in bursts; a short backlog shows as seconds of connect time
KEEP_ALIVE_SECONDS = 75
CONNECTIONS_MAX = 10_000  # of each port; an idle one takes some 10 KB
DESCRIPTORS_MAX = 65_536
LAST_SECONDS = 5
SWITCH_SECONDS = 0.0005  # a stream waits so long for another thread, ten times at once; Python's is 0.005


class Listener(uvicorn.Server):
    """A uvicorn server that leaves signals to us. `direct`, `connections_max`: see `EdgeProtocol`."""

    def __init__(
        self, app: Any, lifespan: Literal["on", "off"], direct: Mapping[bytes, Serve], connections_max: int
    ) -> None:
        self.ending = Ending()
        edge = partial(
            EdgeProtocol,
            direct=direct,
            connections_max=connections_max,
            ending=self.ending,
            outbox=Outbox(),
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=edge,  # type: ignore[arg-type]
                ws="none",
                lifespan=lifespan,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=LAST_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals start the drain, not uvicorn's own shutdown."""
        yield

    def accept_no_more(self) -> None:
        """Who connects from now on waits for the next process that has the socket."""
        for server in self.servers:
            server.close()


class Steering:
    """What may be said to a gateway that runs, from outside of its ports."""

    def __init__(self, gateway: Gateway, clients: Listener) -> None:
        self.stopped, self.hurried = asyncio.Event(), asyncio.Event()
        self.abandoned = False
        self._gateway = gateway
        self._clients = clients
        self._reloads = Reloads(gateway.reload)

    def stop(self, *, pause: bool = True) -> None:
        """End in order, with or without the pause for balancers; said again: end what runs."""
        if self.stopped.is_set():
            self._gateway.inflights.interrupt(errors.ShuttingDown)
        if self.stopped.is_set() or not pause:
            self.hurried.set()
        self.stopped.set()

    def abandon(self) -> None:
        """Who started this process is gone: end in order, and let go of the clients' port at once, as whoever
        starts anew needs it."""
        self.abandoned = True
        if self._clients.started:
            self._clients.accept_no_more()
        if not self.stopped.is_set():
            self.stop(pause=False)

    def reload(self) -> None:
        """Read the configuration again."""
        if not self.stopped.is_set():
            self._reloads.begin()


class Reloads:
    """Readings of the configuration that nobody waits for; what is wrong with it is in the log."""

    def __init__(self, reload: Callable[[], Awaitable[object]]) -> None:
        self._reload = reload
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Read it now."""
        self._tasks.add(task := asyncio.get_running_loop().create_task(self._one()))
        task.add_done_callback(self._tasks.discard)

    async def _one(self) -> None:
        try:
            await self._reload()
        except ConfigError:  # logged already, fault by fault
            return
        except errors.GatewayError as error:
            log.warning("%s", error.message)


def on_signals(stop: Callable[..., None], reload: Callable[[], None]) -> None:
    """Let signals say it. `stop` is called with `pause=False` for SIGINT."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, partial(stop, pause=False))
    loop.add_signal_handler(signal.SIGHUP, reload)


def by_signals(steering: Steering) -> None:
    """The usual way of steering."""
    on_signals(steering.stop, steering.reload)


def raise_descriptors() -> int:
    """Let this process have as many as the machine allows, not what shells start with; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if 0 <= soft < most:  # -1: as many as it wants
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except OSError:
            return soft
    return most


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def run(main: Coroutine[object, object, None]) -> None:
    """On uvloop where there is one: half the CPU per byte."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


async def serve(
    gateway: Gateway,
    clients: socket.socket,
    operators: socket.socket | None,
    started: Callable[[], None],
    *,
    handed: bool = False,
    steered: Callable[[Steering], None] = by_signals,
) -> None:
    """Serve both ports until it is told to stop and everything has ended. `started` is called once they
    answer. `operators`: None where another process asks for them. `handed`: the clients' socket outlives
    this process. `steered`: who says what."""
    direct = {path.encode(): gateway.handler.serve for path in ROUTES}
    most = raise_descriptors()  # half for clients: the rest, for engines and operators, is never wanting
    ports = [(Listener(gateway, "on", direct, min(CONNECTIONS_MAX, most // 2)), clients)]
    if operators is not None:
        ports.append((Listener(gateway.admin, "off", {}, min(CONNECTIONS_MAX, most // 8)), operators))
    servers = [server for server, _ in ports]
    loop, steering = asyncio.get_running_loop(), Steering(gateway, servers[0])
    steered(steering)
    gateway.dispatcher.state_changed.append(partial(_tell, gateway))
    gateway.stop = steering.stop
    collector = Collector(lambda: not gateway.inflights.by_id, loop.time)
    collector.start()  # before anybody is served: it looks at all of the process once
    tasks = [loop.create_task(server.serve(sockets=[listening])) for server, listening in ports]
    try:
        # uvicorn tells by a flag only
        while not all(server.started for server in servers) and not any(task.done() for task in tasks):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        sys.setswitchinterval(SWITCH_SECONDS)
        started()
        systemd.tell("READY=1")
        await asyncio.wait([loop.create_task(steering.stopped.wait()), *tasks], return_when="FIRST_COMPLETED")
        gateway.stopping = True
        systemd.tell("STOPPING=1")
        for server in servers:
            server.ending.now = True
        left, seconds = len(gateway.inflights.by_id), gateway.settings.server.shutdown_seconds
        if left:
            log.info(
                "stopping: %d requests have up to %g s to finish; a second signal ends them", left, seconds
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(steering.hurried.wait(), gateway.settings.server.shutdown_pause_seconds)
        if handed or steering.abandoned:
            servers[0].accept_no_more()
            await asyncio.sleep(LAST_REQUEST_SECONDS)
        await gateway.drain(gateway.settings.server.shutdown_seconds)
    finally:
        collector.stop()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)


def _tell(gateway: Gateway, change: StateChanged) -> None:
    """What has become ready."""
    if change.state is not State.READY:
        return
    backend, member = gateway.admission.backends[change.backend], gateway.fleet.members[change.backend]
    models = ", ".join(sorted(backend.models or ())) or "any"
    log.info("%s: %s, %s; models: %s", backend.name, member.engine.name, member.capacity, models)
