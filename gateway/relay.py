"""A call and its slot: ask the engine, and ask again what provably did not begin.

Nothing of an engine is passed on before its first token, so a repeat is invisible. A timeout or a 500 is
never repeated: the engine may still generate.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.ahead import send_ahead
from gateway.attempt import Attempt, NotStarted
from gateway.dispatcher import Dispatcher, Slot
from gateway.fleet import Fleet
from gateway.inflight import Inflight, Phase
from gateway.metrics import Metrics
from gateway.prefixes import Prefixes
from policies.retry_budget import RetryBudget


class Relay:
    """Answers calls that hold a slot."""

    def __init__(
        self,
        fleet: Fleet,
        dispatcher: Dispatcher,
        prefixes: Prefixes,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._prefixes = prefixes
        self._metrics = metrics
        self._clock = clock
        self._budget = RetryBudget()

    def ahead(self, live: Inflight) -> str | None:
        """Send the request already, if it is known which backend it will get: that one's name. All else about
        the call is then found out while the engine works. It must have its slot, and be served, within this
        turn of the loop."""
        return send_ahead(live, self._fleet, self._dispatcher)

    async def serve(self, slot: Slot, live: Inflight) -> None:
        """Answer the call, on another slot if the first engine did not begin.

        Raises the `GatewayError` that the client is to be told.
        """
        self._budget.request(self._clock())
        while True:
            try:
                return await Attempt(
                    self._fleet, self._dispatcher, self._prefixes, self._budget, self._clock, slot, live
                ).run()
            except NotStarted as refused:
                live.record.retries += 1
                live.record.dispatched = None
                live.client.headers = []  # whoever answers in the end is another
                self._metrics.retry(refused.reason)
                live.enter(Phase.QUEUED, self._clock())
                await slot.again(refused.pause_seconds, refused.prompt_tokens)
