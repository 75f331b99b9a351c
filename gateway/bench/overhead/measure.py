"""Start engine and targets, then every workload on every target in turn, round by round.

The targets run on CPU 0, one at work at a time; engine and load on CPU 1. Rounds are interleaved so
that what changes on the machine meanwhile meets all targets alike.
"""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from gateway.bench.overhead.processes import ProcessTree, cpu_busy_seconds
from gateway.bench.overhead.samples import Sample
from gateway.bench.overhead.targets import Target
from gateway.bench.overhead.workload import WORKLOADS, Workload

PROGRAMS = Path(__file__).parent / "programs"
TARGET_CPU, LOAD_CPU = 0, 1
READY_SECONDS = 60
FILES_MAX = 16_384  # 512 streams need 1,024 descriptors in a proxy, the usual soft limit


class TargetNotReady(Exception):
    """A target did not answer as the engine does."""


class Bench:
    """The running engine and targets. Use as `with Bench.started(...) as bench`."""

    def __init__(self, folder: Path, *, real_time: bool) -> None:
        self._folder = folder
        self._engine_port = free_port()
        self._real_time = real_time
        self._ports: dict[str, int] = {}
        self.trees: dict[str, ProcessTree] = {}  # of the targets

    @classmethod
    @contextmanager
    def started(cls, folder: Path, targets: Sequence[Target], *, real_time: bool = False) -> Iterator[Bench]:
        """Build, start and wait until each target passes the engine's answer on; ends all at exit."""
        bench = cls(folder, real_time=real_time)
        raise_files_limit()
        for program in ("mock_engine", "load"):
            source = PROGRAMS / f"{program}.c"
            subprocess.run(["gcc", "-O2", "-o", str(folder / program), str(source)], check=True)
        with ExitStack() as ends:
            bench._start_engine(ends)
            for target in targets:
                bench._start(target, ends)
            for target in targets:
                bench._wait_ready(target)
            yield bench

    def run(self, workloads: Sequence[Workload], rounds: int) -> Iterator[Sample]:
        """Every workload on every target, `rounds` times."""
        for round_ in range(rounds):
            for workload in workloads:
                for target in self._ports:
                    yield self._measure(target, workload, round_)

    def _measure(self, target: str, workload: Workload, round_: int) -> Sample:
        tree = self.trees.get(target)
        if tree is None:
            return Sample.of_load(target, workload.name, round_, self.load(target, workload))
        with self.ahead_of_others(tree):
            own, busy, clock = tree.cpu_seconds(), cpu_busy_seconds(TARGET_CPU), time.monotonic()
            load = self.load(target, workload)
            own, busy = tree.cpu_seconds() - own, cpu_busy_seconds(TARGET_CPU) - busy
            foreign = max(0.0, busy - own) / (time.monotonic() - clock)
            tree.settle()
        sample = Sample.of_load(target, workload.name, round_, load)
        return replace(sample, cpu_seconds=own, memory_mib=tree.memory_mib(), foreign_share=foreign)

    @contextmanager
    def ahead_of_others(self, tree: ProcessTree) -> Iterator[None]:
        """Before all other work inside, if so told."""
        if not self._real_time:
            yield
            return
        tree.set_real_time(True)
        try:
            yield
        finally:
            tree.set_real_time(False)

    def load(self, target: str, workload: Workload) -> dict[str, float]:
        """Put the workload on the target once: what the load program prints."""
        body = self._folder / f"{workload.name}.json"
        body.write_bytes(workload.body())
        command = [self._folder / "load", self._ports[target], workload.connections, workload.seconds, body]
        words = self._on_cpu(LOAD_CPU, map(str, command), real_time=self._real_time)
        done = subprocess.run(words, capture_output=True, check=True, timeout=workload.seconds + 30)
        line: dict[str, float] = json.loads(done.stdout)
        return line

    def url(self, target: str) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._ports[target]}"

    def _start_engine(self, ends: ExitStack) -> None:
        command = (str(self._folder / "mock_engine"), str(self._engine_port))
        engine = subprocess.Popen(self._on_cpu(LOAD_CPU, command, real_time=self._real_time))
        ends.callback(ProcessTree(engine).end)

    def _start(self, target: Target, ends: ExitStack) -> None:
        if not target.command:
            self._ports[target.name] = self._engine_port
            return
        port = free_port()
        values = {"port": port, "second_port": free_port(), "engine_port": self._engine_port}
        command = self._on_cpu(TARGET_CPU, target.render(self._folder, values))
        log = ends.enter_context(self._log(target).open("wb"))
        process = subprocess.Popen(
            command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        tree = ProcessTree(process)
        ends.callback(tree.end)
        self._ports[target.name], self.trees[target.name] = port, tree

    def _wait_ready(self, target: Target) -> None:
        url = f"{self.url(target.name)}/v1/chat/completions"
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url, WORKLOADS["plain1"].body(), headers)
        tree = self.trees.get(target.name)
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and (tree is None or tree.running()):
            try:
                with urllib.request.urlopen(request, timeout=5) as answer:
                    if b"quick brown" in answer.read():
                        return
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        log = self._log(target)
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        raise TargetNotReady(f"{target.name} does not pass the engine's answer on. Its log ends:\n{tail}")

    def _log(self, target: Target) -> Path:
        return self._folder / f"{target.name}.log"

    @staticmethod
    def _on_cpu(cpu: int, command: Iterator[str] | Sequence[str], *, real_time: bool = False) -> list[str]:
        return [*(["chrt", "-r", "1"] if real_time else []), "taskset", "-c", str(cpu), *command]


def free_port() -> int:
    """A TCP port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def raise_files_limit() -> None:
    """Let this process and those it starts open enough sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES_MAX:
        wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def show_progress(sample: Sample) -> None:
    """One line on standard error."""
    foreign = f", others took {sample.foreign_share:.0%}" if sample.foreign_share else ""
    figures = f"{sample.requests_per_second:,.0f} requests/s, {sample.errors} errors{foreign}"
    print(f"round {sample.round + 1} {sample.workload} {sample.target}: {figures}", file=sys.stderr)
