"""The expressions that recur in panels.

`$__rate_interval` is Grafana's own: at least four scrapes.
"""

from __future__ import annotations

from typing import NamedTuple

from policies.types import State

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Query(NamedTuple):
    """One expression, and what its series are called."""

    expr: str
    legend: str = ""


def rate(metric: str, selector: str = "", by: str = "") -> str:
    """Per second, summed up."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{{selector}}}[$__rate_interval]))"


def quantile(share: float, metric: str, selector: str = "", by: str = "") -> str:
    """Of a histogram."""
    groups = ", ".join(filter(None, (by, "le")))
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', selector, groups)})"


def quantiles(metric: str, selector: str = "") -> list[Query]:
    """The median and both tails."""
    return [Query(quantile(share, metric, selector), name) for name, share in QUANTILES.items()]


def mean(metric: str, selector: str = "", by: str = "") -> str:
    """Of a histogram or summary."""
    return f"{rate(f'{metric}_sum', selector, by)} / {rate(f'{metric}_count', selector, by)}"


def state_number(selector: str = "") -> str:
    """Which state each backend is in, counted from 0."""
    others = f", {selector}" if selector else ""
    parts = (
        f'max by (backend, state) (slotgate_backend_state{{state="{state.value}"{others}}}) * {number}'
        for number, state in enumerate(State)
    )
    return f"sum by (backend) ({' or '.join(parts)})"
