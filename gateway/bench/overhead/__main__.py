"""`python -m gateway.bench.overhead`: what nginx, vllm-router and this gateway add to a request."""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from gateway.bench.overhead.measure import Bench, TargetNotReady, show_progress
from gateway.bench.overhead.report import GATES, OURS, Results, report
from gateway.bench.overhead.targets import TargetMissing, known_targets
from gateway.bench.overhead.workload import WORKLOADS


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--targets", type=_names(known_targets()), default=list(known_targets()))
    parser.add_argument("--workloads", type=_names(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--real-time", action="store_true", help="priority over all other work (root)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write samples and verdicts here")
    return parser.parse_args(words)


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other run measures on this machine: two would measure each other."""
    with (Path(tempfile.gettempdir()) / "slotgate-overhead.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another run to end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; exit 0, 1 when a gate is missed or a target fails, 2 when one is not installed."""
    options = arguments(words)
    targets = [known_targets()[name] for name in options.targets]
    samples = []
    try:
        for target in targets:
            target.check()
        with alone(), tempfile.TemporaryDirectory(prefix="slotgate-overhead-") as folder:
            Path(folder).chmod(0o755)  # nginx's worker is another user
            with Bench.started(Path(folder), targets, real_time=options.real_time) as bench:
                for sample in bench.run([WORKLOADS[name] for name in options.workloads], options.rounds):
                    show_progress(sample)
                    samples.append(sample)
    except TargetMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    except TargetNotReady as unready:
        print(unready, file=sys.stderr)
        return 1
    results = Results(samples)
    print(report(results))
    verdicts = {gate.name: gate.verdict(results) for gate in GATES} if OURS in results.targets else {}
    if options.json:
        data = {"samples": [asdict(sample) for sample in samples], "gates": verdicts}
        options.json.write_text(json.dumps(data, indent=1))
    return 1 if "missed" in verdicts.values() else 0


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
