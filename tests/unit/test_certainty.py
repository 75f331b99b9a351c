"""Which backend a call surely gets, before anything else about it is known."""

from __future__ import annotations

from typing import Any

import pytest

from policies.admission import Admission
from policies.certainty import certain
from policies.types import Granted, Priority, State
from tests.unit.fleet import LONG, MODEL, ROUTE, SHORT, a_backend, a_call, an_admission, granted

TOKENS_MAX = 1000


def name_of(admission: Admission, now: float = 1.0, **asked: Any) -> str | None:
    """The backend that a call of the usual model gets, if that is certain."""
    usual: dict[str, Any] = {"model": MODEL, "route": ROUTE, "tokens_max": TOKENS_MAX, "now": now}
    backend = certain(admission, **(usual | asked))
    return None if backend is None else backend.name


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"models": None},
        {"slots": 3},
        {"backup": True},
        {"context_tokens": 2 * TOKENS_MAX},
        {"kv_tokens": 2 * TOKENS_MAX},
    ],
)
def test_the_only_backend_with_a_free_slot_is_certain(fields: dict[str, Any]) -> None:
    """Whoever asks gets it, and at the same price as by `submit`."""
    calls = [a_call(prompt_tokens=tokens, priority=p) for tokens in (1, TOKENS_MAX) for p in Priority]
    for call in calls:
        submitted, started = (an_admission(a_backend(**fields)) for _ in range(2))
        assert name_of(submitted) == "backend"
        (decision,) = submitted.submit(call, 1.0)
        (same,) = started.start(call, "backend", 1.0)
        assert isinstance(decision, Granted) and isinstance(same, Granted)
        lease = started.lease("call")
        assert lease is same.lease is started.backends["backend"].leases["call"]
        facts = ("backend", "model", "tokens", "cached_tokens", "prefill_seconds", "cost_seconds", "long")
        assert [getattr(lease, fact) for fact in facts] == [getattr(decision.lease, fact) for fact in facts]
        for mine, other in zip(started.backends.values(), submitted.backends.values(), strict=True):
            assert (mine.free, mine.held_tokens, mine.changes) == (
                other.free,
                other.held_tokens,
                other.changes,
            )


@pytest.mark.parametrize(
    "fields",
    [
        {"models": frozenset({"another"})},
        {"routes": frozenset({"/v1/embeddings"})},
        {"state": State.DRAINING},
        {"state": State.EJECTED},
        {"paused_until": 1.5},
        {"resting": 1, "slots": 2},
        {"foreign": 1},
        {"context_tokens": TOKENS_MAX},
        {"context_tokens": int(1.3 * TOKENS_MAX)},  # the estimate may be too low
        {"kv_tokens": TOKENS_MAX},
    ],
)
def test_what_may_keep_a_call_out_leaves_it_open(fields: dict[str, Any]) -> None:
    """Not served, not ready, full, or perhaps too small."""
    assert name_of(an_admission(a_backend(**fields))) is None


def test_a_choice_is_not_certain() -> None:
    """Where two backends serve the model, what the call costs decides."""
    assert name_of(an_admission(a_backend("a"), a_backend("b"))) is None
    others = a_backend("b", models=frozenset({"another"}))
    assert name_of(an_admission(a_backend("a"), others)) == "a"


def test_the_queue_goes_first() -> None:
    """Nobody passes one who waits, though it be for another model's backend."""
    admission = an_admission(a_backend(slots=1))
    admission.submit(a_call("runs"), 0.0)
    admission.submit(a_call("waits"), 0.0)
    admission.add(a_backend("b", models=frozenset({"b"})), 0.0)
    assert name_of(admission, model="b") is None
    admission.finish("waits", 1.0)
    assert name_of(admission, model="b") == "b"


def test_a_long_prefill_may_keep_the_next_one_waiting() -> None:
    """Until its first token it is not certain that another call may start beside it."""
    admission = an_admission(a_backend(slots=4))
    admission.submit(a_call("long", prompt_tokens=LONG), 0.0)
    assert name_of(admission) is None
    admission.first_token("long", 1.0)
    assert name_of(admission) == "backend"
    assert name_of(an_admission(a_backend(), long_prefills_per_backend=0)) is None


def test_the_reserve_is_not_for_all() -> None:
    """The last slots of a large backend are for interactive calls, and who asks is not known."""
    admission = an_admission(a_backend(slots=3), interactive_reserve_slots=1)
    for place in range(2):
        assert name_of(admission) == "backend"
        admission.submit(a_call(str(place)), 0.0)
    assert name_of(admission) is None
    assert name_of(an_admission(a_backend(slots=2, foreign=1), interactive_reserve_slots=1)) == "backend"


def test_a_budget_of_tokens_is_certain_only_for_the_first() -> None:
    """A call alone may always start; what a second one holds is not known."""
    admission = an_admission(a_backend(slots=4, kv_tokens=100_000))
    assert name_of(admission) == "backend"
    admission.submit(a_call(prompt_tokens=SHORT), 0.0)
    assert name_of(admission) is None


def test_nothing_is_certain_after_the_end() -> None:
    """A gateway that stops starts nothing."""
    admission = an_admission(a_backend())
    admission.close()
    assert name_of(admission) is None
    assert granted(admission.submit(a_call(), 1.0)) == {}
