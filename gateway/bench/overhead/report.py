"""Samples as Markdown: medians, ratios to a peer within the same rounds, and the gates of our own speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from gateway.bench.overhead.samples import (
    BURST_CPU,
    FIGURES,
    PACED_512_ERRORS,
    REQUESTS_32,
    TTFT_1,
    Figure,
    Sample,
)

OURS = "slotgate"
PEERS = ("nginx", "vllm-router")
NOTHING = "-"  # a cell without a figure


class Results:
    """All samples of one run."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = list(samples)
        self.targets = list(dict.fromkeys(sample.target for sample in self.samples))

    def by_round(self, target: str, figure: Figure) -> dict[int, float]:
        """A figure of a target in each round that has it."""
        values = {
            sample.round: figure.value(sample)
            for sample in self.samples
            if sample.target == target and sample.workload == figure.workload
        }
        return {round_: value for round_, value in values.items() if value is not None}

    def ratios(self, target: str, peer: str, figure: Figure) -> list[float]:
        """A figure over a peer's, round by round: what disturbed a round disturbed both."""
        ours, theirs = self.by_round(target, figure), self.by_round(peer, figure)
        return [ours[round_] / theirs[round_] for round_ in ours if theirs.get(round_)]


@dataclass(frozen=True, slots=True)
class Gate:
    """A bound on our own speed beside a peer's."""

    name: str
    bound: float
    at_least: bool
    value: Callable[[Results], float | None]

    def verdict(self, results: Results) -> str:
        """`ok`, `missed`, or `not measured`."""
        value = self.value(results)
        if value is None:
            return "not measured"
        return "ok" if (value >= self.bound if self.at_least else value <= self.bound) else "missed"

    def row(self, results: Results) -> str:
        """A row of the table of gates."""
        value = self.value(results)
        shown = NOTHING if value is None else f"{value:.3g}"
        bound = f"{'>=' if self.at_least else '<='} {self.bound:g}"
        return f"| {self.name} | {bound} | {shown} | {self.verdict(results)} |"


def _median(values: Iterable[float]) -> float | None:
    values = list(values)
    return median(values) if values else None


def _added_ttft(results: Results) -> float | None:
    """Our added median time to the first token over nginx's."""
    ours, nginx, direct = (results.by_round(target, TTFT_1) for target in (OURS, "nginx", "direct"))
    rounds = ours.keys() & nginx.keys() & direct.keys()
    return _median((ours[r] - direct[r]) / (nginx[r] - direct[r]) for r in rounds if nginx[r] > direct[r])


def _paced_errors(results: Results) -> float | None:
    errors = results.by_round(OURS, PACED_512_ERRORS)
    return sum(errors.values()) if errors else None


GATES = (
    Gate(
        "requests/s at 32 connections, of nginx's",
        0.12,
        True,
        lambda r: _median(r.ratios(OURS, "nginx", REQUESTS_32)),
    ),
    Gate(
        "CPU per burst stream, of vllm-router's",
        0.5,
        False,
        lambda r: _median(r.ratios(OURS, "vllm-router", BURST_CPU)),
    ),
    Gate("added median TTFT at 1 connection, of nginx's", 3.0, False, _added_ttft),
    Gate("errors with 512 paced streams", 0, False, _paced_errors),
)


def report(results: Results) -> str:
    """The whole report."""
    parts = ["### Medians (min to max over rounds)", _table(results, _medians)]
    for peer in PEERS:
        if peer in results.targets:
            parts += [f"### Ratios to {peer} (median of the rounds)", _table(results, _ratios_to(peer))]
    if OURS in results.targets:
        head = ["| gate | bound | measured | verdict |", "|---|---|---|---|"]
        parts += ["### Gates", "\n".join(head + [gate.row(results) for gate in GATES])]
    return "\n\n".join(parts) + "\n"


Cell = Callable[[Results, str, Figure], str]


def _table(results: Results, cell: Cell) -> str:
    head = ["| figure | " + " | ".join(results.targets) + " |", "|---" * (len(results.targets) + 1) + "|"]
    rows = []
    for figure in FIGURES:
        cells = [cell(results, target, figure) for target in results.targets]
        if set(cells) != {NOTHING}:
            rows.append(f"| {figure.title} | " + " | ".join(cells) + " |")
    return "\n".join(head + rows)


def _medians(results: Results, target: str, figure: Figure) -> str:
    values: Sequence[float] = list(results.by_round(target, figure).values())
    if not values:
        return NOTHING
    spread = f" ({_number(min(values))} to {_number(max(values))})" if len(values) > 1 else ""
    return _number(median(values)) + spread


def _ratios_to(peer: str) -> Cell:
    def cell(results: Results, target: str, figure: Figure) -> str:
        ratio = _median(results.ratios(target, peer, figure))
        return NOTHING if ratio is None else f"{ratio:.2f}"

    return cell


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
