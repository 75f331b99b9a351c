"""Waiting calls by agent and class: of each flow the call that came first is the one that can be overdue, and
only if none of them was started for long enough."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable

from policies.types import Call


class Flow:
    """Calls of one agent and class that wait."""

    __slots__ = ("calls", "number", "since", "started")

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: list[tuple[float, str]] = []  # arrivals and ids, the first first
        self.started = float("-inf")  # when one of them did, the last time
        self.since: float | None = None  # the first one waits and none was started; None: not yet in order


class Flows:
    """All flows, the one first in which nothing was started for longest."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, Flow] = {}
        self._order: list[tuple[float, int, Flow]] = []  # by `since`
        self._numbers = 0

    def put(self, call: Call) -> None:
        """A call begins to wait."""
        key = _flow_of(call)
        if (flow := self._flows.get(key)) is None:
            self._numbers += 1
            flow = self._flows[key] = Flow(self._numbers)
        insort(flow.calls, (call.arrived, call.id))
        self._settle(flow)

    def take(self, call: Call) -> None:
        """A call waits no more."""
        key = _flow_of(call)
        flow = self._flows[key]
        del flow.calls[bisect_left(flow.calls, (call.arrived, call.id))]
        if not flow.calls:
            del self._flows[key]
        self._settle(flow)

    def started(self, call: Call, now: float) -> None:
        """A call waits no more, since it has a slot."""
        if (flow := self._flows.get(_flow_of(call))) is not None:
            flow.started = now
            self._settle(flow)

    def late(self, latest: float) -> list[tuple[float, str]]:
        """Of the flows in which nothing was started since before `latest`: since when, and the first call."""
        end = bisect_left(self._order, (latest,))
        return [(since, flow.calls[0][1]) for since, _, flow in self._order[:end]]

    def _settle(self, flow: Flow) -> None:
        """Move it where it belongs by now."""
        since = max(flow.calls[0][0], flow.started) if flow.calls else None
        if since == flow.since:
            return
        if flow.since is not None:
            del self._order[bisect_left(self._order, (flow.since, flow.number))]
        flow.since = since
        if since is not None:
            insort(self._order, (since, flow.number, flow))


def _flow_of(call: Call) -> Hashable:
    return call.priority, call.accounts[1] if len(call.accounts) > 1 else call.agent
