"""What Prometheus scrapes, fed per request or read at the scrape.

A model that nobody serves is "other": one histogram per client-chosen name is how gateways fill
monitoring disks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.accounting import Batch, Record, TokenSource
from gateway.families import (
    BACKEND_STATE,
    BACKEND_TTFT,
    BUILD_INFO,
    CONFIG_INVALID,
    CONTEXT,
    EJECTIONS,
    FED,
    GATE_WAITS,
    LEARNT_RATE,
    OVERHEAD,
    PREFILL_SECONDS,
    PREFIX_BREAKS,
    PREFIX_EFFICIENCY,
    PREFIX_MENDS,
    PREFIX_SURPRISES,
    QUEUE_LENGTH,
    QUEUE_WAIT,
    REQUEST_SECONDS,
    REQUESTS,
    RETRIES,
    SHARED_DIFFERENCES,
    SHARED_STATE,
    SLOTS,
    TOKENS,
    TPOT,
    TTFT,
    TTFT_ERROR,
    WORKER_RESTARTS,
)
from gateway.recent import Recent
from gateway.series import Series, Total
from policies.admission import Admission
from policies.types import Backend, Priority, State

SHARED_STATES = ("local", "shared", "degraded")
MODELS_MAX = 200  # labels; an engine that renames its model at each probe fills no disk

# Of a request: labels of model and backend, class, outcome, where its tokens come from.
Kind = tuple[str, str, Priority | None, str | None, TokenSource | None]


class Metrics:
    """All metrics of one gateway. `aliases` are names of models beside those that are
    served, `running` the requests being served, `accepted` is what engines themselves tell of their drafted
    tokens, by backend."""

    def __init__(
        self,
        admission: Admission,
        version: str,
        *,
        aliases: Collection[str] = (),
        running: Callable[[], Iterable[Record]] = tuple,
        accepted: Callable[[], Mapping[str, float]] = dict,
        clock: Callable[[], float] = time.monotonic,
        sharing: Callable[[], str] = lambda: "local",
        differences: Callable[[], Mapping[tuple[str, str], int]] = dict,
    ) -> None:
        self._admission = admission
        self._version = version
        self._models: set[str] = set()
        self.follow(aliases)
        self._config_invalid = False
        self._sharing = sharing
        self._differences = differences
        self._series = Series(FED)
        self._figures: dict[Kind, Figures] = {}
        self._prepare = self._series.histogram(OVERHEAD, "prepare")
        self._recent = Recent(running, accepted, clock)
        self._admitted = Admitted(admission)
        self._batch = Batch(self._look)
        self.observe = self._batch.add  # a request ended

    def follow(self, aliases: Iterable[str]) -> None:
        """These are names of models too, from now on."""
        self._models.update(aliases)

    def _look(self, records: Sequence[Record]) -> None:
        kinds: dict[Kind, list[Record]] = {}
        for record in records:
            kind = (record.model, record.backend, record.priority, record.outcome, record.source)
            if (same := kinds.get(kind)) is None:
                kinds[kind] = [record]
            else:
                same.append(record)
        for kind, same in kinds.items():
            self._count(kind, same)
        self._prepare.observe([t for one in records if (t := one.prepare_seconds) is not None])

    def _count(self, kind: Kind, records: Sequence[Record]) -> None:
        model, backend, priority, outcome, source = kind
        if backend not in self._admission.backends:
            backend = ""
        kind = (self._model_label(model), backend, priority, outcome, source)
        figures = self._figures.get(kind)
        if figures is None:
            figures = self._figures[kind] = Figures(self._series, kind)
        figures.add(records)
        if backend and source is not None:
            self._recent.add(backend, records)

    def retry(self, reason: str) -> None:
        """A request started over; the reasons are the code's own."""
        self._series.total(RETRIES, reason).value += 1

    def prefix_broken(self, kind: str) -> None:
        """A prompt did not continue the one before; the kinds are the code's own."""
        self._series.total(PREFIX_BREAKS, kind).value += 1

    def prefix_mended(self, kind: str) -> None:
        """A prompt's head was held still."""
        self._series.total(PREFIX_MENDS, kind).value += 1

    def prefix_hit_ratio(self, backend: str) -> float | None:
        """Share of prompt tokens that this backend reported as cached, of late."""
        self._batch.settle()
        return self._recent.prefix_hit_ratio(backend)

    def output_rates(self) -> dict[str, float]:
        """Tokens generated per second of late, by backend."""
        self._batch.settle()
        return self._recent.rates()

    def tokens_so_far(self, record: Record) -> int:
        """About how many tokens a stream that still runs has sent."""
        self._batch.settle()
        return self._recent.tokens_so_far(record)

    def config_invalid(self, invalid: bool) -> None:
        """The file on disk was read: it is refused, or all is well."""
        self._config_invalid = invalid

    def snapshot(self) -> Callable[[], bytes]:
        """Read what the event loop owns, on the loop's thread; the function that is returned does the
        rest, which takes far longer, and may run in any thread."""
        self._batch.settle()
        self._forget_removed()
        fed = self._series.read()
        read = [*self._admitted.collect(), *self._recent.collect(), *self._standing()]
        return lambda: generate_latest(Scrape(fed, read))

    def render(self) -> bytes:
        """The text that Prometheus reads; on the loop's thread only."""
        return self.snapshot()()

    def _forget_removed(self) -> None:
        """A backend that was removed leaves no series behind; it was, after its last request."""
        removed = {kind[1] for kind in self._figures} - {"", *self._admission.backends}
        if removed:
            self._figures = {kind: one for kind, one in self._figures.items() if kind[1] not in removed}
            self._series.drop("backend", removed)
            self._recent.drop(removed)

    def _standing(self) -> Iterator[Metric]:
        """What this gateway is."""
        invalid, build, shared = CONFIG_INVALID.gauge(), BUILD_INFO.gauge(), SHARED_STATE.gauge()
        invalid.add_metric((), self._config_invalid)
        build.add_metric((self._version,), 1)
        for state in SHARED_STATES:
            shared.add_metric((state,), state == self._sharing())
        differences = SHARED_DIFFERENCES.counter()
        for backend_and_kind, count in self._differences().items():
            differences.add_metric(backend_and_kind, count)
        restarts = WORKER_RESTARTS.counter()
        restarts.add_metric((), 0)  # the process that starts workers counts them
        yield from (invalid, build, shared, differences, restarts)

    def _model_label(self, model: str) -> str:
        if model in self._models:
            return model
        served = any(model in (backend.models or ()) for backend in self._admission.backends.values())
        if not served or len(self._models) >= MODELS_MAX:
            return "other"
        self._models.add(model)
        return model


class Figures:
    """What requests of one kind feed; found once for all of them, not figure by figure."""

    def __init__(self, series: Series, kind: Kind) -> None:
        model, backend, priority, outcome, source = kind
        of, ended = (model, backend), outcome or ""
        self._series = series
        self._token_labels = (*of, source.value if source is not None else "")
        self._tokens: dict[str, Total] = {}
        self._requests = series.total(REQUESTS, *of, ended)
        self._seconds = series.histogram(REQUEST_SECONDS, *of, ended)
        self._backend_ttft = series.histogram(BACKEND_TTFT, *of)
        self._tpot = series.histogram(TPOT, *of)
        self._queue_wait = self._ttft = None
        if priority is not None:
            self._queue_wait = series.histogram(QUEUE_WAIT, priority.label)
            self._ttft = series.histogram(TTFT, *of, priority.label)

    def add(self, records: Sequence[Record]) -> None:
        """These of them ended."""
        self._requests.value += len(records)
        self._seconds.observe([t for one in records if (t := one.seconds) is not None])
        if self._queue_wait is not None:
            self._queue_wait.observe([t for one in records if (t := one.queue_wait) is not None])
        if begun := [one for one in records if one.first_token is not None]:
            if self._ttft is not None:
                self._ttft.observe([t for one in begun if one.streamed and (t := one.ttft) is not None])
            self._backend_ttft.observe([t for one in begun if (t := one.backend_ttft) is not None])
            self._tpot.observe([t for one in begun if (t := one.tpot) is not None])
        if self._token_labels[-1]:
            self._count("prompt", [n for one in records if (n := one.prompt_tokens) is not None])
            self._count("cached", [n for one in records if (n := one.cached_tokens) is not None])
            self._count("completion", [n for one in records if (n := one.completion_tokens) is not None])
            self._count("reasoning", [n for one in records if (n := one.reasoning_tokens) is not None])

    def _count(self, kind: str, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        total = self._tokens.get(kind)
        if total is None:
            model, backend, source = self._token_labels
            total = self._tokens[kind] = self._series.total(TOKENS, model, backend, kind, source)
        total.value += sum(tokens)


class Scrape(Collector):
    """What was copied and what was read, as the library asks for it."""

    def __init__(self, fed: Callable[[], Iterable[Metric]], read: Iterable[Metric]) -> None:
        self._fed = fed
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield from self._fed()
        yield from self._read


class Admitted:
    """What Admission holds, read at the scrape and kept nowhere twice."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        """Slots, queue, states, gate waits and ejections of now."""
        slots, states, contexts = SLOTS.gauge(), BACKEND_STATE.gauge(), CONTEXT.gauge()
        errors, prefills, rates = TTFT_ERROR.gauge(), PREFILL_SECONDS.summary(), LEARNT_RATE.gauge()
        efficiency, surprises = PREFIX_EFFICIENCY.gauge(), PREFIX_SURPRISES.counter()
        for name, backend in self._admission.backends.items():
            slots.add_metric((name, "total"), backend.slots)
            slots.add_metric((name, "in_use"), backend.in_use)
            slots.add_metric((name, "leaving"), len(backend.leaving))
            slots.add_metric((name, "foreign"), backend.foreign)
            for state in State:
                states.add_metric((name, state.value), state is backend.state)
            if backend.context_tokens is not None:
                contexts.add_metric((name,), backend.context_tokens)
            learnt = backend.calibration
            if (off := learnt.error_ratio) is not None:
                errors.add_metric((name,), off)
            prefills.add_metric((name, "predicted"), learnt.predictions, learnt.predicted_seconds)
            prefills.add_metric((name, "observed"), learnt.predictions, learnt.observed_seconds)
            efficiency.add_metric((name,), backend.service.cache_efficiency)
            surprises.add_metric((name, "less"), learnt.found_less)
            surprises.add_metric((name, "more"), learnt.found_more)
            rates.add_metric((name, "prefill"), backend.service.prefill_tokens_per_second)
            if seconds := backend.service.token_seconds(*_batch(backend)):
                rates.add_metric((name, "decode"), 1 / seconds)
        waiting, lengths = QUEUE_LENGTH.gauge(), self._admission.queue.lengths()
        for priority in Priority:
            waiting.add_metric((priority.label,), lengths[priority])
        gate_waits, ejections = GATE_WAITS.counter(), EJECTIONS.counter()
        for name, count in self._admission.gate_waits.items():
            gate_waits.add_metric((name,), count)
        for name_and_reason, count in self._admission.ejections.items():
            ejections.add_metric(name_and_reason, count)
        yield from (slots, states, contexts, errors, prefills, rates, waiting, gate_waits, ejections)
        yield from (efficiency, surprises)


def _batch(backend: Backend) -> tuple[int, float]:
    """Sequences that decode there now, at least one, and the tokens that each of ours holds."""
    leases = len(backend.leases)
    decoding = leases + backend.foreign - len(backend.prefilling)
    return max(1, decoding), backend.held_tokens / leases if leases else 0.0
