"""The demo's last page: one column for each backend, then some answers."""

from __future__ import annotations

from statistics import median
from typing import Any

from rich.table import Table

from gateway.demo.clients import Outcome
from gateway.demo.figures import Figures

ENGINE_PROMPT = ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")
ENGINE_COMPLETION = "llamacpp:tokens_predicted_total"


def figures_table(figures: Figures, backends: list[dict[str, Any]], outcomes: list[Outcome]) -> Table:
    """What the gateway counted, and beside it what the engines counted."""
    table = Table(title="What happened", title_justify="left")
    table.add_column()
    columns = []
    for backend in backends:
        name, slots = backend["name"], backend["slots"]
        table.add_column(name, justify="right")
        columns.append(_column(name, slots, backend["context_tokens"], figures, outcomes))
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns), end_section=row in _SECTIONS)
    return table


_SECTIONS = {"context of a slot", "failures", "queue wait, p50 | max"}


def _column(
    name: str, slots: dict[str, Any], context: int, figures: Figures, outcomes: list[Outcome]
) -> dict[str, str]:
    own = [outcome for outcome in outcomes if outcome.backend == name]
    requests = figures.gateway("slotgate_requests_total", backend=name)
    completed = figures.gateway("slotgate_requests_total", backend=name, outcome="completed")
    busy = figures.load.busy[name] / max(1, figures.load.samples * slots["total"])
    tokens = {
        kind: figures.gateway("slotgate_tokens_total", backend=name, kind=kind)
        for kind in ("prompt", "cached", "completion")
    }
    return {
        "slots": f"{slots['total']} ({slots['source']})",
        "context of a slot": f"{context:,}",
        "requests": f"{requests}",
        "failures": f"{requests - completed}",
        "slots busy": f"{busy:.0%}",
        "time to first token, p50 | max": _spread([o.first_token_seconds for o in own]),
        "queue wait, p50 | max": _spread([o.queue_seconds for o in own]),
        "prompt tokens, by the gateway": f"{tokens['prompt']:,}",
        "prompt tokens, by the engine": f"{figures.engine(name, *ENGINE_PROMPT):,}",
        "cached of them, by the gateway": f"{tokens['cached']:,}",
        "cached of them, by the engine": f"{figures.engine(name, ENGINE_PROMPT[1]):,}",
        "completion tokens, by the gateway": f"{tokens['completion']:,} ({figures.sources(name)})",
        "completion tokens, by the engine": f"{figures.engine(name, ENGINE_COMPLETION):,}",
    }


def _spread(seconds: list[float | None]) -> str:
    known = [value for value in seconds if value is not None]
    return f"{median(known):.1f} s | {max(known):.1f} s" if known else "-"
