"""A page with charts of what `slotgate simulate` found: one file, no script, nothing loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from policies.simulation.bounds import Bounds
from policies.simulation.engine import Mode
from policies.simulation.report import Figures
from policies.simulator import Compared, Comparison

WIDTH, LABEL_WIDTH, VALUE_WIDTH, ROW_HEIGHT = 640, 150, 60, 22
STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #68727d; --bar: #9db4c8; --ours: #c2410c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #97a1ab; --bar: #4b6478; --ours: #f0803c; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 1340px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; } h3 { font-size: .95rem; margin: 0; }
p { color: var(--soft); margin: .2rem 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1.5rem; }
svg { width: 100%; height: auto; } text { fill: var(--ink); font-size: 13px; }
rect { fill: var(--bar); } rect.ours { fill: var(--ours); }
line { stroke: var(--ink); stroke-dasharray: 3 3; }
"""


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure of all policies."""

    title: str
    note: str
    value: Callable[[Figures], float]
    bound: Callable[[Bounds], float]
    digits: int = 0


def page(compared: Comparison) -> str:
    """The whole document."""
    charts = _charts(compared)
    modes = "".join(
        f"<h2>Prefills {mode}</h2><div class=charts>"
        f"{''.join(_chart(chart, compared, mode) for chart in charts)}</div>"
        for mode in compared.modes
    )
    title = escape(compared.title)
    engines = escape(", ".join(compared.engines))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>slotgate simulate: {title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1><p>on {engines}; runs averaged: {compared.runs}. "
        f"Dashed: what no policy can beat.</p>{modes}</html>\n"
    )


def _charts(compared: Comparison) -> list[Chart]:
    less, more = "seconds; less is better", "more is better"
    return [
        Chart("Makespan", less, lambda f: f.makespan_seconds, lambda b: b.makespan_seconds),
        *(_first_token(name) for name in compared.limits.ttft),
        Chart("Longest wait", less, lambda f: f.wait_seconds_max, lambda b: 0.0),
        Chart("Prefix hits", f"of prompt tokens; {more}", lambda f: f.hit_ratio, lambda b: b.hit_ratio, 2),
        Chart("Fairness", f"Jain's index of slowdowns; {more}", lambda f: f.fairness, lambda b: 1.0, 2),
    ]


def _first_token(name: str) -> Chart:
    return Chart(
        f"Time to first token, {name}",
        "99th percentile, seconds; less is better",
        lambda figures: figures.ttft[name].p99 if name in figures.ttft else 0.0,
        lambda best: best.ttft[name].p99,
        1,
    )


def _chart(chart: Chart, compared: Comparison, mode: Mode) -> str:
    rows = compared.of(mode)
    bound = chart.bound(compared.limits)
    values = [chart.value(row.figures) for row in rows]
    largest = max([*values, bound]) or 1.0
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    bars = "".join(
        _bar(row, value, number, room * value / largest, chart.digits)
        for number, (row, value) in enumerate(zip(rows, values, strict=True))
    )
    height, at = len(rows) * ROW_HEIGHT, LABEL_WIDTH + room * bound / largest
    told = f"<title>bound: {bound:.{chart.digits}f}</title>"
    limit = f"<line x1={at:.1f} x2={at:.1f} y1=0 y2={height}>{told}</line>"
    return (
        f"<section><h3>{escape(chart.title)}</h3><p>{chart.note}</p>"
        f"<svg viewBox='0 0 {WIDTH} {height}' role=img aria-label='{escape(_spoken(chart, rows, values))}'>"
        f"{bars}{limit}</svg></section>"
    )


def _bar(row: Compared, value: float, number: int, width: float, digits: int) -> str:
    top = number * ROW_HEIGHT
    ours = " class=ours" if row.policy == "slotgate" else ""
    return (
        f"<text x={LABEL_WIDTH - 8} y={top + 15} text-anchor=end>{escape(row.policy)}</text>"
        f"<rect{ours} x={LABEL_WIDTH} y={top + 3} width={width:.1f} height={ROW_HEIGHT - 6} rx=2 />"
        f"<text x={LABEL_WIDTH + width + 6:.1f} y={top + 15}>{value:.{digits}f}</text>"
    )


def _spoken(chart: Chart, rows: Sequence[Compared], values: Sequence[float]) -> str:
    parts = (f"{row.policy} {value:.{chart.digits}f}" for row, value in zip(rows, values, strict=True))
    return f"{chart.title}: {', '.join(parts)}"
