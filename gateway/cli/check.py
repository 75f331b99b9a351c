"""`slotgate check`."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.admin_client import AsJson
from gateway.cli.failure import CommandFailed

if TYPE_CHECKING:
    from gateway.cli.survey import Seen
    from gateway.settings import BackendSettings, Settings

REDIS_SECONDS = 5.0
MENDS = {"down": "start it, or correct the url", "unknown": "correct the url, the engine or its api_key"}


def check(
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Configuration; else $SLOTGATE_CONFIG, else ./slotgate.toml."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Validate a configuration, ask its engines and Redis.

    Exit code 1 if anything is wrong; every fault is a line with file, key and reason.

    \b
    Examples:
      slotgate check
      slotgate check --config /etc/slotgate.toml --json
    """
    from gateway.settings import DEFAULT_FILE, ConfigError, Fault, file_of, load, misspelt

    file = config or os.environ.get("SLOTGATE_CONFIG") or DEFAULT_FILE
    for variable, meant in misspelt(os.environ):
        print(f"slotgate: {variable} is ignored; did you mean {meant}?", file=sys.stderr)
    source = "SLOTGATE_BACKENDS" if "SLOTGATE_BACKENDS" in os.environ else file
    rows: list[dict[str, Any]] = []
    try:
        settings = load(config, os.environ)
    except ConfigError as error:
        faults = list(error.faults)
    else:
        seen, unshared = asyncio.run(_look(settings))
        rows = [_row(*pair) for pair in zip(settings.backends, seen, strict=True)]
        faults = [Fault(source, key, reason) for key, reason in _faults(settings, seen)]
        faults += [Fault(file, key, reason) for key, reason in _aliases(settings, seen)]
        if not rows and file_of(config, os.environ) is None:
            faults = [Fault(file, "", "there is no such file; write it, or name another with --config")]
        if unshared:
            place = "SLOTGATE_REDIS__URL" if "SLOTGATE_REDIS__URL" in os.environ else file
            faults.append(Fault(place, "redis.url", unshared))
    if as_json:
        print(json.dumps({"valid": not faults, "faults": [asdict(f) for f in faults], "backends": rows}))
    elif rows:
        _print(rows)
    if faults:
        raise CommandFailed("\n".join(map(str, faults)))


async def _look(settings: Settings) -> tuple[list[Seen], str]:
    """What each backend is, and what is wrong with Redis, if it is configured."""
    from gateway.cli.survey import look

    looks = (look(b.url, b.api_key.get_secret_value(), b.engine, _tls(b)) for b in settings.backends)
    seen, unshared = await asyncio.gather(asyncio.gather(*looks), _unshared(settings))
    return seen, unshared


async def _unshared(settings: Settings) -> str:
    if not (url := settings.redis.url.get_secret_value()):
        return ""
    from gateway.ledger.redis import RedisStore
    from gateway.ledger.step import Unavailable
    from gateway.ledger.stream import RedisStream

    try:
        store = RedisStore(url, settings.redis.pool)
    except ValueError as error:
        return f"cannot be used: {error}"
    try:
        await store.ping(REDIS_SECONDS)
    except Unavailable as unavailable:
        return f"Redis cannot be asked: {unavailable}"
    finally:
        await store.close()
    stream = RedisStream(url, settings.redis.pool)
    try:
        await stream.usable()
    except Unavailable as unavailable:
        return f"Redis refuses what gateways tell each other; give its user +xadd and +xread: {unavailable}"
    finally:
        await stream.close()
    return ""


def _tls(backend: BackendSettings) -> ssl.SSLContext | None:
    try:
        return ssl.create_default_context(cafile=backend.tls_ca_file or None)
    except OSError:  # a fault of its own, see below
        return None


def _faults(settings: Settings, seen: list[Seen]) -> Iterator[tuple[str, str]]:
    if not settings.backends:
        yield "backends", "names no engine; add a [[backends]] table with its url"
    for i, (backend, one) in enumerate(zip(settings.backends, seen, strict=True)):
        if backend.tls_ca_file:
            try:
                ssl.create_default_context(cafile=backend.tls_ca_file)
            except OSError as error:
                yield f"backends[{i}].tls_ca_file", f"cannot be used: {error.strerror or error}"
        if one.fault:
            yield f"backends[{i}].url", f"{backend.url} {one.fault}; {MENDS[one.state]}"


def _aliases(settings: Settings, seen: list[Seen]) -> Iterator[tuple[str, str]]:
    """What is wrong with aliases by the models that the engines tell; one that tells none may serve any."""
    from gateway.settings import dotted

    told = [set(b.models or one.report.models or ()) for b, one in zip(settings.backends, seen, strict=True)]
    for alias, choice in settings.models.items():
        for backend, models in zip(settings.backends, told, strict=True):
            if alias in models:
                yield dotted(("models", alias)), f"is a model of {backend.url} too; name the alias otherwise"
        for option in ("targets", "fallbacks"):
            for i, model in enumerate(getattr(choice, option)):
                if all(models and model not in models for models in told):
                    yield dotted(("models", alias, option, i)), f"no backend serves {model!r}; correct it"


def _row(backend: BackendSettings, seen: Seen) -> dict[str, Any]:
    """A backend as the gateway would take it."""
    from gateway.capacity import Capacity

    capacity = Capacity.of(backend, seen.report)
    return {
        "name": backend.name,
        "url": backend.url,
        "engine": seen.engine or backend.engine,
        "slots": {"total": capacity.slots, "source": capacity.source},
        "context_tokens": capacity.context_tokens.value,
        "kv_tokens": capacity.kv_tokens.value,
        "models": list(backend.models or seen.report.models or ()),
        "state": seen.state,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    from gateway.cli.tables import cell, console, table

    shown = table("backend", "url", "engine", "slots", "context", "models", "state")
    for row in rows:
        slots, context = row["slots"], row["context_tokens"]
        shown.add_row(
            cell(row["name"]),
            cell(row["url"]),
            cell(row["engine"]),
            f"{slots['total']} {slots['source']}",
            f"{context:,}" if context else "not known",
            cell(", ".join(row["models"])),
            row["state"],
        )
    console().print(shown)
