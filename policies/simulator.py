"""The simulator: engines in virtual time under the Admission that serves in production, beside published
policies on the same workload.

Deterministic: the same profiles, workload, policy and mode give the same run, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
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
from policies.simulation.bounds import Bounds, bounds
from policies.simulation.engine import Mode
from policies.simulation.profile import Profile
from policies.simulation.report import Figures, figures, mean
from policies.simulation.router import Knowledge, Router
from policies.simulation.scenarios import SCENARIOS
from policies.simulation.seconds import SecondsAtArrival
from policies.simulation.slotgate import Slotgate
from policies.simulation.spread import mean_spreads
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


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy's figures, means over the workloads that it was given."""

    policy: str
    mode: Mode
    figures: Figures


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies on one fleet and workload, beside what none can beat."""

    workload: str
    agents: int  # of a scenario
    runs: int  # that were averaged
    engines: tuple[str, ...]
    limits: Bounds
    rows: tuple[Compared, ...]

    @property
    def title(self) -> str:
        """What was played."""
        return f"{self.workload}, {self.agents} agents" if self.workload in SCENARIOS else self.workload

    @property
    def modes(self) -> list[Mode]:
        """Those that were played."""
        return list(dict.fromkeys(row.mode for row in self.rows))

    def of(self, mode: Mode) -> list[Compared]:
        """The rows of one mode."""
        return [row for row in self.rows if row.mode is mode]

    def plain(self) -> dict[str, object]:
        """As JSON holds it."""
        return asdict(self)


def simulate(profiles: Sequence[Profile], workload: Workload, policy: str, mode: Mode = Mode.STRICT) -> Run:
    """One run. KeyError: no such policy."""
    return World(profiles, workload, POLICIES[policy], mode).play()


def compare(
    profiles: Sequence[Profile], workloads: Sequence[Workload], policies: Sequence[str], modes: Sequence[Mode]
) -> Iterator[Compared]:
    """Each policy in each mode, over all workloads; one by one, as they are done."""
    for mode in modes:
        for policy in policies:
            runs = [figures(simulate(profiles, load, policy, mode), profiles) for load in workloads]
            yield Compared(policy, mode, mean(runs))


def limits(profiles: Sequence[Profile], workloads: Sequence[Workload]) -> Bounds:
    """What no policy can beat, means over workloads. Engines that are lost for good do not count: what
    survives must do the work."""
    found = [bounds(survivors(profiles, load), load.programs) for load in workloads]
    return Bounds(
        fluid_seconds=sum(bound.fluid_seconds for bound in found) / len(found),
        path_seconds=sum(bound.path_seconds for bound in found) / len(found),
        endless_seconds=sum(bound.endless_seconds for bound in found) / len(found),
        joint_seconds=sum(bound.joint_seconds for bound in found) / len(found),
        makespan_seconds=sum(bound.makespan_seconds for bound in found) / len(found),
        hit_ratio=sum(bound.hit_ratio for bound in found) / len(found),
        ttft=mean_spreads([bound.ttft for bound in found]),
    )


def survivors(profiles: Sequence[Profile], workload: Workload) -> list[Profile]:
    """The engines that are not lost for good."""
    last = {happening.engine: happening.speed for happening in workload.happenings}
    return [profile for profile in profiles if last.get(profile.name, 1.0) > 0]
