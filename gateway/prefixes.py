"""Watches whether each agent's prompts only grow: what breaks their prefix, in which byte, at what cost.

A prompt is compared after it was sent, in the engine's time. Texts are held to compare with, in memory only;
what is counted, logged and shown is kind, path and offset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import xxhash

from gateway.inflight import Inflight
from gateway.metrics import Metrics
from gateway.request import Request
from policies.differences import Difference
from policies.findings import Findings
from policies.heads import SharedHeads
from policies.prefix import Chain
from policies.service_model import ServiceModel
from policies.stability import Stability, Verdict
from policies.turn import Turn
from policies.types import Backend, Call
from policies.volatility import Kind

log = logging.getLogger("slotgate.prefix")

LINKS_MIN = 3  # tools and two messages: there is nothing to break before
BYTES_MIN = 256  # a shorter prompt is read again faster than its loss can be noticed
WARNINGS_MAX = 1000  # agents name themselves, and one that took a new name for each request would fill disks


class Prefixes:
    """Compares what goes to the engines, and keeps what was found."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.findings = Findings()
        self._stability = Stability(xxhash.xxh3_64_intdigest)
        self._heads = SharedHeads(xxhash.xxh3_64_intdigest)
        self._metrics = metrics
        self._clock = clock
        self._warned: set[tuple[str, str]] = set()

    def mended(self, agent: str, kind: Kind) -> None:
        """Something in a prompt of this agent was held still."""
        self.findings.mended(agent, kind)
        self._metrics.prefix_mended(kind.value)

    def look(self, live: Inflight, call: Call, backend: Backend) -> None:
        """A request went out to this backend: compare its prompt with what engines saw of it before."""
        chain = call.chain
        if live.verdict is not None or len(chain) < LINKS_MIN or chain[-1].end_bytes < BYTES_MIN:
            return
        try:
            self._look(live, call, backend.service)
        except Exception:  # a defect of ours; the request does not depend on it
            log.exception("request %s could not be compared", live.record.id)

    def _look(self, live: Inflight, call: Call, service: ServiceModel) -> None:
        record = live.record
        turn = turn_of(live.request, call.chain)
        if turn is None:
            return
        verdict = self._stability.look(record.agent, record.conversation, turn)
        if verdict.new and (drift := self._heads.look(record.agent, turn, self._clock())):
            verdict = Verdict(drift.shared_bytes, drift.difference, drift.lost_bytes, new=True, between=True)
        live.verdict = verdict
        tokens, seconds = 0, 0.0
        if verdict.difference is not None:
            per_byte = call.prompt_tokens / max(1, turn.size)
            tokens = round(verdict.lost_bytes * per_byte)
            seconds = recomputing(service, round(verdict.shared_bytes * per_byte), tokens)
            self._tell(record.agent, verdict.difference)
        self.findings.add(record.agent, verdict, tokens, seconds, self._clock())

    def _tell(self, agent: str, difference: Difference) -> None:
        kind = difference.kind.value
        self._metrics.prefix_broken(kind)
        if (agent, kind) not in self._warned and len(self._warned) < WARNINGS_MAX:
            self._warned.add((agent, kind))
            log.warning(
                "prompts of agent %(agent)s break their cached prefix: %(kind)s at %(path)s, byte %(offset)d "
                "(`slotgate prefix` tells more)",
                {"agent": agent, "kind": kind, "path": difference.path, "offset": difference.offset},
            )


def turn_of(request: Request, chain: Chain) -> Turn | None:
    """The prompt of a conversation, to compare; None of a bare text, which is none."""
    listed, spans, parts = request.route.listed, request.spans, request.parts
    start, _ = spans.get(listed, (0, 0))
    if not request.body.startswith(b"[", start):
        return None
    labels = ["tools"]
    labels += (
        key for part in parts[1:2] for key, span in spans.items() if span[0] == part.start and key != listed
    )
    return Turn(
        request.body,
        parts,
        chain,
        labels=tuple(labels),
        listed=listed,
        model=request.model,
        model_start=spans.get("model", (0, 0))[0],
    )


def recomputing(service: ServiceModel, shared_tokens: int, lost_tokens: int) -> float:
    """Seconds of prefill for tokens that come behind others."""
    return service.prefill_seconds(shared_tokens + lost_tokens, shared_tokens) - service.setup_seconds
