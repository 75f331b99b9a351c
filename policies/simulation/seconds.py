"""Seconds, bound at arrival: the cost that slotgate pays in, with true constants and a true view of caches,
but every request is sent at once and waits in the engine."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from policies.simulation.baselines import AtArrival, matched
from policies.simulation.engine import Engine, Job, Phase
from policies.simulation.router import Request
from policies.types import Priority

OUTPUT_TOKENS = {Priority.INTERACTIVE: 96, Priority.AGENT: 128, Priority.BATCH: 128}  # about the medians
WEIGHTS = {Priority.INTERACTIVE: 6.0, Priority.AGENT: 1.0, Priority.BATCH: 0.3}  # of a second of waiting
LEFT_SHARE = 0.25  # of an answer's median that is still to come, at least: it is longer than was thought


class SecondsAtArrival(AtArrival):
    """The engine that costs least: waiting, prefill of what is not cached, decode, harm to others."""

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        return self.least(engines, lambda engine: cost_seconds(request, engine))


def cost_seconds(request: Request, engine: Engine) -> float:
    """What the request would cost there."""
    profile, turn, priority = engine.profile, request.turn, request.program.priority
    output = OUTPUT_TOKENS[priority]
    slot = slot_seconds(engine)
    queued = max(0.0, sum(engine.work_left(job) for job in engine.jobs.values() if job.first is None) - slot)
    prefill = profile.prefill_seconds(turn.prompt_tokens, matched(request, engine))
    decoding = sum(job.phase is Phase.DECODE for job in engine.jobs.values())
    batch = min(len(engine.jobs), profile.slots - 1)
    first = slot + queued + prefill + profile.latency_seconds
    decode = output * profile.token_seconds(batch + 1, turn.prompt_tokens)
    starved = 1 - profile.starved_rate * profile.token_seconds(max(1, decoding), turn.prompt_tokens)
    harm = prefill * decoding * max(0.0, starved) + output * profile.decode_step_seconds * batch
    return WEIGHTS[priority] * first + decode + harm


def slot_seconds(engine: Engine) -> float:
    """Seconds until a slot would be free for a newcomer."""
    free = engine.profile.slots - engine.active - len(engine.queue)
    if free > 0:
        return 0.0
    seconds = engine.profile.token_seconds(engine.profile.slots, 0)
    ends: list[float] = []
    prefills = 0.0
    for job in engine.jobs.values():
        if job.started is None:
            continue
        if job.first is None:
            prefills += engine.work_left(job)
            ends.append(prefills + _output(job, engine) * seconds)
        else:
            ends.append(_output(job, engine) * seconds)
    heapq.heapify(ends)
    for job in engine.queue:
        start = heapq.heappop(ends)
        prefills = max(prefills, start) + engine.work_left(job)
        heapq.heappush(ends, prefills + _output(job, engine) * seconds)
    return ends[0]


def _output(job: Job, engine: Engine) -> float:
    """Tokens that a job has still to make, as far as can be guessed."""
    guess = OUTPUT_TOKENS[Priority.AGENT]
    done = engine.generated(job) if job.phase is Phase.DECODE else 0.0
    return max(guess - done, LEFT_SHARE * guess)
