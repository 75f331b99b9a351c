"""Whether an answer is a success or one well-formed error: nothing else may ever reach a client."""

from __future__ import annotations

import json

from tests.processes.asking import Reply, checked, fault

STATUSES = {
    "backend_failed": 502,
    "no_backend_ready": 503,
    "first_token_timeout": 504,
    "idle_timeout": 504,
    "total_timeout": 504,
    "queue_full": 429,
    "wait_too_long": 429,
}
COMPLETED = "completed"
PASSED = "the engine's own words"


def verdict(reply: Reply, *, stream: bool) -> str:
    """`completed`, or the code of the one error; fails if it is neither."""
    assert reply.ended == "clean", reply
    if reply.head.status != 200:
        code: str = json.loads(reply.body)["error"]["code"]
        fault(reply, STATUSES[code], code)
        return code
    if not stream:
        assert json.loads(reply.body)["choices"], reply
        return COMPLETED
    events = [event for event in reply.events if event.data is not None]
    errors = [event.json()["error"] for event in events if not event.done and "error" in event.json()]
    if not errors:
        assert [event.done for event in events] == [False] * (len(events) - 1) + [True], reply.body[-300:]
        return COMPLETED
    assert len(errors) == 1, errors
    assert list(events[-1].json()) == ["error"]
    assert not any(event.done for event in events)
    assert errors[0]["message"]
    if "code" not in errors[0]:
        return PASSED
    checked(events[-1].json(), errors[0]["code"])
    return str(errors[0]["code"])
