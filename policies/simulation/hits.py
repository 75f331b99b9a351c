"""What caches could hold of a workload at best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from policies.simulation.cache import shared_tokens
from policies.simulation.workload import Program, Turn


class Hit(NamedTuple):
    """A turn, and the tokens of its prompt that it finds cached."""

    turn: Turn
    cached_tokens: int
    shared_tokens: int = 0  # of them, those that need not be kept for it: other programs have them, too


def ideal_hits(programs: Sequence[Program]) -> list[list[Hit]]:
    """Of each program's turns the tokens that an endless cache holds, if programs go in the order of their
    starts: every part of a prompt is computed once."""
    held: set[int] = set()
    common = _common(programs)
    hits: dict[str, list[Hit]] = {}
    for program in sorted(programs, key=lambda program: program.starts):
        hits[program.name] = _hits(program, held, common)
    return [hits[program.name] for program in programs]


def best_hits(programs: Sequence[Program]) -> list[list[Hit]]:
    """The same if all others went before: the most that each program can find."""
    common = _common(programs)
    return [_hits(program, set(common), common) for program in programs]


def _common(programs: Sequence[Program]) -> Set[int]:
    """Digests that several programs have."""
    users: Counter[int] = Counter()
    for program in programs:
        users.update({segment.digest for turn in program.turns for segment in turn.prompt})
    return {digest for digest, count in users.items() if count > 1}


def _hits(program: Program, held: set[int], common: Set[int]) -> list[Hit]:
    """What each turn finds of what is held, to which it adds its own."""
    hits: list[Hit] = []
    for turn in program.turns:
        most = turn.prompt_tokens - 1
        cached = min(most, shared_tokens(turn.prompt, held))
        # All that the first turn finds it has from others.
        shared = min(cached, shared_tokens(turn.prompt, common)) if hits else cached
        hits.append(Hit(turn, cached, shared))
        held.update(segment.digest for segment in turn.sequence)
    return hits
