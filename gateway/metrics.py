"""What Prometheus scrapes, fed per request or read at the scrape.

A model that nobody serves is "other": one histogram per client-chosen name is how gateways fill
monitoring disks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.accounting import Record
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
    PREFIX_MENDS,
    QUEUE_LENGTH,
    QUEUE_WAIT,
    REQUEST_SECONDS,
    REQUESTS,
    RETRIES,
    SHARED_STATE,
    SLOTS,
    TOKENS,
    TPOT,
    TTFT,
    TTFT_ERROR,
    Family,
)
from gateway.recent import Recent
from policies.admission import Admission
from policies.types import Backend, Priority, State

SHARED_STATES = ("local", "shared", "degraded")  # this version has no ledger but its own
MODELS_MAX = 200  # labels; an engine that renames its model at each probe fills no disk


class Metrics:
    """All metrics of one gateway, in its own registry. `aliases` are names of models beside those that are
    served, `running` the requests being served, `accepted` is what engines themselves tell of their drafted
    tokens, by backend."""

    def __init__(
        self,
        registry: CollectorRegistry,
        admission: Admission,
        version: str,
        *,
        aliases: Collection[str] = (),
        running: Callable[[], Iterable[Record]] = tuple,
        accepted: Callable[[], Mapping[str, float]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._admission = admission
        self._models = set(aliases)
        self._children: dict[tuple[str, ...], Any] = {}
        self._metrics = {family.name: _metric(family, registry) for family in FED}
        self._child(BUILD_INFO, version).set(1)
        for state in SHARED_STATES:
            self._child(SHARED_STATE, state).set(state == "local")
        self._recent = Recent(running, accepted, clock)
        self._admitted = Admitted(admission)

    def observe(self, record: Record) -> None:
        """A request ended."""
        model, outcome = self._model_label(record.model), record.outcome or ""
        backend = record.backend if record.backend in self._admission.backends else ""
        child = self._child
        child(REQUESTS, model, backend, outcome).inc()
        if (seconds := record.seconds) is not None:
            child(REQUEST_SECONDS, model, backend, outcome).observe(seconds)
        if record.priority is not None and (wait := record.queue_wait) is not None:
            child(QUEUE_WAIT, record.priority.label).observe(wait)
            if record.streamed and (ttft := record.ttft) is not None:
                child(TTFT, model, backend, record.priority.label).observe(ttft)
        if (backend_ttft := record.backend_ttft) is not None:
            child(BACKEND_TTFT, model, backend).observe(backend_ttft)
        if (tpot := record.tpot) is not None:
            child(TPOT, model, backend).observe(tpot)
        if record.prepare_seconds is not None:
            child(OVERHEAD, "prepare").observe(record.prepare_seconds)
        if record.source is not None:
            self._count_tokens(record, model, backend, record.source.value)
            if backend:
                self._recent.add(record)

    def retry(self, reason: str) -> None:
        """A request started over; the reasons are the code's own."""
        self._child(RETRIES, reason).inc()

    def prefix_broken(self, kind: str) -> None:
        """A prompt did not continue the one before; the kinds are the code's own."""
        self._child(PREFIX_BREAKS, kind).inc()

    def prefix_mended(self, kind: str) -> None:
        """A prompt's head was held still."""
        self._child(PREFIX_MENDS, kind).inc()

    def prefix_hit_ratio(self, backend: str) -> float | None:
        """Share of prompt tokens that this backend reported as cached, of late."""
        return self._recent.prefix_hit_ratio(backend)

    def output_rates(self) -> dict[str, float]:
        """Tokens generated per second of late, by backend."""
        return self._recent.rates()

    def tokens_so_far(self, record: Record) -> int:
        """About how many tokens a stream that still runs has sent."""
        return self._recent.tokens_so_far(record)

    def config_invalid(self, invalid: bool) -> None:
        """The file on disk was read: it is refused, or all is well."""
        self._child(CONFIG_INVALID).set(int(invalid))

    def snapshot(self) -> Callable[[], bytes]:
        """Read what the event loop owns, on the loop's thread; the function that is returned does the
        rest, which takes far longer, and may run in any thread."""
        owned = [*self._admitted.collect(), *self._recent.collect()]
        return lambda: generate_latest(Scrape(self._registry, owned))

    def render(self) -> bytes:
        """The text that Prometheus reads; on the loop's thread only."""
        return self.snapshot()()

    def _count_tokens(self, record: Record, model: str, backend: str, source: str) -> None:
        for kind, tokens in (
            ("prompt", record.prompt_tokens),
            ("cached", record.cached_tokens),
            ("completion", record.completion_tokens),
            ("reasoning", record.reasoning_tokens),
        ):
            if tokens is not None:
                self._child(TOKENS, model, backend, kind, source).inc(tokens)

    def _child(self, family: Family, *labels: str) -> Any:
        """The series of these labels; prometheus_client's own look-up takes 2 us."""
        key = (family.name, *labels)
        child = self._children.get(key)
        if child is None:
            metric = self._metrics[family.name]
            child = self._children[key] = metric.labels(*labels) if labels else metric
        return child

    def _model_label(self, model: str) -> str:
        if model in self._models:
            return model
        served = any(model in (backend.models or ()) for backend in self._admission.backends.values())
        if not served or len(self._models) >= MODELS_MAX:
            return "other"
        self._models.add(model)
        return model


def _metric(family: Family, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if family.buckets:
        return Histogram(family.name, family.help, family.labels, registry=registry, buckets=family.buckets)
    kind = Counter if family.name.endswith("_total") else Gauge
    return kind(family.name, family.help, family.labels, registry=registry)


class Scrape(Collector):
    """The registry, without the `_created` series that tell nothing, and what was read beside it."""

    def __init__(self, registry: CollectorRegistry, owned: list[Metric]) -> None:
        self._registry = registry
        self._owned = owned

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        yield from self._owned


class Admitted:
    """What Admission holds, read at the scrape and kept nowhere twice."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        """Slots, queue, states, gate waits and ejections of now."""
        slots, states, contexts = SLOTS.gauge(), BACKEND_STATE.gauge(), CONTEXT.gauge()
        errors, prefills, rates = TTFT_ERROR.gauge(), PREFILL_SECONDS.summary(), LEARNT_RATE.gauge()
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


def _batch(backend: Backend) -> tuple[int, float]:
    """Sequences that decode there now, at least one, and the tokens that each of ours holds."""
    leases = len(backend.leases)
    decoding = leases + backend.foreign - len(backend.prefilling)
    return max(1, decoding), backend.held_tokens / leases if leases else 0.0
