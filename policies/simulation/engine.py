"""An engine in virtual time: one serial prefill server, S slots, streams that all decode at one rate.

Rates are fluid and change only at events, so a run jumps from event to event. A slot is taken from dispatch
to the last token. Beyond its slots an engine queues, first come first served, as real ones do.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass

from policies.simulation.cache import cache
from policies.simulation.profile import Profile
from policies.simulation.workload import Turn

INSTANT = 1e-6  # seconds, or tokens: nearer than this is now; far above the rounding of long runs


class Mode(enum.StrEnum):
    """How prefills follow one another; no published measurement mixes lengths, so both are simulated."""

    STRICT = "strict"  # first come first served
    SHARED = "shared"  # a prompt of one chunk rides along with the next chunk of a longer one, as with vLLM's
    # `--long-prefill-token-threshold`: the step takes the time of both, and its first token comes at the end


class Phase(enum.Enum):
    """Where in an engine a request is."""

    QUEUED = enum.auto()  # no slot yet
    PREFILL = enum.auto()  # waits for the prefill server, or is there
    DECODE = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True, eq=False)
class Job:
    """A request at an engine. Times are on the run's clock."""

    id: str
    turn: Turn
    submitted: float
    phase: Phase = Phase.QUEUED
    started: float | None = None  # took a slot
    first: float | None = None  # first token
    ended: float | None = None  # last token
    cached_tokens: int = 0
    short: bool = False  # its prefill is one chunk
    work: float | None = None  # seconds of prefill in all; None: not begun
    done: float = 0.0  # of them
    step_end: float = 0.0  # the same, at the end of the chunk that it was last given
    last_token: float = 0.0  # on the engine's count of tokens per stream


class Engine:
    """One running engine. `advance` to the time of `next_event`, or to any time before it."""

    def __init__(self, profile: Profile, mode: Mode = Mode.STRICT) -> None:
        self.name = profile.name
        self.profile = profile
        self.mode = mode
        self.jobs: dict[str, Job] = {}  # all that it has taken, in order of arrival
        self.active = 0  # slots in use
        self.speed = 1.0  # of its rates; 0 while it is lost
        self.queue: deque[Job] = deque()  # beyond its slots
        self.entering: deque[Job] = deque()  # have a slot, on their way to the prefill server
        self.prefills: deque[Job] = deque()  # wait for the prefill server
        self.prefill: Job | None = None
        self.riding: list[Job] = []  # have been read, in the step of a longer one
        self.decoding: list[Job] = []
        self.cache = cache(profile)
        self._at = 0.0
        self._tokens = 0.0  # that a stream which always decoded would have made
        self._token_rate = 0.0  # per stream
        self._prefill_rate = 0.0  # seconds of work per second
        self._chunk_seconds = profile.chunk_tokens / profile.long_rate

    # -- what routers see ---------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether it answers."""
        return self.speed > 0

    def generated(self, job: Job) -> float:
        """Tokens of a decoding job so far, as of the last event."""
        return job.turn.output_tokens - (job.last_token - self._tokens)

    def cached_tokens(self, job: Job) -> int:
        """Of the job's prompt; as things stand now if its prefill has not begun. The last token is always
        computed: its logits are needed."""
        if job.work is not None:
            return job.cached_tokens
        prompt = job.turn.prompt
        found = self.cache.found(job.id, prompt) if job.phase is Phase.PREFILL else self.cache.matched(prompt)
        return min(job.turn.prompt_tokens - 1, found)

    def work_left(self, job: Job) -> float:
        """Seconds of prefill that the job still needs, in the same sense."""
        if job.work is not None:
            return job.work - job.done
        return self.profile.prefill_seconds(job.turn.prompt_tokens, self.cached_tokens(job))

    # -- events -------------------------------------------------------------------------------------

    def submit(self, job: Job, now: float) -> None:
        """A request arrives at the engine. What else is due now, `advance` reports."""
        self._flow(now)
        self.jobs[job.id] = job
        self.queue.append(job)
        self._fill(now)

    def set_speed(self, speed: float, now: float) -> list[Job]:
        """Its rates change; at 0 it is lost, with all it had, which is returned."""
        self._flow(now)
        lost: list[Job] = []
        if not speed:
            lost = list(self.jobs.values())
            self.jobs.clear()
            self.queue.clear()
            self.entering.clear()
            self.prefills.clear()
            self.riding.clear()
            self.decoding.clear()
            self.prefill = None
            self.active = 0
            self.cache = cache(self.profile)
        self.speed = speed
        self._rates()
        return lost

    def next_event(self) -> float:
        """When something happens there next; infinity: never."""
        if not self.jobs:
            return math.inf
        at = math.inf
        if self.entering:
            at = self._enters(self.entering[0])
        if self.prefill is not None:
            at = min(at, self._at + self._until_turn(self.prefill) / self._prefill_rate)
        if self.decoding:
            left = min(job.last_token for job in self.decoding) - self._tokens
            at = min(at, self._at + left / self._token_rate)
        return max(at, self._at)

    def advance(self, now: float) -> list[Job]:
        """Let time pass; the jobs that got their first token, or their last, in the order of the events."""
        self._flow(now)
        return self._settle(now)

    # -- inside -------------------------------------------------------------------------------------

    def _flow(self, now: float) -> None:
        passed = now - self._at
        if passed > 0:
            if self.prefill is not None:
                self.prefill.done += passed * self._prefill_rate
            self._tokens += passed * self._token_rate
        self._at = now

    def _settle(self, now: float) -> list[Job]:
        """Everything that is due."""
        moved: list[Job] = []
        while self.entering and self._enters(self.entering[0]) <= now + INSTANT:
            self.prefills.append(self.entering.popleft())
        if self.prefill is not None and self._until_turn(self.prefill) <= INSTANT:
            moved += self._turn(self.prefill, now)
        ended = [job for job in self.decoding if job.last_token <= self._tokens + INSTANT]
        for job in ended:
            self.decoding.remove(job)
            self._end(job, now)
        moved += ended
        if self.prefill is None and self.prefills:
            self.prefill = self._next_prefill()
        self._rates()
        if self._fill(now):
            moved += self._settle(now)
        return moved

    def _rates(self) -> None:
        batch = len(self.decoding)
        self._prefill_rate = self.speed / (1 + self.profile.prefill_slowdown * batch)
        if not batch:
            self._token_rate = 0.0
            return
        context = sum(job.turn.prompt_tokens for job in self.decoding) / batch
        rate = 1 / self.profile.token_seconds(batch, context)
        if self.prefill is not None:
            rate = min(rate, self.profile.starved_rate)
        self._token_rate = rate * self.speed

    def _fill(self, now: float) -> bool:
        """Free slots go to those who wait for one; whether any did."""
        filled = False
        while self.queue and self.active < self.profile.slots:
            job = self.queue.popleft()
            job.phase, job.started = Phase.PREFILL, now
            self.cache.start(job.id, job.turn.prompt)
            self.active += 1
            self.entering.append(job)
            filled = True
        return filled

    def _enters(self, job: Job) -> float:
        assert job.started is not None
        return job.started + self.profile.latency_seconds

    def _next_prefill(self) -> Job:
        """The next to be computed; what is cached counts from here, since the prefill before may have
        brought it."""
        job = self.prefills[0]
        if self.mode is Mode.SHARED:
            job = next((job for job in self.prefills if self._boards(job)), self._first_long() or job)
        self.prefills.remove(job)
        if job.work is None:
            job.short = self._short(job)
            job.cached_tokens = self.cached_tokens(job)
            job.work = self.work_left(job)
        job.step_end = (math.floor((job.done + INSTANT) / self._chunk_seconds) + 1) * self._chunk_seconds
        return job

    def _boards(self, job: Job) -> bool:
        """Whether a short prompt rides in the next step; all that do are one chunk at most."""
        riding = sum(other.turn.prompt_tokens - other.cached_tokens for other in self.riding)
        uncached = job.turn.prompt_tokens - self.cached_tokens(job)
        return self._short(job) and (not riding or riding + uncached <= self.profile.chunk_tokens)

    def _first_long(self) -> Job | None:
        return next((job for job in self.prefills if not self._short(job)), None)

    def _until_turn(self, job: Job) -> float:
        """Seconds of work until the prefill server may turn to another job: when this one is done, or at
        the end of its chunk if a short one waits, or rides."""
        assert job.work is not None
        left = job.work - job.done
        if self.mode is Mode.STRICT or job.short:
            return left
        if not self.riding and not any(self._short(other) for other in self.prefills):
            return left
        chunks = math.ceil((job.done - INSTANT) / self._chunk_seconds)
        return min(left, max(job.step_end, chunks * self._chunk_seconds) - job.done)

    def _turn(self, job: Job, now: float) -> list[Job]:
        self.prefill = None
        assert job.work is not None
        if job.work - job.done > INSTANT:
            self.prefills.appendleft(job)
            return self._land(now)
        self.riding.append(job)
        if self.mode is Mode.SHARED and job.short and self._first_long() is not None:
            return []
        return self._land(now)

    def _land(self, now: float) -> list[Job]:
        """The end of a step: what was read in it gets its first token. If that is the only one it is reported
        as the last."""
        landed, self.riding = self.riding, []
        for job in landed:
            job.phase, job.first = Phase.DECODE, now
            job.last_token = self._tokens + job.turn.output_tokens - 1
            self.cache.computed(job.id, job.turn.prompt)
            self.decoding.append(job)
        return [job for job in landed if job.turn.output_tokens > 1]

    def _end(self, job: Job, now: float) -> None:
        job.phase, job.ended = Phase.ENDED, now
        self.active -= 1
        del self.jobs[job.id]
        self.cache.end(job.id, job.turn.sequence)

    def _short(self, job: Job) -> bool:
        """Whether its prefill is one chunk."""
        if job.work is not None:
            return job.short
        return job.turn.prompt_tokens - self.cached_tokens(job) <= self.profile.chunk_tokens
