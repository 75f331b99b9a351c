"""How much an engine holds: slots, context and shared memory, each as the best witness tells it.

configured ... the operator says so
reported ..... the engine says so
learnt ....... it was seen at the engine
assumed ...... nobody knows
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.engines.base import Report
from gateway.options import BackendSettings
from policies.slots import SlotSearch
from policies.types import Source

LOWER_SECONDS = 10.0  # between two steps down: what runs goes on, so a step tells only as requests end
RESTORE_SECONDS = 60.0  # without a refusal, for each step up again


@dataclass(frozen=True, slots=True)
class Figure:
    """One size, from the best witness of those that tell it."""

    value: int | None = None  # None: nobody knows
    source: Source | None = None
    by_source: dict[Source, int] = field(default_factory=dict)  # what each of them says, the best one first

    @classmethod
    def told(cls, configured: int | None, reported: int | None, learnt: int | None = None) -> Figure:
        """By whom; 0 is what an operator leaves unset, and no size of anything that works."""
        witnesses = ((Source.CONFIGURED, configured), (Source.REPORTED, reported), (Source.LEARNT, learnt))
        by_source = {source: size for source, size in witnesses if size}
        if not by_source:
            return cls()
        source, value = next(iter(by_source.items()))
        return cls(value, source, by_source)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits into one engine."""

    slots: int  # requests that may run at a time
    source: Source  # of their number
    told: Figure  # the slots by everybody who tells them
    context_tokens: Figure  # of one slot
    kv_tokens: Figure  # that all running requests may hold together

    @classmethod
    def of(cls, settings: BackendSettings, report: Report, experience: Experience | None = None) -> Capacity:
        """As the operator, the engine and experience tell; the one rule for all who ask."""
        seen = experience or Experience()
        told = Figure.told(settings.slots, report.slots, seen.search.found)
        return cls(
            max(1, (told.value or seen.search.tried) - seen.lowered),
            told.source or Source.ASSUMED,
            told,
            Figure.told(settings.context_tokens, report.context_tokens),
            Figure.told(settings.kv_tokens, report.kv_tokens, seen.kv_tokens),
        )

    @property
    def reason(self) -> str:
        """Why not all slots are used; "" if they are."""
        if self.told.value is None or self.slots >= self.told.value:
            return ""
        return f"lowered from {self.told.value}: the engine ran short of memory"

    def __str__(self) -> str:
        """In words: `2 slots (reported) of 4,096 tokens`."""
        noun = "slot" if self.slots == 1 else "slots"
        context = self.context_tokens.value
        size = f" of {context:,} tokens" if context else ", context not known"
        return f"{self.slots} {noun} ({self.source}){size}"


@dataclass(slots=True)
class Experience:
    """What an engine's own figures have shown since its process began; a new process begins anew.

    An engine that keeps its number of slots to itself shows it when they are all taken. One whose slots share
    one memory (llama.cpp's unified KV, its default) tells the whole of it as the context of each, and shows
    the truth when answers fail for want of it. One that refuses requests for want of memory, or throws them
    out and computes them again (vLLM's preemption), is given one request less for a while.
    """

    search: SlotSearch = field(default_factory=SlotSearch)
    kv_tokens: int | None = None  # the context of one slot, where it turned out to be that of all
    lowered: int = 0  # slots that are left alone
    _refused: int | None = None  # the engine's count at the last look
    _changed: float = float("-inf")  # the last step
    _strained: float = float("-inf")  # the last refusal

    def look(self, report: Report, slots: int, now: float) -> None:
        """One more report of an engine that is given so many requests at a time by now."""
        if report.running is not None and report.waiting is not None:
            self.search.look(report.running, report.waiting)
        before, refused = self._refused, report.refused
        if before is not None and refused is not None and refused > before:
            self._strain(slots, now)
        elif self.lowered and now - max(self._changed, self._strained) >= RESTORE_SECONDS:
            self.lowered, self._changed = self.lowered - 1, now
        self._refused = before if refused is None else refused

    def heard(self, slots: int) -> None:
        """Others give it so many requests at a time; to begin again from 1 would take that from them."""
        self.search.tried = max(self.search.tried, slots)

    def overfilled(self, capacity: Capacity, now: float) -> None:
        """Answers failed because the memory that all requests share was full."""
        if self.kv_tokens is None and capacity.kv_tokens.value is None:
            self.kv_tokens = capacity.context_tokens.value
        else:
            self._strain(capacity.slots, now)

    def _strain(self, slots: int, now: float) -> None:
        self._strained = now
        if now - self._changed >= LOWER_SECONDS and slots > 1:
            self.lowered, self._changed = self.lowered + 1, now
