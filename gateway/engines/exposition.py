"""A page of metrics in Prometheus' text form, as far as engines tell their load by it."""

from __future__ import annotations

import math
import re

from gateway.engines.base import Answer

# Whole lines only; a figure that is no plain number (NaN, Inf) is no figure.
_SERIES = rb"^%s(?:\{(.*)\})? ([0-9.]{1,32}(?:e[+-]?[0-9]{1,3})?)\r?$"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Exposition:
    """One page; without an answer it is empty."""

    def __init__(self, answer: Answer | None) -> None:
        self._page = answer.body if answer is not None and answer.status == 200 else b""

    def series(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Every series of this name: its labels and its figure. Some engines have one per model or rank."""
        found = []
        for labels, figure in re.findall(_SERIES % re.escape(name).encode(), self._page, re.MULTILINE):
            try:
                value = float(figure)
            except ValueError:  # "1.2.3"
                continue
            if math.isfinite(value):
                found.append((dict(_LABEL.findall(labels.decode(errors="replace"))), value))
        return found

    def total(self, *names: str) -> int | None:
        """The sum over all series of these names, rounded; None unless each of them is there."""
        sums = [[value for _, value in self.series(name)] for name in names]
        return round(sum(map(sum, sums))) if sums and all(sums) else None
