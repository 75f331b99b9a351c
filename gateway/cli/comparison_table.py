"""What `slotgate simulate` prints: policies beside each other, and what none can beat."""

from __future__ import annotations

from rich.console import Group, RenderableType

from gateway.cli.tables import cell, table
from policies.simulation.engine import Mode
from policies.simulation.spread import Spread
from policies.simulator import Comparison

NOTHING = "-"


def tables(compared: Comparison) -> RenderableType:
    """A line of what was played, and a table for each mode."""
    runs = "1 run" if compared.runs == 1 else f"means of {compared.runs} runs"
    head = f"{compared.title} on {', '.join(compared.engines)}; {runs}; seconds"
    parts: list[RenderableType] = [cell(head)]
    for mode in compared.modes:
        parts += ["", cell(f"prefills {mode}:"), _table(compared, mode)]
    return Group(*parts)


def _table(compared: Comparison, mode: Mode) -> RenderableType:
    classes = list(compared.limits.ttft)
    firsts = [f"{name}\nTTFT p50/p99" for name in classes]
    waits = [f"{name}\nwait p50/p99" for name in classes]
    heads = ("makespan", "x bound", *firsts, *waits, "longest\nwait", "hits", "fairness")
    shown = table("policy", *heads)
    for column in shown.columns[1:]:
        column.justify = "right"
    best = compared.limits
    shown.add_row(
        "(bound)",
        f"{best.makespan_seconds:.0f}",
        "1.00",
        *(_percentiles(best.ttft[name]) for name in classes),
        *("0 / 0" for _ in classes),
        "0",
        f"{best.hit_ratio:.2f}",
        "1.00",
        style="dim",
    )
    endless = (f"{best.endless_seconds:.0f}", f"{best.endless_seconds / best.makespan_seconds:.2f}")
    shown.add_row("(endless caches)", *endless, *(NOTHING for _ in heads[2:]), style="dim")
    for row in compared.of(mode):
        figures = row.figures
        shown.add_row(
            row.policy,
            f"{figures.makespan_seconds:.0f}",
            f"{figures.makespan_seconds / best.makespan_seconds:.2f}",
            *(_percentiles(figures.ttft.get(name)) for name in classes),
            *(_percentiles(figures.wait.get(name), 0) for name in classes),
            f"{figures.wait_seconds_max:.0f}",
            f"{figures.hit_ratio:.2f}",
            f"{figures.fairness:.2f}",
        )
    return shown


def _percentiles(spread: Spread | None, digits: int = 1) -> str:
    return NOTHING if spread is None else f"{spread.p50:.{digits}f} / {spread.p99:.{digits}f}"
