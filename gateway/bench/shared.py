"""`python -m gateway.bench.shared`: what a slot costs that several gateways share.

Calls come at a steady rate to one gateway's account with a real Redis; each takes a slot, and soon gives it
back.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

import uvloop

from gateway.ledger.ledger import Ledger, Mode
from gateway.ledger.redis import RedisStore
from gateway.ledger.step import Word

ENGINE = "http://engine"
SLOTS = 256
LEASE_SECONDS = 3.0
HELD_SECONDS = 0.05


class Alone:
    """A gateway of one engine, for which nobody waits."""

    def words(self) -> Sequence[Word]:
        """Of that engine."""
        return [Word(ENGINE, SLOTS, True, None)]

    def told(self) -> None:
        """Nothing follows from it."""

    def waits(self) -> bool:
        """Nobody does."""
        return False


async def measured(redis: str, rate: float, count: int) -> list[float]:
    """Seconds that each call waited for its slot. Raises ConnectionError if Redis does not answer."""
    store = RedisStore(redis, "bench")
    ledger = Ledger(Alone(), store, LEASE_SECONDS, time.monotonic)
    running = asyncio.create_task(ledger.run())
    seconds: list[float] = []

    async def call(id: str) -> None:
        begun = time.perf_counter()
        given = await ledger.take(id, ENGINE, time.monotonic(), SLOTS)
        if given:
            seconds.append(time.perf_counter() - begun)
        await asyncio.sleep(HELD_SECONDS)
        ledger.release(id)

    try:
        await asyncio.sleep(LEASE_SECONDS)  # a new epoch gives no slots at first
        async with asyncio.TaskGroup() as calls:
            for number in range(count):
                calls.create_task(call(str(number)))
                await asyncio.sleep(1 / rate)
        if ledger.mode is Mode.DEGRADED or len(seconds) < count:
            raise ConnectionError(ledger.fault or f"{count - len(seconds)} of {count} calls got no slot")
    finally:
        running.cancel()
        await asyncio.wait([running])
        await ledger.bye()
        await store.close()
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Print median and 99th percentile; 1 if Redis did not answer."""
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.shared", description=__doc__)
    parser.add_argument("--redis", default="redis://127.0.0.1:6379", metavar="URL", help="a Redis to use")
    parser.add_argument("--rate", type=float, default=200.0, metavar="N", help="calls a second")
    parser.add_argument("--count", type=int, default=2000, metavar="N", help="calls in all")
    given = parser.parse_args(arguments)
    try:
        seconds = uvloop.run(measured(given.redis, given.rate, given.count))
    except ConnectionError as fault:
        sys.stderr.write(f"{fault}\n")
        return 1
    cuts = [1000 * second for second in statistics.quantiles(seconds, n=100)]
    sys.stdout.write(
        f"{len(seconds)} slots at {given.rate:g}/s: median {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
