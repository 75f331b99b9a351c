"""Which engine counts tokens for a client."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from gateway.counting import Counting
from gateway.errors import NoBackendReady
from gateway.options import BackendSettings
from gateway.upstream import ConnectFailed
from policies.types import State
from tests.unit.fleet import a_call
from tests.unit.stage import Stage, llamacpp, over
from tests.unit.test_inflight import inflight
from tests.unit.wire import Wire


class Closed:
    """Stands for the connections to an engine that cannot be reached; `asked` is who was tried."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name = name
        self.asked = asked

    async def ask(self, *request: object) -> NoReturn:
        """Nobody answers."""
        self.asked.append(self.name)
        raise ConnectFailed("refused")

    async def close(self) -> None:
        """Nothing is open."""


@over(llamacpp(context=4096))
async def test_a_prompt_of_any_length_is_counted(stage: Stage) -> None:
    """Clients ask to know whether it fits; an estimate alone must not answer for the engine."""
    asked: list[str] = []
    member: Any = stage.member
    member.upstream = Closed("a", asked)
    call = a_call(prompt_tokens=1_000_000)
    with pytest.raises(NoBackendReady):
        await Counting(stage.fleet, stage.dispatcher.admission).serve(call, inflight(Wire()))
    assert asked == ["a"]


@over(llamacpp(slots=2))
async def test_the_least_busy_one_is_asked_first(stage: Stage) -> None:
    """Then the next one; those that are not ready are left alone."""
    asked: list[str] = []
    admission = stage.dispatcher.admission
    admission.submit(a_call("one"), 0.0)
    for name in "bc":
        stage.fleet.add(BackendSettings(name=name, url=f"http://{name}:1", engine="llamacpp"))
    admission.set_state("b", State.READY, 0.0)
    members: Any = stage.fleet.members
    for name, member in members.items():
        member.upstream = Closed(name, asked)
    with pytest.raises(NoBackendReady):
        await Counting(stage.fleet, admission).serve(a_call(), inflight(Wire()))
    assert asked == ["b", "a"]
