"""A fleet of one backend, watched as in production, over an engine that the test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from gateway.dispatcher import Dispatcher
from gateway.engines.base import Answer, Report
from gateway.engines.openai import OpenAI
from gateway.fleet import Fleet
from gateway.inflight import Inflights
from gateway.member import Member
from gateway.options import BackendSettings
from gateway.probes import NoAnswer
from gateway.upstream import Upstream
from policies.types import Backend, State
from tests.simulation import virtual
from tests.unit.fleet import MODEL, an_admission

Answers = dict[str, Answer] | NoAnswer | Exception
LOADING = {path: Answer(503, {}, b"{}") for path in ("/props", "/v1/models", "/metrics")}
LATER = 3.0  # longer than any pause between two probes


def models(*names: str, **more: Any) -> Answer:
    """The list of models of any engine."""
    return Answer(200, {}, json.dumps({"data": [{"id": name} | more for name in names]}).encode())


PLAIN: dict[str, Answer] = {"/v1/models": models(MODEL)}


def llamacpp(slots: int = 2, context: int = 4096, busy: int = 0, started: str = "1") -> dict[str, Answer]:
    """What a llama.cpp server answers."""
    props = {
        "total_slots": slots,
        "default_generation_settings": {"n_ctx": context},
        "endpoint_metrics": True,
    }
    figures = f"llamacpp:requests_processing {busy}\nllamacpp:requests_deferred 0\n"
    return {
        "/props": Answer(200, {}, json.dumps(props).encode()),
        "/v1/models": models(MODEL, owned_by="llamacpp"),
        "/metrics": Answer(200, {"process-start-time-unix": started}, figures.encode()),
    }


class Asked:
    """Stands for `Probes`: what the engine says is up to the test."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.seconds = 0.0  # that an answer takes
        self.times: list[float] = []
        self.paths: list[tuple[str, ...]] = []

    async def ask(self, engine: Upstream, paths: Iterable[str]) -> dict[str, Answer] | NoAnswer:
        """The answers as they were when the question came."""
        self.times.append(asyncio.get_running_loop().time())
        self.paths.append(tuple(paths))
        answers = self.answers
        await asyncio.sleep(self.seconds)
        if isinstance(answers, Exception):
            raise answers
        return answers


class Stage:
    """A fleet of one backend `a`, watched as in production, over an engine that the test plays."""

    def __init__(self, answers: Answers, **settings: Any) -> None:
        clock = asyncio.get_running_loop().time
        self.probes = Asked(answers)
        self.dispatcher = Dispatcher(an_admission(), clock)
        self.inflights = Inflights("auto", 10.0, lambda live, now: True, clock)
        self.fleet = Fleet(self.dispatcher, self.inflights, self.probes, clock)  # type: ignore[arg-type]
        self.states: list[str] = []
        self.dispatcher.state_changed.append(lambda change: self.states.append(change.state))
        defaults: dict[str, Any] = {"name": "a", "url": "http://127.0.0.1:1", "warmup": {"requests": 0}}
        self.member: Member = self.fleet.add(BackendSettings(**(defaults | settings)))

    @property
    def backend(self) -> Backend:
        """As admission sees it."""
        return self.dispatcher.admission.backends["a"]

    async def look(self) -> None:
        """Have the engine probed now."""
        self.fleet.suspect(self.member)
        await asyncio.sleep(self.probes.seconds + 0.01)

    async def told(self, report: Report) -> Backend:
        """The engine, whatever it is, reports this from now on, and is probed; the backend then."""
        self.member.engine, self.member.known = Frank(report), True
        await self.look()
        return self.backend

    async def hears(self, answers: Answers) -> State:
        """The engine says something else from now on, and is probed; the state that comes of it."""
        self.probes.answers = answers
        await self.look()
        return self.backend.state


class Frank(OpenAI):
    """An engine that reports what the test wants."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def read(self, answers: object) -> Report:
        """Whatever it was asked."""
        return self.report


Body = Callable[[Stage], Awaitable[None]]


def over(answers: Answers, **settings: Any) -> Callable[[Body], Callable[[], None]]:
    """Run the test in virtual time over an engine that says this at first, and was probed once."""

    def decorate(body: Body) -> Callable[[], None]:
        async def main() -> None:
            stage = Stage(answers, **settings)
            stage.fleet.start()
            await asyncio.sleep(0.01)
            try:
                await body(stage)
            finally:
                await stage.fleet.close()

        def test() -> None:
            virtual.run(main())

        test.__doc__, test.__name__ = body.__doc__, getattr(body, "__name__", "")
        return test

    return decorate
