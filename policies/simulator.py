"""The simulator: engines in virtual time under the Admission that serves in production, beside published
policies on the same workload.

Deterministic: the same profiles, workload, policy and mode give the same run, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from policies.simulation.baselines import (
    BoundedHash,
    CacheAware,
    CentralQueue,
    Dynamo,
    LeastRequests,
    LMetric,
    RoundRobin,
    Sticky,
)
from policies.simulation.engine import Mode
from policies.simulation.profile import Profile
from policies.simulation.router import Knowledge, Router
from policies.simulation.seconds import SecondsAtArrival
from policies.simulation.slotgate import Slotgate
from policies.simulation.workload import Workload
from policies.simulation.world import Run, World

POLICIES: dict[str, Callable[[Knowledge], Router]] = {
    "slotgate": Slotgate,
    "round-robin": RoundRobin,
    "least-requests": LeastRequests,
    "sticky": Sticky,
    "chwbl": BoundedHash,
    "cache-aware-64": partial(CacheAware, absolute=64),
    "cache-aware-4": partial(CacheAware, absolute=4),
    "lmetric": LMetric,
    "dynamo": Dynamo,
    "central-fcfs": CentralQueue,
    "seconds-at-arrival": SecondsAtArrival,
}


def simulate(profiles: Sequence[Profile], workload: Workload, policy: str, mode: Mode = Mode.STRICT) -> Run:
    """One run. KeyError: no such policy."""
    return World(profiles, workload, POLICIES[policy], mode).play()
