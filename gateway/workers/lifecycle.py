"""How a gateway of several processes starts and stops.

The parent holds the sockets, answers operators and hears signals; clients are served by the workers. What it
is told, it lets all of them do.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from gateway import systemd
from gateway.admin.door import BODIES_BYTES_MAX, BODY_BYTES_MAX
from gateway.admin.routes import admin_app
from gateway.auth import AdminGuard
from gateway.intake import Intake
from gateway.lifecycle import CONNECTIONS_MAX, Listener, Reloads, on_signals, raise_descriptors
from gateway.reload import Read
from gateway.settings import Settings
from gateway.workers import wire
from gateway.workers.crew import Crew
from gateway.workers.supervisor import Supervisor

PREFIX = "slotgate-"  # of the folder of sockets
FRESH_SECONDS = 60.0


async def serve(
    count: int,
    settings: Settings,
    read: Read,
    where: str,
    clients: socket.socket,
    operators: socket.socket,
    started: Callable[[], None],
    *,
    handed: bool = False,
) -> None:
    """Serve both ports with so many workers, until a signal comes and everything has ended. `read`, `where`,
    `started`, `handed`: as for one process. Raises OSError without a place for the sockets among them."""
    tidy(Path(gettempdir()))
    with TemporaryDirectory(prefix=PREFIX) as folder:
        supervisor = Supervisor(count, settings, where, clients.fileno(), handed, Path(folder))
        guard = AdminGuard(settings.server.admin_token.get_secret_value())
        crew = Crew(supervisor, read, guard)
        intake = Intake(BODY_BYTES_MAX, BODIES_BYTES_MAX)
        app = admin_app(crew, crew.events, guard, intake)
        port = Listener(app, "off", {}, min(CONNECTIONS_MAX, raise_descriptors() // 8))
        reloads = Reloads(crew.follow)
        on_signals(supervisor.stop, lambda: None if supervisor.stopping.is_set() else reloads.begin())
        whole = await wire.listen(supervisor.parent_path, crew.calls())
        serving = asyncio.create_task(port.serve(sockets=[operators]))

        def all_started() -> None:
            started()
            systemd.tell("READY=1")

        stopping = asyncio.create_task(_stopping(supervisor, port, clients))
        try:
            await supervisor.run(all_started)
        finally:
            stopping.cancel()
            whole.close()
            crew.events.close()
            intake.close()
            port.should_exit = True
            await asyncio.wait([serving, stopping])


def tidy(place: Path) -> None:
    """Remove the folders of this user's gateways that were killed with all their workers: those in which is
    nothing but sockets, where nobody listens any more."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone meanwhile, or not ours to look at
            about, sockets = folder.stat(), list(folder.iterdir())
            fresh = time.time() - about.st_mtime < FRESH_SECONDS  # it may be about to listen
            if fresh or about.st_uid != os.getuid() or not all(path.is_socket() for path in sockets):
                continue
            if not any(map(_listens, sockets)):
                for path in sockets:
                    path.unlink()
                folder.rmdir()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # too many ask just now
            return True
    return True


async def _stopping(supervisor: Supervisor, port: Listener, clients: socket.socket) -> None:
    await supervisor.stopping.wait()
    systemd.tell("STOPPING=1")
    port.ending.now = True
    clients.close()  # the last worker that ends closes it for good
