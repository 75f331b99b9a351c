"""Everything at once for half an hour: `make soak`, or `make soak ARGS='--minutes 2'`.

The real gateway before three engines over connections that suffer, one of which is killed and started again
each minute; clients of all kinds, of which a third leave. It ends with exit code 1 unless memory is flat
(under 1 MB a minute, told from ten minutes on), descriptors and tasks are back where they were, no slot is
lost, and each request has ended as a success or one well-formed error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

from tests.faults.toxics import Proxy, proxy
from tests.faults.verdict import verdict
from tests.processes.asking import CHAT, ask, quiet
from tests.processes.departures import leave
from tests.processes.fleet import becomes, settled
from tests.processes.harness import Engine, Gateway, chat, engine, gateway
from tests.processes.watched import seen

KINDS = ("llamacpp", "openai", "ds4")
SLOTS = 4
CLIENTS = 12
LEAVING_SHARE = 0.3
SUFFERING_SHARE = 0.05  # of connections
RESTART_SECONDS = 60.0
SAMPLE_SECONDS = 5.0
WARM_SHARE = 0.3  # of the time; from then on memory must not grow
SLOPE_MINUTES_MIN = 10.0  # the slope of a shorter time is noise
SLOPE_MAX = 1_000_000.0  # bytes per minute
LEFT_MAX = 4  # descriptors and tasks more than before: idle connections to engines
LIMITS = {"first_token_seconds": 5.0, "idle_seconds": 3.0}
QUEUE = {"wait_seconds_max": 10.0, "unavailable_grace_seconds": 5.0, "total_seconds_max": 18.0}


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway at one moment."""

    minutes: float
    memory_bytes: int
    descriptors: int
    tasks: int


@dataclass(slots=True)
class Stage:
    """All that runs."""

    front: Gateway
    engines: list[Engine]
    proxies: list[Proxy]
    watched: Path

    def sample(self, minutes: float) -> Sample:
        """Look at the gateway from outside; its tasks it tells itself."""
        folder = Path(f"/proc/{self.front.process.pid}")
        found = re.search(r"VmRSS:\s+(\d+) kB", (folder / "status").read_text())
        assert found is not None
        return Sample(
            minutes,
            int(found[1]) * 1024,
            len(list((folder / "fd").iterdir())),
            seen(self.watched, "tasks")[-1]["tasks"],
        )


@asynccontextmanager
async def stage(seed: int) -> AsyncIterator[Stage]:
    """Run all of it."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines, proxies, backends = [], [], []
        for number, kind in enumerate(KINDS):
            one = await stack.enter_async_context(
                engine(kind, slots=SLOTS, tokens=12, decode_tps=100.0, model=["shared"])
            )
            before = await stack.enter_async_context(proxy(one.port, seed))
            engines.append(one)
            proxies.append(before)
            backends.append(
                {"name": f"b{number}", "url": before.url, "slots": SLOTS, "timeouts": LIMITS}
                | {"warmup": {"requests": 1}, "models": ["shared"]}
            )
        front = await stack.enter_async_context(
            gateway(
                {"backends": backends, "queue": QUEUE},
                program=("tests.processes.watched", "serve"),
                clean=False,  # what it complains about is shown with the figures
                environment={"WATCHED": str(folder / "watched")},
            )
        )
        for number in range(len(KINDS)):
            await becomes(front, f"b{number}", "ready")
        yield Stage(front, engines, proxies, folder / "watched")


async def client(one: Stage, dice: random.Random, number: int, outcomes: Counter[str]) -> None:
    """Ask and ask; some of its conversations grow, as those of agents do."""
    text = f"client {number} "
    turn = 0
    while True:
        turn += 1
        text = f"client {number} " if turn % 20 == 0 else text + "and so on " * dice.randrange(30)
        body = chat(f"{turn} {text}", stream=dice.random() < 0.7, max_tokens=dice.choice((2, 12)))
        body["model"] = "shared"
        headers = [("X-Slotgate-Session", f"session-{number}-{turn // 20}")]
        if dice.random() < LEAVING_SHARE:
            await leave(one.front, dice, CHAT, body, headers)
            outcomes["left"] += 1
        else:
            reply = await ask(one.front, body, headers)
            streams = reply.head.headers["content-type"] != "application/json"
            outcomes[verdict(reply, stream=streams)] += 1


async def misfortune(one: Stage, dice: random.Random) -> None:
    """Kill an engine now and then, and start it again."""
    while True:
        await asyncio.sleep(RESTART_SECONDS)
        await dice.choice(one.engines).restart()


async def soak(one: Stage, minutes: float, dice: random.Random, outcomes: Counter[str]) -> list[Sample]:
    """Samples of so many minutes."""
    for each in one.proxies:
        each.share = SUFFERING_SHARE
    began, samples = time.monotonic(), list[Sample]()
    async with asyncio.TaskGroup() as group:
        busy = [group.create_task(client(one, dice, number, outcomes)) for number in range(CLIENTS)]
        busy.append(group.create_task(misfortune(one, dice)))
        while (passed := (time.monotonic() - began) / 60) < minutes:
            await asyncio.sleep(SAMPLE_SECONDS)
            samples.append(one.sample(passed))
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{passed:.1f} min  {outcomes.total()} requests  {samples[-1]}   ")
        for task in busy:
            task.cancel()
    for each in one.proxies:
        each.share = 0.0
    return samples


async def still(one: Stage) -> Sample:
    """The gateway with nothing to do, its idle connections closed."""
    await quiet(one.front)
    await settled(one.front, *(f"b{number}" for number in range(len(KINDS))))
    await asyncio.sleep(8.0)
    return one.sample(0.0)


def judged(minutes: float, before: Sample, samples: list[Sample], after: Sample) -> dict[str, Any]:
    """The figures, and what is wrong with them."""
    warm = [sample for sample in samples if sample.minutes >= WARM_SHARE * minutes]
    slope = linear_regression([s.minutes for s in warm], [s.memory_bytes for s in warm]).slope
    faults = [
        f"{name} are left over"
        for name in ("descriptors", "tasks")
        if getattr(after, name) > getattr(before, name) + LEFT_MAX
    ]
    if minutes >= SLOPE_MINUTES_MIN and slope > SLOPE_MAX:
        faults.append("memory grows")
    return {
        "memory_mb": [round(s.memory_bytes / 1e6, 1) for s in (before, warm[0], warm[-1], after)],
        "memory_mb_per_minute": round(slope / 1e6, 3),
        "descriptors": [before.descriptors, max(s.descriptors for s in samples), after.descriptors],
        "tasks": [before.tasks, max(s.tasks for s in samples), after.tasks],
        "faults": faults,
    }


async def main(minutes: float, seed: int) -> int:
    """1 if something is wrong."""
    outcomes: Counter[str] = Counter()
    async with stage(seed) as one:
        dice = random.Random(seed)
        await soak(one, 0.2, dice, Counter())  # the code is loaded, the tables have their first entries
        before = await still(one)
        samples = await soak(one, minutes, dice, outcomes)
        figures = judged(minutes, before, samples, await still(one))
        suffered = sum((each.suffered for each in one.proxies), Counter())
        over = [(await each.state())["over_slots"] for each in one.engines]
        stalls = [line["stall"] for line in seen(one.watched, "stall")]
        told = one.front.process.errors.splitlines()
    figures |= {"seed": seed, "minutes": minutes, "requests": dict(outcomes), "suffered": dict(suffered)}
    defects = [line[:2000] for line in told if "Traceback" in line]
    figures |= {"over_slots": over, "stalls_seconds": sorted(stalls)[-5:], "defects": defects[:3]}
    print(json.dumps(figures, indent=1))  # noqa: T201
    return 1 if figures["faults"] or defects or any(over) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    chosen = parser.parse_args()
    with suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(main(chosen.minutes, chosen.seed)))
