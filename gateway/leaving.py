"""Requests whose client left, until the engine has stopped: a closed connection is not a free slot."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.member import Member
from gateway.probes import NoAnswer, Probes
from gateway.upstream import Exchange
from policies.admission import Admission

CONFIRM_SECONDS = 0.25  # between questions whether a request has stopped


class Leaving:
    """Tells engines that a client left, and finds out when they have stopped."""

    def __init__(self, admission: Admission, probes: Probes) -> None:
        self._admission = admission
        self._probes = probes
        self._confirming: set[asyncio.Task[None]] = set()

    def stopped(self, member: Member, exchange: Exchange) -> asyncio.Future[None]:
        """Tell the engine that its client left; resolves when it has stopped."""
        closed = exchange.leave(member.engine.cancel_seconds)
        if member.engine.close_is_stop or closed.done():
            return closed
        confirmed = asyncio.get_running_loop().create_task(self._confirmed(member, closed))
        self._confirming.add(confirmed)
        confirmed.add_done_callback(self._confirming.discard)
        return confirmed

    def close(self) -> None:
        """Ask no more."""
        for confirming in self._confirming:
            confirming.cancel()

    async def _confirmed(self, member: Member, closed: asyncio.Future[None]) -> None:
        """Until the engine reports no more requests than those whose clients are still there, or cannot
        tell; at most its `cancel_seconds`. llama.cpp cancels seconds after its close in a long prefill,
        and what were sent meanwhile would wait in there, where nobody sees it."""
        backend = self._admission.backends[member.name]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(member.engine.cancel_seconds):
                await closed
                while True:
                    answers = await self._probes.ask(member.probed, member.engine.paths)
                    if answers in (NoAnswer.REFUSED, NoAnswer.UNREACHABLE):
                        return
                    if not isinstance(answers, NoAnswer):
                        busy = member.engine.read(answers).busy
                        if busy is None or busy <= backend.in_use + backend.foreign:
                            return
                    await asyncio.sleep(CONFIRM_SECONDS)
