"""The engines' own tokenizers, asked for the length of a prompt where its estimate will not do. They take no
slot."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from gateway.client import JSON
from gateway.fleet import Fleet
from gateway.member import Member
from gateway.request import Request
from gateway.upstream import AnswerTooLarge, ConnectFailed, ConnectionLost
from policies.admission import Admission
from policies.doubt import Doubt, doubt
from policies.types import Call, State

SECONDS_MAX = {Doubt.LIMIT: 2.0, Doubt.GATE: 0.25}  # for all engines that are asked, what it is worth
COUNT_BYTES_MAX = 4_194_304  # llama.cpp answers with the ids of all tokens


class Tokenizers:
    """Those of all engines of the fleet."""

    def __init__(self, fleet: Fleet, admission: Admission) -> None:
        self._fleet = fleet
        self._admission = admission

    def doubt(self, call: Call) -> Doubt | None:
        """Why this call's prompt should be counted; None: its estimate will do."""
        return doubt(call, self._admission.backends.values(), self._admission.limits)

    async def counted(self, call: Call, request: Request, why: Doubt) -> Call:
        """The call with its prompt counted, if an engine can and answers in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_MAX[why]):
                for member in list(self._fleet.members.values()):
                    tokens = await self._tokens(member, call, request)
                    if tokens is not None:
                        return replace(call, prompt_tokens=tokens, prompt_counted=True)
        return call

    async def _tokens(self, member: Member, call: Call, request: Request) -> int | None:
        backend = self._admission.backends.get(member.name)
        if backend is None or backend.state is not State.READY or not backend.serves(call):
            return None
        counting = member.engine.count(call.route, request.edited(model=backend.model_for(call)))
        if counting is None:
            return None
        try:
            answer = await member.upstream.ask("POST", counting.path, JSON, counting.body, COUNT_BYTES_MAX)
        except (ConnectFailed, ConnectionLost, AnswerTooLarge):
            return None
        return member.engine.counted(answer)
