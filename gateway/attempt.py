"""One conversation with one engine, for a call that holds a slot there: what passes to the client, and
what a failure means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from gateway import errors
from gateway.accounting import Usage
from gateway.answer import StreamedAnswer, object_of
from gateway.client import JSON
from gateway.dispatcher import Dispatcher, Slot
from gateway.engines.base import Answer, Failed, NoRoom, Overlength, Overload, Refusal
from gateway.engines.refusals import as_answer, names_usage
from gateway.explanation import describe
from gateway.fleet import Fleet
from gateway.inflight import Inflight, Phase
from gateway.outgoing import Outgoing, outgoing
from gateway.prefixes import Prefixes
from gateway.routes.missing import lacks_route
from gateway.sse import EventSplitter, EventTooLarge
from gateway.upstream import AnswerTooLarge, ConnectFailed, ConnectionLost, Exchange, Head
from policies import filters
from policies.retry_budget import RetryBudget

REFUSAL_BYTES_MAX = 1_048_576
ANSWER_BYTES_MAX = 67_108_864  # of embeddings
TEXT_BYTES_MAX = 33_554_432  # of what an engine writes, with all its logprobs
CONNECT_PAUSE_SECONDS = 1.0
OVERLOAD_PAUSE_SECONDS = 2.0  # for an engine that is full and does not say for how long
STALE_SECONDS = 0.5  # a request on a closed connection is reset within a round trip; later it had begun
TAIL_SECONDS = 1.0  # for the end of the engine's answer after the client has its own


class NotStarted(Exception):
    """The engine provably did not begin; the call goes back to its place in the queue. `prompt_tokens`: it
    counted them while it refused."""

    def __init__(self, reason: str, pause_seconds: float = 0.0, prompt_tokens: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause_seconds = pause_seconds
        self.prompt_tokens = prompt_tokens


class Attempt:
    """The call at the backend that its lease names."""

    __slots__ = (
        "_budget",
        "_clock",
        "_dispatcher",
        "_ends",
        "_exchange",
        "_fleet",
        "_live",
        "_member",
        "_prefixes",
        "_record",
        "_sent",
        "_slot",
    )

    _exchange: Exchange
    _sent: Outgoing

    def __init__(
        self,
        fleet: Fleet,
        dispatcher: Dispatcher,
        prefixes: Prefixes,
        budget: RetryBudget,
        clock: Callable[[], float],
        slot: Slot,
        live: Inflight,
    ) -> None:
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._prefixes = prefixes
        self._budget = budget
        self._clock = clock
        self._slot = slot
        self._live = live
        self._record = live.record
        self._member = fleet.members[slot.lease.backend]
        self._ends = self._member.ends

    async def run(self) -> None:
        """Ask the engine and answer the client.

        Raises NotStarted, and the `GatewayError` that the client is to be told.
        """
        live, member, slot = self._live, self._member, self._slot
        exchange = await self._send()
        live.exchange = exchange
        try:
            backend = self._dispatcher.admission.backends[member.name]
            self._prefixes.look(live, slot.call, backend)  # now that the engine is at work
            live.client.headers = describe(slot, live, backend)
            await self._converse()
        except (ConnectionLost, AnswerTooLarge, EventTooLarge) as lost:
            raise await self._lost(lost) from lost
        except asyncio.CancelledError:
            self._interrupted()
            raise
        finally:
            if not exchange.complete:
                slot.stopping = self._fleet.stopped(member, exchange)

    async def _send(self) -> Exchange:
        """Send the request, if that was not done ahead."""
        live, member, slot = self._live, self._member, self._slot
        ahead, live.ahead = live.ahead, None
        if ahead is not None:
            self._sent, self._exchange = ahead
            self._begin()
            return ahead.exchange
        call = slot.call
        self._sent = sent = outgoing(
            live.request, member, slot.lease.model, call.prompt_tokens, counted=call.prompt_counted
        )
        self._begin()
        try:
            self._exchange = await member.upstream.send("POST", self._record.route, live.headers, sent.body)
        except ConnectFailed as failed:
            self._failed("connect", failed.cause)
            raise NotStarted("connect", CONNECT_PAUSE_SECONDS) from failed
        return self._exchange

    def _begin(self) -> None:
        live, record, lease = self._live, self._record, self._slot.lease
        now = self._clock()
        record.backend, record.dispatched, record.lease = self._member.name, now, lease
        record.cached_tokens_predicted = lease.cached_tokens
        live.enter(Phase.PREFILL, now)
        timeouts = self._member.timeouts
        live.first_token_seconds_max = timeouts.first_token_seconds
        live.idle_seconds_max = timeouts.idle_seconds
        if lease.long and not self._sent.streams:
            # Nothing tells the first token of an answer that does not stream: the gate opens when the
            # prefill must be over.
            asyncio.get_running_loop().call_later(lease.prefill_seconds, self._slot.prefilled, lease)

    # -- the engine answers -----------------------------------------------------------------------

    async def _converse(self) -> None:
        head = await self._exchange.head()
        if not 200 <= head.status < 300:
            await self._refused(head)
        elif not head.headers.get("content-type", "").startswith("text/event-stream"):
            await self._document(head)
        elif self._live.request.stream:
            await self._stream()
        elif self._live.request.route.generates:
            await self._assemble()
        else:
            await self._document(head)  # which it is not

    async def _stream(self) -> None:
        """Events to a client that streams."""
        live, exchange = self._live, self._exchange
        client, request = live.client, live.request
        answer = StreamedAnswer(request.route, wants_usage=request.include_usage)
        splitter = EventSplitter()
        passed = b""
        try:
            while not answer.over and (data := await read_on(exchange, answer, live)):
                passed = answer.take(splitter.feed(data))
                now = self._clock()
                if passed and not answer.done:
                    await client.stream(passed, now)
                self._note(answer, now)  # after the client has its first token, not before
        finally:
            self._count(answer.usage)
        self._judge(answer)
        await client.stream(passed if answer.done else answer.end(), self._clock(), last=True)
        self._record.outcome = self._record.outcome or "completed"
        await finish(exchange)

    async def _assemble(self) -> None:
        """One document for a client that does not stream, from an engine that must."""
        route = self._live.request.route
        assembly = route.assembly()
        answer = StreamedAnswer(route, wants_usage=True, assembly=assembly)
        splitter = EventSplitter()
        try:
            while not answer.over and (data := await read_on(self._exchange, answer, self._live)):
                answer.take(splitter.feed(data))
                self._note(answer, self._clock())
        finally:
            self._count(answer.usage)
        self._judge(answer)
        await self._live.client.answer(200, JSON, assembly.answer())
        self._record.outcome = "completed"
        await finish(self._exchange)

    async def _document(self, head: Head) -> None:
        """A whole JSON answer; also from an engine that ignored `stream`."""
        live, client, request = self._live, self._live.client, self._live.request
        if not self._exchange.complete:  # else the whole answer is there with its head
            self._slot.prefilled(self._slot.lease)
        live.enter(Phase.DECODE, self._clock(), whole=True)
        body = await self._exchange.body(TEXT_BYTES_MAX if request.route.generates else ANSWER_BYTES_MAX)
        document = object_of(body)
        if document is None or not request.route.is_answer(document):
            told = document is not None and document.get("error")
            cause = "a 200 with an error inside" if told else "a 200 without an answer inside"
            self._failed("answer", cause)
            raise errors.BackendFailed(cause, started=True)
        self._slot.first_token()
        self._count(request.route.usage(document))
        self._record.answer_bytes = len(body)
        if client.head_sent:
            events = request.route.as_stream(document, wants_usage=request.include_usage)
            await client.stream(events, self._clock(), last=True)
        else:
            await client.answer(head.status, JSON, body)
        self._record.outcome = "completed"

    def _note(self, answer: StreamedAnswer, now: float) -> None:
        """Keep the times and counts of what has come."""
        live, record = self._live, self._record
        if answer.committed and live.phase is Phase.PREFILL:
            if answer.first_token:
                record.first_token = now
            self._slot.first_token()
            live.enter(Phase.DECODE, now)
        elif live.phase is Phase.PREFILL:
            live.progress_at = now  # a comment: the engine is at it
        if answer.events != record.events:
            record.last_token = live.progress_at = now
            record.events, record.answer_bytes = answer.events, answer.answer_bytes

    def _count(self, usage: Usage | None) -> None:
        """Put the engine's own counts into the record."""
        if usage is not None:
            self._record.count(usage)

    def _judge(self, answer: StreamedAnswer) -> None:
        """Was that an answer? Raises BackendFailed if not; an error event that the client already
        has only ends the request."""
        if answer.error is not None:
            refusal = self._member.engine.refusal(as_answer(answer.error))
            if not answer.committed:
                self._turned_away(refusal)
            cause = str(answer.error.get("type") or "error event")[:80]
            self._failed("error_event", cause, refusal)
            if not (answer.told and self._live.request.stream):  # of a document, half is none
                raise errors.BackendFailed(cause, started=True)
            self._record.outcome = errors.BackendFailed.outcome
        elif not (answer.finished or answer.done):
            raise ConnectionLost("the stream ended without an end", answered=True, reused=False)

    # -- the engine refuses or fails --------------------------------------------------------------

    async def _refused(self, head: Head) -> None:
        member = self._member
        answer = Answer(head.status, head.headers, await self._exchange.body(REFUSAL_BYTES_MAX))
        if head.status in (400, 422) and self._sent.adds_usage and names_usage(answer):
            member.refuses_usage = True
            raise NotStarted("include_usage")
        if lacks_route(answer) and not self._live.request.route.everywhere:
            self._fleet.lacks(member, self._record.route)
            raise NotStarted("no_route")
        refusal = member.engine.refusal(answer)
        self._turned_away(refusal)
        if isinstance(refusal, Failed):
            self._failed("status", refusal.cause, refusal)
            raise errors.BackendFailed(refusal.cause, started=head.status >= 500)
        await self._refuse(answer)
        self._record.outcome = errors.ClientError.outcome

    def _turned_away(self, refusal: Refusal) -> None:
        """Raises NotStarted or ContextLengthExceeded if the engine did not begin."""
        match refusal:
            case Overload(pause_seconds):
                raise NotStarted("overload", pause_seconds or OVERLOAD_PAUSE_SECONDS)
            case Overlength(prompt_tokens, limit_tokens):
                self._too_long(prompt_tokens, limit_tokens)
            case NoRoom(prompt_tokens) if prompt_tokens != self._slot.call.prompt_tokens:
                raise NotStarted("no_room", prompt_tokens=prompt_tokens)

    async def _refuse(self, answer: Answer) -> None:
        """The engine's own words, as they came; behind the head its error object as one event."""
        client = self._live.client
        if not client.head_sent:
            content_type = answer.headers.get("content-type", "application/json").encode("latin-1")
            await client.answer(answer.status, [(b"content-type", content_type)], answer.body)
            return
        said = answer.json()
        if not isinstance(said, dict) or not isinstance(said.get("error"), dict):
            raise errors.InvalidRequest("The backend refused the request.")
        event = self._live.request.route.error_event(json.dumps(said, separators=(",", ":")).encode())
        await client.stream(event, self._clock(), last=True)

    def _too_long(self, prompt_tokens: int | None, limit_tokens: int | None) -> None:
        """The estimate was too low; a larger backend may hold the prompt. An engine that does not count
        says at least that there are more tokens than its context."""
        call, backends = self._slot.call, self._dispatcher.admission.backends
        context = backends[self._member.name].context_tokens
        known = limit_tokens or context or call.prompt_tokens
        tokens = prompt_tokens or max(known, call.prompt_tokens)
        news = tokens > call.prompt_tokens or not call.prompt_counted
        if news and filters.any_larger(call, known, backends.values()):
            raise NotStarted("over_length", prompt_tokens=tokens)
        raise errors.ContextLengthExceeded(prompt_tokens, known, counted=True)

    def _interrupted(self) -> None:
        """A time limit passed, or somebody ended the request: whose fault is it?

        An engine that hangs may answer every probe, so only its requests tell. But if nobody waited for
        it, it does not hang: the client does, which takes nothing. And one that need not stream may be
        busy with a long answer, unless it is silent to probes too.
        """
        live = self._live
        if not isinstance(live.failure, errors.FirstTokenTimeout | errors.IdleTimeout):
            return
        if not self._exchange.waited and (self._exchange.unread or self._exchange.complete):
            live.failure = errors.ClientGone()
        elif self._sent.streams or self._member.silent:
            self._failed("stall", live.failure.code)

    async def _lost(
        self, lost: ConnectionLost | AnswerTooLarge | EventTooLarge
    ) -> NotStarted | errors.BackendFailed:
        """What a broken connection means for the request."""
        live = self._live
        if isinstance(lost, ConnectionLost) and live.phase is Phase.PREFILL:
            at_once = self._clock() - live.phase_since < STALE_SECONDS
            if lost.reused and not lost.answered and at_once:
                return NotStarted("stale_connection")
            self._failed("connection", str(lost))
            gone = live.may_repeat and await self._fleet.is_gone(self._member, self._ends)
            if gone and self._budget.allows(self._clock()):
                live.may_repeat = False
                return NotStarted("backend_died")
        else:
            self._failed("connection", str(lost))
        return errors.BackendFailed(str(lost), started=True)

    def _failed(self, reason: str, cause: str, refusal: Refusal | None = None) -> None:
        """By the engine's fault; or by ours, who gave it more than it holds."""
        member, now = self._member, self._clock()
        member.last_error = f"{reason}: {cause}"
        if member.ends != self._ends:  # that is known, and nothing to hold against the next process
            return
        if isinstance(refusal, Failed) and refusal.overfilled:
            self._fleet.overfilled(member)
            return
        self._fleet.suspect(member)
        self._dispatcher.apply(
            self._dispatcher.admission.failed(member.name, now, reason, trial=self._slot.lease.trial)
        )


async def read_on(exchange: Exchange, answer: StreamedAnswer, live: Inflight) -> bytes:
    """The next bytes; b"" at the end. A connection that breaks or stalls behind the finish_reason has told
    all: who has the whole answer need not ask for it again."""
    try:
        return await exchange.read()
    except ConnectionLost:
        if answer.finished:
            return b""
        raise
    except asyncio.CancelledError:
        if answer.finished and live.forgive_silence():
            return b""
        raise


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
