"""Every metric, declared once: name, labels, help and buckets; the README's table is made from it.

Labels come from the configuration and from what engines say they serve, never from a request.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

# Prefill takes minutes and waits longer: buckets that end at 10 s made every slow p99 read 10 s.
SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1200)
TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
OVERHEAD_SECONDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 1)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()

    def gauge(self) -> GaugeMetricFamily:
        """Without a series yet, for what is read at the scrape."""
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)

    def counter(self) -> CounterMetricFamily:
        """The same, of what only grows."""
        return CounterMetricFamily(self.name, self.help, labels=self.labels)

    def summary(self) -> SummaryMetricFamily:
        """The same, of sums with their counts."""
        return SummaryMetricFamily(self.name, self.help, labels=self.labels)


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
PREFIX_EFFICIENCY = Family(
    "slotgate_prefix_efficiency",
    ("backend",),
    "Share of what should be cached that the engine does find: as much of it is believed.",
)
PREFIX_SURPRISES = Family(
    "slotgate_prefix_surprises_total",
    ("backend", "found"),
    "Prompts of which the engine found much less, or more, in its cache than was believed.",
)
TTFT_ERROR = Family(
    "slotgate_predicted_ttft_error_ratio",
    ("backend",),
    "How far predicted times from dispatch to first token were off of late, as a share of the true ones.",
)
PREFILL_SECONDS = Family(
    "slotgate_prefill_seconds",
    ("backend", "kind"),
    "From when the engine came to a prompt to its first token: as predicted, and as observed.",
)
LEARNT_RATE = Family(
    "slotgate_learnt_tokens_per_second",
    ("backend", "phase"),
    "What the backend is taken to do: prefill of a long prompt; decode of one stream among those of now.",
)
GATE_WAITS = Family(
    "slotgate_prefill_gate_waits_total", ("backend",), "Long prompts held back while another one prefills."
)
PREFIX_BREAKS = Family(
    "slotgate_prefix_breaks_total",
    ("kind",),
    "Prompts that did not continue the turn before, by what differed.",
)
PREFIX_MENDS = Family(
    "slotgate_prefix_mends_total", ("kind",), "Prompts whose head was held still, by what of it had changed."
)
RETRIES = Family("slotgate_retries_total", ("reason",), "Requests that started over, unseen by the client.")
EJECTIONS = Family("slotgate_ejections_total", ("backend", "reason"), "Backends left alone after failures.")
OVERHEAD = Family(
    "slotgate_overhead_seconds",
    ("stage",),
    "Time the gateway itself took; prepare: from a whole body to a known call.",
    OVERHEAD_SECONDS,
)
SHARED_STATE = Family(
    "slotgate_shared_state", ("state",), "1 for where slots are counted; local: by this gateway alone."
)
SHARED_DIFFERENCES = Family(
    "slotgate_shared_differences_total",
    ("backend", "kind"),
    "Slots of this gateway that Redis had lost, and was told of again (lost); how often an engine ran, for "
    "over 5 s, at least two requests more (unknown) or fewer (idle) than Redis knew of.",
)
WORKER_RESTARTS = Family(
    "slotgate_worker_restarts_total", (), "Workers that had ended, or could not begin, and were replaced."
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
    PREFIX_BREAKS,
    PREFIX_MENDS,
    RETRIES,
    OVERHEAD,
)
READ_AT_SCRAPE = (
    SLOTS,
    QUEUE_LENGTH,
    BACKEND_STATE,
    CONTEXT,
    PREFIX_EFFICIENCY,
    PREFIX_SURPRISES,
    TTFT_ERROR,
    PREFILL_SECONDS,
    LEARNT_RATE,
    GATE_WAITS,
    EJECTIONS,
    OUTPUT_RATE,
    TOKENS_PER_EVENT,
    SPEC_ACCEPT,
    PREFIX_HITS,
    SHARED_STATE,
    SHARED_DIFFERENCES,
    WORKER_RESTARTS,
    CONFIG_INVALID,
    BUILD_INFO,
)


def table() -> list[tuple[str, tuple[str, ...], str]]:
    """Name, labels and help of every metric: the rows of the README."""
    return [(family.name, family.labels, family.help) for family in (*FED, *READ_AT_SCRAPE)]
