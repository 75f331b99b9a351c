"""The engines as the gateway runs them: probed, warmed up, drained and resumed.

What a probe learns goes to Admission as events; which of them mean what is decided here, once:

    refused ............ down; when it answers again, it is a new process until proven otherwise
    silent ............. nothing, while requests run: an engine in a long prefill may not answer, and a
                         request has limits of its own; else down, after three in a row
    loading ............ starting
    answers ............ its slots, context, models and foreign load; if it was away: warm-up, ready
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.dispatcher import Dispatcher
from gateway.engines import DETECTION_PATHS, ENGINES, detect
from gateway.engines.base import Answer, Engine, Report
from gateway.options import BackendSettings, TimeoutSettings
from gateway.probes import NoAnswer, Probes, probing
from gateway.request import Request
from gateway.tokenizer import ask_tokenizer
from gateway.upstream import Exchange, Upstream
from gateway.warmup import warm_up
from policies.prefix import PrefixShadow
from policies.types import Backend, Call, Decision, Source, State, StateChanged

log = logging.getLogger("slotgate.fleet")

READY_SECONDS = 2.0  # between probes; llama.cpp cancels late if it is polled more often
OTHER_SECONDS = 1.0
SILENT_MAX = 3  # probes in a row, while no request runs
CONFIRM_SECONDS = 0.25  # between questions whether a request has stopped
HELD = (State.DRAINING, State.DRAINED)


@dataclass(slots=True, eq=False)
class Member:
    """One engine and the way to it."""

    settings: BackendSettings
    upstream: Upstream
    probed: Upstream
    engine: Engine
    known: bool = False  # the engine's kind is configured or was detected
    away: bool = True  # it must be warmed up before it takes calls
    started: str | None = None  # which process of the engine it is, where the engine tells
    ends: int = 0  # of the engine's process, as far as they were noticed
    silent: int = 0  # probes in a row without an answer
    foreign: int = 0  # at the last probe; believed when two in a row agree
    refuses_usage: bool = False
    last_error: str = ""
    warming: asyncio.Task[str] | None = None  # a warm-up request that runs
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.settings.name

    @property
    def timeouts(self) -> TimeoutSettings:
        """How long this engine may be silent."""
        return self.settings.timeouts


class Fleet:
    """All engines, by name."""

    def __init__(self, dispatcher: Dispatcher, probes: Probes, clock: Callable[[], float]) -> None:
        self.members: dict[str, Member] = {}
        self._dispatcher = dispatcher
        self._admission = dispatcher.admission
        self._probes = probes
        self._clock = clock
        self._confirming: set[asyncio.Task[None]] = set()
        dispatcher.state_changed.append(self._state_changed)

    def add(self, settings: BackendSettings) -> Member:
        """An engine joins; it is probed from `start` on."""
        engine = ENGINES["openai" if settings.engine == "auto" else settings.engine]
        tls = ssl.create_default_context(cafile=settings.tls_ca_file or None)
        key = settings.api_key.get_secret_value()
        upstream = Upstream(
            settings.url,
            connect_seconds=settings.timeouts.connect_seconds,
            reuse=engine.reuses_connections,
            tls=tls,
            api_key=key,
        )
        probed = probing(settings.url, key, tls)
        member = Member(settings, upstream, probed, engine, known=settings.engine != "auto")
        self.members[settings.name] = member
        backend = Backend(settings.name, engine.service, PrefixShadow(), routes=engine.routes)
        self._apply(self._admission.add(backend, self._clock()))
        if settings.models:
            self._apply(self._admission.serve_models(settings.name, settings.models, self._clock()))
        self._resize(member, Report())
        return member

    def start(self) -> None:
        """Begin to probe every member."""
        for member in self.members.values():
            member.task = asyncio.get_running_loop().create_task(self._watch(member))

    async def close(self) -> None:
        """Stop probing, close connections."""
        for member in self.members.values():
            if member.task is not None:
                member.task.cancel()
                await asyncio.wait([member.task])
        for confirming in self._confirming:
            confirming.cancel()
        for member in self.members.values():
            await member.upstream.close()
            await member.probed.close()

    # -- operators --------------------------------------------------------------------------------

    def drain(self, name: str, reason: str) -> None:
        """From now on no request starts there; those that run finish, but for our own of a warm-up."""
        member = self.members[name]
        if member.warming is not None:
            member.warming.cancel()
        self._enter(member, State.DRAINING, reason)

    async def drained(self, name: str, seconds: float) -> bool:
        """Wait until nothing runs there any more; False if the time is up first."""
        try:
            async with asyncio.timeout(seconds):
                await self.members[name].drained.wait()
        except TimeoutError:
            return False
        return True

    def resume(self, name: str) -> None:
        """Back through warm-up to ready, as after a restart."""
        member = self.members[name]
        if self._admission.backends[name].state in HELD:
            member.away = True
            self._enter(member, State.STARTING, "resumed")
            member.wake.set()

    # -- the data plane asks ----------------------------------------------------------------------

    def suspect(self, member: Member) -> None:
        """Something failed there: look now, not at the next turn."""
        member.wake.set()

    async def is_gone(self, member: Member, ends: int) -> bool:
        """Whether the process that had the request is provably down, or another one by now.

        `ends`: the member's when the request was sent; somebody may have noticed since then.
        """
        if member.ends == ends:
            answers = await self._ask(member)
            if member.ends == ends:
                self._report(member, answers)
        return member.ends != ends

    def stopped(self, member: Member, exchange: Exchange) -> asyncio.Future[None]:
        """Tell the engine that its client left; resolves when it has stopped."""
        closed = exchange.leave(member.engine.cancel_seconds)
        if member.engine.close_is_stop or closed.done():
            return closed
        confirmed = asyncio.get_running_loop().create_task(self._confirmed(member, closed))
        self._confirming.add(confirmed)
        confirmed.add_done_callback(self._confirming.discard)
        return confirmed

    async def _confirmed(self, member: Member, closed: asyncio.Future[None]) -> None:
        """Until the engine reports no more requests than those whose clients are still there, or cannot
        tell; at most its `cancel_seconds`. llama.cpp cancels seconds after its close in a long prefill,
        and what were sent meanwhile would wait in there, where nobody sees it."""
        backend = self._admission.backends[member.name]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(member.engine.cancel_seconds):
                await closed
                while True:
                    answers = await self._ask(member)
                    if answers is NoAnswer.REFUSED:
                        return
                    if not isinstance(answers, NoAnswer):
                        busy = member.engine.read(answers).busy
                        if busy is None or busy <= backend.in_use + backend.foreign:
                            return
                    await asyncio.sleep(CONFIRM_SECONDS)

    async def count(self, call: Call, request: Request) -> int | None:
        """The prompt's tokens by an engine's own tokenizer, where one can and answers soon."""
        for member in self.members.values():
            backend = self._admission.backends[member.name]
            if backend.state is not State.READY or not backend.serves(call):
                continue
            counting = member.engine.count(call.route, request.body)
            if counting is None:
                continue
            tokens = await ask_tokenizer(member.upstream, member.engine, counting)
            if tokens is not None:
                return tokens
        return None

    # -- probing ----------------------------------------------------------------------------------

    async def _watch(self, member: Member) -> None:
        """Probe this member until cancelled."""
        while True:
            member.wake.clear()
            try:
                await self._probe(member)
            except Exception:
                # A defect of ours must not leave the engine unwatched for the rest of the day.
                log.exception("the probe of %s failed inside the gateway", member.name)
            ready = self._admission.backends[member.name].state is State.READY
            try:
                async with asyncio.timeout(READY_SECONDS if ready else OTHER_SECONDS):
                    await member.wake.wait()
            except TimeoutError:
                continue

    async def _probe(self, member: Member) -> None:
        backend = self._admission.backends[member.name]
        grants, own, leaving = backend.last_grant, len(backend.leases), set(backend.leaving)
        ends = member.ends
        answers = await self._ask(member)
        if member.ends != ends:  # the answers may be those of the process that has ended since
            return
        report = self._report(member, answers)
        if report is None:
            return
        self._resize(member, report)
        if report.models is not None and not member.settings.models:
            self._apply(self._admission.serve_models(member.name, report.models, self._clock()))
        if report.busy is None:
            self._foreign(member, 0)
        else:
            quiet = backend.last_grant == grants and len(backend.leases) == own
            self._observe(member, report.busy, own, leaving, quiet=quiet)
        if backend.state in HELD:
            return
        if member.away:
            await self._warm_up(member)
        elif backend.state is State.EJECTED:
            self._apply(self._admission.answered(member.name, self._clock()))

    async def _ask(self, member: Member) -> dict[str, Answer] | NoAnswer:
        paths = member.engine.paths if member.known else DETECTION_PATHS
        return await self._probes.ask(member.probed, paths)

    def _recognise(self, member: Member, answers: dict[str, Answer]) -> bool:
        """What kind of engine it is; False while that cannot be told."""
        engine = detect(answers)
        if engine is None:
            statuses = ", ".join(f"{path} {answer.status}" for path, answer in answers.items())
            self._not_ready(member, State.STARTING, f"engine not recognised yet ({statuses})")
            return False
        member.engine, member.known = engine, True
        member.upstream.reuse = engine.reuses_connections
        self._apply(self._admission.recognised(member.name, engine.service, engine.routes, self._clock()))
        log.info("%s is %s", member.name, engine.name)
        return True

    def _report(self, member: Member, answers: dict[str, Answer] | NoAnswer) -> Report | None:
        """What an engine that can serve says of itself; None, and the state says why, of any other."""
        backend = self._admission.backends[member.name]
        if isinstance(answers, NoAnswer):
            member.silent += 1
            if answers is NoAnswer.REFUSED or (member.silent >= SILENT_MAX and not backend.leases):
                self._down(member, answers)
            return None
        member.silent = 0
        if not member.known and not self._recognise(member, answers):
            return None
        report = member.engine.read(answers)
        if report.loading:
            self._restarted(member, report.started)
            return None
        if member.started is not None and report.started not in (None, member.started):
            self._restarted(member, report.started)
        member.started = report.started or member.started
        return report

    def _down(self, member: Member, answer: NoAnswer) -> None:
        member.ends += 1
        if member.settings.engine == "auto":
            member.known = False
        self._not_ready(member, State.DOWN, answer.value)

    def _restarted(self, member: Member, started: str | None) -> None:
        """Another process than before answers at the URL, or the same one loads anew."""
        member.ends += 1
        member.started = started
        self._admission.restarted(member.name)
        self._not_ready(member, State.STARTING, "the engine is loading")

    def _not_ready(self, member: Member, state: State, why: str) -> None:
        member.away, member.foreign = True, 0
        self._apply(self._admission.observe(member.name, 0, self._clock()))
        if self._admission.backends[member.name].state not in HELD:
            self._enter(member, state, why)

    def _resize(self, member: Member, report: Report) -> None:
        """Slots and context as configured, else as reported, else assumed."""
        settings, backend = member.settings, self._admission.backends[member.name]
        slots, source = 1, Source.ASSUMED
        if settings.slots is not None:
            slots, source = settings.slots, Source.CONFIGURED
        elif report.slots is not None:
            slots, source = max(1, report.slots), Source.REPORTED
        context = settings.context_tokens or report.context_tokens
        if (slots, source, context) == (backend.slots, backend.slots_source, backend.context_tokens):
            return
        self._apply(
            self._admission.resize(
                member.name, self._clock(), slots=slots, source=source, context_tokens=context
            )
        )

    def _observe(self, member: Member, busy: int, own: int, leaving: set[str], *, quiet: bool) -> None:
        """Requests at the engine that are not ours; and an idle engine has stopped those we left.

        A probe that overlaps with grants or ends of ours proves nothing, and one alone may have
        been such a moment at the engine: the smaller of two in a row counts.
        """
        if busy == 0:
            for id in leaving:
                self._dispatcher.finish(id)
        self._foreign(member, max(0, busy - own) if quiet else member.foreign)

    def _foreign(self, member: Member, foreign: int) -> None:
        believed = min(foreign, member.foreign)
        member.foreign = foreign
        if believed != self._admission.backends[member.name].foreign:
            self._apply(self._admission.observe(member.name, believed, self._clock()))

    async def _warm_up(self, member: Member) -> None:
        backend = self._admission.backends[member.name]
        model = min(backend.models, default="") if backend.models else ""
        if backend.state is not State.WARMING:
            if backend.slots_source is Source.ASSUMED:
                log.warning(
                    "%s does not tell its slots: 1 is assumed; set slots in its [[backends]] table",
                    member.name,
                )
            self._admission.restarted(member.name)
            member.refuses_usage = False
            self._enter(member, State.WARMING, "warming up")
        for _ in range(member.settings.warmup.requests):
            fault = "no slot is free"  # resumed before it was drained: what runs on may have them all
            if backend.free and (fault := await self._warmed(member, model)):
                member.last_error = fault
            if backend.state is not State.WARMING:  # drained, or down, in the meantime
                return
            if fault:
                self._enter(member, State.WARMING, fault)
                return
        member.away = False
        self._enter(member, State.READY)

    async def _warmed(self, member: Member, model: str) -> str:
        """One warm-up request, which a drain ends; why it failed, or ""."""
        member.warming = asyncio.get_running_loop().create_task(warm_up(member.upstream, model))
        try:
            await asyncio.wait((member.warming,))
            return "the warm-up was ended" if member.warming.cancelled() else member.warming.result()
        finally:
            member.warming.cancel()
            member.warming = None

    # -- events -----------------------------------------------------------------------------------

    def _state_changed(self, change: StateChanged) -> None:
        member = self.members.get(change.backend)
        if member is None:
            return
        if change.state is State.DRAINED:
            member.drained.set()
        else:
            member.drained.clear()
        level = logging.WARNING if change.state in (State.DOWN, State.EJECTED) else logging.INFO
        log.log(level, "%s is %s%s", change.backend, change.state, f": {change.why}" if change.why else "")

    def _enter(self, member: Member, state: State, why: str = "") -> None:
        self._apply(self._admission.set_state(member.name, state, self._clock(), why))

    def _apply(self, decisions: list[Decision]) -> None:
        self._dispatcher.apply(decisions)
