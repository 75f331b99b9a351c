"""slotgate itself as a policy: the Admission that serves in production, driven as the gateway drives it."""

from __future__ import annotations

from collections.abc import Iterable

from policies import types as admitted
from policies.admission import Admission
from policies.learner import Counts, Learner
from policies.output_length import OutputLength
from policies.prefix import Link
from policies.service_model import ServiceModel
from policies.shadows import SHADOWS
from policies.simulation.engine import Engine, Job
from policies.simulation.profile import Profile
from policies.simulation.router import Decision, Knowledge, Refuse, Request, Start
from policies.slots import SlotSearch
from policies.types import Backend, Call, Granted, Limits, Rejected, Source, State

MODEL = "simulated"
ROUTE = "/v1/chat/completions"
BYTES_PER_TOKEN = 4
RETRY_SECONDS = 1.0  # of a client that was told nothing
LOOK_SECONDS = 2.0  # between two looks at the engines, as the gateway probes them


class Slotgate:
    """One gateway in front of the engines."""

    def __init__(self, knowledge: Knowledge, limits: Limits | None = None) -> None:
        self.admission = Admission(limits or Limits())
        self._outputs = OutputLength()
        self._learner = Learner(self.admission.backends, self._outputs)
        self._usage_known = knowledge.usage_known
        self._calls: dict[str, Call] = {}
        self._searches = (
            {} if knowledge.slots_known else {engine: SlotSearch() for engine in knowledge.engines}
        )
        self._looked = 0.0
        self.waiting = 0
        for engine in knowledge.engines:
            self._join(engine.profile, slots_known=knowledge.slots_known)

    def arrive(self, request: Request, now: float) -> list[Decision]:
        call = self._call(request)
        self._calls[call.id] = call
        self.waiting += 1
        return self._said(self.admission.submit(call, now))

    def again(self, request: Request, now: float) -> list[Decision]:
        self.waiting += 1
        return self._said(self.admission.not_started(self._calls[request.id], now))

    def first_token(self, job: Job, now: float) -> list[Decision]:
        return self._said(self.admission.first_token(job.id, now))

    def ended(self, job: Job, now: float) -> list[Decision]:
        del self._calls[job.id]
        lease = self.admission.lease(job.id)
        assert lease is not None
        decisions = self.admission.finish(job.id, now)
        completed = job.ended is not None
        self._learner.ended(lease, self._counts(job), streamed=True, completed=completed)
        return self._said(decisions)

    def speed(self, engine: Engine, now: float) -> list[Decision]:
        state = State.READY if engine.alive else State.DOWN
        if state is self.admission.backends[engine.name].state:
            return []
        if engine.alive:
            self.admission.restarted(engine.name)
        return self._said(self.admission.set_state(engine.name, state, now))

    def tick(self, now: float) -> list[Decision]:
        return self._said([*self._look(now), *self.admission.tick(now)])

    def _look(self, now: float) -> list[admitted.Decision]:
        """Of engines that do not tell how many slots they have: what runs in them, and what waits."""
        decisions: list[admitted.Decision] = []
        if now - self._looked < LOOK_SECONDS:
            return decisions
        self._looked = now
        for engine, search in self._searches.items():
            if not engine.alive:
                continue
            search.look(engine.active, len(engine.queue))
            source = Source.ASSUMED if search.found is None else Source.LEARNT
            decisions += self._resize(engine.profile, now, search.found or search.tried, source)
        return decisions

    def _join(self, profile: Profile, *, slots_known: bool) -> None:
        backend = Backend(
            profile.name,
            service_model(profile),
            SHADOWS[profile.cache](),
            models=frozenset({MODEL}),
            routes=frozenset({ROUTE}),
        )
        self.admission.add(backend, 0.0)
        slots, source = (profile.slots, Source.REPORTED) if slots_known else (1, Source.ASSUMED)
        self._resize(profile, 0.0, slots, source)
        self.admission.set_state(profile.name, State.READY, 0.0)

    def _resize(self, profile: Profile, now: float, slots: int, source: Source) -> list[admitted.Decision]:
        return self.admission.resize(
            profile.name,
            now,
            slots=slots,
            source=source,
            context_tokens=profile.context_tokens,
            kv_tokens=profile.pool_tokens or None,
        )

    def _said(self, decisions: Iterable[admitted.Decision]) -> list[Decision]:
        told: list[Decision] = []
        for decision in decisions:
            match decision:
                case Granted(lease):
                    self.waiting -= 1
                    told.append(Start(lease.call.id, lease.backend))
                case Rejected(call):
                    self.waiting -= 1
                    del self._calls[call.id]
                    told.append(Refuse(call.id, decision.retry_after_seconds or RETRY_SECONDS))
                case _:  # a backend's state, which the run knows
                    continue
        return told

    def _call(self, request: Request) -> Call:
        turn, program = request.turn, request.program
        links = tuple(Link(segment.digest, segment.end_tokens * BYTES_PER_TOKEN) for segment in turn.prompt)
        return Call(
            id=request.id,
            model=MODEL,
            route=ROUTE,
            priority=program.priority,
            agent=program.tenant,
            arrived=request.arrived,
            prompt_tokens=turn.prompt_tokens,
            conversation=program.name,
            accounts=(("",), ("", program.tenant), ("", program.tenant, program.name)),
            outputs=self._outputs.of(MODEL, program.priority, program.name),
            chain=links,
            body_bytes=turn.prompt_tokens * BYTES_PER_TOKEN,
        )

    def _counts(self, job: Job) -> Counts:
        """What the engine says of an answer."""
        if not self._usage_known:
            return Counts(job.turn.prompt_tokens, None, None)
        return Counts(job.turn.prompt_tokens, job.cached_tokens, job.turn.output_tokens)


def service_model(profile: Profile) -> ServiceModel:
    """What admission believes of the engine at first: the truth, as far as its model holds it."""
    return ServiceModel(
        setup_seconds=profile.setup_seconds,
        first_token_seconds=profile.latency_seconds,
        prefill_tokens_per_second=profile.long_rate,
        prefill_head_tokens_per_second=profile.short_rate,
        prefill_square_seconds=profile.quadratic_seconds,
        decode_base_seconds=profile.decode_base_seconds,
        decode_step_seconds=profile.decode_step_seconds,
        decode_depth_seconds=profile.decode_context_seconds,
        starved_tokens_per_second=profile.starved_rate,
        cache_block_tokens=profile.cache_tokens,
    )
