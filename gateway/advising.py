"""Plays requests again, in a process of its own beside the one that serves: a thread would take the
interpreter from the event loop."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from typing import Literal

from gateway.journal import JournalError
from gateway.traffic import journalled
from policies.advice import Advice, Deployment, advise
from policies.traffic import Asked
from policies.types import Limits

NICENESS = 10
NO_BACKEND = "No backend is up, so there is nothing to compare the traffic with."
NO_TRAFFIC = (
    "No request has ended yet that held a slot and whose tokens are known; ask again after some traffic."
)


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be played."""

    groups: tuple[tuple[Deployment, ...], ...]  # backends that serve one another's requests
    limits: Limits
    journal: str  # "": there is none
    since: float  # seconds since 1970
    remembered: tuple[Asked, ...] = ()  # where there is no journal


@dataclass(frozen=True, slots=True)
class Group:
    """Backends that serve one another's requests, and what these say."""

    backends: tuple[str, ...]
    advice: Advice | None  # None: they had no request that can be played


@dataclass(frozen=True, slots=True)
class Answer:
    """What the traffic says."""

    source: Literal["journal", "memory"]
    groups: tuple[Group, ...]
    problem: str = ""  # why there is nothing, for people


def answer(task: Task) -> Answer:
    """Play it."""
    source: Literal["journal", "memory"] = "journal" if task.journal else "memory"
    try:
        asked = journalled(task.journal, task.since) if task.journal else task.remembered
    except JournalError as error:
        return Answer(source, (), f"The journal cannot be read: {error}.")
    groups: list[Group] = []
    for group in task.groups:
        names = tuple(one.name for one in group)
        groups.append(
            Group(names, advise([row for row in asked if row.backend in names], group, task.limits))
        )
    if not groups:
        return Answer(source, (), NO_BACKEND)
    seen = any(group.advice is not None for group in groups)
    return Answer(source, tuple(groups), "" if seen else NO_TRAFFIC)


def main() -> None:
    """The process: its task comes pickled from the gateway that started it, to which the answer goes."""
    os.nice(NICENESS)
    sys.stdout.buffer.write(pickle.dumps(answer(pickle.load(sys.stdin.buffer))))
