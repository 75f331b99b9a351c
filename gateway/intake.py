"""Bodies on their way: how long each may be and take, and how much of all of them is held.

Whoever sends half a body and then nothing holds what was sent. Where all such halves are too much, the one
that has been silent longest goes first, so that nobody can keep others out by silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from gateway import errors
from policies.release_rate import ReleaseRate

RETRY_SECONDS = 1.0  # before any was seen to leave


class Intake:
    """Of one port. `body_bytes_max` bounds a body, `bytes_max` all those together that are not whole yet."""

    def __init__(self, body_bytes_max: int, bytes_max: int | None = None) -> None:
        self.bytes = 0
        self._readings: dict[Reading, None] = {}  # the one that has been silent longest is first
        self._closed = False
        self._rate = ReleaseRate()  # at which they become whole, or are given up by their senders
        self.follow(body_bytes_max, bytes_max)

    def follow(self, body_bytes_max: int, bytes_max: int | None = None) -> None:
        """Keep these bounds from now on."""
        self.body_bytes_max = body_bytes_max
        self._bytes_max = bytes_max

    def read(self, seconds: float, drop: Callable[[], None] | None = None) -> Reading:
        """A body that may take so long, to be received inside `async with`. `drop` is called when it is given
        up early: what is there of it is not to be held any longer."""
        return Reading(self, seconds, drop)

    def close(self) -> None:
        """No body is waited for any more."""
        self._closed = True
        for reading in list(self._readings):
            reading.end(errors.ShuttingDown())

    # -- the readings call these ------------------------------------------------------------------

    def begin(self, reading: Reading) -> None:
        """This one is on its way."""
        if self._closed:
            raise errors.ShuttingDown
        if not self._readings:
            self._rate.waits(reading.at)
        self._readings[reading] = None

    def hold(self, reading: Reading, more_bytes: int) -> None:
        """So much more of it has come."""
        if reading in self._readings:
            del self._readings[reading]
            self._readings[reading] = None
            self.bytes += more_bytes
            while self._bytes_max is not None and self.bytes > self._bytes_max:
                next(iter(self._readings)).end(
                    errors.QueueFull(self._rate.expected(reading.at) or RETRY_SECONDS)
                )

    def leave(self, reading: Reading, now: float) -> None:
        """It is whole, or its sender gave it up."""
        if reading in self._readings:
            self.refuse(reading)
            self._rate.released(now, waiting=True)

    def refuse(self, reading: Reading) -> None:
        """It is not to come any more."""
        if reading in self._readings:
            del self._readings[reading]
            self.bytes -= reading.bytes


class Reading:
    """One body. What ends it early, ends `async with` by that error."""

    __slots__ = ("_drop", "_failure", "_intake", "_limit", "_loop", "_seconds", "at", "bytes")

    def __init__(self, intake: Intake, seconds: float, drop: Callable[[], None] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.bytes = 0
        self.at = self._loop.time()  # when the last piece of it came
        self._drop = drop
        self._intake = intake
        self._seconds = seconds
        self._limit = asyncio.timeout(seconds)
        self._failure: errors.GatewayError | None = None

    async def __aenter__(self) -> Reading:
        self._intake.begin(self)
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._intake.leave(self, self._loop.time())
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._failure or errors.RequestTimeout(self._seconds) from None
        if kind is None and self._failure is not None:  # it came whole at that very moment
            raise self._failure

    def has(self, size: int) -> None:
        """So many bytes of it have come by now. That may be the end of this one, or of others."""
        if self._failure is not None:
            return
        if size > self._intake.body_bytes_max:
            self.end(errors.BodyTooLarge(self._intake.body_bytes_max))
            return
        more, self.bytes, self.at = size - self.bytes, size, self._loop.time()
        self._intake.hold(self, more)

    def check(self) -> None:
        """Raises what has ended it early."""
        if self._failure is not None:
            raise self._failure

    def end(self, failure: errors.GatewayError) -> None:
        """Give it up, with this error."""
        self._intake.refuse(self)
        if self._failure is None:
            self._failure = failure
            self._limit.reschedule(self._loop.time())
            if self._drop is not None:
                self._drop()
