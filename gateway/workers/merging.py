"""What several workers say of the same engines and of their own requests, as one gateway says it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import fmean
from typing import TypeVar

from gateway.admin.figures import QUEUE_SHOWN_MAX, BackendFigures, Figures
from gateway.admin.history import Step, Used
from gateway.admin.prefix import KindView, PrefixView
from gateway.admin.views import BackendView, DrainView, Prefix, Slots, WaitingView
from policies.types import Source, State

One = TypeVar("One")
Named = TypeVar("Named", bound=Hashable)

# A backend is in the first of these states in which it is to any worker: what one does, all do.
LIVELY = (
    State.READY,
    State.DRAINING,
    State.WARMING,
    State.STARTING,
    State.EJECTED,
    State.DOWN,
    State.DRAINED,
)


def liveliest(states: Iterable[State]) -> State:
    """The one that counts of those in which workers see a backend."""
    return min(states, key=LIVELY.index)


def foreign(seen: Sequence[tuple[float, float]]) -> float:
    """Requests at an engine that are nobody's here, where each worker tells how many it has there itself, and
    how many are not its own. They have not asked at the same moment: the least is nearest to the truth."""
    held = sum(own for own, _ in seen)
    return max(0, min(others - (held - own) for own, others in seen))


def by_name(lists: Iterable[Iterable[One]], name: Callable[[One], Named]) -> list[list[One]]:
    """Those of the same name together, in the order in which they first come."""
    found: dict[Named, list[One]] = {}
    for one in (one for some in lists for one in some):
        found.setdefault(name(one), []).append(one)
    return list(found.values())


def backend_of(views: Sequence[BackendView]) -> BackendView:
    """One backend. What was learnt of it is told by the worker that has learnt most."""
    state = liveliest(view.state for view in views)
    first = next(view for view in views if view.state is state)
    wise = max(views, key=lambda view: view.rates.samples)
    others = [view for view in views if view.state is not state]
    apart = [f"{len(some)} of {len(views)} workers: {some[0].state}" for some in by_state(others)]
    return first.model_copy(
        update={
            "reason": "; ".join(filter(None, [first.reason, *apart])),
            "slots": _slots_of([view.slots for view in views]),
            "kv_held": sum(view.kv_held for view in views),
            "rates": wise.rates,
            "prefix": _prefix_of(wise.prefix, [view.prefix for view in views]),
            "last_error": first.last_error or next((v.last_error for v in views if v.last_error), ""),
        }
    )


def by_state(views: Iterable[BackendView]) -> list[list[BackendView]]:
    """Those in the same state together."""
    return by_name([views], lambda view: view.state)


def _slots_of(seen: Sequence[Slots]) -> Slots:
    known = [slots for slots in seen if slots.source is not Source.ASSUMED]
    least = min(known, key=_total) if known else max(seen, key=_total)  # who has begun has tried fewer
    in_use, leaving = sum(slots.in_use for slots in seen), sum(slots.leaving for slots in seen)
    strangers = int(foreign([(slots.in_use + slots.leaving, slots.foreign) for slots in seen]))
    free = max(0, least.total - in_use - leaving - strangers)
    return least.model_copy(update={"in_use": in_use, "leaving": leaving, "foreign": strangers, "free": free})


def _total(slots: Slots) -> int:
    return slots.total


def _prefix_of(wise: Prefix, seen: Sequence[Prefix]) -> Prefix:
    ratios = [prefix.hit_ratio for prefix in seen if prefix.hit_ratio is not None]
    return wise.model_copy(
        update={
            "entries": sum(prefix.entries for prefix in seen),
            "found_less": sum(prefix.found_less for prefix in seen),
            "found_more": sum(prefix.found_more for prefix in seen),
            "hit_ratio": fmean(ratios) if ratios else None,
        }
    )


def backends_of(lists: Iterable[Iterable[BackendView]]) -> list[BackendView]:
    """All backends."""
    return [backend_of(views) for views in by_name(lists, lambda view: view.name)]


def drain_of(views: Sequence[DrainView]) -> DrainView:
    """How far a backend is: drained when it is so for all."""
    return DrainView(
        state=liveliest(view.state for view in views), in_flight=sum(view.in_flight for view in views)
    )


def queue_of(lists: Iterable[Iterable[WaitingView]]) -> list[WaitingView]:
    """Who waits, in the order in which they start, as far as that is known."""

    def turn(view: WaitingView) -> tuple[bool, float, float]:
        start = view.predicted_start_seconds
        return start is None, start or 0.0, -view.age_seconds

    return sorted((view for views in lists for view in views), key=turn)


def prefixes_of(lists: Iterable[Iterable[PrefixView]]) -> list[PrefixView]:
    """Each agent's prompts, the most expensive first."""
    merged = [_agent_of(views) for views in by_name(lists, lambda view: view.agent)]
    return sorted(merged, key=lambda view: (-view.seconds, -view.tokens, -view.turns))


def _agent_of(views: Sequence[PrefixView]) -> PrefixView:
    kinds = [_kind_of(some) for some in by_name((v.kinds for v in views), lambda k: (k.kind, k.between))]
    held: defaultdict[str, int] = defaultdict(int)
    for kind, count in (item for view in views for item in view.held.items()):
        held[kind] += count
    return views[0].model_copy(
        update={
            "turns": sum(view.turns for view in views),
            "breaks": sum(view.breaks for view in views),
            "tokens": sum(view.tokens for view in views),
            "seconds": round(sum(view.seconds for view in views), 3),
            "held": dict(held),
            "kinds": sorted(kinds, key=lambda view: (-view.seconds, -view.tokens, -view.breaks)),
        }
    )


def _kind_of(views: Sequence[KindView]) -> KindView:
    latest = max(views, key=lambda view: view.last)
    return latest.model_copy(
        update={
            "breaks": sum(view.breaks for view in views),
            "tokens": sum(view.tokens for view in views),
            "seconds": round(sum(view.seconds for view in views), 3),
        }
    )


def figures_of(told: Sequence[Figures]) -> Figures:
    """One second of all workers."""
    ready = [figures for figures in told if figures.ready]
    waited = [figures.oldest_seconds for figures in told if figures.oldest_seconds is not None]
    return Figures(
        at=max(figures.at for figures in told),
        ready=bool(ready),
        reason="" if ready else told[0].reason,
        backends=[
            _figures_of(some)
            for some in by_name((figures.backends for figures in told), lambda one: one.backend.name)
        ],
        waiting={name: sum(one.waiting.get(name, 0) for one in told) for name in told[0].waiting},
        oldest_seconds=max(waited, default=None),
        queue=queue_of(figures.queue for figures in told)[:QUEUE_SHOWN_MAX],
    )


def _figures_of(told: Sequence[BackendFigures]) -> BackendFigures:
    holders = [holder for figures in told for holder in figures.holders]
    return BackendFigures(
        backend=backend_of([figures.backend for figures in told]),
        holders=sorted(holders, key=lambda holder: -holder.age_seconds),
        tokens_per_second=round(sum(figures.tokens_per_second for figures in told), 2),
    )


def steps_of(told: Iterable[dict[int, Step]]) -> dict[int, Step]:
    """The steps of the lines; each worker's begin with itself."""
    merged: defaultdict[int, Step] = defaultdict(Step)
    for number, step in (item for steps in told for item in steps.items()):
        whole = merged[number]
        whole.ttfts = [*whole.ttfts, *step.ttfts]
        for backend, tokens in step.tokens.items():
            whole.tokens[backend] += tokens
        for agent, used in step.agents.items():
            sums = whole.agents.setdefault(agent, Used())
            sums.add(used.requests, used.prompt_tokens, used.cached_tokens, used.completion_tokens)
    return {number: merged[number] for number in sorted(merged)}
