"""Workloads that are made up around recorded sessions, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from policies.simulation.profile import Profile
from policies.simulation.traces import Step, replayed
from policies.simulation.workload import (
    Chance,
    Digests,
    Happening,
    Program,
    Segment,
    Workload,
    conversation,
)
from policies.types import Priority

SCALE = 0.5  # of the recorded sizes: brings the median prompt to 17,000 tokens, which every engine holds
TURNS = 10
THINK_SECONDS_MAX = 20.0
PLATFORMS = 4  # kinds of agent, each with a head of tools and system prompt
HEAD_TOKENS = (3000, 8000)
START_SECONDS = 30.0  # agents begin within this
SHORT_SECONDS = 12.0  # between two short questions
SHORTS_SECONDS = 12_000.0  # for so long they are asked, if agents are at work
BURST_SECONDS = 5.0
BURST_TURNS = 4
BURST_TOKENS = (12_000, 26_000)
STORM_TOKENS = 12_000
STORM_SECONDS = 2.0
LOST_AT = 60.0
DRIFT_STEPS = 20
DRIFT_SECONDS = 15.0  # between two steps
DRIFT_LOW = 0.5  # of full speed, at the end
HEAVY_TENANT = "heavy"
HEAVY_AGENTS = 3  # of the heavy tenant, for each of the others


class TooFewEngines(Exception):
    """A scenario needs more engines than there are; says how many."""


class Maker:
    """Makes the programs of one run."""

    def __init__(self, sessions: Sequence[Sequence[Step]], chance: Chance) -> None:
        self._chance = chance
        self._digests = Digests()
        self._sessions = [session for session in sessions if len(session) >= TURNS]
        self._heads = [self._head(chance.randint(*HEAD_TOKENS)) for _ in range(PLATFORMS)]

    def agents(self, count: int, *, tenant: str = "", within: float = START_SECONDS) -> list[Program]:
        """Agents that replay parts of recorded sessions; without a tenant each is its own."""
        kind = tenant or "agent"
        return [self._agent(f"{kind}-{i}", tenant or f"agent-{i}", within, TURNS) for i in range(count)]

    def burst(self, count: int) -> list[Program]:
        """Agents that all begin at once, for a few turns, every second one with a document of its own."""
        documents = [self._chance.randint(*BURST_TOKENS) * (number % 2) for number in range(count)]
        return [
            self._agent(f"agent-{i}", f"agent-{i}", BURST_SECONDS, BURST_TURNS, tokens)
            for i, tokens in enumerate(documents)
        ]

    def storm(self, count: int) -> list[Program]:
        """Agents of one platform with a long head, all at once."""
        self._heads = [self._head(STORM_TOKENS)]
        return self.agents(count, within=STORM_SECONDS)

    def shorts(self) -> list[Program]:
        """Short questions, one about each 12 s, whatever happens."""
        programs: list[Program] = []
        at = self._chance.uniform(0, SHORT_SECONDS)
        while at < SHORTS_SECONDS:
            tokens, output = self._chance.randint(100, 600), self._chance.randint(32, 160)
            turns = tuple(conversation((), [(tokens, output, 0.0)], self._digests))
            name = f"short-{len(programs)}"
            programs.append(Program(name, "people", Priority.INTERACTIVE, at, turns, foreground=False))
            at += self._chance.uniform(0.5, 1.5) * SHORT_SECONDS
        return programs

    def _agent(self, name: str, tenant: str, within: float, turns: int, document_tokens: int = 0) -> Program:
        head = self._heads[self._pick(len(self._heads))]
        steps = self._steps(turns, int(document_tokens / SCALE))
        played = replayed(steps, head, self._digests, scale=SCALE, think_seconds_max=THINK_SECONDS_MAX)
        return Program(name, tenant, Priority.AGENT, self._chance.uniform(0, within), tuple(played))

    def _steps(self, turns: int, document_tokens: int) -> list[Step]:
        """Consecutive requests of a recorded session, from anywhere in it. The first brings the whole prompt,
        and the document."""
        session = self._sessions[self._pick(len(self._sessions))]
        start = self._pick(len(session) - turns + 1)
        first, rest = session[start], session[start + 1 : start + turns]
        new_tokens = first.kept_tokens + first.new_tokens + document_tokens
        return [
            replace(first, kept_tokens=0, new_tokens=new_tokens),
            *(replace(step, kept_tokens=step.kept_tokens + document_tokens) for step in rest),
        ]

    def _head(self, tokens: int) -> tuple[Segment, ...]:
        return (Segment(self._digests.new(), tokens),)

    def _pick(self, count: int) -> int:
        return self._chance.randint(0, count - 1)


def main(make: Maker, profiles: Sequence[Profile], agents: int) -> Workload:
    """Agents that replay recorded sessions, and short questions beside them."""
    return Workload([*make.agents(agents), *make.shorts()])


def burst(make: Maker, profiles: Sequence[Profile], agents: int) -> Workload:
    """All agents within 5 s, every second one with a long document that nobody has cached."""
    return Workload([*make.burst(agents), *make.shorts()])


def storm(make: Maker, profiles: Sequence[Profile], agents: int) -> Workload:
    """All agents within 2 s, with one long head in common."""
    return Workload([*make.storm(agents), *make.shorts()])


def heavy(make: Maker, profiles: Sequence[Profile], agents: int) -> Workload:
    """One tenant with three times as many agents as all others together, at work before they come."""
    others = [replace(program, starts=program.starts + START_SECONDS) for program in make.agents(agents)]
    crowd = make.agents(HEAVY_AGENTS * agents, tenant=HEAVY_TENANT, within=BURST_SECONDS)
    return Workload([*(replace(program, foreground=False) for program in crowd), *others, *make.shorts()])


def lost(make: Maker, profiles: Sequence[Profile], agents: int) -> Workload:
    """`main`, and the first engine is lost after a minute, for good."""
    if len(profiles) < 2:
        raise TooFewEngines("one engine is lost, so there must be two or more")
    return replace(main(make, profiles, agents), happenings=[Happening(LOST_AT, profiles[0].name, 0.0)])


def drift(make: Maker, profiles: Sequence[Profile], agents: int) -> Workload:
    """`main`, and every second engine slows down to half its speed."""
    happenings = [
        Happening(step * DRIFT_SECONDS, profile.name, 1 - (1 - DRIFT_LOW) * step / DRIFT_STEPS)
        for profile in profiles[::2]
        for step in range(1, DRIFT_STEPS + 1)
    ]
    return replace(main(make, profiles, agents), happenings=happenings)


def unknown(make: Maker, profiles: Sequence[Profile], agents: int) -> Workload:
    """`main`, and no engine tells how many slots it has."""
    return replace(main(make, profiles, agents), slots_known=False)


def mute(make: Maker, profiles: Sequence[Profile], agents: int) -> Workload:
    """`main`, and no engine reports usage."""
    return replace(main(make, profiles, agents), usage_known=False)


SCENARIOS: dict[str, Callable[[Maker, Sequence[Profile], int], Workload]] = {
    "main": main,
    "burst": burst,
    "storm": storm,
    "heavy": heavy,
    "lost": lost,
    "drift": drift,
    "unknown-slots": unknown,
    "no-usage": mute,
}
