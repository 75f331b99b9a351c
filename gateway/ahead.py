"""Writes a request to its engine before its books are kept, where it is certain which engine that will be.

What is estimated, hashed, priced and noted of a call takes longer than all the rest of the way to the engine.
It is done all the same, by the same code and within the same turn of the event loop, while the engine works.
"""

from __future__ import annotations

from gateway.dispatcher import Dispatcher
from gateway.fleet import Fleet
from gateway.inflight import Ahead, Inflight
from gateway.outgoing import max_tokens, outgoing
from policies.prompt_length import MEDIA_BYTES


def send_ahead(live: Inflight, fleet: Fleet, dispatcher: Dispatcher) -> str | None:
    """Send the request now, if there is a backend that it surely gets and an idle connection to it: its name
    then. `live.ahead` is how to read the answer."""
    request, route = live.request, live.record.route
    body = request.body
    # What may be taken for an image is estimated at its tokens, so its bytes are no bound on these.
    if len(body) > MEDIA_BYTES and b"base64" in body:
        return None
    backend = dispatcher.certain(request.model, route, len(body))
    if backend is None:
        return None
    member = fleet.members[backend.name]
    if max_tokens(request, member, 1) != max_tokens(request, member, len(body)):  # it depends on an estimate
        return None
    sent = outgoing(request, member, request.model, len(body))
    exchange = member.upstream.send_at_once("POST", route, live.headers, sent.body)
    if exchange is None:
        return None
    live.ahead = Ahead(sent, exchange)
    return backend.name
