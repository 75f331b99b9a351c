"""From a slot to the client: ask the engine, pass its answer on, and know what a failure means.

Only what provably did not start is repeated, and nothing of an engine is passed on before its first
token, so a repeat is invisible. A timeout or a 500 is never repeated: the engine may still generate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway import errors
from gateway.accounting import Usage, usage_from
from gateway.answer import StreamedAnswer, as_stream
from gateway.assembly import Assembly
from gateway.client import JSON
from gateway.dispatcher import Dispatcher, Slot
from gateway.engines.base import Answer, Failed, Overlength, Overload, Passed
from gateway.fleet import Fleet, Member
from gateway.inflight import Inflight, Phase
from gateway.metrics import Metrics
from gateway.sse import EventSplitter, EventTooLarge, event_of
from gateway.upstream import AnswerTooLarge, ConnectFailed, ConnectionLost, Exchange, Head
from policies.retry_budget import RetryBudget

REFUSAL_BYTES_MAX = 1_048_576
ANSWER_BYTES_MAX = 67_108_864
CONNECT_PAUSE_SECONDS = 1.0
OVERLOAD_PAUSE_SECONDS = 2.0  # for an engine that is full and does not say for how long
STALE_SECONDS = 0.5  # a request on a closed connection is reset within a round trip; later it had begun
TAIL_SECONDS = 1.0  # for the end of the engine's answer after the client has its own


@dataclass
class NotStarted(Exception):
    """The engine provably did not begin; the call goes back to its place in the queue."""

    reason: str
    pause_seconds: float = 0.0
    prompt_tokens: int | None = None  # the engine counted them while it refused


class Relay:
    """Answers calls that hold a slot."""

    def __init__(
        self, fleet: Fleet, dispatcher: Dispatcher, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._clock = clock
        self._budget = RetryBudget()

    async def serve(self, slot: Slot, live: Inflight) -> None:
        """Answer the call, on another slot if the first engine did not begin.

        Raises the `GatewayError` that the client is to be told.
        """
        self._budget.request(self._clock())
        while True:
            try:
                return await self._attempt(slot, live)
            except NotStarted as refused:
                live.record.retries += 1
                live.record.dispatched = None
                self._metrics.retry(refused.reason)
                live.enter(Phase.QUEUED, self._clock())
                await slot.again(refused.pause_seconds, refused.prompt_tokens)

    async def _attempt(self, slot: Slot, live: Inflight) -> None:
        member = self._fleet.members[slot.lease.backend]
        record, request = live.record, live.request
        ends = member.ends
        record.backend, record.dispatched = member.name, self._clock()
        record.cached_tokens_predicted = slot.lease.cached_tokens
        live.first_token_seconds_max = member.timeouts.first_token_seconds
        live.idle_seconds_max = member.timeouts.idle_seconds
        live.enter(Phase.PREFILL, record.dispatched)
        streams = request.stream or member.engine.streams_always
        body = request.edited(
            stream=True if streams and not request.stream else None,
            include_usage=streams and not request.include_usage and not member.refuses_usage,
        )
        try:
            exchange = await member.upstream.send("POST", record.route, live.headers, body)
        except ConnectFailed as failed:
            self._failed(member, slot, "connect", failed.cause)
            raise NotStarted("connect", CONNECT_PAUSE_SECONDS) from failed
        live.client.headers = describe(slot, live)  # while the engine is at work
        try:
            await self._converse(exchange, member, slot, live)
        except (ConnectionLost, AnswerTooLarge, EventTooLarge) as lost:
            raise await self._lost(lost, member, ends, slot, live) from lost
        except asyncio.CancelledError:
            # An engine that hangs may answer every probe: only its requests tell.
            if isinstance(live.failure, errors.FirstTokenTimeout | errors.IdleTimeout):
                self._failed(member, slot, "stall", live.failure.code)
            raise
        finally:
            if not exchange.complete:
                slot.stopping = exchange.leave(member.engine.cancel_seconds)

    # -- the engine answers -----------------------------------------------------------------------

    async def _converse(self, exchange: Exchange, member: Member, slot: Slot, live: Inflight) -> None:
        head = await exchange.head()
        if not 200 <= head.status < 300:
            await self._refused(exchange, head, member, slot, live)
        elif not head.headers.get("content-type", "").startswith("text/event-stream"):
            await self._document(exchange, head, member, slot, live)
        elif live.request.stream:
            await self._stream(exchange, member, slot, live)
        else:
            await self._assemble(exchange, member, slot, live)

    async def _stream(self, exchange: Exchange, member: Member, slot: Slot, live: Inflight) -> None:
        """Events to a client that streams."""
        client = live.client
        answer = StreamedAnswer(wants_usage=live.request.include_usage)
        splitter = EventSplitter()
        passed = b""
        try:
            while not answer.over and (data := await exchange.read()):
                passed = answer.take(splitter.feed(data))
                now = self._clock()
                if passed and not answer.done:
                    await client.stream(passed, now)
                self._note(answer, slot, live, now)  # after the client has its first token, not before
        finally:
            note_usage(live, answer.usage)
        self._judge(answer, member, slot, live)
        await client.stream(passed if answer.done else answer.end(), self._clock(), last=True)
        live.record.outcome = live.record.outcome or "completed"
        await finish(exchange)

    async def _assemble(self, exchange: Exchange, member: Member, slot: Slot, live: Inflight) -> None:
        """One document for a client that does not stream, from an engine that must."""
        assembly = Assembly(live.record.route)
        answer = StreamedAnswer(wants_usage=True, assembly=assembly)
        splitter = EventSplitter()
        try:
            while not answer.over and (data := await exchange.read()):
                answer.take(splitter.feed(data))
                self._note(answer, slot, live, self._clock())
        finally:
            note_usage(live, answer.usage)
        self._judge(answer, member, slot, live)
        await live.client.answer(200, JSON, assembly.answer())
        live.record.outcome = "completed"
        await finish(exchange)

    async def _document(
        self, exchange: Exchange, head: Head, member: Member, slot: Slot, live: Inflight
    ) -> None:
        """A whole JSON answer; also from an engine that ignored `stream`."""
        slot.first_token()
        live.enter(Phase.DECODE, self._clock())
        live.progress_at = float("inf")  # nothing is heard until the whole answer is there
        body = await exchange.body(ANSWER_BYTES_MAX)
        document = Answer(head.status, head.headers, body).json()
        if not isinstance(document, dict) or not isinstance(document.get("choices"), list):
            told = isinstance(document, dict) and document.get("error")
            cause = "a 200 with an error inside" if told else "a 200 without an answer inside"
            self._failed(member, slot, "answer", cause)
            raise errors.BackendFailed(cause, started=True)
        note_usage(live, usage_from(document))
        live.record.answer_bytes = len(body)
        client, request = live.client, live.request
        if client.head_sent:
            events = as_stream(document, live.record.route, wants_usage=request.include_usage)
            await client.stream(events, self._clock(), last=True)
        else:
            await client.answer(head.status, JSON, body)
        live.record.outcome = "completed"

    def _note(self, answer: StreamedAnswer, slot: Slot, live: Inflight, now: float) -> None:
        """Keep the times and counts of what has come."""
        record = live.record
        if answer.committed and live.phase is Phase.PREFILL:
            if answer.first_token:
                record.first_token = now
            slot.first_token()
            live.enter(Phase.DECODE, now)
        if answer.events != record.events:
            record.last_token = live.progress_at = now
            record.events, record.answer_bytes = answer.events, answer.answer_bytes

    def _judge(self, answer: StreamedAnswer, member: Member, slot: Slot, live: Inflight) -> None:
        """Was that an answer? Raises BackendFailed if not; an error event that the client already
        has only ends the request."""
        if answer.error is not None:
            cause = str(answer.error.get("type") or "error event")[:80]
            self._failed(member, slot, "error_event", cause)
            if not answer.committed:
                raise errors.BackendFailed(cause, started=True)
            live.record.outcome = errors.BackendFailed.outcome
        elif not (answer.finished or answer.done):
            raise ConnectionLost("the stream ended without an end", answered=True, reused=False)

    # -- the engine refuses or fails --------------------------------------------------------------

    async def _refused(
        self, exchange: Exchange, head: Head, member: Member, slot: Slot, live: Inflight
    ) -> None:
        answer = Answer(head.status, head.headers, await exchange.body(REFUSAL_BYTES_MAX))
        if head.status in (400, 422) and not member.refuses_usage and refuses_usage(answer, live):
            member.refuses_usage = True
            raise NotStarted("include_usage")
        match member.engine.refusal(answer):
            case Overload(pause_seconds):
                raise NotStarted("overload", pause_seconds or OVERLOAD_PAUSE_SECONDS)
            case Overlength(prompt_tokens, limit_tokens):
                self._too_long(prompt_tokens, limit_tokens, slot)
            case Failed(cause):
                self._failed(member, slot, "status", cause)
                raise errors.BackendFailed(cause, started=head.status >= 500)
            case Passed():
                live.record.outcome = errors.ClientError.outcome
                await self._refuse(answer, live)

    async def _refuse(self, answer: Answer, live: Inflight) -> None:
        """The engine's own words, as they came; behind the head its error object as one event."""
        client = live.client
        if not client.head_sent:
            content_type = answer.headers.get("content-type", "application/json").encode("latin-1")
            await client.answer(answer.status, [(b"content-type", content_type)], answer.body)
            return
        said = answer.json()
        if not isinstance(said, dict) or not isinstance(said.get("error"), dict):
            raise errors.InvalidRequest("The backend refused the request.")
        await client.stream(event_of(said), self._clock(), last=True)

    def _too_long(self, prompt_tokens: int | None, limit_tokens: int | None, slot: Slot) -> None:
        """The estimate was too low; a larger backend may hold the prompt. An engine that does not count
        says at least that there are more tokens than its context."""
        call, backends = slot.call, self._dispatcher.admission.backends
        known = limit_tokens or backends[slot.lease.backend].context_tokens or call.prompt_tokens
        larger = any(
            b.serves(call) and b.context_tokens is not None and b.context_tokens > known
            for b in backends.values()
        )
        tokens = prompt_tokens or max(known, call.prompt_tokens)
        if larger and (tokens > call.prompt_tokens or not call.prompt_counted):
            raise NotStarted("over_length", prompt_tokens=tokens)
        raise errors.ContextLengthExceeded(prompt_tokens, known, counted=True)

    async def _lost(
        self,
        lost: ConnectionLost | AnswerTooLarge | EventTooLarge,
        member: Member,
        ends: int,
        slot: Slot,
        live: Inflight,
    ) -> NotStarted | errors.BackendFailed:
        """What a broken connection means for the request."""
        if isinstance(lost, ConnectionLost) and live.phase is Phase.PREFILL:
            at_once = self._clock() - live.phase_since < STALE_SECONDS
            if lost.reused and not lost.answered and at_once:
                return NotStarted("stale_connection")
            self._failed(member, slot, "connection", str(lost))
            gone = live.may_repeat and await self._fleet.is_gone(member, ends)
            if gone and self._budget.allows(self._clock()):
                live.may_repeat = False
                return NotStarted("backend_died")
        else:
            self._failed(member, slot, "connection", str(lost))
        return errors.BackendFailed(str(lost), started=True)

    def _failed(self, member: Member, slot: Slot, reason: str, cause: str) -> None:
        member.last_error = f"{reason}: {cause}"
        self._fleet.suspect(member)
        self._dispatcher.apply(
            self._dispatcher.admission.failed(member.name, self._clock(), reason, trial=slot.lease.trial)
        )


async def finish(exchange: Exchange) -> None:
    """Read the engine's answer to its end, so that the connection can be used again. The client has
    everything already; an engine that dawdles loses the connection."""
    if exchange.complete:
        return
    try:
        async with asyncio.timeout(TAIL_SECONDS):
            while await exchange.read():
                pass
    except (TimeoutError, ConnectionLost):
        exchange.abort()


def refuses_usage(answer: Answer, live: Inflight) -> bool:
    """Whether the engine refuses the `include_usage` that the gateway added."""
    added = not live.request.include_usage
    return added and (b"stream_options" in answer.body or b"include_usage" in answer.body)


def describe(slot: Slot, live: Inflight) -> errors.Headers:
    """Response headers that tell where and how the request was served."""
    lease, record = slot.lease, live.record
    waited = (record.dispatched or record.arrived) - record.arrived
    headers = [
        (b"x-slotgate-backend", lease.backend.encode()),
        (b"x-slotgate-queue-ms", b"%d" % round(waited * 1000)),
        (b"x-slotgate-prompt-tokens", b"%d" % slot.call.prompt_tokens),
    ]
    if live.explains:
        headers.append((b"x-slotgate-reason", explain(slot).encode()))
    return headers


def explain(slot: Slot) -> str:
    """Why the call went where it went, in one line."""
    lease = slot.lease
    return (
        f"cheapest of those that could start: {lease.cost_seconds:.2f} s, of which prefill "
        f"{lease.prefill_seconds:.2f} s with {lease.cached_tokens} of {slot.call.prompt_tokens} tokens cached"
    )


def note_usage(live: Inflight, usage: Usage | None) -> None:
    """Put the engine's own counts into the record."""
    if usage is not None:
        live.record.count(usage)
