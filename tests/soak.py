"""Everything at once for half an hour: `make soak`, or `make soak ARGS='--minutes 2'`.

The real gateway before three engines over connections that suffer, one of which is killed and started again
each minute; clients of all kinds, of which a third leave. At first its tables are filled up to their
bounds, since until then memory must grow. It ends with exit code 1 unless memory is flat from then on
(under 1 MB a minute, 0.5 of what is in use, told by runs of 20 minutes or more), descriptors and tasks are
back where they were, no engine ever had more requests than slots, nothing on its standard error tells of a
defect, and each request has ended as a success or one well-formed error. The whole standard error is kept
in the file that is named at the end.
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
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import linear_regression
from typing import Any

from policies.fairness import ACCOUNTS_MAX
from policies.stability import TURNS_MAX
from tests.faults.toxics import Proxy, proxy
from tests.faults.verdict import COMPLETED, verdict
from tests.processes.asking import CHAT, ask, quiet
from tests.processes.departures import leave
from tests.processes.fleet import becomes, settled
from tests.processes.harness import DEFECTS, Engine, Gateway, engine, gateway
from tests.processes.watched import seen

KINDS = ("llamacpp", "openai", "ds4")
SLOTS = 4
CLIENTS = 12
LEAVING_SHARE = 0.3
SUFFERING_SHARE = 0.05  # of connections
RESTART_SECONDS = 60.0
SAMPLE_SECONDS = 5.0
STILL_SECONDS = 40.0  # llama.cpp is given 30 to stop; a connection on which nothing is asked lives for 4
TURNS = 20  # of a conversation
CONVERSATIONS = max(ACCOUNTS_MAX, TURNS_MAX)  # that fill every table that clients can fill
WARM_MINUTES = 10.0  # that the history of the live page goes back, which fills by itself
MINUTES_MIN = 20.0  # the slope of a shorter time is noise
SLOPE_MAX = 1_000_000.0  # bytes per minute
USED_SLOPE_MAX = 500_000.0  # the same of what is in use: tables are full by number, not yet by bytes
LIMITS = {"first_token_seconds": 5.0, "idle_seconds": 3.0}
QUEUE = {"wait_seconds_max": 10.0, "unavailable_grace_seconds": 5.0, "total_seconds_max": 18.0}


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway at one moment."""

    minutes: float
    memory_bytes: int
    descriptors: int
    tasks: int
    used_bytes: int  # of memory, that is, without what is free between


@dataclass(slots=True)
class Stage:
    """All that runs."""

    front: Gateway
    engines: list[Engine]
    proxies: list[Proxy]
    watched: Path
    over_slots: Counter[str] = field(default_factory=Counter)  # of engines that were killed, too

    def sample(self, minutes: float) -> Sample:
        """Look at the gateway from outside; its tasks it tells itself."""
        folder = Path(f"/proc/{self.front.process.pid}")
        found = re.search(r"VmRSS:\s+(\d+) kB", (folder / "status").read_text())
        assert found is not None
        told = seen(self.watched, "tasks")[-1]
        return Sample(
            minutes,
            int(found[1]) * 1024,
            len(list((folder / "fd").iterdir())),
            told["tasks"],
            told["used"],
        )

    async def count(self, one: Engine) -> None:
        """Note how often an engine had more requests than slots, as it saw it."""
        self.over_slots[one.url] += (await one.state())["over_slots"]


@asynccontextmanager
async def stage(seed: int, kept: Path) -> AsyncIterator[Stage]:
    """Run all of it; `kept`: where the gateway's standard error is found afterwards."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines, proxies, backends = [], [], []
        for number, kind in enumerate(KINDS):
            one = await stack.enter_async_context(
                engine(kind, slots=SLOTS, tokens=12, prefill_tps=1e6, decode_tps=100.0, model=["shared"])
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
        os.link(front.process.folder / "stderr", kept)
        for number in range(len(KINDS)):
            await becomes(front, f"b{number}", "ready")
        yield Stage(front, engines, proxies, folder / "watched")


def said(dice: random.Random, name: str, turns: int) -> list[dict[str, str]]:
    """A conversation of so many questions."""
    messages = [{"role": "user", "content": f"{name} asks {prose(dice)}"}]
    for turn in range(1, turns):
        messages += answered(dice, turn)
    return messages


def answered(dice: random.Random, turn: int) -> list[dict[str, str]]:
    """An answer, and the next question."""
    return [
        {"role": "assistant", "content": f"{turn} {prose(dice)}"},
        {"role": "user", "content": f"{turn} {prose(dice)}"},
    ]


def prose(dice: random.Random) -> str:
    """Some words."""
    return "and so on " * dice.randrange(30)


async def fill(one: Stage, dice: random.Random) -> None:
    """As many conversations as fill each table, each as large as it will be at its end."""
    numbers = iter(range(CONVERSATIONS))

    async def ask_all() -> None:
        for number in numbers:
            messages = said(dice, f"filler {number}", TURNS)
            body = {"model": "shared", "messages": messages, "max_tokens": 1}
            reply = await ask(one.front, body, [("X-Slotgate-Session", f"filler-{number}")])
            assert verdict(reply, stream=False) == COMPLETED
            if sys.stderr.isatty() and number % 100 == 0:
                sys.stderr.write(f"\rfilling: {number} of {CONVERSATIONS}   ")

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(ask_all())


async def client(one: Stage, dice: random.Random, name: str, outcomes: Counter[str]) -> None:
    """Ask and ask; conversations grow, as those of agents do."""
    for conversation in count():
        messages = said(dice, f"{name} {conversation}", 1)
        headers = [("X-Slotgate-Session", f"{name}-{conversation}")]
        for turn in range(TURNS):
            stream, length = dice.random() < 0.7, dice.choice((2, 12))
            body = {"model": "shared", "messages": messages, "stream": stream, "max_tokens": length}
            if dice.random() < LEAVING_SHARE:
                await leave(one.front, dice, CHAT, body, headers)
                outcomes["left"] += 1
            else:
                reply = await ask(one.front, body, headers)
                streams = reply.head.headers["content-type"] != "application/json"
                outcomes[verdict(reply, stream=streams)] += 1
            messages += answered(dice, turn + 1)


async def misfortune(one: Stage, dice: random.Random) -> None:
    """Kill an engine now and then, and start it again."""
    while True:
        await asyncio.sleep(RESTART_SECONDS)
        unlucky = dice.choice(one.engines)
        await one.count(unlucky)
        await unlucky.restart()


async def soak(one: Stage, minutes: float, dice: random.Random, outcomes: Counter[str]) -> list[Sample]:
    """Samples of so many minutes."""
    for each in one.proxies:
        each.share = SUFFERING_SHARE
    began, samples = time.monotonic(), list[Sample]()
    async with asyncio.TaskGroup() as group:
        names = [f"client {began:.0f} {number}" for number in range(CLIENTS)]
        busy = [group.create_task(client(one, dice, name, outcomes)) for name in names]
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
    """The gateway with nothing to do: what it left to engines is over, its idle connections are closed."""
    await quiet(one.front)
    await settled(one.front, *(f"b{number}" for number in range(len(KINDS))))
    await asyncio.sleep(STILL_SECONDS)
    return one.sample(0.0)


def judged(minutes: float, before: Sample, samples: list[Sample], after: Sample) -> dict[str, Any]:
    """The figures, and what is wrong with them."""
    warm = [sample for sample in samples if sample.minutes >= min(WARM_MINUTES, minutes / 2)]
    minute = [s.minutes for s in warm]
    slope = linear_regression(minute, [s.memory_bytes for s in warm]).slope
    used_slope = linear_regression(minute, [s.used_bytes for s in warm]).slope
    faults = [
        f"{name} are left over"
        for name in ("descriptors", "tasks")
        if getattr(after, name) > getattr(before, name)
    ]
    if minutes >= MINUTES_MIN and (slope > SLOPE_MAX or used_slope > USED_SLOPE_MAX):
        faults.append("memory grows")
    return {
        "memory_mb": [round(s.memory_bytes / 1e6, 1) for s in (before, warm[0], warm[-1], after)],
        "memory_mb_per_minute": round(slope / 1e6, 3),
        "used_mb": [round(s.used_bytes / 1e6, 1) for s in (before, warm[0], warm[-1], after)],
        "used_mb_per_minute": round(used_slope / 1e6, 3),
        "descriptors": [before.descriptors, max(s.descriptors for s in samples), after.descriptors],
        "tasks": [before.tasks, max(s.tasks for s in samples), after.tasks],
        "faults": faults,
    }


def defects(errors: str) -> list[str]:
    """What a log tells of defects: each such line, with what follows of a traceback."""
    found, follows = list[str](), False
    for line in errors.splitlines():
        if any(words in line for words in DEFECTS):
            found.append(line)
            follows = not line.startswith("{")
        elif follows and not line.startswith("{"):
            found[-1] += "\n" + line
        else:
            follows = False
    return found


async def main(minutes: float, seed: int) -> int:
    """1 if something is wrong."""
    outcomes: Counter[str] = Counter()
    kept = Path(tempfile.mkdtemp(prefix="slotgate-soak-")) / "stderr"
    async with stage(seed, kept) as one:
        dice = random.Random(seed)
        begun = len(seen(one.watched, "collector")) + 1  # it has looked at all, before anybody was served
        await fill(one, dice)
        await soak(one, 0.2, dice, Counter())  # all code is loaded
        before = await still(one)
        samples = await soak(one, minutes, dice, outcomes)
        figures = judged(minutes, before, samples, await still(one))
        for each in one.engines:
            await one.count(each)
        suffered = sum((each.suffered for each in one.proxies), Counter())
        stalls = sorted(seen(one.watched, "stall"), key=lambda line: float(line["stall"]), reverse=True)
        collector = max(line["collector"] for line in seen(one.watched, "collector")[begun:])
    told = defects(kept.read_text(errors="replace"))
    over = one.over_slots.total()
    figures |= {"seed": seed, "minutes": minutes, "requests": dict(outcomes), "suffered": dict(suffered)}
    figures |= {"over_slots": over, "collector_seconds": collector, "defects": len(told)}
    figures |= {"stalls": [f"{line['stall']} s: {' < '.join(line['at'][::-1])}" for line in stalls]}
    figures |= {"standard_error": str(kept)}
    print(json.dumps(figures, indent=1), *told[:10], sep="\n")  # noqa: T201
    return 1 if figures["faults"] or told or over else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    chosen = parser.parse_args()
    with suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(main(chosen.minutes, chosen.seed)))
