"""Counting tokens for clients: the question goes to an engine that can answer it, past the queue.

It takes no slot, since engines count beside what they generate. Its time is bounded like that of any
request, only shorter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gateway import errors
from gateway.client import JSON
from gateway.dispatcher import refusal
from gateway.engines.base import Answer, Failed, Overlength, Overload
from gateway.fleet import Fleet
from gateway.inflight import Inflight
from gateway.member import Member
from gateway.routes.missing import lacks_route
from gateway.upstream import AnswerTooLarge, ConnectFailed, ConnectionLost
from policies.admission import Admission
from policies.types import Backend, Call, Rejected, State

COUNT_SECONDS_MAX = 30.0
COUNT_BYTES_MAX = 16_777_216  # the numbers and texts of all tokens


class Counting:
    """Asks engines to count."""

    def __init__(self, fleet: Fleet, admission: Admission) -> None:
        self._fleet = fleet
        self._admission = admission
        self._asked: Counter[str] = Counter()  # by backend

    async def serve(self, call: Call, live: Inflight) -> None:
        """Answer the client as a ready engine does; the next one is asked if the first cannot.

        Raises the `GatewayError` that the client is to be told.
        """
        live.total_seconds_max = COUNT_SECONDS_MAX
        # It needs no room: whether the prompt fits is what the client asks for. Without a model any will do.
        targets = call.targets if call.model else self._admission.models()
        call = replace(call, targets=targets, prompt_tokens=0, output_tokens_max=0)
        for member, model in self._able(call):
            answer = await self._ask(member, model if call.model else None, live)
            if answer is None:
                continue
            if not lacks_route(answer):
                return await self._tell(member, answer, live)
            self._fleet.lacks(member, call.route)
        self._able(call)  # raises, if it has turned out that nobody has the route
        raise errors.NoBackendReady

    def _able(self, call: Call) -> list[tuple[Member, str | None]]:
        """The ready engines that can be asked, the least busy first, of equals the one that was asked least;
        and the model to name there."""
        found = self._admission.serving(call)
        if isinstance(found, Rejected):
            raise refusal(found)
        return [
            (self._fleet.members[backend.name], backend.model_for(call))
            for tier in found
            for backend in sorted(tier, key=self._busy)
            if backend.state is State.READY
        ]

    def _busy(self, backend: Backend) -> tuple[float, int]:
        return backend.in_use / backend.slots, self._asked[backend.name]

    async def _ask(self, member: Member, model: str | None, live: Inflight) -> Answer | None:
        """Its answer; None if it has none now."""
        self._asked[member.name] += 1
        body = live.request.edited(model=model)
        try:
            answer = await member.upstream.ask("POST", live.record.route, live.headers, body, COUNT_BYTES_MAX)
        except (ConnectFailed, ConnectionLost, AnswerTooLarge):
            self._fleet.suspect(member)
            return None
        overloaded = answer.status >= 300 and isinstance(member.engine.refusal(answer), Overload)
        return None if overloaded else answer

    async def _tell(self, member: Member, answer: Answer, live: Inflight) -> None:
        live.record.backend = member.name
        if not 200 <= answer.status < 300:
            match member.engine.refusal(answer):
                case Failed(cause):
                    raise errors.BackendFailed(cause, started=False)
                case Overlength(prompt_tokens, limit_tokens) if limit_tokens is not None:
                    raise errors.ContextLengthExceeded(prompt_tokens, limit_tokens, counted=True)
            live.record.outcome = errors.ClientError.outcome
        live.client.headers = [(b"x-slotgate-backend", member.name.encode())]
        await live.client.answer(answer.status, JSON, answer.body)
        live.record.outcome = live.record.outcome or "completed"
