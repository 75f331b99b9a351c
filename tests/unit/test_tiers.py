"""Which backends may serve a call, and in what order of preference."""

from __future__ import annotations

import pytest

from policies.tiers import standby, tiers
from policies.types import Backend, Call, Decision, Refusal, State
from tests.unit.fleet import MODEL, a_backend, a_call, an_admission, granted, rejected

AWAY = [state for state in State if state is not State.READY]


def names(call: Call, *backends: Backend) -> list[list[str]]:
    return [[backend.name for backend in tier] for tier in tiers(call, backends)]


def of(model: str, **fields: object) -> Backend:
    """A backend that is named as the one model that it serves."""
    return a_backend(model, **({"models": frozenset({model})} | fields))


def an_alias(*targets: str, fallbacks: tuple[str, ...] = (), **fields: object) -> Call:
    return a_call(**({"model": "alias", "targets": targets, "fallbacks": fallbacks} | fields))


# -- backups -----------------------------------------------------------------------------------------


def test_without_backups_there_is_one_tier() -> None:
    """All of a model are alike; none that holds the call is no tier at all."""
    one, two = a_backend("one"), a_backend("two", context_tokens=4096)
    assert names(a_call(), one, two) == [["one", "two"]]
    assert names(a_call(prompt_tokens=9000), two) == []


def test_a_backup_stands_by_while_another_is_ready() -> None:
    """Also while all slots of that one are taken: it serves, only later."""
    backup = a_backend("backup", backup=True)
    assert names(a_call(), a_backend("main", slots=0), backup) == [["main"]]


@pytest.mark.parametrize("state", AWAY)
def test_a_backup_serves_while_no_other_can(state: State) -> None:
    """Whatever the reason: down, ejected, starting or drained; the other stays first for its trial."""
    backup = a_backend("backup", backup=True)
    assert names(a_call(), a_backend("main", state=state), backup) == [["main"], ["backup"]]


def test_a_backup_serves_what_no_other_holds() -> None:
    """A backend that is too small for the prompt cannot serve it, however ready."""
    small, backup = a_backend("small", context_tokens=4096), a_backend("backup", backup=True)
    assert names(a_call(prompt_tokens=9000), small, backup) == [["backup"]]
    assert names(a_call(prompt_tokens=900), small, backup) == [["small"]]
    assert names(a_call(prompt_tokens=4000), small, backup) == [["small"]]  # the answer will be short, or cut


def test_a_fleet_of_backups_is_a_fleet() -> None:
    """There is nobody to wait for."""
    assert names(a_call(), a_backend("a", backup=True), a_backend("b", backup=True)) == [["a", "b"]]


def test_a_backup_takes_over_at_once_and_gives_back() -> None:
    """When the last other backend fails, those who wait go to the backup; when it is back, they do not."""
    main, backup = a_backend("main"), a_backend("backup", backup=True, slots=2)
    admission = an_admission(main, backup)
    assert granted(admission.submit(a_call("1"), 0.0)) == {"1": "main"}
    assert granted(admission.submit(a_call("2"), 0.0)) == {}
    decisions: list[Decision] = []
    while main.state is State.READY:
        decisions = admission.failed("main", 1.0, "stall")
    assert granted(decisions) == {"2": "backup"}
    admission.finish("1", 2.0)
    admission.set_state("main", State.READY, 3.0)
    assert granted(admission.submit(a_call("3"), 3.0)) == {"3": "main"}
    assert granted(admission.submit(a_call("4"), 3.0)) == {}


def test_a_backend_due_for_its_trial_goes_before_the_backup() -> None:
    """Else a backup that is always free would keep it ejected for ever."""
    main, backup = a_backend("main", state=State.EJECTED), a_backend("backup", backup=True)
    main.ejection.until = 10.0
    admission = an_admission(main, backup)
    assert granted(admission.submit(a_call("1"), 9.0)) == {"1": "backup"}
    admission.finish("1", 9.5)
    assert granted(admission.submit(a_call("2"), 10.0)) == {"2": "main"}
    lease = admission.lease("2")
    assert lease is not None and lease.trial


# -- aliases -----------------------------------------------------------------------------------------


def test_any_target_may_serve_an_alias() -> None:
    """Targets are equals; what else an engine serves does not matter."""
    a, b, other = of("a"), of("b"), of("other")
    call = an_alias("b", "a")
    assert [one.name for one in (a, b, other) if one.serves(call)] == ["a", "b"]
    assert names(call, a, b) == [["a", "b"]]


def test_the_lease_names_the_model_that_the_backend_serves() -> None:
    """The first of the targets there, else of the fallbacks; the client's word where nobody knows."""
    call = an_alias("a", "b", fallbacks=("c", "d"))
    for models, expected in (({"b", "c"}, "b"), ({"b", "a"}, "a"), ({"d", "c"}, "c"), (None, "a")):
        backend = a_backend(models=None if models is None else frozenset(models))
        admission = an_admission(backend)
        assert granted(admission.submit(call, 0.0))
        lease = admission.lease("call")
        assert lease is not None and lease.model == expected
    assert a_backend(models=None).model_for(a_call()) == MODEL
    assert a_backend(models=frozenset({"z"})).model_for(call) is None


def test_a_fallback_is_not_tried_while_a_target_is_up() -> None:
    """Neither for want of a slot nor of context: a prompt that is too long must not change the model."""
    target = of("target", slots=0, context_tokens=4096)
    call = an_alias("target", fallbacks=("spare",))
    assert names(call, target, of("spare")) == [["target"]]
    admission = an_admission(target, of("spare", context_tokens=32768))
    assert granted(admission.submit(call, 0.0)) == {}
    long = an_alias("target", fallbacks=("spare",), id="long", prompt_tokens=9000)
    rejection = rejected(admission.submit(long, 0.0))["long"]
    assert (rejection.refusal, rejection.limit_tokens) == (Refusal.CONTEXT_LENGTH_EXCEEDED, 4096)


@pytest.mark.parametrize("state", AWAY)
def test_fallbacks_are_tried_in_turn(state: State) -> None:
    """The next one only while the one before has no ready backend either."""
    call = an_alias("target", fallbacks=("first", "second"))
    away, first, second = of("target", state=state), of("first"), of("second")
    assert names(call, away, second, first) == [["target"], ["first"]]
    assert names(call, away, second, of("first", state=state)) == [["target"], ["first"], ["second"]]
    assert names(call, second) == [["second"]]


def test_a_backup_of_the_target_goes_before_a_fallback() -> None:
    """The same model, elsewhere, is better than another model."""
    call = an_alias("target", fallbacks=("spare",))
    down, backup = (
        of("target", state=State.DOWN),
        a_backend("backup", models=frozenset({"target"}), backup=True),
    )
    assert names(call, down, of("spare"), backup) == [["target"], ["backup"]]


def test_a_fallback_that_is_too_small_leaves_the_call_waiting() -> None:
    """For the target, which held it; where nobody holds it, the call is refused."""
    call = an_alias("target", fallbacks=("spare",), prompt_tokens=9000)
    down, spare = of("target", state=State.DOWN, context_tokens=32768), of("spare", context_tokens=4096)
    assert names(call, down, spare) == [["target"]]
    assert names(call, spare) == []


def test_an_alias_whose_models_nobody_serves_is_not_found() -> None:
    """As any other name."""
    admission = an_admission(of("a"))
    rejection = rejected(admission.submit(an_alias("x", fallbacks=("y",)), 0.0))["call"]
    assert (rejection.refusal, rejection.models) == (Refusal.MODEL_NOT_FOUND, ("a",))


def test_an_alias_is_available_while_any_of_its_models_is() -> None:
    """So its 503 comes only when fallbacks, too, were down for the whole grace."""
    call = an_alias("target", fallbacks=("spare",))
    admission = an_admission(of("target", state=State.DOWN), of("spare", slots=0))
    assert admission.has_ready(call) and not admission.unavailable(call)
    admission.set_state("spare", State.DOWN, 0.0)
    assert not admission.has_ready(call) and admission.unavailable(call)


def test_a_model_without_a_slot_does_not_hold_up_another_route() -> None:
    """One engine serves both routes and is full; the free one serves only the other route."""
    full, free = a_backend("full", slots=0), a_backend("free", routes=frozenset({"/v1/messages"}))
    admission = an_admission(full, free)
    free.foreign = 1
    admission.submit(a_call("chat"), 0.0)
    admission.submit(a_call("messages", route="/v1/messages", arrived=1.0), 1.0)
    assert granted(admission.observe("free", 0, 2.0)) == {"messages": "free"}


def test_who_stands_by() -> None:
    """Backups, and those that serve no target; where models are not known, nobody is sure to."""
    call = an_alias("target", fallbacks=("spare",))
    assert standby(call, a_backend("b", models=frozenset({"target"}), backup=True))
    assert standby(call, of("spare"))
    assert not standby(call, of("target"))
    assert not standby(call, a_backend(models=None))
    assert not standby(a_call(), a_backend())
