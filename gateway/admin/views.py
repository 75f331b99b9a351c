"""What the admin port shows: the shape of each answer, and how it is read off the gateway's objects.

Never prompt text; what a client named itself by (agent, model, id) is shown as it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal

from pydantic import BaseModel, Field

from gateway.inflight import Inflight, Phase
from gateway.member import Member
from policies import filters
from policies.calibration import Calibration
from policies.tiers import standby, tiers
from policies.types import Backend, Limits, Reason, Source, State
from policies.waiting import Waiting


class ErrorObject(BaseModel, extra="allow"):
    """What went wrong, in the words that clients of the other port get."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorView(BaseModel):
    """The answer to a request that failed."""

    error: ErrorObject


class Slots(BaseModel):
    """A backend's slots; `leaving`: the client is gone, the engine may still be at it."""

    total: int
    source: Source
    sources: dict[Source, int] = Field(description="what each source says, the one that counts first")
    reason: str = Field(description="why fewer are used than the source says; empty: all are")
    in_use: int
    leaving: int
    foreign: int = Field(description="requests at the engine that are not the gateway's")
    free: int


class Rates(BaseModel):
    """How fast the backend is taken to be."""

    setup_seconds: float
    first_token_seconds: float = Field(description="after a prefill, beside the next one")
    prefill_tokens_per_second: float
    prefill_head_tokens_per_second: float = Field(description="of the first 2,048 tokens")
    prefill_square_seconds: float = Field(description="of each prompt, per square of its tokens")
    decode_base_seconds: float = Field(description="of each token")
    decode_step_seconds: float = Field(description="of each token, for each sequence in the batch")
    decode_depth_seconds: float = Field(description="of each token, per token before it")
    starved_tokens_per_second: float = Field(description="of a stream while another prompt is read")
    samples: int = Field(description="prompts since the engine's start that taught its rates")
    error_ratio: float | None = Field(description="of predicted times to first token; null: none yet")
    source: Literal["prior", "learnt"]


class Prefix(BaseModel):
    """What the backend's cache is taken to hold."""

    entries: int = Field(description="sequences, or messages where requests share blocks")
    room: int | None = Field(description="sequences it is taken to keep, or tokens; null: no bound is known")
    efficiency: float = Field(description="share of what should be cached that the engine does find")
    block_tokens: int = Field(description="it finds whole blocks of this many tokens")
    found_less: int = Field(description="prompts of which much less was cached than believed: evicted")
    found_more: int = Field(description="prompts of which more was: put away in memory, on disk; others'")
    hit_ratio: float | None = Field(description="cached share of recent prompts; null: not known yet")


class BackendView(BaseModel):
    """One backend."""

    name: str
    url: str
    engine: str = Field(description="`auto` while it is not recognised")
    state: State
    reason: str
    slots: Slots
    context_tokens: int | None = Field(description="of one slot; null: the engine does not say")
    context_source: Source | None
    kv_tokens: int | None = Field(description="that all requests may hold together; null: no bound is known")
    kv_source: Source | None
    kv_held: int = Field(description="by the requests that run: prompts and usual answers")
    models: list[str] | None = Field(description="null: not known yet")
    backup: bool = Field(description="used only while no other backend can serve")
    rates: Rates
    prefix: Prefix
    last_error: str
    since: datetime = Field(description="when it came into this state")


class DrainRequest(BaseModel, extra="forbid"):
    """How to drain."""

    wait_seconds: float = Field(default=0, ge=0, le=3600, description="answer when drained or after this")
    reason: str = Field(default="", max_length=200, description="for people")


class DrainView(BaseModel):
    """How far a backend is; `drained`: nothing of ours runs there, it is safe to stop."""

    state: State
    in_flight: int = Field(description="requests that still hold a slot, those of gone clients included")


class ReloadView(BaseModel):
    """What became of a configuration that was read again."""

    changed: list[str] = Field(description="options and lists of tables that are followed now")
    standing: list[str] = Field(description="those that differ too, but count from the next start on")


class ShutdownView(BaseModel):
    """The gateway is about to stop."""

    in_flight: int = Field(description="requests that run or wait, and may finish")


class WaitingView(BaseModel):
    """One request in the queue, in the order in which they start."""

    id: str
    priority: str = Field(serialization_alias="class")
    agent: str
    model: str
    age_seconds: float
    predicted_start_seconds: float | None = Field(
        description="from now; null: nothing runs that could make room"
    )
    prompt_tokens: int
    why: dict[str, Reason] = Field(description="why it does not start, by backend")


class RequestView(BaseModel):
    """One request that is being served."""

    id: str
    phase: Phase
    phase_seconds: float
    backend: str
    priority: str = Field(serialization_alias="class")
    agent: str
    model: str
    streamed: bool
    age_seconds: float
    prompt_tokens: int | None = Field(description="counted by the engine if it did that, else estimated")
    cached_tokens_predicted: int | None


def backend_view(member: Member, backend: Backend, hit_ratio: float | None, now: float) -> BackendView:
    """One backend; `now` is the gateway's monotonic time."""
    service, capacity = backend.service, member.capacity
    return BackendView(
        name=backend.name,
        url=member.settings.url,
        engine=member.engine.name if member.recognised else "auto",
        state=backend.state,
        reason=backend.why,
        slots=Slots(
            total=backend.slots,
            source=backend.slots_source,
            sources=capacity.told.by_source,
            reason=capacity.reason,
            in_use=backend.in_use,
            leaving=len(backend.leaving),
            foreign=backend.foreign,
            free=backend.free,
        ),
        context_tokens=backend.context_tokens,
        context_source=capacity.context_tokens.source,
        kv_tokens=backend.kv_tokens,
        kv_source=capacity.kv_tokens.source,
        kv_held=backend.held_tokens,
        models=None if backend.models is None else sorted(backend.models),
        backup=backend.backup,
        rates=_rates(backend.calibration),
        prefix=Prefix(
            entries=len(backend.shadow),
            efficiency=service.cache_efficiency,
            room=backend.shadow.room,
            block_tokens=service.cache_block_tokens,
            found_less=backend.calibration.found_less,
            found_more=backend.calibration.found_more,
            hit_ratio=hit_ratio,
        ),
        last_error=member.last_error,
        since=(datetime.now(UTC) - timedelta(seconds=now - backend.since)).replace(microsecond=0),
    )


def _rates(calibration: Calibration) -> Rates:
    model = calibration.model
    return Rates(
        setup_seconds=model.setup_seconds,
        first_token_seconds=model.first_token_seconds,
        prefill_tokens_per_second=model.prefill_tokens_per_second,
        prefill_head_tokens_per_second=model.prefill_head_tokens_per_second
        or model.prefill_tokens_per_second,
        prefill_square_seconds=model.prefill_square_seconds,
        decode_base_seconds=model.decode_base_seconds,
        decode_step_seconds=model.decode_step_seconds,
        decode_depth_seconds=model.decode_depth_seconds,
        starved_tokens_per_second=model.starved_tokens_per_second,
        samples=calibration.samples,
        error_ratio=calibration.error_ratio,
        source="learnt" if calibration.learnt else "prior",
    )


def waiting_view(
    waiting: Waiting, predicted: float | None, backends: Iterable[Backend], limits: Limits, now: float
) -> WaitingView:
    """One request in the queue, with its predicted start in seconds from now."""
    call = waiting.call
    return WaitingView(
        id=call.id,
        priority=call.priority.label,
        agent=call.agent,
        model=call.model,
        age_seconds=_rounded(now - call.arrived),
        predicted_start_seconds=None if predicted is None else _rounded(predicted),
        prompt_tokens=call.prompt_tokens,
        why=_why(waiting, [b for b in backends if b.serves(call)], limits, now),
    )


def request_view(live: Inflight, now: float) -> RequestView:
    """One request that is being served."""
    record = live.record
    tokens = record.prompt_tokens
    return RequestView(
        id=record.id,
        phase=live.phase,
        phase_seconds=_rounded(now - live.phase_since),
        backend=record.backend,
        priority=record.priority.label if record.priority is not None else "",
        agent=record.agent,
        model=record.model,
        streamed=record.streamed,
        age_seconds=_rounded(now - record.arrived),
        prompt_tokens=record.prompt_tokens_estimated if tokens is None else tokens,
        cached_tokens_predicted=record.cached_tokens_predicted,
    )


def _why(waiting: Waiting, serving: list[Backend], limits: Limits, now: float) -> dict[str, Reason]:
    """What keeps it from each backend: state and slots as they are now, gate and reserve as Admission
    found them. It does not look at all while no slot is free anywhere."""
    call = waiting.call
    fitting = [backend for tier in tiers(call, serving) for backend in tier]
    reasons: dict[str, Reason] = {}
    for backend in serving:
        reason: Reason | None = Reason.CONTEXT
        if backend in fitting:
            blocked = filters.blocked(call, backend, limits, now, interactive_seen=False)
            reason = blocked or waiting.why.get(backend.name)
            if blocked is None and reason is Reason.SLOTS:  # what is free since then is not for it
                reason = Reason.RESERVE
        elif standby(call, backend) and filters.fitting(call, [backend]):
            reason = Reason.STANDBY
        if reason is not None:
            reasons[backend.name] = reason
    return reasons


def _rounded(seconds: float) -> float:
    return round(max(0.0, seconds), 3)
