"""How long a decision takes with many calls in the queue: `python -m gateway.bench.decisions`.

The admission that serves, without a network: 16 backends with 8 slots each, all busy; agents with warm and
cold conversations and people, of whom so many wait all the time. Each step ends a call, which starts another,
and lets one more come. What is timed is one event with all that it decides; garbage is collected as in the
process that serves.
"""

from __future__ import annotations

import gc
import random
import sys
from time import thread_time

from gateway.collector import GC_THRESHOLDS
from policies.admission import Admission
from policies.prefix import Link, PrefixShadow
from policies.service_model import ServiceModel
from policies.types import Backend, Call, Decision, Granted, Limits, Priority, Source, State

BACKENDS, SLOTS = 16, 8
AGENTS = 200
STEPS = 2000
STEP_SECONDS = 0.25  # between two ends of calls
WAITING = (0, 100, 1000, 10_000)
MODEL, ROUTE = "m", "/v1/chat/completions"


class Crowd:
    """Calls of agents in the middle of conversations, and of people."""

    def __init__(self) -> None:
        self._chance = random.Random(1)
        self._made = 0

    def call(self, now: float) -> Call:
        """The next one."""
        chance, number = self._chance, self._made
        self._made += 1
        agent = chance.randrange(AGENTS)
        person = chance.random() < 0.1
        turns = 1 if person else chance.randrange(2, 40)
        thread = number if person else agent * 10 + chance.randrange(10)
        chain = tuple(Link(thread * 100 + turn, 4000 * (turn + 1)) for turn in range(turns))
        return Call(
            id=f"{number}",
            model=MODEL,
            route=ROUTE,
            priority=Priority.INTERACTIVE if person else Priority.AGENT,
            agent=f"{agent}",
            conversation=thread,
            accounts=(("",), ("", agent), ("", agent, thread)),
            arrived=now,
            prompt_tokens=1000 * turns,
            chain=chain,
        )


class Stage:
    """A fleet under load."""

    def __init__(self, waiting: int) -> None:
        self.admission = Admission(Limits(waiting_max=10**9, waiting_bytes_max=10**12, wait_seconds_max=1e9))
        self.now = 0.0
        self._crowd = Crowd()
        self._running: list[str] = []
        self._reading: list[str] = []
        for number in range(BACKENDS):
            self._join(f"backend-{number}")
        for _ in range(BACKENDS * SLOTS):
            self.submit()
            self._read()
        while len(self.admission.queue) < waiting:
            self.submit()

    def submit(self) -> float:
        """A call comes; seconds that this took."""
        call = self._crowd.call(self.now)
        start = thread_time()
        decisions = self.admission.submit(call, self.now)
        seconds = thread_time() - start
        self._started(decisions)
        return seconds

    def finish(self) -> float:
        """The call that started first ends, and what was waiting for its slot starts."""
        self.now += STEP_SECONDS
        self._read()
        id = self._running.pop(0)
        start = thread_time()
        decisions = self.admission.finish(id, self.now)
        seconds = thread_time() - start
        self._started(decisions)
        return seconds

    def _started(self, decisions: list[Decision]) -> None:
        self._reading += [decision.lease.call.id for decision in decisions if isinstance(decision, Granted)]

    def _read(self) -> None:
        """Prompts that were sent have been read, which opens gates."""
        for id in tuple(self._reading):
            self._reading.remove(id)
            self._running.append(id)
            self._started(self.admission.first_token(id, self.now))

    def _join(self, name: str) -> None:
        backend = Backend(
            name, ServiceModel(), PrefixShadow(), models=frozenset({MODEL}), routes=frozenset({ROUTE})
        )
        self.admission.add(backend, 0.0)
        self.admission.resize(name, 0.0, slots=SLOTS, source=Source.REPORTED, context_tokens=131_072)
        self.admission.set_state(name, State.READY, 0.0)


def measure(waiting: int, steps: int = STEPS) -> dict[str, list[float]]:
    """Seconds of each event, by kind, sorted."""
    stage = Stage(waiting)
    times: dict[str, list[float]] = {"a call ends": [], "a call comes": []}
    for _ in range(steps):
        times["a call ends"].append(stage.finish())
        while len(stage.admission.queue) < waiting or not waiting:
            times["a call comes"].append(stage.submit())
            if not waiting:
                break
    return {kind: sorted(seconds) for kind, seconds in times.items()}


def main() -> None:
    """Print the table."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    print(
        f"{BACKENDS} backends of {SLOTS} slots, {STEPS} steps, Python {sys.version.split()[0]}; milliseconds"
    )
    print(f"{'waiting':>8}  {'event':<14}{'p50':>8}{'p99':>8}")
    for waiting in WAITING:
        for kind, seconds in measure(waiting).items():
            if seconds:
                p50, p99 = (1000 * seconds[int(share * len(seconds))] for share in (0.5, 0.99))
                print(f"{waiting:>8}  {kind:<14}{p50:>8.3f}{p99:>8.3f}")


if __name__ == "__main__":
    main()
