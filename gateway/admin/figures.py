"""What the live page is told: the figures of this second, and the lines of the last ten minutes.

Never prompt text; what a client named itself by (agent, model, id) is shown as it came.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict
from itertools import chain

from pydantic import BaseModel, Field

from gateway.admin.history import STEP_SECONDS, History, Step, Used
from gateway.admin.prefix import PrefixView, prefix_view
from gateway.admin.views import BackendView, WaitingView, backend_view, waiting_view
from gateway.fleet import Fleet
from gateway.inflight import Inflight, Inflights, Phase
from gateway.mender import Mender
from gateway.metrics import Metrics
from policies.admission import Admission
from policies.findings import Findings
from policies.foresight import starts
from policies.types import Backend, Lease, Priority

QUEUE_SHOWN_MAX = 50  # the reasons of each cost some 30 us of the loop's time
AGENTS_SHOWN_MAX = 20
BREAKING_SHOWN_MAX = 5
MINUTE_STEPS = 60 // STEP_SECONDS


class Holder(BaseModel):
    """A request that holds a slot."""

    id: str
    agent: str
    priority: str = Field(serialization_alias="class")
    phase: str = Field(description="prefill, decode; leaving: the client is gone, the engine may be at it")
    age_seconds: float
    phase_seconds: float
    prompt_tokens: int
    cached_tokens: int = Field(description="of the prompt, as predicted")
    predicted_seconds: float = Field(description="from when the engine comes to it to its first token")
    read_seconds: float | None = Field(description="since the engine came to it; null: not yet, or not known")
    tokens: int = Field(description="so far, by events times the learnt tokens of each")
    tokens_per_second: float | None


class BackendFigures(BaseModel):
    """One backend now."""

    backend: BackendView
    holders: list[Holder] = Field(description="in the order in which they were granted")
    tokens_per_second: float


class Figures(BaseModel):
    """One second."""

    at: float = Field(description="seconds since 1970")
    ready: bool
    reason: str = Field(description="why no request can be served now")
    backends: list[BackendFigures]
    waiting: dict[str, int] = Field(description="by class")
    oldest_seconds: float | None = Field(description="how long the oldest one has waited")
    queue: list[WaitingView] = Field(description="the first of them, in the order in which they start")


class Point(BaseModel):
    """One step of the lines."""

    number: int = Field(description="seconds since 1970 over the seconds of a step")
    ttft_p50: float | None = Field(description="of the minute up to it")
    ttft_p95: float | None
    tokens_per_second: dict[str, float] = Field(description="by backend; none: nothing came")


class AgentTokens(BaseModel):
    """What an agent used in the last ten minutes."""

    agent: str = Field(description="empty: all that are not named")
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Lines(BaseModel):
    """The last ten minutes."""

    at: float
    step_seconds: int
    steps: list[Point] = Field(description="since the start of the gateway; the last one is not over")
    agents: list[AgentTokens]
    breaking: list[PrefixView] = Field(
        description="agents that break their prefixes, the most expensive first"
    )
    breaking_total: int = Field(description="so many there are, since the start of the gateway")


class Reader:
    """Reads figures and lines off the gateway's objects; on the event loop's thread only."""

    def __init__(
        self,
        admission: Admission,
        fleet: Fleet,
        inflights: Inflights,
        metrics: Metrics,
        history: History,
        findings: Findings,
        mender: Mender,
        why_not_ready: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._fleet = fleet
        self._inflights = inflights
        self._metrics = metrics
        self._history = history
        self._findings = findings
        self._mender = mender
        self._why_not_ready = why_not_ready
        self._clock = clock

    def figures(self) -> Figures:
        """Those of now."""
        now, admission, rates = self._clock(), self._admission, self._metrics.output_rates()
        queue, backends = admission.queue, admission.backends.values()
        lengths, reason = queue.lengths(), self._why_not_ready()
        shown = queue.ordered(now)[:QUEUE_SHOWN_MAX]
        return Figures(
            at=round(time.time(), 1),
            ready=not reason,
            reason=reason,
            backends=[self._backend(backend, rates.get(backend.name, 0.0), now) for backend in backends],
            waiting={priority.label: lengths[priority] for priority in Priority},
            oldest_seconds=max((round(now - waiting.call.arrived, 3) for waiting in queue), default=None),
            queue=[
                waiting_view(waiting, start, backends, admission.limits, now)
                for waiting, start in zip(shown, starts(shown, admission, now), strict=True)
            ],
        )

    def steps(self) -> dict[int, Step]:
        """What lines are drawn from."""
        return self._history.steps(self._clock(), self._inflights.records(), self._metrics.tokens_so_far)

    def lines(self) -> Lines:
        """Those up to now."""
        now = self._clock()
        breaking = [one for one in self._findings.worst() if one[1].breaks]
        shown = [
            prefix_view(agent, finding, self._mender, now) for agent, finding in breaking[:BREAKING_SHOWN_MAX]
        ]
        return lines_of(self.steps(), shown, len(breaking))

    def _backend(self, backend: Backend, rate: float, now: float) -> BackendFigures:
        hit_ratio = self._metrics.prefix_hit_ratio(backend.name)
        return BackendFigures(
            backend=backend_view(self._fleet.members[backend.name], backend, hit_ratio, now),
            holders=[self._holder(backend, lease, now) for lease in backend.leases.values()],
            tokens_per_second=round(rate, 2),
        )

    def _holder(self, backend: Backend, lease: Lease, now: float) -> Holder:
        call, live = lease.call, self._inflights.by_id.get(lease.call.id)
        tokens, rate = self._generated(live)
        phase = "leaving" if live is None or call.id in backend.leaving else _phase(live)
        since = lease.granted if live is None else live.phase_since
        begun = lease.work.begun
        return Holder(
            id=call.id,
            agent=call.agent,
            priority=call.priority.label,
            phase=phase,
            age_seconds=round(now - call.arrived, 1),
            phase_seconds=round(now - since, 1),
            prompt_tokens=call.prompt_tokens,
            cached_tokens=lease.cached_tokens,
            predicted_seconds=round(lease.prefill_seconds + backend.service.first_token_seconds, 2),
            read_seconds=None if begun is None else round(now - begun, 2),
            tokens=tokens,
            tokens_per_second=rate,
        )

    def _generated(self, live: Inflight | None) -> tuple[int, float | None]:
        """Tokens of its answer so far, and how many came in a second."""
        if live is None:
            return 0, None
        record = live.record
        tokens = self._metrics.tokens_so_far(record)
        if tokens < 2 or record.first_token is None or record.last_token is None:
            return tokens, None
        seconds = record.last_token - record.first_token
        return tokens, round((tokens - 1) / seconds, 1) if seconds > 0 else None


def lines_of(steps: dict[int, Step], breaking: list[PrefixView], breaking_total: int) -> Lines:
    """The lines that are drawn from these steps."""
    return Lines(
        at=round(time.time(), 1),
        step_seconds=STEP_SECONDS,
        steps=_points(steps),
        agents=_agents(steps),
        breaking=breaking[:BREAKING_SHOWN_MAX],
        breaking_total=breaking_total,
    )


def _phase(live: Inflight) -> str:
    """A lease that was granted this very moment has not been sent yet."""
    return Phase.PREFILL if live.phase is Phase.QUEUED else live.phase


def _points(steps: dict[int, Step]) -> list[Point]:
    """Rates as they were; times to first token over a minute: of five seconds they are too few to compare."""
    points, minute = [], deque[list[float]](maxlen=MINUTE_STEPS)
    for number, step in steps.items():
        minute.append(step.ttfts)
        ttfts = sorted(chain.from_iterable(minute))
        points.append(
            Point(
                number=number,
                ttft_p50=percentile(ttfts, 0.5),
                ttft_p95=percentile(ttfts, 0.95),
                tokens_per_second={
                    name: round(tokens / STEP_SECONDS, 2) for name, tokens in step.tokens.items()
                },
            )
        )
    return points


def _agents(steps: dict[int, Step]) -> list[AgentTokens]:
    """Those who used most, first."""
    sums: defaultdict[str, Used] = defaultdict(Used)
    for step in steps.values():
        for agent, used in step.agents.items():
            sums[agent].add(used.requests, used.prompt_tokens, used.cached_tokens, used.completion_tokens)
    ranked = sorted(sums.items(), key=lambda item: -item[1].tokens)
    return [AgentTokens(agent=agent, **asdict(used)) for agent, used in ranked[:AGENTS_SHOWN_MAX]]


def percentile(ascending: list[float], share: float) -> float | None:
    """The value below which this share of them lies, to the millisecond; None of none."""
    return round(ascending[min(len(ascending) - 1, int(share * len(ascending)))], 3) if ascending else None
