"""`slotgate serve`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gateway import __version__
from gateway.cli.failure import CommandFailed

if TYPE_CHECKING:
    from gateway.settings import Settings

log = logging.getLogger("slotgate.serve")


def serve(
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Configuration; else $SLOTGATE_CONFIG, else ./slotgate.toml."),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An engine; may be repeated. Stands in place of configured ones."),
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address of the client port.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="The client port.")] = None,
    workers: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Processes that share the port; more than 1 need redis.url."),
    ] = 1,
) -> None:
    """Run the gateway.

    Without a backend it looks for engines on the usual ports of this machine.

    \b
    Examples:
      slotgate serve
      slotgate serve --backend http://127.0.0.1:8080 --backend http://10.0.0.11:8000
      slotgate serve --config /etc/slotgate.toml
      slotgate serve --config /etc/slotgate.toml --workers 2
    """
    from gateway import logs, systemd
    from gateway.app import create_app
    from gateway.lifecycle import run
    from gateway.lifecycle import serve as served
    from gateway.settings import file_of

    logs.setup("INFO")
    log.info("slotgate %s", __version__)
    file = file_of(config, os.environ)
    read = _reader(file, backend or [], host, port)
    handed = _handed()
    settings = _as_handed(_first(read), handed)
    if workers > 1 and not settings.redis.url.get_secret_value():
        raise CommandFailed(
            f"--workers {workers} needs redis.url: without Redis each would hand out all slots anew.",
            2,
        )
    server = settings.server
    clients = handed.get(systemd.CLIENTS) or _bind(server.host, server.port, "--port or server.port")
    operators = handed.get(systemd.OPERATORS) or _bind(
        server.admin_host, server.admin_port, "server.admin_port or SLOTGATE_SERVER__ADMIN_PORT"
    )
    try:
        gateway = create_app(settings, read=read, where=file or "")
    except OSError as error:  # certificates are files
        raise CommandFailed(f"A backend's tls_ca_file cannot be used: {error}.", 2) from None
    except ValueError as error:
        raise CommandFailed(f"redis.url cannot be used: {error}.", 2) from None

    def started() -> None:
        url, admin = _url(clients), _url(operators)
        print(f"slotgate: listening on {url} (admin {admin})", flush=True)
        log.info("clients use %s/v1; Ctrl-C stops, a second one at once", url)

    outlives = systemd.CLIENTS in handed
    if workers == 1:
        run(served(gateway, clients, operators, started, handed=outlives))
    else:
        _run_workers(workers, settings, read, file or "", clients, operators, started, handed=outlives)
    log.info("stopped")


def _run_workers(
    count: int,
    settings: Settings,
    read: Callable[[], Settings],
    where: str,
    clients: socket.socket,
    operators: socket.socket,
    started: Callable[[], None],
    *,
    handed: bool,
) -> None:
    """As many processes, which share the sockets."""
    from gateway.lifecycle import run
    from gateway.workers.lifecycle import serve

    try:
        run(serve(count, settings, read, where, clients, operators, started, handed=handed))
    except OSError as error:
        raise CommandFailed(
            f"Workers cannot be started: {error}; they need a directory for temporary files ($TMPDIR)."
        ) from None


def _reader(
    file: str | None, backends: list[str], host: str | None, port: int | None
) -> Callable[[], Settings]:
    """How the configuration is read, now and later: always the same file. Its backends are those found on
    this machine if it names none at first."""
    from gateway.settings import load

    found, first = list[str](), True

    def read() -> Settings:
        nonlocal first
        settings = load(file, os.environ, backends=backends, host=host, port=port)
        if first and not settings.backends:
            found.extend(_found({settings.server.port, settings.server.admin_port}))
        if found and not settings.backends:
            settings = load(file, os.environ, backends=found, host=host, port=port)
        first = False
        return settings

    return read


def _first(read: Callable[[], Settings]) -> Settings:
    """The configuration to start with."""
    from gateway.settings import ConfigError, is_loopback, misspelt

    try:
        settings = read()
    except ConfigError as error:
        raise CommandFailed(str(error), 2) from None
    for variable, meant in misspelt(os.environ):
        log.warning("%s is ignored; did you mean %s?", variable, meant)
    if not is_loopback(settings.server.host) and not settings.keys:
        log.warning(
            "whoever reaches %s may use the engines: add [[keys]], or listen on 127.0.0.1",
            settings.server.host,
        )
    return settings


def _found(own_ports: set[int]) -> list[str]:
    """URLs of the engines on this machine."""
    from gateway.capacity import Capacity
    from gateway.cli.survey import LOCAL_PORTS, look_around
    from gateway.options import BackendSettings

    ports = [port for port in LOCAL_PORTS if port not in own_ports]
    listed = ", ".join(map(str, ports))
    log.info("no backend is named; looking on 127.0.0.1, ports %s", listed)
    urls = []
    for seen in asyncio.run(look_around(ports)):
        if seen.state != "up":
            why = seen.fault or "answers 503, as an engine does that loads"
            log.warning("%s %s; if it is one of yours, name it with --backend", seen.url, why)
            continue
        capacity = Capacity.of(BackendSettings(url=seen.url), seen.report)
        log.info("found %s at %s: %s", seen.engine, seen.url, capacity)
        urls.append(seen.url)
    if not urls:
        raise CommandFailed(
            f"No engine was found on this machine (ports {listed}): name one with "
            "`slotgate serve --backend http://HOST:PORT`, or in slotgate.toml.",
            2,
        )
    return urls


def _handed() -> dict[str, socket.socket]:
    """The sockets that systemd holds for us."""
    from gateway import systemd

    try:
        return systemd.sockets(os.environ)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"The sockets of LISTEN_FDS cannot be used: {error}.", 2) from None


def _as_handed(settings: Settings, handed: dict[str, socket.socket]) -> Settings:
    """The settings with the addresses of these sockets, which listen where they were told to. Raises
    CommandFailed where that contradicts the rest: a port for everybody needs its token."""
    from gateway import systemd
    from gateway.settings import contradictions, dotted

    where = {}
    for name, prefix in ((systemd.CLIENTS, ""), (systemd.OPERATORS, "admin_")):
        if name in handed:
            where[f"{prefix}host"], where[f"{prefix}port"] = handed[name].getsockname()[:2]
    settings = settings.model_copy(update={"server": settings.server.model_copy(update=where)})
    faults = [f"LISTEN_FDS: {dotted(path)}: {reason}" for path, reason in contradictions(settings)]
    if faults:
        raise CommandFailed("\n".join(faults), 2)
    return settings


def _bind(host: str, port: int, option: str) -> socket.socket:
    from gateway.lifecycle import bind

    try:
        return bind(host, port)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0].lower()  # asyncio's own words follow
        raise CommandFailed(
            f"Cannot listen on {host}, port {port}: {why}; choose another with {option}."
        ) from None


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
