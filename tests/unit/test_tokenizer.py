"""Engines asked for the length of a prompt: in turn, in a bounded time, past those that cannot."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from gateway.options import BackendSettings
from gateway.request import parse
from gateway.routes.chat import Chat
from gateway.tokenizer import SECONDS_MAX, Tokenizers
from gateway.upstream import ConnectFailed
from policies.doubt import Doubt
from policies.types import State
from tests.unit.fleet import MODEL, a_call
from tests.unit.stage import Stage, llamacpp, over

REQUEST = parse(b'{"model":"%b","messages":[{"role":"user","content":"x"}]}' % MODEL.encode(), Chat())


class Reached(Exception):
    """The question came here."""


class Way:
    """Stands for the connections to an engine that is silent, or fails so."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.asked = 0

    async def ask(self, *request: object) -> NoReturn:
        """Take the question."""
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """Nothing is open."""


def ways(stage: Stage, *found: Way) -> Tokenizers:
    """A fleet of llama.cpp servers that are ready, each behind one of these."""
    admission = stage.dispatcher.admission
    for name, way in zip("abcd", found, strict=False):
        if name != "a":
            stage.fleet.add(BackendSettings(name=name, url=f"http://{name}:1", engine="llamacpp"))
            admission.set_state(name, State.READY, 0.0)
        member: Any = stage.fleet.members[name]
        member.upstream, member.away = way, False  # it is not warmed up: that asks too
    return Tokenizers(stage.fleet, admission)


@pytest.mark.parametrize("why", Doubt)
def test_silent_engines_are_given_up_together(why: Doubt) -> None:
    """However many there are, the call waits once; then its estimate must do."""

    @over(llamacpp())
    async def body(stage: Stage) -> None:
        silent = Way(), Way(), Way()
        call, loop = a_call(), asyncio.get_running_loop()
        begun = loop.time()  # virtual, so it is exact
        assert await ways(stage, *silent).counted(call, REQUEST, why) is call
        assert loop.time() - begun == pytest.approx(SECONDS_MAX[why])
        assert [way.asked for way in silent] == [1, 0, 0]

    body()


@over(llamacpp())
async def test_the_next_one_is_asked_if_the_first_cannot(stage: Stage) -> None:
    """Those that are down, and those that do not serve the call, are left alone."""
    refuses, other, away, last = Way(ConnectFailed("refused")), Way(), Way(), Way(Reached())
    tokenizers = ways(stage, refuses, other, away, last)
    admission = stage.dispatcher.admission
    admission.serve_models("b", ["another"], 0.0)
    admission.set_state("c", State.DOWN, 0.0)
    with pytest.raises(Reached):
        await tokenizers.counted(a_call(), REQUEST, Doubt.LIMIT)
    assert [way.asked for way in (refuses, other, away, last)] == [1, 0, 0, 1]
