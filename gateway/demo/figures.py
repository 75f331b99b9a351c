"""Figures of a run, read where they are kept: in the gateway's `/metrics` and in those of each engine."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.demo.stage import Stage

SAMPLE_SECONDS = 0.25
SETTLE_SECONDS = 5.0


class Series:
    """All samples of one scrape."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> float:
        """The sum of all series of this name with these labels; 0 where there is none yet."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def values(self, name: str, label: str) -> set[str]:
        """The values that a label has in all series of this name."""
        return {sample.labels[label] for sample in self._samples if sample.name == name}


@dataclass(frozen=True, slots=True)
class Scrape:
    """The gateway and all engines at one moment."""

    gateway: Series
    engines: dict[str, Series]

    @classmethod
    async def take(cls, http: httpx.AsyncClient, stage: Stage) -> Scrape:
        """Ask all of them."""
        engines = {name: await _series(http, url) for name, url in stage.engines.items()}
        return cls(await _series(http, stage.url), engines)


@dataclass(slots=True)
class Load:
    """Slots and queue of the gateway, sampled while the clients work."""

    samples: int = 0
    busy: Counter[str] = field(default_factory=Counter)  # slots in use, summed over the samples
    waiting_max: int = 0

    def add(self, series: Series, names: list[str]) -> None:
        """One sample."""
        self.samples += 1
        for name in names:
            self.busy[name] += int(series.total("slotgate_slots", backend=name, state="in_use"))
        self.waiting_max = max(self.waiting_max, int(series.total("slotgate_queue_length")))


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run did: the difference of two scrapes, and the load between them."""

    before: Scrape
    after: Scrape
    load: Load

    def gateway(self, name: str, **labels: str) -> int:
        """The growth of a counter of the gateway."""
        return int(self.after.gateway.total(name, **labels) - self.before.gateway.total(name, **labels))

    def engine(self, backend: str, *names: str) -> int:
        """The growth of counters of an engine, added up."""
        after, before = self.after.engines[backend], self.before.engines[backend]
        return int(sum(after.total(name) - before.total(name) for name in names))

    def sources(self, backend: str) -> str:
        """Where the gateway has the completion tokens of a backend from."""
        name, kind = "slotgate_tokens_total", "completion"
        return ", ".join(
            source
            for source in sorted(self.after.gateway.values(name, "source"))
            if self.gateway(name, backend=backend, kind=kind, source=source)
        )


@asynccontextmanager
async def sampled(http: httpx.AsyncClient, stage: Stage) -> AsyncIterator[Load]:
    """Sample the gateway's load as long as the block runs."""
    load = Load()

    async def sample() -> None:
        while True:
            load.add(await _series(http, stage.url), list(stage.engines))
            await asyncio.sleep(SAMPLE_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        sampler = tasks.create_task(sample())
        yield load
        sampler.cancel()


async def settled(http: httpx.AsyncClient, stage: Stage) -> Scrape:
    """A scrape after the last slot is given back: requests are accounted just after their last byte."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        scrape = await Scrape.take(http, stage)
        held = sum(scrape.gateway.total("slotgate_slots", state=state) for state in ("in_use", "leaving"))
        if not held or time.monotonic() > deadline:
            return scrape
        await asyncio.sleep(SAMPLE_SECONDS)


async def _series(http: httpx.AsyncClient, url: str) -> Series:
    return Series((await http.get(f"{url}/metrics")).raise_for_status().text)
