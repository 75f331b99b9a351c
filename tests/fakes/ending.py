"""The end of an engine that was told to stop: not in sight, coming, or here."""

from __future__ import annotations

import asyncio
from typing import Literal


class Ending:
    """What becomes of the requests that still run: aborted as if finished, or given up with an error."""

    def __init__(self) -> None:
        self.draining = False  # no new requests
        self.mode: Literal["abort", "error"] | None = None  # None: they run on
        self._here = asyncio.Event()

    def end(self, mode: Literal["abort", "error"]) -> None:
        """End what runs, now."""
        self.draining = True
        self.mode = mode
        self._here.set()

    async def pause(self, seconds: float) -> bool:
        """Sleep so long, or until the end; whether it is there."""
        if self.mode is None:
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._here.wait()
            except TimeoutError:
                return False
        return True
