"""The configuration read again while the gateway runs: valid as a whole, or nothing changes.

What listens, the journal and the ledger are made once; a change of those is told, and waits for the next
start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.member import Member
from gateway.options import Section
from gateway.settings import ConfigError, Fault, Settings, contradictions, dotted

if TYPE_CHECKING:
    from gateway.app import Gateway

log = logging.getLogger("slotgate.reload")

Read = Callable[[], Settings]

# What is made once, at the start.
ADDRESSES = ("host", "port", "admin_host", "admin_port")  # of `server`
PARTS = ("accounting", "redis")
STANDING = (*(f"server.{name}" for name in ADDRESSES), *PARTS)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of a configuration that was read again."""

    changed: tuple[str, ...]  # options and lists of tables that are followed now
    standing: tuple[str, ...]  # those that differ too, but count from the next start on


class Reload:
    """Reads the configuration again, and lets the gateway follow it.

    `read` may take its time and raises ConfigError; `where` it reads from, for people.
    """

    def __init__(self, gateway: Gateway, read: Read, where: str) -> None:
        self._gateway = gateway
        self._read = read
        self._where = where
        self._one = asyncio.Lock()  # of two, the one that was asked for later counts

    async def __call__(self) -> Reloaded:
        """Raises ConfigError; then everything is as it was."""
        async with self._one:
            try:
                settings, members = await asyncio.to_thread(self._prepared)
            except ConfigError as error:
                self._gateway.metrics.config_invalid(True)
                for fault in error.faults:
                    log.warning("the configuration is refused, the one before stays: %s", fault)
                raise
            return self._follow(settings, members)

    def _prepared(self) -> tuple[Settings, list[Member]]:
        """All that can fail, before anything is changed."""
        settings = self._read()
        if not settings.backends and self._gateway.settings.backends:
            raise ConfigError(
                [Fault(self._where, "backends", "there is none any more; name at least one engine")]
            )
        together = with_what_stands(self._gateway.settings, settings)
        members = []
        faults = [Fault(self._where, dotted(path), reason) for path, reason in contradictions(together)]
        for i, backend in enumerate(settings.backends):
            try:
                members.append(Member.of(backend))
            except OSError as error:
                reason = f"cannot be used: {error.strerror or error}"
                faults.append(Fault(self._where, f"backends[{i}].tls_ca_file", reason))
        if faults:
            raise ConfigError(faults)
        return settings, members

    def _follow(self, settings: Settings, members: list[Member]) -> Reloaded:
        """One synchronous step: no request sees half of it."""
        gateway = self._gateway
        before = gateway.settings
        differing = list(_differing(before, settings))
        standing = tuple(name for name in differing if name.startswith(STANDING))
        changed = tuple(name for name in differing if name not in standing)
        gateway.follow(with_what_stands(before, settings), members)
        gateway.metrics.config_invalid(False)
        log.info("the configuration was read again; changed: %s", ", ".join(changed) or "nothing")
        if standing:
            log.warning("%s: read at the start only; restart the gateway to change it", ", ".join(standing))
        return Reloaded(changed, standing)


def with_what_stands(before: Settings, settings: Settings) -> Settings:
    """The settings as they can be followed. They may contradict what stands: a port that listens to everybody
    needs its token."""
    server = settings.server.model_copy(update={name: getattr(before.server, name) for name in ADDRESSES})
    standing = {name: getattr(before, name) for name in PARTS}
    return settings.model_copy(update={"server": server, **standing})


def _differing(before: Settings, after: Settings) -> Iterator[str]:
    """The options of a single table by name, lists of tables and tables of tables as a whole."""
    for section in Settings.model_fields:
        old: Any = getattr(before, section)
        new: Any = getattr(after, section)
        if old == new:
            continue
        if isinstance(old, Section):
            names = type(old).model_fields
            yield from (f"{section}.{name}" for name in names if getattr(old, name) != getattr(new, name))
        else:
            yield section
