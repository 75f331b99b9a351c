"""`python -m gateway.bench.workers`: what a second worker is worth, by processor time.

Engine, load and Redis need room beside the gateway: two workers never have two CPUs to themselves on a
machine that has two, and their requests/s would tell of that. So all processes of a gateway share one CPU
without rest here, everything else the other one, in rounds by turns with one worker and with two. On two
CPUs two workers have twice the time for requests that cost so much. What Redis spends is told beside it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from gateway.bench.overhead.__main__ import alone
from gateway.bench.overhead.measure import LOAD_CPU, Bench, TargetNotReady, free_port
from gateway.bench.overhead.processes import ProcessTree
from gateway.bench.overhead.targets import Target
from gateway.bench.overhead.workload import Workload

ALONE, ONE, TWO = "one process without a ledger", "one worker", "two workers"
COUNT = {ALONE: 1, ONE: 1, TWO: 2}
GOAL = 1.7
ROUND_SECONDS = 1.5
LOAD = Workload("workers", connections=32, seconds=ROUND_SECONDS)
LEASE_SECONDS = 3


class StoodStill(Exception):
    """Nobody was answered in a round: a CPU that several processes fill makes one late for the ledger, and
    then nothing starts until they are together again."""


@dataclass(frozen=True, slots=True)
class Round:
    """One gateway under load; seconds of a processor for each request."""

    requests_per_second: float
    own: float
    redis: float


def targets(redis: str) -> list[Target]:
    """The gateways, with the same settings but for the ledger."""
    engine = '{"name": "engine", "url": "http://127.0.0.1:${engine_port}", "engine": "openai", "slots": 4096}'
    common = ("env", f"SLOTGATE_BACKENDS=[{engine}]", "SLOTGATE_SERVER__ADMIN_PORT=${second_port}")
    serve = (sys.executable, "-m", "gateway", "serve", "--port", "${port}", "--workers")
    made = []
    for number, (name, count) in enumerate(COUNT.items()):
        own = [f"SLOTGATE_ACCOUNTING__JOURNAL=${{folder}}/{number}.db"]
        if name is not ALONE:
            own += [f"SLOTGATE_REDIS__URL={redis}", f"SLOTGATE_REDIS__POOL=bench-{number}"]
            own.append(f"SLOTGATE_REDIS__LEASE_SECONDS={LEASE_SECONDS}")
        made.append(Target(name, (*common, *own, *serve, str(count))))
    return made


@contextmanager
def redis_server(folder: Path, *, real_time: bool) -> Iterator[tuple[str, ProcessTree]]:
    """One of our own, where engine and load are."""
    port = free_port()
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    ahead = ["chrt", "-r", "1"] if real_time else []
    process = subprocess.Popen([*ahead, "taskset", "-c", str(LOAD_CPU), *words], stdout=subprocess.DEVNULL)
    tree = ProcessTree(process)
    try:
        yield f"redis://127.0.0.1:{port}", tree
    finally:
        tree.end()


def measured(bench: Bench, redis: ProcessTree, name: str) -> Round:
    """One round. Raises StoodStill."""
    tree = bench.trees[name]
    with bench.ahead_of_others(tree):
        own, spent = tree.cpu_seconds(), redis.cpu_seconds()
        done = bench.load(name, LOAD)
        tree.settle()
        own, spent = tree.cpu_seconds() - own, redis.cpu_seconds() - spent
    if done["errors"] or not done["ok"]:
        raise StoodStill(name)
    return Round(done["rps"], own / max(1, done["total"]), spent / max(1, done["total"]))


def report(rounds: Sequence[dict[str, Round]]) -> tuple[str, float]:
    """What was found, and how many times as much as one worker two can do on two CPUs."""
    lines = []
    for name in COUNT:
        own, redis, rate = (
            median(getattr(one[name], figure) for one in rounds)
            for figure in ("own", "redis", "requests_per_second")
        )
        lines.append(
            f"{name}: {own * 1e6:.0f} us of processor time a request, {redis * 1e6:.0f} us of Redis's; "
            f"{rate:,.0f} requests/s on one CPU"
        )
    for base in (ALONE, ONE):
        low, worth, high = quantiles((2 * one[base].own / one[TWO].own for one in rounds), n=4)
        lines.append(
            f"two workers on two CPUs: {worth:.2f} x {base} on one, half of {len(rounds)} rounds between "
            f"{low:.2f} and {high:.2f}"
        )
    lines.append(f"the goal of {GOAL:g} x {ONE} is {'reached' if worth >= GOAL else 'MISSED'}")
    return "\n".join(lines), worth


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; exit 1 when the second worker is worth less than it should, or a gateway failed."""
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of each gateway, some 3 s each; at least 2")
    parser.add_argument("--real-time", action="store_true", help="priority over all other work (root)")
    options = parser.parse_args(words)
    if shutil.which("redis-server") is None:
        print("redis-server is not installed: apt-get install redis-server", file=sys.stderr)
        return 2
    rounds, still = list[dict[str, Round]](), 0
    try:
        with (
            alone(),
            tempfile.TemporaryDirectory(prefix="slotgate-workers-") as folder,
            redis_server(Path(folder), real_time=options.real_time) as (url, redis),
            Bench.started(Path(folder), targets(url), real_time=options.real_time) as bench,
        ):
            while len(rounds) < options.rounds and still <= options.rounds:
                names = list(COUNT)[:: 1 if len(rounds) % 2 else -1]
                try:
                    rounds.append({name: measured(bench, redis, name) for name in names})
                except StoodStill as stood:
                    print(f"{stood} stood still; this round is made again", file=sys.stderr)
                    still += 1
                    time.sleep(2 * LEASE_SECONDS)
    except TargetNotReady as unready:
        print(unready, file=sys.stderr)
        return 1
    if len(rounds) < options.rounds:
        print("too many rounds stood still; measure on a machine with less to do", file=sys.stderr)
        return 1
    text, worth = report(rounds)
    print(text)
    return int(worth < GOAL)


if __name__ == "__main__":
    sys.exit(main())
