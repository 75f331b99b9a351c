"""What was found of the prefixes of each agent's prompts: what breaks them, and what that costs."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from policies.differences import Difference
from policies.stability import Verdict
from policies.volatility import Kind

AGENTS_MAX = 1000  # those that asked last


@dataclass(slots=True)
class Breaks:
    """Those of one kind, of one agent."""

    count: int = 0
    tokens: int = 0  # computed again
    seconds: float = 0.0  # of prefill, by the rates of the backends that did it
    last: Difference | None = None
    at: float = 0.0  # when that was


@dataclass(slots=True)
class Finding:
    """One agent's prompts."""

    turns: int = 0  # that were compared
    # By kind, and whether between conversations or from turn to turn.
    breaks: dict[tuple[Kind, bool], Breaks] = field(default_factory=dict)
    mends: Counter[Kind] = field(default_factory=Counter)  # prompts in which it was held still

    @property
    def count(self) -> int:
        """Breaks of any kind."""
        return sum(breaks.count for breaks in self.breaks.values())

    @property
    def tokens(self) -> int:
        """Computed again because of them."""
        return sum(breaks.tokens for breaks in self.breaks.values())

    @property
    def seconds(self) -> float:
        """That this took."""
        return sum(breaks.seconds for breaks in self.breaks.values())


class Findings:
    """By agent."""

    def __init__(self) -> None:
        self._agents: OrderedDict[str, Finding] = OrderedDict()

    def add(self, agent: str, verdict: Verdict, tokens: int, seconds: float, now: float) -> None:
        """A turn was compared; this many tokens are computed again, which takes so long."""
        finding = self._of(agent)
        finding.turns += 1
        if verdict.difference is not None:
            breaks = finding.breaks.setdefault((verdict.difference.kind, verdict.between), Breaks())
            breaks.count += 1
            breaks.tokens += tokens
            breaks.seconds += seconds
            breaks.last, breaks.at = verdict.difference, now

    def mended(self, agent: str, kind: Kind) -> None:
        """A prompt was held still."""
        self._of(agent).mends[kind] += 1

    def worst(self) -> list[tuple[str, Finding]]:
        """All agents, those first whose breaks cost most."""
        return sorted(
            self._agents.items(), key=lambda item: (-item[1].seconds, -item[1].tokens, -item[1].turns)
        )

    def _of(self, agent: str) -> Finding:
        finding = self._agents.get(agent)
        if finding is None:
            finding = self._agents[agent] = Finding()
            if len(self._agents) > AGENTS_MAX:
                self._agents.popitem(last=False)
        else:
            self._agents.move_to_end(agent)
        return finding
