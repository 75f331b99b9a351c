"""The dashboard *Engine*: one backend, what it does, and whether the gateway knows how fast it is."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as dashboards

from grafana.expressions import Query, mean, quantiles, rate
from grafana.panels import WIDTH, choice, filled, frame, lines, number, states

ONE = 'backend="$backend"'
THIRD = WIDTH // 3


def dashboard() -> dashboards.Dashboard:
    """All of it."""
    engine = frame(
        "slotgate: Engine",
        "slotgate-engine",
        "One backend. What is learnt of it decides what is sent to it.",
        [choice("backend", "slotgate_slots", all=False)],
    )
    return filled(engine, ROWS)


def tokens(kind: str) -> str:
    """Tokens per second of a kind."""
    return rate("slotgate_tokens_total", f'{ONE}, kind="{kind}"')


NOW = [
    number(
        "Requests at the engine",
        Query(f'sum(slotgate_slots{{{ONE}, state=~"in_use|leaving|foreign"}})'),
        about="Those of gone clients and of others included.",
    ),
    number("Slots", Query(f'max(slotgate_slots{{{ONE}, state="total"}})')),
    number("Context per slot", Query(f"max(slotgate_backend_context_tokens{{{ONE}}})"), about="Tokens."),
    number("Tokens per second", Query(f"sum(slotgate_output_tokens_per_second{{{ONE}}})")),
    number(
        "Cached share of prompts",
        Query(f'avg(slotgate_prefix_hit_ratio{{{ONE}, source="reported"}})'),
        "percentunit",
        "As the engine reported it, of late.",
    ),
    number(
        "Predictions off by",
        Query(f"avg(slotgate_predicted_ttft_error_ratio{{{ONE}}})"),
        "percentunit",
        "Of times to first token, of late.",
        {"orange": 0.25, "red": 0.5},
    ),
]

LOAD = [
    lines(
        "Batch",
        Query(f'sum by (state) (slotgate_slots{{{ONE}, state=~"in_use|leaving|foreign"}})', "{{state}}"),
        Query(f'max(slotgate_slots{{{ONE}, state="total"}})', "total"),
        about="Sequences that the engine works on; foreign: requests that are not the gateway's.",
        width=THIRD,
    ),
    lines(
        "Foreign load",
        Query(
            f'sum(slotgate_slots{{{ONE}, state="foreign"}}) / max(slotgate_slots{{{ONE}, state="total"}})',
            "foreign",
        ),
        unit="percentunit",
        about="Share of the slots that others hold. Their prefills make predictions wrong.",
        width=THIRD,
    ),
    states(ONE, THIRD),
]

RATES = [
    lines(
        "Prefill: learnt and seen",
        Query(f'avg(slotgate_learnt_tokens_per_second{{{ONE}, phase="prefill"}})', "learnt"),
        Query(
            f"({tokens('prompt')} - ({tokens('cached')} or vector(0)))"
            f" / {rate('slotgate_backend_ttft_seconds_sum', ONE)}",
            "seen",
        ),
        unit="cps",
        about="Tokens read per second. Seen is lower where prompts wait for each other or are short.",
    ),
    lines(
        "Decode: learnt and seen",
        Query(f'avg(slotgate_learnt_tokens_per_second{{{ONE}, phase="decode"}})', "learnt, at this batch"),
        Query(f"1 / ({mean('slotgate_tpot_seconds', ONE)})", "seen"),
        unit="cps",
        about="Tokens per second of one stream. Seen is lower while prompts are read.",
    ),
    lines(
        "First token: predicted and observed",
        Query(mean("slotgate_prefill_seconds", ONE, "kind"), "{{kind}}"),
        unit="s",
        about="From when the engine came to a prompt, in the mean.",
    ),
    lines(
        "Predictions off by",
        Query(f"avg(slotgate_predicted_ttft_error_ratio{{{ONE}}})", "of the true time"),
        unit="percentunit",
        about="High for a while after a restart; for longer: others use the engine, or its speed changes.",
    ),
    lines(
        "Dispatch to first token",
        *quantiles("slotgate_backend_ttft_seconds", ONE),
        unit="s",
        width=THIRD,
    ),
    lines("Time per token", *quantiles("slotgate_tpot_seconds", ONE), unit="s", width=THIRD),
    lines(
        "Gate waits",
        Query(rate("slotgate_prefill_gate_waits_total", ONE), "long prompts"),
        unit="reqps",
        width=THIRD,
        about="Held back while another one is read.",
    ),
]

TOKENS = [
    lines(
        "Tokens by kind",
        Query(rate("slotgate_tokens_total", ONE, "kind"), "{{kind}}"),
        unit="cps",
        about="Per second. prompt includes cached, completion includes reasoning.",
        width=THIRD,
    ),
    lines(
        "Cached share of prompts",
        Query(f"avg by (source) (slotgate_prefix_hit_ratio{{{ONE}}})", "{{source}}"),
        Query(f"avg(slotgate_prefix_efficiency{{{ONE}}})", "believed"),
        unit="percentunit",
        most=1,
        about="believed: the share of what should be cached that is counted on.",
        width=THIRD,
    ),
    lines(
        "Drafted tokens accepted",
        Query(f"avg(slotgate_spec_accept_ratio{{{ONE}}})", "accepted"),
        unit="percentunit",
        most=1,
        about="Near 0 drafting costs and gains nothing.",
        width=THIRD,
    ),
    lines(
        "Surprises of the cache",
        Query(rate("slotgate_prefix_surprises_total", ONE, "found"), "{{found}}"),
        unit="reqps",
        about="less: evicted, by other users perhaps. more: put away in memory or on disk; others'.",
        width=THIRD,
    ),
    lines(
        "Tokens per event",
        Query(f"avg(slotgate_tokens_per_event{{{ONE}}})", "tokens"),
        about="More than one with speculation: who counts events counts wrong.",
        width=THIRD,
    ),
    lines(
        "Requests by outcome",
        Query(rate("slotgate_requests_total", ONE, "outcome"), "{{outcome}}"),
        unit="reqps",
        stacked=True,
        width=THIRD,
    ),
    lines(
        "Ejections",
        Query(
            f"sum by (reason) (increase(slotgate_ejections_total{{{ONE}}}[$__rate_interval]))", "{{reason}}"
        ),
        width=THIRD,
    ),
]

ROWS = {"Now": NOW, "Load": LOAD, "Rates": RATES, "Tokens": TOKENS}
