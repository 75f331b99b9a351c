"""The control API of a fake engine, under /_fake/.

GET `state`, `records?last=N`, `requests?last=N`; POST `script`, `slots`, `loaded`, `reset`. Times are
seconds on the monotonic clock, which on Linux is the same in all processes.
"""

from __future__ import annotations

import base64
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.fakes.script import Script
from tests.fakes.wire import Request, Response, json_object, json_response

if TYPE_CHECKING:
    from tests.fakes.engine import FakeEngine

ALL = "1000000"


def answer(engine: FakeEngine, request: Request) -> Response:
    """Do what the test asks of the engine."""
    value = json_object(request.body)
    match request.method, request.path.removeprefix("/_fake/"):
        case "GET", "state":
            return json_response(state(engine))
        case "GET", "records":
            last = int(request.argument("last", ALL))
            return json_response([asdict(record) for record in list(engine.records.last)[-last:]])
        case "GET", "requests":
            last = int(request.argument("last", ALL))
            return json_response([_received(one) for one in list(engine.requests)[-last:]])
        case "POST", "script" if value is not None:
            try:
                script = Script(**value)
            except TypeError as error:
                return json_response({"error": str(error)}, 400)
            if script.refusal and script.refusal not in engine.personality.refusals:
                return json_response({"error": f"it never refuses by {script.refusal}"}, 400)
            engine.scripts.add(script)
        case "POST", "slots" if value is not None:
            engine.resize(int(value["slots"]), value.get("context_tokens"))
        case "POST", "loaded":
            engine.loaded()
        case "POST", "reset":
            engine.reset()
        case _:
            return json_response({"error": "no such control"}, 404)
    return json_response({})


def state(engine: FakeEngine) -> dict[str, Any]:
    """The counts: what is now, what was at most, and what was beyond the slots."""
    slots, records, door = engine.slots, engine.records, engine.door
    return {
        "now": time.monotonic(),
        "busy_slot_seconds": slots.busy_slot_seconds(),  # integral of min(running, slots)
        "slots": slots.total,
        "running": len(slots.running),
        "waiting": len(slots.waiting),
        "concurrent": slots.concurrent,  # accepted and not finished
        "max_concurrent": slots.max_concurrent,
        "over_slots": slots.over_slots,  # requests that came while all slots were taken
        "received": records.received,
        "routes": records.routes,  # requests by path
        "overlength": records.overlength,  # prompts that its context does not hold
        "refused": engine.personality.refused,  # for reasons of its own
        "held": slots.held,  # tokens of prompts and answers in its slots
        "max_held": slots.max_held,
        "preemptions": slots.preemptions,
        "outcomes": records.outcomes,
        "tokens": records.tokens,
        "probes": engine.probes,  # by method and path
        "connections": door.connections,
        "connections_open": door.open,
        "malformed": door.malformed,
    }


def _received(request: Request) -> dict[str, Any]:
    return {
        "method": request.method,
        "target": request.target,
        "headers": request.headers,
        "body": base64.b64encode(request.body).decode(),
        "arrived": request.arrived,
        "connection": request.connection,
        "nth": request.nth,
    }
