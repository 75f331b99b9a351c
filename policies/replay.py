"""Requests that were served, played again on a fleet of one's choice, under the admission that serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from policies.service_model import ServiceModel
from policies.simulation.engine import Mode
from policies.simulation.profile import CacheKind, Profile
from policies.simulation.router import Decision, Knowledge
from policies.simulation.slotgate import Slotgate
from policies.simulation.spread import Spread, spread
from policies.simulation.workload import Workload
from policies.simulation.world import World
from policies.traffic import Asked, programs, within
from policies.types import Limits

ENDLESS = 2**40  # tokens of a context that nobody knows, requests, bytes, seconds
TICK_SECONDS = 2.0  # a tick looks at every request that waits: on a full fleet they are all that a play does
CHUNK_TOKENS = 2048  # of a prompt computed in one step, where nobody tells


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a play came to; seconds, over its requests."""

    requests: int
    too_long: int  # left out: no backend's window held them
    wait_mean: float
    wait: Spread  # arrival to slot
    ttft_mean: float
    ttft: Spread  # arrival to first token


class Patient(Slotgate):
    """slotgate with clients that wait for ever: a wait is to be seen in whole, and those who were turned away
    and came back would be played twice."""

    def __init__(self, knowledge: Knowledge, limits: Limits) -> None:
        patience = replace(
            limits, waiting_max=ENDLESS, waiting_bytes_max=ENDLESS, wait_seconds_max=float(ENDLESS)
        )
        super().__init__(knowledge, patience)
        self._ticked = 0.0

    def tick(self, now: float) -> list[Decision]:
        """Nobody's patience ends, so time alone changes little, and nothing while all slots are taken."""
        free = any(backend.free for backend in self.admission.backends.values())
        if not free or now - self._ticked < TICK_SECONDS:
            return []
        self._ticked = now
        return super().tick(now)


def profile(
    name: str,
    service: ServiceModel,
    cache: CacheKind,
    *,
    slots: int,
    context_tokens: int | None,
    kv_tokens: int | None = None,
) -> Profile:
    """A backend for the simulation, by the rates that were learnt of it."""
    head = service.prefill_head_tokens_per_second or service.prefill_tokens_per_second
    return Profile(
        name=name,
        slots=slots,
        context_tokens=min(context_tokens or ENDLESS, kv_tokens or ENDLESS),
        setup_seconds=service.setup_seconds,
        latency_seconds=service.first_token_seconds,
        short_rate=head,
        long_rate=service.prefill_tokens_per_second,
        quadratic_seconds=service.prefill_square_seconds,
        decode_base_seconds=service.decode_base_seconds,
        decode_step_seconds=service.decode_step_seconds,
        decode_context_seconds=service.decode_depth_seconds,
        starved_rate=service.starved_tokens_per_second,
        prefill_slowdown=0.0,
        chunk_tokens=CHUNK_TOKENS,
        cache=cache,
        cache_tokens=service.cache_block_tokens,
        pool_tokens=kv_tokens or (slots * (context_tokens or ENDLESS) if cache is CacheKind.BLOCK else 0),
    )


def play(asked: Sequence[Asked], profiles: Sequence[Profile], limits: Limits) -> Outcome:
    """Play those that the fleet holds."""
    rows = within(asked, max(profile.context_tokens for profile in profiles))
    world = World(profiles, Workload(programs(rows)), partial(Patient, limits=limits), Mode.STRICT)
    records = world.play().records
    waits = [record.started - record.arrived for record in records]
    firsts = [record.first - record.arrived for record in records]
    return Outcome(
        requests=len(records),
        too_long=len(asked) - len(rows),
        wait_mean=sum(waits) / len(waits),
        wait=spread(waits),
        ttft_mean=sum(firsts) / len(firsts),
        ttft=spread(firsts),
    )
