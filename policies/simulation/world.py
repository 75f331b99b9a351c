"""One run: programs ask, a router decides, engines answer, in virtual time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from policies.simulation.engine import Engine, Job, Mode, Phase
from policies.simulation.profile import Profile
from policies.simulation.router import Decision, Knowledge, Refuse, Request, Router, Start
from policies.simulation.workload import Happening, Program, Turn, Workload

TICK_SECONDS = 0.25  # as the gateway ticks
RETRY_SECONDS = 1.0  # a client whose answer broke off asks again
STALL_SECONDS = 20_000.0  # without an event at any engine while requests wait: the policy has lost them


@dataclass(frozen=True, slots=True)
class Record:
    """One turn, from its first arrival to its answer; times on the run's clock."""

    program: Program
    turn: Turn
    engine: str
    arrived: float
    started: float  # took the slot in which it was answered
    first: float
    ended: float
    cached_tokens: int


@dataclass(slots=True)
class Run:
    """What happened."""

    records: list[Record] = field(default_factory=list)
    refused: int = 0  # times that a client was turned away
    broken: int = 0  # answers that broke off
    oversubscribed: int = 0  # requests that an engine had to queue
    steps: int = 0  # events


@dataclass(slots=True, eq=False)
class _Progress:
    """Where a program is."""

    program: Program
    number: int  # of its turn
    arrived: float  # of that turn, the first time
    tries: int = 0


class World:
    """Everything of one run."""

    def __init__(
        self,
        profiles: Sequence[Profile],
        workload: Workload,
        policy: Callable[[Knowledge], Router],
        mode: Mode,
    ) -> None:
        self._engines = {profile.name: Engine(profile, mode) for profile in profiles}
        knowledge = Knowledge(
            tuple(self._engines.values()), slots_known=workload.slots_known, usage_known=workload.usage_known
        )
        self._router = policy(knowledge)
        self._workload = workload
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._requests: dict[str, tuple[Request, _Progress]] = {}
        self._ticking = False
        self._worked = 0.0  # when an engine did something, or nobody wanted anything, the last time
        self._foreground = sum(program.foreground for program in workload.programs)
        self.run = Run()

    def play(self) -> Run:
        """Until the last foreground program has ended, and what was asked until then is answered."""
        for program in self._workload.programs:
            progress = _Progress(program, 0, program.starts)
            self._at(program.starts, partial(self._begin, progress))
        for happening in self._workload.happenings:
            self._at(happening.at, partial(self._happen, happening))
        while self._foreground or self._requests:
            self._step()
        return self.run

    def _step(self) -> None:
        self.run.steps += 1
        soonest, engine = math.inf, None
        for candidate in self._engines.values():
            at = candidate.next_event()
            if at < soonest:
                soonest, engine = at, candidate
        if self._agenda and self._agenda[0][0] <= soonest:
            now, _, act = heapq.heappop(self._agenda)
            if not self._requests:
                self._worked = now
            act(now)
        else:
            assert engine is not None, f"{len(self._requests)} requests never start"
            now = self._worked = soonest
            for job in engine.advance(now):
                self._moved(engine, job, now)
        assert now - self._worked < STALL_SECONDS, f"{len(self._requests)} requests never start"
        if self._router.waiting and not self._ticking:
            self._ticking = True
            self._at((math.floor(now / TICK_SECONDS) + 1) * TICK_SECONDS, self._tick)

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), act))

    # -- clients ------------------------------------------------------------------------------------

    def _begin(self, progress: _Progress, now: float) -> None:
        if self._foreground or progress.program.foreground:  # the background stops with the foreground
            progress.arrived = now
            self._ask(progress, now)

    def _ask(self, progress: _Progress, now: float) -> None:
        program = progress.program
        progress.tries += 1
        id = f"{program.name}/{progress.number}/{progress.tries}"
        request = Request(id, program, program.turns[progress.number], now)
        self._requests[id] = (request, progress)
        self._obey(self._router.arrive(request, now), now)

    def _answered(self, progress: _Progress, now: float) -> None:
        program = progress.program
        progress.number += 1
        if progress.number < len(program.turns):
            pause = program.turns[progress.number].think_seconds
            self._at(now + pause, partial(self._begin, progress))
        elif program.foreground:
            self._foreground -= 1

    # -- decisions ----------------------------------------------------------------------------------

    def _obey(self, decisions: Iterable[Decision], now: float) -> None:
        for decision in decisions:
            request, progress = self._requests[decision.id]
            match decision:
                case Start():
                    engine = self._engines[decision.engine]
                    assert engine.alive, f"{decision.engine} is lost"
                    self.run.oversubscribed += engine.active + len(engine.queue) >= engine.profile.slots
                    engine.submit(Job(request.id, request.turn, now), now)
                case Refuse():
                    self.run.refused += 1
                    del self._requests[decision.id]
                    self._at(now + decision.retry_seconds, partial(self._ask, progress))

    def _tick(self, now: float) -> None:
        self._ticking = False
        self._obey(self._router.tick(now), now)

    # -- engines ------------------------------------------------------------------------------------

    def _moved(self, engine: Engine, job: Job, now: float) -> None:
        if job.phase is not Phase.ENDED:
            self._obey(self._router.first_token(job, now), now)
            return
        request, progress = self._requests.pop(job.id)
        assert job.started is not None
        assert job.first is not None
        self.run.records.append(
            Record(
                program=request.program,
                turn=request.turn,
                engine=engine.name,
                arrived=progress.arrived,
                started=job.started,
                first=job.first,
                ended=now,
                cached_tokens=job.cached_tokens,
            )
        )
        self._obey(self._router.ended(job, now), now)
        self._answered(progress, now)

    def _happen(self, happening: Happening, now: float) -> None:
        engine = self._engines[happening.engine]
        lost = engine.set_speed(happening.speed, now)
        self._obey(self._router.speed(engine, now), now)
        for job in lost:
            request, progress = self._requests[job.id]
            if job.first is None:
                self._obey(self._router.again(request, now), now)
                continue
            self.run.broken += 1
            del self._requests[job.id]
            self._obey(self._router.ended(job, now), now)
            self._at(now + RETRY_SECONDS, partial(self._ask, progress))
