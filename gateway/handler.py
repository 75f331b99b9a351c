"""One request, a straight line: read it, know it, wait for a slot, relay the answer, account for it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
from collections.abc import Callable

from gateway import edge, errors
from gateway.accounting import Accounts, Record
from gateway.auth import Key, Keys
from gateway.client import Client
from gateway.counting import Counting
from gateway.dispatcher import Dispatcher
from gateway.edge import Arrival
from gateway.identify import agent_of, call_of, conversation_of
from gateway.inflight import Inflight, Inflights
from gateway.intake import Intake
from gateway.lessons import Lessons
from gateway.mender import Mender
from gateway.models import Models
from gateway.options import AliasSettings
from gateway.relay import Relay
from gateway.request import Request, parse
from gateway.routes import ROUTES
from gateway.settings import Settings
from gateway.tokenizer import Tokenizers
from policies.prompt_length import content
from policies.types import Call

log = logging.getLogger("slotgate.handler")

# What of a client's headers may reach an engine: never its credentials, nothing hop-by-hop, and no
# X-Conversation-Id, with which llama.cpp generates on after a disconnect.
PASSED_HEADERS = (b"content-type", b"accept", b"traceparent", b"tracestate")
INTAKE_BODIES = 1.5  # of the largest size, that all those together hold that are not whole yet
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{8,64}")


class Handler:
    """The hot path, called before any router."""

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        models: Models,
        dispatcher: Dispatcher,
        tokenizers: Tokenizers,
        mender: Mender,
        relay: Relay,
        counting: Counting,
        inflights: Inflights,
        lessons: Lessons,
        accounts: Accounts,
        clock: Callable[[], float],
    ) -> None:
        self.intake = Intake(settings.server.body_bytes_max)
        self.follow(settings)
        self._keys = keys
        self._models = models
        self._dispatcher = dispatcher
        self._tokenizers = tokenizers
        self._mender = mender
        self._relay = relay
        self._counting = counting
        self._inflights = inflights
        self._lessons = lessons
        self._accounts = accounts
        self._clock = clock
        self._run = secrets.token_hex(4)  # with a number it is unique, short, and cheap
        self._numbers = itertools.count()

    def follow(self, settings: Settings) -> None:
        """Go by these settings from the next request on."""
        self._settings = settings
        largest = settings.server.body_bytes_max
        self.intake.follow(largest, int(INTAKE_BODIES * largest))

    async def serve(self, arrival: Arrival) -> None:
        """Answer this request, whatever becomes of it."""
        record = Record(id=f"{self._run}-{next(self._numbers):x}", route=arrival.path, arrived=self._clock())
        route = ROUTES[record.route]
        client = Client(arrival, route, record.id, record.arrived)
        key: Key | None = None
        try:
            headers = edge.headers_of(arrival.fields)
            theirs = headers.get(b"x-request-id")
            if theirs and REQUEST_ID.fullmatch(theirs):
                # Only echoed and noted: two requests may carry the same one.
                client.request_id = record.request_id = theirs.decode()
            key = self._keys.enter(arrival.fields, record.arrived)
            if (most := key.concurrency_max) and not await self._dispatcher.claim(record.id, key.name, most):
                raise self._keys.full(key)
            body = await arrival.body(self.intake)
            read = self._clock()
            request = parse(body, route)
            if not key.allows(request.model):
                raise errors.Forbidden("This API key may not use this model.")
            if self._mender.works:
                request = self._mender.mended(request, agent_of(headers, request, key), headers)
            alias = self._models.alias(request.model)
            live = self._begin(record, client, headers, request)
            with self._inflights.serve(live):
                # The engine it will certainly get has been sent it already: no await from there to its slot.
                certain = self._relay.ahead(live) if route.takes_slot and alias is None else None
                arrival.watch(lambda: live.interrupt(errors.ClientGone()))
                call = self._call(record, headers, request, key, alias)
                live.call = call
                record.prepare_seconds = self._clock() - read
                if certain is None and (why := self._tokenizers.doubt(call)):
                    live.call = call = await self._tokenizers.counted(call, request, why)
                try:
                    if route.takes_slot:
                        async with self._dispatcher.slot(call, certain) as slot:
                            await self._relay.serve(slot, live)
                    else:
                        await self._counting.serve(call, live)
                except errors.ModelNotFound as unknown:
                    raise errors.ModelNotFound(unknown.model, self._models.names(key)) from None
        except errors.ClientGone as gone:
            record.outcome = record.outcome or gone.outcome
        except errors.GatewayError as error:
            if record.outcome is None:  # else the client has its answer, and only the tail was waited for
                record.outcome, record.error = error.outcome, error.code
                await client.fail(error)
        except asyncio.CancelledError:
            record.outcome = errors.ShuttingDown.outcome
            if not client.head_sent:  # a body that was still on its way
                await client.fail(errors.ShuttingDown())
            raise
        except Exception:
            # A defect of ours. The client gets one well-formed answer, the log the place; never the body.
            log.exception("request %s failed inside the gateway", record.id)
            record.outcome, record.error = errors.GatewayError.outcome, errors.GatewayError.code
            await client.fail(errors.GatewayError())
        finally:
            now = self._clock()
            if key is not None:
                self._keys.leave(key, now)
                if key.concurrency_max:
                    self._dispatcher.unclaim(record.id)
            self._accounts.close(record, now)

    def _begin(
        self, record: Record, client: Client, headers: dict[bytes, bytes], request: Request
    ) -> Inflight:
        record.model, record.streamed = request.model, request.stream
        client.streaming = request.stream
        passed = [(name, headers[name]) for name in PASSED_HEADERS if name in headers]
        passed.append((b"x-request-id", client.request_id.encode()))
        return Inflight(
            record,
            client,
            request,
            passed,
            self._settings.queue.total_seconds_max,
            explains=headers.get(b"x-slotgate-explain") == b"1",
        )

    def _call(
        self,
        record: Record,
        headers: dict[bytes, bytes],
        request: Request,
        key: Key,
        alias: AliasSettings | None,
    ) -> Call:
        record.conversation = conversation_of(headers, request)
        chain = request.chain()
        size = record.prompt_bytes = chain[-1].end_bytes if chain else request.prompt_bytes
        prompt = record.prompt = content(request.body, size)
        return call_of(
            record,
            headers,
            request,
            key,
            chain=chain,
            prompt_tokens=self._lessons.prompts.estimate(request.model, prompt),
            outputs=self._lessons.outputs,
            heartbeats=request.stream and self._settings.queue.heartbeat != "off",
            alias=alias,
        )
