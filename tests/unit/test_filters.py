"""May a call start on a backend now, and if not, why not."""

from __future__ import annotations

import pytest

from policies import filters
from policies.output_length import OutputTokens
from policies.types import Backend, Call, Lease, Limits, Priority, Reason, State
from tests.unit.fleet import MODEL, a_backend, a_call

LIMITS = Limits()


def names(backends: object) -> list[str]:
    return [backend.name for backend in backends]  # type: ignore[attr-defined]


def occupy(backend: Backend, id: str, *, long: bool = False, trial: bool = False) -> None:
    call = a_call(id)
    lease = Lease(call, backend.name, MODEL, 0.0, 0, 0, 0.1, 1.0, 1.1, long, trial=trial)
    backend.leases[id] = lease
    backend.reads(lease)


def blocked(
    backend: Backend,
    call: Call | None = None,
    *,
    now: float = 0.0,
    long: bool = False,
    interactive_seen: bool = False,
    limits: Limits = LIMITS,
) -> Reason | None:
    reason = filters.blocked(call or a_call(), backend, limits, now, interactive_seen=interactive_seen)
    return reason or (Reason.GATE if long and filters.gated(backend, limits) else None)


# -- does it fit -------------------------------------------------------------------------------------

SMALL, LARGE = a_backend("small", context_tokens=4096), a_backend("large", context_tokens=32768)


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens_max", "where"),
    [
        (2048, None, ["small", "large"]),  # prompt and a usual answer fill the small one exactly
        (2049, None, ["large"]),
        (4000, 96, ["small", "large"]),  # a small max_tokens needs no more room than that
        (4000, 97, ["large"]),
        (2048, 65536, ["small", "large"]),  # agents send 65,536 on every call: never reserved
        (30720, None, ["large"]),
        (32000, None, ["large"]),  # no room for a usual answer anywhere: the largest takes it
    ],
)
def test_fits_by_prompt_and_a_usual_answer(
    prompt_tokens: int, output_tokens_max: int | None, where: list[str]
) -> None:
    """The room is prompt + min(max_tokens, 2,048); without such a backend the largest takes it."""
    call = a_call(prompt_tokens=prompt_tokens, output_tokens_max=output_tokens_max, prompt_counted=True)
    assert names(filters.fitting(call, [SMALL, LARGE])) == where


def test_the_usual_answer_is_that_of_the_class() -> None:
    """Answers that are known to be short fit where a guess of 2,048 would not, long ones do not."""
    short, long = (
        a_call(prompt_tokens=3000, prompt_counted=True, outputs=OutputTokens(mean, p90))
        for mean, p90 in ((50, 400), (900, 4000))
    )
    assert names(filters.fitting(short, [SMALL, LARGE])) == ["small", "large"]
    assert names(filters.fitting(long, [SMALL, LARGE])) == ["large"]


def test_a_counted_prompt_that_fills_the_context_fits_nowhere() -> None:
    """There must be room for one token of an answer."""
    fits = [
        names(filters.fitting(a_call(prompt_tokens=n, prompt_counted=True), [SMALL, LARGE]))
        for n in (32767, 32768)
    ]
    assert fits == [["large"], []]


def test_an_estimate_is_refused_only_when_it_is_surely_too_long() -> None:
    """Estimates may be 30 % too high; in that range only the engine refuses."""
    fits = [names(filters.fitting(a_call(prompt_tokens=n), [SMALL, LARGE])) for n in (32768, 46_810, 46_820)]
    assert fits == [["large"], ["large"], []]


def test_an_unknown_context_holds_everything() -> None:
    """What nobody knows is left to the engine."""
    unknown = a_backend("unknown")
    call = a_call(prompt_tokens=1_000_000, prompt_counted=True)
    assert names(filters.fitting(call, [SMALL, unknown])) == ["unknown"]
    assert names(filters.fitting(call, [unknown])) == ["unknown"]


def test_no_backend_fits_nothing() -> None:
    """An empty fleet is no error."""
    assert names(filters.fitting(a_call(), [])) == []
    assert filters.largest_context([a_backend()]) is None


# -- may it start now --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_only_a_ready_backend_takes_calls(state: State) -> None:
    """Every other state blocks; an ejected one until its pause is over."""
    backend = a_backend(state=state)
    backend.ejection.until = 30.0
    assert blocked(backend, now=29.0) is Reason.NOT_READY
    assert blocked(backend, now=30.0) is (None if state is State.EJECTED else Reason.NOT_READY)


def test_an_ejected_backend_is_tried_by_one_call() -> None:
    """Half-open means one: the second waits until the first has its first token or has failed."""
    backend = a_backend(state=State.EJECTED, slots=3)
    occupy(backend, "trial", trial=True)
    assert blocked(backend) is Reason.NOT_READY


def test_a_pause_blocks_until_it_is_over() -> None:
    """A backend that refused is left alone as long as it said."""
    backend = a_backend(paused_until=5.0)
    assert [blocked(backend, now=now) for now in (4.9, 5.0)] == [Reason.PAUSED, None]


def test_slots_of_others_count() -> None:
    """Requests of foreign clients hold slots too; more of them than slots is not less than nothing."""
    backend = a_backend(slots=2)
    occupy(backend, "one")
    assert blocked(backend) is None
    backend.foreign = 1
    assert blocked(backend) is Reason.SLOTS
    backend.foreign = 5
    assert (blocked(backend), backend.free) == (Reason.SLOTS, 0)


def test_the_gate_stops_long_prefills_only() -> None:
    """While one long prompt is read, a second waits and a short one passes."""
    backend = a_backend(slots=3)
    occupy(backend, "short")
    assert blocked(backend, long=True) is None
    occupy(backend, "long", long=True)
    assert blocked(backend, long=True) is Reason.GATE
    assert blocked(backend, long=False) is None
    assert blocked(backend, long=True, limits=Limits(long_prefills_per_backend=2)) is None
    backend.has_read(backend.leases["long"])
    assert blocked(backend, long=True) is None


@pytest.mark.parametrize(("slots", "reason"), [(1, None), (2, None), (3, Reason.RESERVE)])
def test_the_reserve_starts_above_two_slots(slots: int, reason: Reason | None) -> None:
    """With two slots a reserve would halve the backend."""
    backend = a_backend(slots=slots)
    for taken in range(slots - 1):
        occupy(backend, str(taken))
    assert blocked(backend, interactive_seen=True) is reason
    assert blocked(backend, interactive_seen=False) is None
    assert blocked(backend, a_call(priority=Priority.INTERACTIVE), interactive_seen=True) is None
    assert blocked(backend, interactive_seen=True, limits=Limits(interactive_reserve_slots=0)) is None
