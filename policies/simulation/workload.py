"""What is asked of a fleet: programs, each a row of turns that wait for one another.

A prompt is a chain of segments, as a message-hash chain is: a digest stands for all text up to its end, so
two prompts share exactly the segments they have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from policies.types import Priority


class Chance(Protocol):
    """Where chance comes from: `random.Random(seed)`. It is an argument, so that a seed repeats a run."""

    def random(self) -> float:
        """Evenly in [0, 1)."""

    def uniform(self, a: float, b: float) -> float:
        """Evenly in [a, b]."""

    def randint(self, a: int, b: int) -> int:
        """Evenly in [a, b], both included."""

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """The exponential of a normal distribution."""

    def expovariate(self, lambd: float) -> float:
        """Time between events that come `lambd` times a second."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt: what stands for everything up to its end, and where that is."""

    digest: int
    end_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a program, made `think_seconds` after the answer to the one before."""

    prompt: tuple[Segment, ...]
    output_tokens: int
    answer: int  # digest of the prompt with its answer, as the next prompt may continue it
    think_seconds: float = 0.0  # the first turn of a program comes when that starts

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt."""
        return self.prompt[-1].end_tokens

    @property
    def sequence(self) -> tuple[Segment, ...]:
        """What an engine holds when it has answered."""
        return (*self.prompt, Segment(self.answer, self.prompt_tokens + self.output_tokens))


@dataclass(frozen=True, slots=True)
class Program:
    """An agent at work, or a single question."""

    name: str
    tenant: str
    priority: Priority
    starts: float
    turns: tuple[Turn, ...]
    foreground: bool = True  # the run ends with the last of these; the makespan is theirs


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happens to an engine. A speed of 0 is its loss, 1 its full speed (back from a loss:
    with an empty cache)."""

    at: float
    engine: str
    speed: float


@dataclass(frozen=True, slots=True)
class Workload:
    """All of a run's requests, and what happens meanwhile."""

    programs: Sequence[Program]
    happenings: Sequence[Happening] = ()
    slots_known: bool = True  # whether the engines tell how many slots they have
    usage_known: bool = True  # whether they report tokens


@dataclass(slots=True)
class Digests:
    """Fresh names for segments."""

    last: int = field(default=0)

    def new(self) -> int:
        """One that was never used."""
        self.last += 1
        return self.last


def conversation(
    head: tuple[Segment, ...],
    steps: Sequence[tuple[int, int, float]],
    digests: Digests,
) -> Iterator[Turn]:
    """Turns that each continue the one before: (tokens that are new, tokens of the answer, pause before)."""
    prompt = head
    for new_tokens, output_tokens, think_seconds in steps:
        end = prompt[-1].end_tokens if prompt else 0
        prompt = (*prompt, Segment(digests.new(), end + max(1, new_tokens)))
        turn = Turn(prompt, max(1, output_tokens), digests.new(), think_seconds)
        yield turn
        prompt = turn.sequence
