"""What a policy is to the simulation: something that hears of events and says which request starts where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.simulation.engine import Engine, Job
from policies.simulation.workload import Program, Turn


@dataclass(slots=True, eq=False)
class Request:
    """One turn on its way."""

    id: str
    program: Program
    turn: Turn
    arrived: float


@dataclass(frozen=True, slots=True)
class Start:
    """This request goes to that engine now."""

    id: str
    engine: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """This request is turned away; its client comes back after this many seconds."""

    id: str
    retry_seconds: float


Decision = Start | Refuse


class Router(Protocol):
    """A policy. Each method returns the decisions that its event caused."""

    @property
    def waiting(self) -> int:
        """Requests that it holds back; while there are any it gets ticks."""

    def arrive(self, request: Request, now: float) -> Sequence[Decision]:
        """A client asks."""

    def again(self, request: Request, now: float) -> Sequence[Decision]:
        """The engine was lost before the first token: the request needs another one."""

    def first_token(self, job: Job, now: float) -> Sequence[Decision]:
        """An engine begins to answer."""

    def ended(self, job: Job, now: float) -> Sequence[Decision]:
        """It has answered, or was lost within the answer."""

    def speed(self, engine: Engine, now: float) -> Sequence[Decision]:
        """An engine was lost, or came back."""

    def tick(self, now: float) -> Sequence[Decision]:
        """Time passed while requests wait."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a policy may know beforehand."""

    engines: Sequence[Engine]  # the published policies look into them: a better view than any has in life
    slots_known: bool = True
    usage_known: bool = True
