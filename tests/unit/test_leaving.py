"""When the slot of a client that left is free again."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engines.llamacpp import LlamaCpp
from gateway.leaving import Leaving
from tests.unit.fleet import a_call
from tests.unit.stage import Stage, llamacpp, over


class Left:
    """Stands for an exchange whose engine has closed its side, a moment after ours."""

    def leave(self, seconds: float) -> asyncio.Future[None]:
        """Resolves in a while."""
        loop = asyncio.get_running_loop()
        closed = loop.create_future()
        loop.call_later(1.0, closed.set_result, None)
        return closed


@pytest.mark.parametrize(
    ("busy", "foreign", "seconds"),
    [
        (0, 0, 1.0),
        (1, 1, 1.0),  # that one is of somebody else
        (1, 0, LlamaCpp.cancel_seconds),  # it is still at it
        (2, 1, LlamaCpp.cancel_seconds),
    ],
)
def test_the_engine_has_stopped_when_only_others_are_left(busy: int, foreign: int, seconds: float) -> None:
    """A closed connection alone does not tell, since llama.cpp cancels behind the batch at hand."""

    @over(llamacpp(busy=busy))
    async def body(stage: Stage) -> None:
        admission = stage.dispatcher.admission
        admission.submit(a_call("left"), 0.0)
        admission.leave("left", 0.0)
        admission.observe("a", foreign, 0.0)
        loop = asyncio.get_running_loop()
        begun = loop.time()  # virtual, so it is exact
        leaving = Leaving(admission, stage.probes)  # type: ignore[arg-type]
        await leaving.stopped(stage.member, Left())  # type: ignore[arg-type]
        assert loop.time() - begun == pytest.approx(seconds)

    body()
