"""The gateway as it is, watched from inside: `python -m tests.processes.watched serve ...`.

Writes JSON lines to the file that `WATCHED` names: each second how many tasks there are, how much memory is
in use and how long the garbage collector took at most; and each turn of the event loop that took long, with
what it was at. What counts is the processor time of the loop's thread: on a machine that does other things
too, the time on the clock says nothing of the gateway.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway import lifecycle
from gateway.cli.app import main

BEAT_SECONDS = 0.005
STALL_SECONDS = 0.05
LOOK_SECONDS = 0.01
CALLS = 6  # of a stack that are told

BLOCK_BYTES = 64  # of Python's own small blocks, about


class Heap(ctypes.Structure):
    """What glibc's malloc tells of itself, in bytes."""

    _fields_ = (
        *((f"_{number}", ctypes.c_size_t) for number in range(4)),
        ("mapped", ctypes.c_size_t),  # in pieces of their own
        *((f"_{number}", ctypes.c_size_t) for number in range(4, 6)),
        ("used", ctypes.c_size_t),  # of the others
        *((f"_{number}", ctypes.c_size_t) for number in range(6, 8)),
    )


_heap = getattr(ctypes.CDLL(None), "mallinfo2", None)
if _heap is not None:
    _heap.restype = Heap
_call = re.compile(r'File "(?:.*/)?(.*)", line (\d+) in (.*)')


class Watcher:
    """Beats in the loop, and looks at it from a thread of its own."""

    def __init__(self, file: Path) -> None:
        self._out = file.open("a", buffering=1)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._told = 0.0  # when the tasks were counted last
        self._beat_at, self._worked = time.monotonic(), time.thread_time()
        self._seen: list[str] = []
        self._over = False
        self._collects, self._collected = 0.0, 0.0  # since when, how long at most
        gc.callbacks.append(self._look_at_collector)
        threading.Thread(target=self._look, daemon=True).start()
        self._beat()

    def stop(self) -> None:
        """Watch no more."""
        self._over = True
        gc.callbacks.remove(self._look_at_collector)

    def _beat(self) -> None:
        """One turn of the loop is over."""
        now, worked = time.monotonic(), time.thread_time()
        if worked - self._worked > STALL_SECONDS:
            self._tell(stall=round(worked - self._worked, 3), at=self._seen)
        if now - self._told >= 1.0:
            self._told = now
            self._tell(tasks=len(asyncio.all_tasks()), used=used_bytes(), collector=round(self._collected, 4))
            self._collected = 0.0
        self._beat_at, self._worked, self._seen = time.monotonic(), time.thread_time(), []
        if not self._over:
            self._loop.call_later(BEAT_SECONDS, self._beat)

    def _look(self) -> None:
        """In the other thread: what a turn is at that has not ended yet."""
        with tempfile.TemporaryFile("w+") as scratch:
            while not self._over:
                time.sleep(LOOK_SECONDS)
                if time.monotonic() - self._beat_at > STALL_SECONDS / 2 and not self._seen:
                    scratch.seek(0)
                    scratch.truncate()
                    # In one go, without a switch of threads: a frame that goes on while it is looked at may
                    # be something else by the next look.
                    faulthandler.dump_traceback(scratch)
                    scratch.seek(0)
                    self._seen = calls(scratch.read(), self._thread)

    def _look_at_collector(self, phase: str, _: dict[str, int]) -> None:
        """It begins, or has ended, in whatever thread."""
        if phase == "start":
            self._collects = time.thread_time()
        else:
            self._collected = max(self._collected, time.thread_time() - self._collects)

    def _tell(self, **what: Any) -> None:
        self._out.write(json.dumps(what) + "\n")


def used_bytes() -> int:
    """Memory that is in use, about, without what is free between it: a process keeps that."""
    heap = Heap() if _heap is None else _heap()
    return int(heap.used + heap.mapped) + BLOCK_BYTES * sys.getallocatedblocks()


def calls(dump: str, thread: int) -> list[str]:
    """What a thread was at, the outermost call first, of all that faulthandler tells."""
    _, _, stack = dump.partition(f"hread 0x{thread:016x} (most recent call first):\n")
    inner = [f"{file}:{line} {name}" for file, line, name in _call.findall(stack.partition("\n\n")[0])]
    return inner[:CALLS][::-1]


def watched(serve: Callable[..., Any], file: Path) -> Callable[..., Any]:
    """The same, with a watcher."""

    async def run(*arguments: Any, **named: Any) -> None:
        watcher = Watcher(file)
        try:
            await serve(*arguments, **named)
        finally:
            watcher.stop()

    return run


def seen(file: Path, what: str) -> list[dict[str, Any]]:
    """The lines about `stall` or `tasks` so far."""
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return [line for line in lines if what in line]


if __name__ == "__main__":
    lifecycle.serve = watched(lifecycle.serve, Path(os.environ["WATCHED"]))
    main()
