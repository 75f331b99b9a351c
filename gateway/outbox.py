"""Lets the writes of one turn of the event loop go out together.

A write wakes whoever reads at the other end. One by one, between two requests, each finds that reader asleep
again and the processor without the kernel's part of it: that took a sixth of the time of a request. So only
the first write of a turn goes out at once, as there may be no other; those that follow go at its end, or
when there are some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("slotgate.outbox")

TOGETHER_MAX = 16  # so that nobody waits for long for those behind


class Outbox:
    """The writes to one side, clients or an engine."""

    def __init__(self) -> None:
        self._in_turn = False  # something was written in this turn of the loop
        self._writes: list[Callable[[], None]] = []

    def post(self, write: Callable[[], None]) -> None:
        """Call `write` within this turn of the loop: at once, if it is the first."""
        if not self._in_turn:
            self._in_turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)
            write()
            return
        self._writes.append(write)
        if len(self._writes) >= TOGETHER_MAX:
            self._flush()

    def _end_turn(self) -> None:
        self._in_turn = False
        self._flush()

    def _flush(self) -> None:
        writes, self._writes = self._writes, []
        for write in writes:
            try:
                write()
            except Exception:  # a defect of ours; the others are not to suffer for it
                log.exception("a write failed inside the gateway")
