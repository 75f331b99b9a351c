"""One engine of the fleet and the way to it."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field

from gateway.acceptance import Acceptance
from gateway.capacity import Capacity, Experience
from gateway.engines import ENGINES
from gateway.engines.base import Engine, Report
from gateway.options import BackendSettings, TimeoutSettings
from gateway.probes import probing
from gateway.upstream import Upstream


@dataclass(slots=True, eq=False)
class Member:
    """What the gateway knows of one engine beside what admission must know."""

    settings: BackendSettings
    upstream: Upstream
    probed: Upstream
    engine: Engine
    capacity: Capacity
    known: bool = False  # the engine's kind is configured or was detected
    recognised: bool = False  # it was so once: shown while nobody answers
    away: bool = True  # it must be warmed up before it takes calls
    alive: bool = False  # this process was heard, and nothing says that it has ended
    started: str | None = None  # which process of the engine it is, where the engine tells
    ends: int = 0  # of the engine's process, as far as they were noticed
    ended_at: float = float("-inf")  # when it was proven that the last one that was alive has ended
    silent: int = 0  # probes in a row without an answer
    foreign: int = 0  # at the last probe; believed when two in a row agree
    refuses_usage: bool = False
    last_error: str = ""
    report: Report = field(default_factory=Report)  # the last one of this process
    asked_at: float = 0.0  # when that was asked for
    heard_at: float = 0.0  # and when it was there
    experience: Experience = field(default_factory=Experience)  # with this process
    acceptance: Acceptance = field(default_factory=Acceptance)  # the same
    warming: asyncio.Task[str] | None = None  # a warm-up request that runs
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    configured: bool = True  # else added while the gateway runs
    hold: str | None = None  # why it is drained from the first moment on; None: it is not
    removal: asyncio.Task[None] | None = None  # it drains, and leaves the fleet then

    @classmethod
    def of(cls, settings: BackendSettings) -> Member:
        """As configured; nothing is connected yet. Raises OSError for a file of certificates."""
        engine = ENGINES["openai" if settings.engine == "auto" else settings.engine]
        secure = settings.url.startswith("https:")  # to read the system's authorities takes 20 ms
        tls = ssl.create_default_context(cafile=settings.tls_ca_file or None) if secure else None
        key = settings.api_key.get_secret_value()
        upstream = Upstream(
            settings.url,
            connect_seconds=settings.timeouts.connect_seconds,
            reuse=engine.reuses_connections,
            tls=tls,
            api_key=key,
        )
        return cls(
            settings,
            upstream,
            probing(settings.url, key, tls),
            engine,
            Capacity.of(settings, Report()),
            known=settings.engine != "auto",
            recognised=settings.engine != "auto",
        )

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.settings.name

    @property
    def timeouts(self) -> TimeoutSettings:
        """How long this engine may be silent."""
        return self.settings.timeouts

    def is_same(self, settings: BackendSettings) -> bool:
        """Whether these are settings of the same backend: only then it can take them as it runs."""
        mine = self.settings
        return (settings.name, settings.place, settings.engine) == (mine.name, mine.place, mine.engine)

    def clashes(self, settings: BackendSettings) -> bool:
        """Whether a backend of these settings cannot be there beside this one."""
        return settings.name == self.name or settings.place == self.settings.place

    def take(self, other: Member) -> None:
        """Be as the other one is configured. Requests that run keep their connections and time limits."""
        for upstream in (self.upstream, self.probed):
            upstream.retire()
        other.upstream.reuse = self.engine.reuses_connections
        self.settings, self.upstream, self.probed = other.settings, other.upstream, other.probed
        self.configured = other.configured

    def ended(self, now: float, *, proven: bool = True) -> None:
        """The engine's process has ended, or loads anew: what was seen of it holds no more.

        Not `proven`: whatever stands before the engine may say "503" for it, and what runs there runs on.
        """
        self.ends += 1
        if self.alive and proven:
            self.ended_at = now
        self.alive, self.away, self.foreign = False, True, 0
        self.report, self.experience, self.acceptance = Report(), Experience(), Acceptance()

    def restarted(self, report: Report, asked_at: float) -> bool:
        """Whether the process that says this, asked then, is another one than before."""
        if None not in (report.started, self.started):
            return report.started != self.started
        # Of two answers that were under way at the same time, the older one may come last.
        return asked_at >= self.heard_at and report.is_younger(self.report, asked_at - self.asked_at)

    def heard(self, report: Report, asked_at: float, now: float) -> None:
        """The engine can serve, and says this of itself; it was asked then."""
        self.alive, self.report, self.asked_at, self.heard_at = True, report, asked_at, now
        self.acceptance.hear(report)
        self.started = report.started or self.started

    def told_elsewhere(self, slots: int) -> None:
        """Other gateways give it so many requests at a time. Of its next process they may not know yet."""
        if not self.ends:
            self.experience.heard(slots)

    async def close(self) -> None:
        """Close all connections."""
        await self.upstream.close()
        await self.probed.close()
