"""What Prometheus scrapes: every metric declared once, fed per request or read at the scrape.

Labels come from the configuration and from what engines say they serve, never from a request: a model
nobody serves is "other". One histogram per client-chosen name is how gateways fill monitoring disks.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.accounting import Record
from policies.admission import Admission
from policies.types import Priority, State

# Prefill takes minutes and waits longer: buckets that end at 10 s made every slow p99 read 10 s.
SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1200)
TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
OVERHEAD_SECONDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 1)

WINDOW_SECONDS = 10.0
WINDOW_ANSWERS_MAX = 20_000
RATIO_MEMORY = 0.95  # of the older requests at each new one: about the last 20 count
MODELS_MAX = 200  # labels; an engine that renames its model at each probe fills no disk


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


MODEL_BACKEND = ("model", "backend")
REQUESTS = Family("slotgate_requests_total", (*MODEL_BACKEND, "outcome"), "Requests that ended, by outcome.")
QUEUE_WAIT = Family("slotgate_queue_wait_seconds", ("class",), "Arrival to dispatch.", SECONDS)
TTFT = Family(
    "slotgate_ttft_seconds", (*MODEL_BACKEND, "class"), "Arrival to first token, of streams.", SECONDS
)
BACKEND_TTFT = Family("slotgate_backend_ttft_seconds", MODEL_BACKEND, "Dispatch to first token.", SECONDS)
TPOT = Family(
    "slotgate_tpot_seconds",
    MODEL_BACKEND,
    "Seconds per token after the first, of answers that the engine counted.",
    TOKEN_SECONDS,
)
REQUEST_SECONDS = Family(
    "slotgate_request_seconds", (*MODEL_BACKEND, "outcome"), "Arrival to the end.", (*SECONDS, 3600)
)
TOKENS = Family(
    "slotgate_tokens_total",
    (*MODEL_BACKEND, "kind", "source"),
    "Tokens: prompt (cached ones included), cached, completion (reasoning included), reasoning.",
)
OUTPUT_RATE = Family(
    "slotgate_output_tokens_per_second", ("backend",), "Tokens generated per second in the last 10 s."
)
TOKENS_PER_EVENT = Family("slotgate_tokens_per_event", ("backend",), "Tokens per event of recent streams.")
SPEC_ACCEPT = Family(
    "slotgate_spec_accept_ratio",
    ("backend",),
    "Share of drafted tokens that were accepted: of late, else as the engine tells it.",
)
SLOTS = Family(
    "slotgate_slots", ("backend", "state"), "Slots: total, in use, leaving (client gone), foreign (not ours)."
)
QUEUE_LENGTH = Family("slotgate_queue_length", ("class",), "Requests that wait.")
BACKEND_STATE = Family("slotgate_backend_state", ("backend", "state"), "1 for the state the backend is in.")
CONTEXT = Family("slotgate_backend_context_tokens", ("backend",), "Context of one slot, where it is known.")
PREFIX_HITS = Family(
    "slotgate_prefix_hit_ratio",
    ("backend", "source"),
    "Share of prompt tokens found cached, of late: as the engine reported and as was predicted.",
)
TTFT_ERROR = Family(
    "slotgate_predicted_ttft_error_ratio",
    ("backend",),
    "How far predicted times from dispatch to first token were off of late, as a share of the true ones.",
)
GATE_WAITS = Family(
    "slotgate_prefill_gate_waits_total", ("backend",), "Long prompts held back while another one prefills."
)
RETRIES = Family("slotgate_retries_total", ("reason",), "Requests that started over, unseen by the client.")
EJECTIONS = Family("slotgate_ejections_total", ("backend", "reason"), "Backends left alone after failures.")
OVERHEAD = Family(
    "slotgate_overhead_seconds",
    ("stage",),
    "Time the gateway itself took; prepare: from a whole body to a known call.",
    OVERHEAD_SECONDS,
)
CONFIG_INVALID = Family("slotgate_config_invalid", (), "1 while the file on disk is refused.")
BUILD_INFO = Family("slotgate_build_info", ("version",), "Always 1.")

FED = (
    REQUESTS,
    QUEUE_WAIT,
    TTFT,
    BACKEND_TTFT,
    TPOT,
    REQUEST_SECONDS,
    TOKENS,
    RETRIES,
    OVERHEAD,
    CONFIG_INVALID,
    BUILD_INFO,
)
READ_AT_SCRAPE = (
    SLOTS,
    QUEUE_LENGTH,
    BACKEND_STATE,
    CONTEXT,
    TTFT_ERROR,
    GATE_WAITS,
    EJECTIONS,
    OUTPUT_RATE,
    TOKENS_PER_EVENT,
    SPEC_ACCEPT,
    PREFIX_HITS,
)


def table() -> list[tuple[str, tuple[str, ...], str]]:
    """Name, labels and help of every metric: the rows of the README."""
    return [(family.name, family.labels, family.help) for family in (*FED, *READ_AT_SCRAPE)]


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

    def prefix_hit_ratio(self, backend: str) -> float | None:
        """Share of prompt tokens that this backend reported as cached, of late."""
        return self._recent.prefix_hit_ratio(backend)

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
        slots, states, contexts = _gauge(SLOTS), _gauge(BACKEND_STATE), _gauge(CONTEXT)
        errors = _gauge(TTFT_ERROR)
        for name, backend in self._admission.backends.items():
            slots.add_metric((name, "total"), backend.slots)
            slots.add_metric((name, "in_use"), backend.in_use)
            slots.add_metric((name, "leaving"), len(backend.leaving))
            slots.add_metric((name, "foreign"), backend.foreign)
            for state in State:
                states.add_metric((name, state.value), state is backend.state)
            if backend.context_tokens is not None:
                contexts.add_metric((name,), backend.context_tokens)
            if (off := backend.calibration.error_ratio) is not None:
                errors.add_metric((name,), off)
        waiting, lengths = _gauge(QUEUE_LENGTH), self._admission.queue.lengths()
        for priority in Priority:
            waiting.add_metric((priority.label,), lengths[priority])
        gate_waits = CounterMetricFamily(GATE_WAITS.name, GATE_WAITS.help, labels=GATE_WAITS.labels)
        for name, count in self._admission.gate_waits.items():
            gate_waits.add_metric((name,), count)
        ejections = CounterMetricFamily(EJECTIONS.name, EJECTIONS.help, labels=EJECTIONS.labels)
        for name_and_reason, count in self._admission.ejections.items():
            ejections.add_metric(name_and_reason, count)
        yield from (slots, states, contexts, errors, waiting, gate_waits, ejections)


class Recent:
    """What backends did of late: rates and ratios that no counter of Prometheus's gives."""

    def __init__(
        self,
        running: Callable[[], Iterable[Record]],
        accepted: Callable[[], Mapping[str, float]],
        clock: Callable[[], float],
    ) -> None:
        self._running = running
        self._accepted = accepted
        self._clock = clock
        self._answers: deque[tuple[str, float, float, int]] = deque(maxlen=WINDOW_ANSWERS_MAX)
        self._ratios: defaultdict[tuple[str, ...], Ratio] = defaultdict(Ratio)

    def add(self, record: Record) -> None:
        """A request ended whose backend is known."""
        start = record.dispatched if record.first_token is None else record.first_token
        end = record.ended if record.last_token is None else record.last_token
        if start is not None and end is not None and record.completion_tokens:
            while self._answers and self._answers[0][2] < end - WINDOW_SECONDS:
                self._answers.popleft()
            self._answers.append((record.backend, start, end, record.completion_tokens))
        if not record.counted:
            return
        self._ratio(TOKENS_PER_EVENT, record.backend).add(record.completion_tokens, record.events)
        self._ratio(SPEC_ACCEPT, record.backend).add(record.spec_accepted, record.spec_drafted)
        self._ratio(PREFIX_HITS, record.backend, "reported").add(record.cached_tokens, record.prompt_tokens)
        self._ratio(PREFIX_HITS, record.backend, "predicted").add(
            record.cached_tokens_predicted, record.prompt_tokens_estimated
        )

    def collect(self) -> Iterator[Metric]:
        """Rates and ratios of now."""
        rates = _gauge(OUTPUT_RATE)
        for name, rate in self._rates(self._clock()).items():
            rates.add_metric((name,), rate)
        families = {family.name: _gauge(family) for family in (TOKENS_PER_EVENT, SPEC_ACCEPT, PREFIX_HITS)}
        for (name, *labels), ratio in self._ratios.items():
            if ratio.value is not None:
                families[name].add_metric(labels, ratio.value)
        for backend, share in self._accepted().items():
            if self._ratio(SPEC_ACCEPT, backend).value is None:  # its answers do not tell
                families[SPEC_ACCEPT.name].add_metric((backend,), share)
        yield rates
        yield from families.values()

    def _rates(self, now: float) -> dict[str, float]:
        """Tokens per second by backend. A stream that still runs counts with its events times the tokens
        per event of those before it; its tokens are taken as evenly spread."""
        answers = list(self._answers)
        for record in self._running():
            if record.first_token is not None and record.last_token is not None:
                per_event = self._ratio(TOKENS_PER_EVENT, record.backend).value or 1.0
                tokens = round(record.events * per_event)
                answers.append((record.backend, record.first_token, record.last_token, tokens))
        rates: defaultdict[str, float] = defaultdict(float)
        for backend, start, end, tokens in answers:
            inside = end - max(start, now - WINDOW_SECONDS)
            if inside >= 0:
                rates[backend] += tokens * (inside / (end - start) if end > start else 1) / WINDOW_SECONDS
        return rates

    def prefix_hit_ratio(self, backend: str) -> float | None:
        """As the engine reported it; None until it did."""
        return self._ratio(PREFIX_HITS, backend, "reported").value

    def _ratio(self, family: Family, *labels: str) -> Ratio:
        return self._ratios[(family.name, *labels)]


class Ratio:
    """A share over recent requests, weighted by their size; older ones fade."""

    def __init__(self) -> None:
        self._part = 0.0
        self._whole = 0.0

    def add(self, part: int | None, whole: int | None) -> None:
        """One more request; what is not known does not count."""
        if part is not None and whole:
            self._part = self._part * RATIO_MEMORY + part
            self._whole = self._whole * RATIO_MEMORY + whole

    @property
    def value(self) -> float | None:
        """The share; None before the first request."""
        return self._part / self._whole if self._whole else None


def _gauge(family: Family) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.name, family.help, labels=family.labels)
