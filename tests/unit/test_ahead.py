"""A request that is sent before its books are kept: only where that is the same in the end."""

from __future__ import annotations

import json
from typing import Any, cast

from gateway.accounting import Record
from gateway.ahead import send_ahead
from gateway.client import Client
from gateway.engines.sglang import SGLang
from gateway.exchange import Exchange
from gateway.inflight import Inflight
from gateway.request import parse
from gateway.routes.chat import Chat
from policies.prompt_length import MEDIA_BYTES
from policies.types import State
from tests.unit.fleet import MODEL, ROUTE, a_call
from tests.unit.stage import Stage, llamacpp, over
from tests.unit.wire import Wire


class Answer(Exchange):
    """Tells whether it was given up."""

    ended = False

    def abort(self, cause: str = "") -> None:
        """Remember it."""
        self.ended = True


class Way:
    """Stands for the connections to an engine; `idle`: whether there is one."""

    def __init__(self, *, idle: bool = True) -> None:
        self.idle = idle
        self.sent: list[bytes] = []
        self.exchanges: list[Answer] = []

    def send_at_once(self, method: str, path: str, headers: object, body: bytes) -> Exchange | None:
        """Take the request."""
        assert (method, path) == ("POST", ROUTE)
        if not self.idle:
            return None
        self.sent.append(body)
        self.exchanges.append(Answer())
        return self.exchanges[-1]

    async def close(self) -> None:
        """Nothing is open."""


def a_request(text: str = "Hi", **fields: Any) -> Inflight:
    """A chat of one message."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
    request = parse(json.dumps(body).encode(), Chat())
    record = Record("id", ROUTE, 0.0)
    return Inflight(record, Client(Wire(), Chat(), "id", 0.0), request, [], 100.0)


def at(stage: Stage, way: Way) -> Stage:
    """The stage's only backend, ready, behind this way."""
    stage.dispatcher.admission.set_state("a", State.READY, 0.0)
    stage.member.upstream, stage.member.away = cast(Any, way), False
    return stage


def sent(stage: Stage, live: Inflight) -> str | None:
    """The backend that it was sent to."""
    return send_ahead(live, stage.fleet, stage.dispatcher)


@over(llamacpp())
async def test_what_is_sent_ahead_is_what_would_be_sent(stage: Stage) -> None:
    """With the edits of its engine; whoever has the slot later reads the answer."""
    way = Way()
    live = a_request(stream=True)
    assert sent(at(stage, way), live) == "a"
    assert live.ahead is not None
    assert live.ahead.sent.streams and live.ahead.sent.adds_usage
    assert way.sent == [live.ahead.sent.body] == [live.request.edited(include_usage=True)]


@over(llamacpp())
async def test_nothing_is_sent_where_it_is_not_certain(stage: Stage) -> None:
    """No slot free, no idle connection, or a prompt that may be too long for the slot."""
    way, tokens = Way(), 4096  # of the slot
    at(stage, way)
    assert sent(stage, a_request("x" * tokens)) is None
    way.idle = False
    assert sent(stage, a_request()) is None
    way.idle = True
    for place in range(2):
        stage.dispatcher.admission.submit(a_call(str(place)), 0.0)
    live = a_request()
    assert sent(stage, live) is None
    assert live.ahead is None
    assert way.sent == []


@over(llamacpp(context=10_000_000))
async def test_an_image_may_be_more_tokens_than_bytes(stage: Stage) -> None:
    """So the bytes of a body that may hold one bound nothing."""
    way = Way()
    at(stage, way)
    assert sent(stage, a_request("base64 " + "x" * MEDIA_BYTES)) is None
    assert sent(stage, a_request("x" * MEDIA_BYTES)) == "a"
    assert sent(stage, a_request("base64 in so short a body is a word")) == "a"


@over(llamacpp(context=4096))
async def test_a_limit_that_depends_on_the_prompt_waits_for_its_estimate(stage: Stage) -> None:
    """SGLang must be told how many tokens fit behind the prompt."""
    way = Way()
    stage.member.engine = SGLang()
    at(stage, way)
    assert sent(stage, a_request(max_tokens=4096)) is None
    assert sent(stage, a_request(max_tokens=100)) == "a"


@over(llamacpp())
async def test_what_comes_to_no_slot_is_given_up(stage: Stage) -> None:
    """Nobody would read the answer."""
    way = Way()
    at(stage, way)
    live = a_request()
    with stage.inflights.serve(live):
        assert sent(stage, live) == "a"
    assert [exchange.ended for exchange in way.exchanges] == [True]


@over(llamacpp())
async def test_what_somebody_has_taken_is_left_to_him(stage: Stage) -> None:
    """It is his to read to the end."""
    way = Way()
    at(stage, way)
    live = a_request()
    with stage.inflights.serve(live):
        assert sent(stage, live) == "a"
        live.ahead = None
    assert [exchange.ended for exchange in way.exchanges] == [False]
