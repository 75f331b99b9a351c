"""Probing, and what the answers of an engine mean to admission. That is decided here, once:

    refused ............ down; when it answers again, it is a new process until proven otherwise
    unreachable ........ down, but nothing is proven: requests there are not asked again elsewhere
    silent ............. nothing, while requests run: an engine in a long prefill may not answer, and a
                         request has limits of its own; else down, after three in a row
    loading ............ starting
    answers ............ its slots, context, models and foreign load; if it was away: warm-up, ready

Requests that a process took with it, without a word, end here too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.capacity import Capacity
from gateway.dispatcher import Dispatcher
from gateway.engines import DETECTION_PATHS, detect
from gateway.engines.base import Answer, Report
from gateway.inflight import Inflights
from gateway.member import Member
from gateway.options import BackendSettings
from gateway.probes import NoAnswer, Probes
from gateway.warmup import warm_up
from policies.shadows import SHADOWS
from policies.types import Backend, Source, State

log = logging.getLogger("slotgate.watch")

READY_SECONDS = 2.0  # between probes; llama.cpp cancels late if it is polled more often
OTHER_SECONDS = 1.0
SILENT_MAX = 3  # probes in a row, while no request runs
HELD = (State.DRAINING, State.DRAINED)


class Watch:
    """Asks the members of a fleet how they are, and tells admission."""

    def __init__(
        self, dispatcher: Dispatcher, inflights: Inflights, probes: Probes, clock: Callable[[], float]
    ) -> None:
        self._dispatcher = dispatcher
        self._admission = dispatcher.admission
        self._inflights = inflights
        self._probes = probes
        self._clock = clock

    async def run(self, member: Member) -> None:
        """Probe this member until cancelled."""
        while True:
            member.wake.clear()
            try:
                await self._probe(member)
            except Exception:
                # A defect of ours must not leave the engine unwatched for the rest of the day.
                log.exception("the probe of %s failed inside the gateway", member.name)
            self._inflights.cut(member.name, member.ended_at, self._clock())
            ready = self._admission.backends[member.name].state is State.READY
            try:
                async with asyncio.timeout(READY_SECONDS if ready else OTHER_SECONDS):
                    await member.wake.wait()
            except TimeoutError:
                continue

    async def is_gone(self, member: Member, ends: int) -> bool:
        """Whether the process that had a request is provably down, or another one by now.

        `ends`: the member's when the request was sent; somebody may have noticed since then.
        """
        if member.ends == ends:
            asked_at, answers = await self._ask(member)
            if member.ends == ends:
                self._report(member, answers, asked_at)
        return member.ends != ends

    def enter(self, member: Member, state: State, why: str = "") -> None:
        """The backend is in another state from now on."""
        self._dispatcher.apply(self._admission.set_state(member.name, state, self._clock(), why))

    # -- one probe --------------------------------------------------------------------------------

    async def _probe(self, member: Member) -> None:
        backend = self._admission.backends[member.name]
        grants, own, leaving = backend.last_grant, len(backend.leases), set(backend.leaving)
        ends = member.ends
        asked_at, answers = await self._ask(member)
        if member.ends != ends:  # the answers may be those of the process that has ended since
            return
        report = self._report(member, answers, asked_at)
        if report is None:
            return
        now = self._clock()
        member.told_elsewhere(self._dispatcher.slots_elsewhere(member.name))
        member.experience.look(report, member.capacity.slots, now)
        self._resize(member, report, now)
        if report.models is not None and not member.settings.models:
            self._dispatcher.apply(self._admission.serve_models(member.name, report.models, self._clock()))
        if report.busy is None:
            self._foreign(member, 0)
        else:
            quiet = backend.last_grant == grants and len(backend.leases) == own
            self._observe(member, report.busy, own, leaving, quiet=quiet)
        if backend.state in HELD:
            return
        if member.away:
            await self._warm_up(member, backend)
        elif backend.state is State.EJECTED:
            self._dispatcher.apply(self._admission.answered(member.name, self._clock()))

    async def _ask(self, member: Member) -> tuple[float, dict[str, Answer] | NoAnswer]:
        """When it was asked, and what it answered."""
        paths = member.engine.paths if member.known else DETECTION_PATHS
        return self._clock(), await self._probes.ask(member.probed, paths)

    def _report(
        self, member: Member, answers: dict[str, Answer] | NoAnswer, asked_at: float
    ) -> Report | None:
        """What an engine that can serve says of itself; None, and the state says why, of any other."""
        if isinstance(answers, NoAnswer):
            member.silent += 1
            idle = not self._admission.backends[member.name].leases
            if answers is not NoAnswer.SILENT or (member.silent >= SILENT_MAX and idle):
                self._down(member, answers)
            return None
        member.silent = 0
        if not member.known and not self._recognise(member, answers):
            return None
        report = member.engine.read(answers)
        if report.loading:
            self._restarted(member, report, "the engine is loading", proven=False)
            return None
        if member.restarted(report, asked_at):
            self._restarted(member, report, "the engine was restarted")
        member.heard(report, asked_at, self._clock())
        return report

    def _recognise(self, member: Member, answers: dict[str, Answer]) -> bool:
        """What kind of engine it is; False while that cannot be told."""
        engine = detect(answers)
        if engine is None:
            statuses = ", ".join(f"{path} {answer.status}" for path, answer in answers.items())
            self._not_ready(member, State.STARTING, f"engine not recognised yet ({statuses})")
            return False
        member.engine, member.known, member.recognised = engine, True, True
        member.upstream.reuse = engine.reuses_connections
        self._dispatcher.apply(
            self._admission.recognised(
                member.name, engine.service, SHADOWS[engine.prefix_kind](), engine.routes, self._clock()
            )
        )
        log.info("%s is %s", member.name, engine.name)
        return True

    def _down(self, member: Member, answer: NoAnswer) -> None:
        if answer is not NoAnswer.UNREACHABLE:  # a name or network that fails ends no process
            member.ended(self._clock())
        if member.settings.engine == "auto":
            member.known = False
        self._not_ready(member, State.DOWN, answer.value)

    def _restarted(self, member: Member, report: Report, why: str, *, proven: bool = True) -> None:
        """Another process than before answers at the URL, or the same one loads anew."""
        member.ended(self._clock(), proven=proven)
        member.started = report.started
        self._admission.restarted(member.name)
        self._not_ready(member, State.STARTING, why)

    def _not_ready(self, member: Member, state: State, why: str) -> None:
        member.away, member.foreign = True, 0
        self._dispatcher.observe(member.name, 0)
        if self._admission.backends[member.name].state not in HELD:
            self.enter(member, state, why)

    def reconfigured(self, member: Member, before: BackendSettings) -> None:
        """The operator said something else of it than before: that counts at once, the rest as reported."""
        settings, report, now = member.settings, member.report, self._clock()
        if _sizes(settings) != _sizes(before):
            self._resize(member, report, now)
        if settings.models != before.models:
            models = settings.models or report.models
            self._dispatcher.apply(self._admission.serve_models(member.name, models, now))
        self._admission.stand_by(member.name, backup=settings.backup)
        member.wake.set()

    def _resize(self, member: Member, report: Report, now: float) -> None:
        capacity = Capacity.of(member.settings, report, member.experience)
        if capacity == member.capacity:
            return
        member.capacity = capacity
        self._dispatcher.apply(
            self._admission.resize(
                member.name,
                now,
                slots=capacity.slots,
                source=capacity.source,
                context_tokens=capacity.context_tokens.value,
                kv_tokens=capacity.kv_tokens.value,
            )
        )

    # -- what else runs there ---------------------------------------------------------------------

    def _observe(self, member: Member, busy: int, own: int, leaving: set[str], *, quiet: bool) -> None:
        """Requests at the engine that are not ours; and an idle engine has stopped those we left.

        A probe that overlaps with grants or ends of ours proves nothing, and one alone may have
        been such a moment at the engine: the smaller of two in a row that prove something counts.
        """
        if busy == 0:
            for id in leaving:
                self._dispatcher.finish(id)
        if quiet:
            self._foreign(member, max(0, busy - own))
            self._dispatcher.reported(member.name, max(0, busy - own))

    def _foreign(self, member: Member, foreign: int) -> None:
        believed = min(foreign, member.foreign)
        member.foreign = foreign
        self._dispatcher.observe(member.name, believed)

    # -- warm-up ----------------------------------------------------------------------------------

    async def _warm_up(self, member: Member, backend: Backend) -> None:
        if backend.state is not State.WARMING:
            if backend.slots_source is Source.ASSUMED:
                log.warning(
                    "%s does not tell its slots: 1 is assumed%s; set slots in its [[backends]] table",
                    member.name,
                    ", one more is tried whenever all are taken" if member.report.shows_slots else "",
                )
            self._admission.restarted(member.name)
            member.refuses_usage = False
            routes, now = member.engine.routes, self._clock()
            self._dispatcher.apply(self._admission.serve_routes(member.name, routes, now))
            self.enter(member, State.WARMING)
        model = min(backend.models, default="") if backend.models else ""
        for _ in range(member.settings.warmup.requests):
            try:
                free = await self._dispatcher.borrow(member.name)
                fault = self._dispatcher.unlent(member.name)
                warm = self._dispatcher.warm_elsewhere(member.name)  # by now others are heard of
                if warm:
                    fault = ""
                elif free and (fault := await self._warmed(member, model)):
                    member.last_error = fault
            finally:
                self._dispatcher.give_back(member.name)
            if backend.state is not State.WARMING:  # drained, or down, in the meantime
                return
            if fault:
                self.enter(member, State.WARMING, fault)
                return
            if warm:
                break
        member.away = False
        self.enter(member, State.READY)

    async def _warmed(self, member: Member, model: str) -> str:
        """One warm-up request, which a drain ends; why it failed, or ""."""
        member.warming = asyncio.get_running_loop().create_task(warm_up(member.upstream, model))
        try:
            await asyncio.wait((member.warming,))
            return "the warm-up was ended" if member.warming.cancelled() else member.warming.result()
        finally:
            member.warming.cancel()
            member.warming = None


def _sizes(settings: BackendSettings) -> tuple[int | None, ...]:
    return settings.slots, settings.context_tokens, settings.kv_tokens
