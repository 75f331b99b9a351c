"""A process with all its descendants: CPU time, memory, scheduling, end. Linux only, read from /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_busy_seconds(cpu: int) -> float:
    """Busy seconds of one CPU since boot: against a target's own it tells what others took."""
    prefix = f"cpu{cpu} "
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(prefix))
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND


class ProcessTree:
    """One started program. Processes that end while they are looked at count nothing."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def running(self) -> bool:
        """Whether the program itself still runs."""
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """User and system time spent so far."""
        ticks = 0
        for pid in self._pids():
            fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13]))
        return ticks / TICKS_PER_SECOND

    def memory_mib(self) -> float:
        """Resident memory."""
        lines = (line for pid in self._pids() for line in _read(f"/proc/{pid}/status").splitlines())
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    def set_real_time(self, on: bool) -> None:
        """Put every thread before all that is not real-time, or back."""
        policy, priority = (os.SCHED_RR, 1) if on else (os.SCHED_OTHER, 0)
        for pid in self._pids():
            for thread in _threads(pid):
                try:
                    os.sched_setscheduler(thread, policy, os.sched_param(priority))
                except ProcessLookupError:
                    continue

    def settle(self) -> None:
        """Wait until what the last load left behind is done, 3 s at most."""
        for _ in range(15):
            before = self.cpu_seconds()
            time.sleep(0.2)
            if self.cpu_seconds() - before < 0.03:
                return

    def end(self) -> None:
        """Ask all to end; kill what is left after 3 s."""
        pids = list(self._pids())
        self._signal(pids, signal.SIGTERM)
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            self._signal(pids, signal.SIGKILL)
            self._process.wait()

    @staticmethod
    def _signal(pids: list[int], number: signal.Signals) -> None:
        for pid in reversed(pids):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _pids(self) -> Iterator[int]:
        todo = [self._process.pid] if self.running() else []
        while todo:
            pid = todo.pop()
            yield pid
            for thread in _threads(pid):
                todo += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        return []


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
