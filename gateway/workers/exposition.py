"""The metrics of several workers as those of one gateway.

What only grows is added up, also of workers that have ended: Prometheus would take a smaller sum for a new
start. What is now is put together by what it means: a slot that all workers see is one slot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from prometheus_client.utils import floatToGoString

from gateway.families import (
    BACKEND_STATE,
    BUILD_INFO,
    CONFIG_INVALID,
    CONTEXT,
    LEARNT_RATE,
    OUTPUT_RATE,
    PREFIX_EFFICIENCY,
    PREFIX_HITS,
    QUEUE_LENGTH,
    SHARED_STATE,
    SLOTS,
    SPEC_ACCEPT,
    TOKENS_PER_EVENT,
    TTFT_ERROR,
    WORKER_RESTARTS,
)
from gateway.workers.merging import foreign, liveliest
from policies.types import State

Values = Mapping[str, float]  # by series: name and labels, as they are written
GAUGE = "gauge"
BACKEND = re.compile(r'[{,]backend="((?:[^"\\]|\\.)*)"')
STATE = re.compile(r'(.*\bstate=")(\w+)("\}.*)')  # of a series whose last label that is


@dataclass(slots=True)
class Page:
    """What one worker said: each family with its head, its kind, and its series."""

    heads: dict[str, list[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    series: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: bytes) -> Page:
        """As our own gateway wrote it: the help of a family, its type, its series."""
        page, name = cls(), ""
        for line in text.decode().split("\n")[:-1]:  # names may hold other ends of lines
            if line.startswith("#"):
                _, what, name, *rest = line.split(" ", 3)
                page.heads.setdefault(name, []).append(line)
                page.series.setdefault(name, {})
                if what == "TYPE":
                    page.kinds[name] = rest[0]
            else:
                series, _, value = line.rpartition(" ")
                page.series[name][series] = float(value)
        return page

    def backends(self) -> set[str]:
        """Those that this worker has, as they are written."""
        series = self.series.get(BACKEND_STATE.name, ())
        return {match[1] for match in map(BACKEND.search, series) if match}

    def without(self, backends: Collection[str]) -> Page:
        """The same, but for all series of these."""
        kept = {
            name: {one: value for one, value in series.items() if not _of(one, backends)}
            for name, series in self.series.items()
        }
        return Page(self.heads, self.kinds, kept)

    def grown(self) -> Page:
        """Only what never becomes less."""
        lasting = [name for name, kind in self.kinds.items() if kind != GAUGE]
        return Page(
            {name: self.heads[name] for name in lasting},
            {name: self.kinds[name] for name in lasting},
            {name: dict(self.series[name]) for name in lasting},
        )


class Expositions:
    """Those of all workers since the start, each by what tells it from the one that took its place."""

    def __init__(self) -> None:
        self.restarts = 0  # of workers
        self._last: dict[int, Page] = {}
        self._ended = Page()
        self._backends: set[str] = set()  # that workers had when they were asked last

    def begun(self, worker: int) -> None:
        """This worker serves."""
        self._last[worker] = Page()

    def ended(self, worker: int) -> None:
        """This worker is gone; what it last said stays in the sums."""
        last = self._last.pop(worker, Page())
        self._ended = _merged([self._ended, last.grown()])

    def merged(self, told: Mapping[int, bytes]) -> bytes:
        """What these workers told just now; those that did not answer count with what they last said."""
        fresh = {worker: Page.read(text) for worker, text in told.items() if worker in self._last}
        self._last |= fresh
        if fresh:  # what was removed leaves no series behind, nor in those that say nothing any more
            here = {name for page in fresh.values() for name in page.backends()}
            gone, self._backends = self._backends - here, here
            if gone:
                self._ended = self._ended.without(gone)
                self._last = {worker: page.without(gone) for worker, page in self._last.items()}
        silent = [page.grown() for worker, page in self._last.items() if worker not in fresh]
        whole, name = _merged([*fresh.values(), *silent, self._ended]), WORKER_RESTARTS.name
        if name in whole.series:
            whole.series[name] = {name: float(self.restarts)}
        return _written(whole)


def _of(series: str, backends: Collection[str]) -> bool:
    match = BACKEND.search(series)
    return match is not None and match[1] in backends


def _merged(pages: Sequence[Page]) -> Page:
    whole = Page()
    for name in dict.fromkeys(name for page in pages for name in page.kinds):
        having = [page for page in pages if name in page.kinds]
        whole.heads[name], whole.kinds[name] = having[0].heads[name], having[0].kinds[name]
        rule = RULES[name] if whole.kinds[name] == GAUGE else _added
        whole.series[name] = rule([page.series[name] for page in having])
    return whole


def _written(page: Page) -> bytes:
    lines = []
    for name, head in page.heads.items():
        lines += head
        values = map(floatToGoString, page.series[name].values())
        lines += [f"{series} {value}" for series, value in zip(page.series[name], values, strict=True)]
    return "".join(f"{line}\n" for line in lines).encode()


def _each(rule: Callable[[list[float]], float]) -> Callable[[Sequence[Values]], dict[str, float]]:
    """A rule for the values of one series."""

    def merged(told: Sequence[Values]) -> dict[str, float]:
        return {one: rule([values[one] for values in told if one in values]) for one in _names(told)}

    return merged


def _names(told: Iterable[Values]) -> Iterable[str]:
    return dict.fromkeys(one for values in told for one in values)


_added, _most, _mean = _each(sum), _each(max), _each(fmean)


def _slots(told: Sequence[Values]) -> dict[str, float]:
    """What workers hold adds up; to each, what the others hold is foreign."""
    merged = _added(told)
    for series in merged:
        begin, state, end = _parts(series)
        if state == "total":
            merged[series] = min(values[series] for values in told if series in values)
        elif state == "foreign":
            seen = [values for values in told if series in values]
            held = [values[f"{begin}in_use{end}"] + values[f"{begin}leaving{end}"] for values in seen]
            merged[series] = foreign(list(zip(held, [values[series] for values in seen], strict=True)))
    return merged


def _states(told: Sequence[Values]) -> dict[str, float]:
    """Of the worker that takes most."""
    merged = dict[str, float]()
    for series in _names(told):
        begin, state, end = _parts(series)
        here = [one for one in State if any(values.get(f"{begin}{one}{end}") for values in told)]
        merged[series] = float(bool(here) and state == liveliest(here))
    return merged


def _sharing(told: Sequence[Values]) -> dict[str, float]:
    """One worker that cannot ask the ledger makes the whole degraded."""
    merged = _most(told)
    if any(value and _parts(series)[1] == "degraded" for series, value in merged.items()):
        merged = {series: float(_parts(series)[1] == "degraded") for series in merged}
    return merged


def _parts(series: str) -> tuple[str, str, str]:
    """What stands before the value of its label `state`, the value, and what stands behind it."""
    match = STATE.fullmatch(series)
    assert match is not None, series
    return match[1], match[2], match[3]


# How each gauge is put together.
RULES: dict[str, Callable[[Sequence[Values]], dict[str, float]]] = {
    SLOTS.name: _slots,
    BACKEND_STATE.name: _states,
    SHARED_STATE.name: _sharing,
    QUEUE_LENGTH.name: _added,
    OUTPUT_RATE.name: _added,
    CONTEXT.name: _most,
    CONFIG_INVALID.name: _most,
    BUILD_INFO.name: _most,
    PREFIX_EFFICIENCY.name: _mean,
    PREFIX_HITS.name: _mean,
    TTFT_ERROR.name: _mean,
    LEARNT_RATE.name: _mean,
    TOKENS_PER_EVENT.name: _mean,
    SPEC_ACCEPT.name: _mean,
}
