"""`python -m gateway.bench.eyes`: what it costs to see: journal, log lines, metrics, the page's history.

Two gateways take turns on one CPU, before the same engine: one as it is served, and one in which nobody looks
at a request that ended but those who learn from it. Rounds are short and in both orders, so that what else
the machine does meets both alike. The CPU of a round is read when its last row is written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

import gateway.app
from gateway.accounting import Accounts, Observer
from gateway.bench.overhead.__main__ import alone
from gateway.bench.overhead.measure import Bench, TargetNotReady
from gateway.bench.overhead.targets import Target
from gateway.bench.overhead.workload import WORKLOADS, Workload
from gateway.cli.app import app
from gateway.lessons import Lessons

SEEN, BLIND = "seen", "blind"
BOUND = 0.05  # of requests/s
ROUND_SECONDS = 1.0
WRITTEN_SECONDS = 0.6  # until the last row of a round is written, twice the bookkeeper's pause
AS_BLIND = "--serve-blind"


@dataclass(frozen=True, slots=True)
class Round:
    """One gateway under load."""

    requests_per_second: float
    cpu_seconds: float  # of a request


def unwatched(*observers: Observer) -> Accounts:
    """Accounts that close records for those alone who need them to decide."""
    return Accounts(*(observer for observer in observers if isinstance(observer, Lessons)))


def targets() -> list[Target]:
    """Both gateways, with the same settings."""
    engine = '{"name": "engine", "url": "http://127.0.0.1:${engine_port}", "engine": "openai", "slots": 4096}'
    settings = ("env", f"SLOTGATE_BACKENDS=[{engine}]", "SLOTGATE_SERVER__ADMIN_PORT=${second_port}")
    return [
        Target(SEEN, (*settings, sys.executable, "-m", "gateway", "serve", "--port", "${port}")),
        Target(BLIND, (*settings, sys.executable, "-m", "gateway.bench.eyes", AS_BLIND, "--port", "${port}")),
    ]


def rounds(bench: Bench, workload: Workload, pairs: int) -> Iterator[tuple[Round, Round]]:
    """Pairs of rounds: seen, blind."""
    for number in range(pairs):
        order = (SEEN, BLIND) if number % 2 else (BLIND, SEEN)
        done = {target: measured(bench, target, workload) for target in order}
        yield done[SEEN], done[BLIND]


def measured(bench: Bench, target: str, workload: Workload) -> Round:
    """One round. Raises TargetNotReady if a request failed."""
    tree = bench.trees[target]
    with bench.ahead_of_others(tree):
        before = tree.cpu_seconds()
        load = bench.load(target, workload)
        time.sleep(WRITTEN_SECONDS)
        spent = tree.cpu_seconds() - before
    if load["errors"]:
        raise TargetNotReady(f"{target}: {load['errors']:g} requests failed")
    return Round(load["rps"], spent / load["total"])


def report(pairs: Sequence[tuple[Round, Round]]) -> tuple[str, float]:
    """What was found, and the share of requests/s that seeing costs a gateway that has no CPU left."""
    cpu = [(seen.cpu_seconds, blind.cpu_seconds) for seen, blind in pairs]
    wall = [(1 / seen.requests_per_second, 1 / blind.requests_per_second) for seen, blind in pairs]
    lines = [_compared("CPU of a request", cpu), _compared("one request of the load", wall)]
    cost = 1 - median(blind / seen for seen, blind in cpu)
    verdict = "within" if cost <= BOUND else "MISSED: the bound is"
    lines.append(f"requests/s that it costs, by CPU: {cost:.1%}; {verdict} {BOUND:.0%}")
    return "\n".join(lines), cost


def _compared(what: str, pairs: Sequence[tuple[float, float]]) -> str:
    seen, blind = (median(pair[side] for pair in pairs) * 1e6 for side in (0, 1))
    low, middle, high = quantiles((seen / blind - 1 for seen, blind in pairs), n=4, method="inclusive")
    spread = f"{middle:+.1%}, half of {len(pairs)} pairs between {low:+.1%} and {high:+.1%}"
    return f"{what}: {seen:.1f} us seen, {blind:.1f} us blind; {spread}"


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; exit 1 when it costs more than it may, or a gateway failed."""
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.eyes", description=__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="of rounds, 3 s each; at least 2")
    parser.add_argument("--workload", choices=WORKLOADS, default="plain32")
    parser.add_argument("--real-time", action="store_true", help="priority over all other work (root)")
    options = parser.parse_args(words)
    workload = replace(WORKLOADS[options.workload], seconds=ROUND_SECONDS)
    try:
        with (
            alone(),
            tempfile.TemporaryDirectory(prefix="slotgate-eyes-") as folder,
            Bench.started(Path(folder), targets(), real_time=options.real_time) as bench,
        ):
            text, cost = report(list(rounds(bench, workload, options.pairs)))
    except TargetNotReady as unready:
        print(unready, file=sys.stderr)
        return 1
    print(text)
    return int(cost > BOUND)


def serve_blind(words: Sequence[str]) -> None:
    """`slotgate serve`, with nobody to look."""
    vars(gateway.app)["Accounts"] = unwatched
    app(["serve", *words])


if __name__ == "__main__":
    if sys.argv[1:2] == [AS_BLIND]:
        serve_blind(sys.argv[2:])
    sys.exit(main())
