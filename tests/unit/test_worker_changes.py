"""A page of all workers hears at once what one of them sees."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import Process
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gateway.admin.events import Events
from gateway.auth import AdminGuard
from gateway.options import BackendSettings
from gateway.settings import Settings
from gateway.workers import wire
from gateway.workers.crew import Crew
from gateway.workers.supervisor import Supervisor, Worker
from gateway.workers.worker import Assignment, Work
from policies.types import State


async def test_a_state_is_told_when_a_worker_sees_it(tmp_path: Path) -> None:
    """Whatever figures are due; while nobody listens, and while the parent is away, it costs no error."""
    settings = Settings(backends=[BackendSettings(name="b0", url="http://127.0.0.1:9")])
    parent_path, path = str(tmp_path / "parent"), str(tmp_path / "1")
    assignment = Assignment(1, settings, (), "", -1, False, path, parent_path)
    work, one = Work(assignment), Worker(1, 1, assignment, cast("Process", None), serves=True)
    supervisor = SimpleNamespace(serving=[one], stopping=asyncio.Event(), catch_up=None)
    crew = Crew(cast("Supervisor", supervisor), lambda: settings, AdminGuard(""))
    crew.events = Events(crew, tick_seconds=3600.0)

    async def enters(state: State, why: str) -> None:
        admission = work.gateway.admission
        work.gateway.dispatcher.apply(admission.set_state("b0", state, work.gateway.dispatcher.clock(), why))
        assert work._telling is not None
        await work._telling

    await enters(State.WARMING, "nobody is there")
    servers = [await wire.listen(path, work.calls()), await wire.listen(parent_path, crew.calls())]
    try:
        await enters(State.READY, "nobody listens")
        listener = await crew.events.join()
        await enters(State.DOWN, "refused")
        told = [one.decode() for one in listener._events]
        assert [one.partition("\n")[0] for one in told] == ["event: lines", "event: figures", "event: state"]
        change: dict[str, Any] = json.loads(told[-1].partition("data: ")[2])
        assert (change["backend"], change["state"], change["reason"]) == ("b0", "down", "refused")
        crew.events.leave(listener)
    finally:
        for server in servers:
            server.close()
