"""When Python looks for garbage: often among what is new, and among all only while nothing is asked.

What is in a cycle is not freed until the garbage collector finds it, and while it looks, every stream stands
still. Left to itself it walks through all that lives on, again and again: with tables full of 20,000
conversations these are half a million objects, and half a second. Nothing of ours needs it: connections,
requests and failures let go of each other when they end. What does are libraries, and defects.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

GC_THRESHOLDS = (20_000, 20, 20)  # for so many new objects Python does not wait for our next look
LOOK_SECONDS = 0.1
WHOLE_SECONDS = 3600.0  # until all is looked at when nothing is asked
WHOLE_SECONDS_MAX = 86_400.0  # and all the same


class Collector:
    """The garbage collector of this process.

    What has lived through one look is put aside (`gc.freeze`, at no cost), where it is not looked at again:
    so a look takes as long as what came since the last one. It is freed like all else once nobody knows it,
    unless it has become part of a cycle by then. Those wait for the look at all.
    """

    def __init__(self, idle: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._idle = idle
        self._clock = clock
        self._looked = clock()  # at all of it
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Put aside what this process is made of, and look from now on."""
        self.look_at_all()
        gc.set_threshold(*GC_THRESHOLDS)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    def look(self) -> None:
        """Find the garbage in what came since the last look; in all there is, if it is time for that."""
        since = self._clock() - self._looked
        if since > WHOLE_SECONDS_MAX or (since > WHOLE_SECONDS and self._idle()):
            self.look_at_all()
        else:
            gc.collect(1)
            gc.freeze()

    def look_at_all(self) -> None:
        """Find all garbage that there is."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._looked = self._clock()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()
