"""The dashboard *Fleet*: is all well, what waits, what is slow, what it costs."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dashboards

from grafana.expressions import Query, mean, quantile, quantiles, rate
from grafana.panels import WIDTH, choice, filled, frame, lines, number, states

MODEL = 'model=~"$model"'
THIRD = WIDTH // 3
REQUESTS = "slotgate_requests_total"
SLOTS = 'max by (backend) (slotgate_slots{state="total"})'  # several gateways see the same slots
GOOD = "completed|client_gone"
FAILED = f'outcome!~"{GOOD}|invalid|shutdown"'


def dashboard() -> dashboards.Dashboard:
    """All of it."""
    fleet = frame(
        "slotgate: Fleet",
        "slotgate-fleet",
        "All backends behind the gateway. The choice of models narrows what is counted by model.",
        [choice("model", REQUESTS, all=True)],
    )
    return filled(fleet, ROWS)


NOW = [
    number(
        "Slots in use",
        Query(f'sum(slotgate_slots{{state=~"in_use|leaving|foreign"}}) / sum({SLOTS})'),
        "percentunit",
        "Of all slots, those of gone clients and of others included.",
    ),
    number("Waiting", Query("sum(slotgate_queue_length)"), about="Requests in the queue."),
    number(
        "Tokens per second", Query("sum(slotgate_output_tokens_per_second)"), about="Generated, last 10 s."
    ),
    number(
        "TTFT p95",
        Query(quantile(0.95, "slotgate_ttft_seconds", MODEL)),
        "s",
        "Arrival to first token, the queue included.",
    ),
    number(
        "Failing",
        Query(f"({rate(REQUESTS, f'{FAILED}, {MODEL}')} or vector(0)) / {rate(REQUESTS, MODEL)}"),
        "percentunit",
        "Share of requests that ended neither with an answer nor by their client's wish.",
        {"orange": 0.01, "red": 0.05},
    ),
    number(
        "Backends not ready",
        Query('count(max by (backend) (slotgate_backend_state{state="ready"}) == 0) or vector(0)'),
        about="Draining ones included.",
        limits={"orange": 1},
    ),
]

LOAD = [
    lines(
        "Slots in use of total",
        Query('sum by (state) (slotgate_slots{state=~"in_use|leaving|foreign"})', "{{state}}"),
        Query(f"sum({SLOTS})", "total"),
        about="leaving: the client is gone, the engine may still be at it. foreign: requests of others.",
        width=THIRD,
    ),
    lines(
        "Queue by class",
        Query("sum by (class) (slotgate_queue_length)", "{{class}}"),
        stacked=True,
        width=THIRD,
        about="GET /admin/queue tells why each request waits.",
    ),
    lines(
        "Queue wait p95 by class",
        Query(quantile(0.95, "slotgate_queue_wait_seconds", by="class"), "{{class}}"),
        unit="s",
        width=THIRD,
        about="Arrival to dispatch.",
    ),
]

LATENCY = [
    lines(
        "TTFT",
        *quantiles("slotgate_ttft_seconds", MODEL),
        unit="s",
        width=THIRD,
        about="Arrival to the first token of any kind, of streams.",
    ),
    lines(
        "TTFT p95 by class",
        Query(quantile(0.95, "slotgate_ttft_seconds", MODEL, "class"), "{{class}}"),
        unit="s",
        width=THIRD,
    ),
    lines(
        "Time per token",
        Query(mean("slotgate_tpot_seconds", MODEL, "backend"), "{{backend}}"),
        unit="s",
        width=THIRD,
        about="After the first token, as the engine counts tokens.",
    ),
]

TOKENS = [
    lines(
        "Tokens generated per second",
        Query("sum by (backend) (slotgate_output_tokens_per_second)", "{{backend}}"),
        stacked=True,
    ),
    lines(
        "Cached share of prompts",
        Query("avg by (backend, source) (slotgate_prefix_hit_ratio)", "{{backend}} {{source}}"),
        unit="percentunit",
        most=1,
        about="As engines reported it, and as was predicted. Reported far below: caches evict.",
    ),
    lines(
        "Tokens by kind",
        Query(rate("slotgate_tokens_total", MODEL, "kind"), "{{kind}}"),
        unit="cps",
        about="Per second. prompt includes cached, completion includes reasoning.",
    ),
    lines(
        "Tokens by source",
        Query(rate("slotgate_tokens_total", f'{MODEL}, kind=~"prompt|completion"', "source"), "{{source}}"),
        unit="cps",
        stacked=True,
        about="estimated: no engine counted them, as when a client leaves in mid-stream.",
    ),
    lines(
        "Prefixes broken",
        Query(rate("slotgate_prefix_breaks_total", by="kind"), "{{kind}}"),
        unit="reqps",
        stacked=True,
        about="Prompts that did not continue the turn before, by what differed. `slotgate prefix`: whose.",
    ),
    lines(
        "Prefixes held still",
        Query(rate("slotgate_prefix_mends_total", by="kind"), "{{kind}}"),
        unit="reqps",
        stacked=True,
        about="By `prefix.stabilise`, by what had changed.",
    ),
]

HEALTH = [
    states(),
    lines(
        "Requests by outcome",
        Query(rate(REQUESTS, MODEL, "outcome"), "{{outcome}}"),
        unit="reqps",
        stacked=True,
    ),
    lines(
        "Errors by backend",
        Query(
            rate(REQUESTS, f"{FAILED}, {MODEL}", "backend, outcome"),
            "{{backend}} {{outcome}}",
        ),
        unit="reqps",
        width=THIRD,
        about="No backend: the request never started.",
    ),
    lines(
        "Time of requests p95 by outcome",
        Query(quantile(0.95, "slotgate_request_seconds", MODEL, "outcome"), "{{outcome}}"),
        unit="s",
        width=THIRD,
        about="Arrival to the end.",
    ),
    lines(
        "Retries",
        Query(rate("slotgate_retries_total", by="reason"), "{{reason}}"),
        unit="reqps",
        width=THIRD,
        about="Requests that started over, unseen by their clients.",
    ),
    lines(
        "Ejections",
        Query(
            "sum by (backend, reason) (increase(slotgate_ejections_total[$__rate_interval]))",
            "{{backend}} {{reason}}",
        ),
        width=THIRD,
        about="Backends left alone after failures in a row.",
    ),
    lines(
        "Gate waits",
        Query(rate("slotgate_prefill_gate_waits_total", by="backend"), "{{backend}}"),
        unit="reqps",
        width=THIRD,
        about="Long prompts held back while another one is read.",
    ),
    lines(
        "The gateway's own time",
        Query(quantile(0.5, "slotgate_overhead_seconds", by="stage"), "{{stage}} p50"),
        Query(quantile(0.99, "slotgate_overhead_seconds", by="stage"), "{{stage}} p99"),
        unit="s",
        width=THIRD,
    ),
]

GATEWAY = [
    number("Version", Query("count by (version) (slotgate_build_info)", "{{version}}"), width=THIRD),
    number(
        "Slots counted",
        Query("slotgate_shared_state == 1", "{{state}}"),
        about="local: by each gateway alone. shared: together. degraded: shares, while Redis is away.",
        width=THIRD,
    ),
    number(
        "Configuration refused",
        Query("sum(slotgate_config_invalid)"),
        about="The file on disk cannot be used; the one before it is in force.",
        limits={"red": 1},
        width=THIRD,
    ),
    lines(
        "Differences in what is shared",
        Query(
            "sum by (backend, kind) (increase(slotgate_shared_differences_total[$__rate_interval]))",
            "{{backend}} {{kind}}",
        ),
        about="Slots that Redis had lost; engines that ran more or less than it knew of. All was told again.",
    ),
    lines(
        "Restarts of workers",
        Query("sum(increase(slotgate_worker_restarts_total[$__rate_interval]))", "workers"),
        about="Processes that had ended and were replaced.",
    ),
]

ROWS = {
    "Now": NOW,
    "Slots and queue": LOAD,
    "Speed": LATENCY,
    "Tokens": TOKENS,
    "Health": HEALTH,
    "Gateway": GATEWAY,
}
