"""When a failing backend is left alone, for how long, and how it comes back."""

from __future__ import annotations

from policies.admission import Admission
from policies.ejection import Ejection
from policies.types import Source, State, StateChanged
from tests.unit.fleet import a_backend, a_call, a_chain, an_admission, granted


def test_ejects_at_the_third_failure_in_a_row() -> None:
    """Two may happen; a success in between starts the count anew."""
    ejection = Ejection()
    assert [ejection.failed(0.0), ejection.failed(0.0)] == [False, False]
    ejection.succeeded()
    assert [ejection.failed(1.0) for _ in range(3)] == [False, False, True]
    assert ejection.until == 31.0


def test_a_failed_trial_ejects_at_once_and_for_longer() -> None:
    """30 s more each time, 300 s at the most."""
    ejection = Ejection()
    for _ in range(3):
        ejection.failed(0.0)
    pauses = []
    for _ in range(12):
        assert ejection.failed(0.0, trial=True)
        pauses.append(ejection.until)
    assert pauses[:3] == [60.0, 90.0, 120.0] and pauses[-3:] == [300.0] * 3


def test_a_success_clears_the_record() -> None:
    """The next ejection is short again."""
    ejection = Ejection()
    for _ in range(3):
        ejection.failed(0.0)
    ejection.failed(0.0, trial=True)
    ejection.succeeded()
    assert ejection.until == 0.0
    assert [ejection.failed(0.0) for _ in range(3)] == [False, False, True]
    assert ejection.until == 30.0


def test_what_failed_another_gateway_is_left_alone_unless_it_just_worked() -> None:
    """Then one failure more is enough; a trial that fails counts as the second ejection."""
    told = Ejection()
    told.worked(0.0)
    assert told.told(31.0) and told.until == 76.0
    assert told.failed(76.0, trial=True) and told.until == 136.0
    works = Ejection()
    works.worked(10.0)
    assert not works.told(39.0) and works.until == 0.0
    assert works.failed(40.0) and works.until == 70.0
    works.worked(71.0)
    assert not works.failed(72.0)


# -- as admission applies it -------------------------------------------------------------------------


def eject(admission: Admission, name: str = "backend", now: float = 0.0) -> None:
    for _ in range(3):
        admission.failed(name, now, "reset")
    assert admission.backends[name].state is State.EJECTED


def test_an_ejected_backend_takes_nothing_until_its_pause_is_over() -> None:
    """Calls wait; then exactly one tries, and with each first token one more may run beside it."""
    admission = an_admission(a_backend(slots=3), a_backend("other", slots=0))
    eject(admission)
    for id in ("a", "b", "c", "d"):
        assert granted(admission.submit(a_call(id), 1.0)) == {}
    assert admission.tick(29.9) == []
    decisions = admission.tick(30.0)
    assert granted(decisions) == {"a": "backend"} and admission.lease("a").trial
    assert granted(admission.tick(31.0)) == {}
    decisions = admission.first_token("a", 32.0)
    assert decisions[0] == StateChanged("backend", State.READY, "")
    assert granted(decisions) == {"b": "backend"}
    assert admission.backends["backend"].ejection.until == 0.0
    assert granted(admission.tick(33.0)) == {}
    assert granted(admission.first_token("b", 34.0)) == {"c": "backend"}
    assert granted(admission.first_token("c", 35.0)) == {}, "three slots are all there are"
    assert granted(admission.finish("a", 36.0)) == {"d": "backend"}


def test_a_backend_with_fewer_slots_or_another_process_owes_none() -> None:
    """What is held back after an ejection never holds all, and ends with the process that had failed."""
    admission = an_admission(a_backend(slots=8))
    eject(admission)
    admission.answered("backend", 1.0)
    admission.submit(a_call("a"), 1.0)
    admission.first_token("a", 2.0)
    backend = admission.backends["backend"]
    assert backend.resting == 6
    admission.resize("backend", 3.0, slots=2, source=Source.REPORTED, context_tokens=None)
    admission.finish("a", 3.0)
    assert granted(admission.submit(a_call("b"), 4.0)) == {"b": "backend"}
    backend.resting = 1
    admission.restarted("backend")
    assert granted(admission.submit(a_call("c"), 5.0)) == {"c": "backend"}


def test_a_failed_trial_waits_longer_for_the_next() -> None:
    """The slot comes back, the second pause is a minute."""
    admission = an_admission(a_backend(), a_backend("other", slots=0))
    eject(admission)
    admission.submit(a_call("a"), 1.0)
    admission.submit(a_call("b"), 2.0)
    admission.tick(30.0)
    admission.failed("backend", 31.0, "reset", trial=True)
    assert granted(admission.finish("a", 31.0)) == {}
    assert granted(admission.tick(90.9)) == {}
    assert granted(admission.tick(91.0)) == {"b": "backend"}


def test_a_trial_whose_client_left_is_followed_by_another() -> None:
    """It proved nothing; the backend is not stuck half-open."""
    admission = an_admission(a_backend(), a_backend("other", slots=0))
    eject(admission)
    admission.submit(a_call("a"), 1.0)
    admission.submit(a_call("b"), 2.0)
    admission.tick(30.0)
    assert granted(admission.finish("a", 31.0)) == {"b": "backend"}
    assert admission.lease("b").trial


def test_requests_that_fail_with_the_backend_do_not_prolong_its_pause() -> None:
    """Eight requests run when the engine breaks: one ejection of 30 s, not six of 180 s together."""
    admission = an_admission(a_backend(slots=8), a_backend("other", slots=0))
    for number in range(8):
        admission.submit(a_call(str(number)), 0.0)
    for number in range(8):
        admission.failed("backend", 1.0, "reset")
        admission.finish(str(number), 1.0)
    backend = admission.backends["backend"]
    assert (backend.ejection.until, backend.ejection.ejections) == (31.0, 1)
    assert admission.ejections == {("backend", "reset"): 1}


def test_a_trial_that_got_its_first_token_is_a_request_like_any_other() -> None:
    """A later failure of it counts as one, and it does not stand in the way of a later trial."""
    admission = an_admission(a_backend(slots=2), a_backend("other", slots=0))
    eject(admission)
    admission.submit(a_call("a"), 1.0)
    admission.tick(30.0)
    admission.first_token("a", 31.0)
    assert admission.failed("backend", 32.0, "reset", trial=True) == []
    eject(admission, now=33.0)
    admission.submit(a_call("b"), 34.0)
    assert granted(admission.tick(63.0)) == {"b": "backend"}


def test_the_last_backend_of_a_model_is_tried_at_the_first_answer() -> None:
    """It is never left ejected: a probe that succeeds ends its pause, for one call."""
    admission = an_admission(a_backend(slots=2))
    eject(admission)
    admission.submit(a_call("a"), 1.0)
    admission.submit(a_call("b"), 1.0)
    assert granted(admission.answered("backend", 2.0)) == {"a": "backend"}
    assert granted(admission.answered("backend", 3.0)) == {}


def test_an_answer_does_not_shorten_the_pause_while_others_serve() -> None:
    """A green probe says nothing about requests, and nobody depends on this backend; but of two
    models, one of which only it serves, that one counts."""
    admission = an_admission(a_backend(), a_backend("other"))
    eject(admission)
    admission.answered("backend", 2.0)
    assert admission.backends["backend"].ejection.until == 30.0
    admission.serve_models("backend", ["m", "only here"], 3.0)
    admission.answered("backend", 4.0)
    assert admission.backends["backend"].ejection.until == 4.0


def test_failures_of_a_backend_that_is_not_ready_count_nothing() -> None:
    """What breaks while it drains or is down says nothing about the engine that comes back."""
    admission = an_admission(a_backend(), a_backend("other"))
    admission.set_state("backend", State.DOWN, 0.0, "connection refused")
    for _ in range(5):
        assert admission.failed("backend", 1.0, "reset") == []
    admission.set_state("backend", State.READY, 2.0)
    admission.failed("backend", 3.0, "reset")
    assert admission.backends["backend"].state is State.READY
    assert admission.failed("gone", 3.0, "reset") == []


def test_a_new_process_has_a_clean_record() -> None:
    """Failures and cache were the old one's."""
    admission = an_admission(a_backend())
    admission.submit(a_call("a", chain=a_chain(1, 2)), 0.0)
    admission.failed("backend", 1.0, "reset")
    admission.failed("backend", 1.0, "reset")
    admission.restarted("backend")
    admission.failed("backend", 2.0, "reset")
    assert admission.backends["backend"].state is State.READY
    assert len(admission.backends["backend"].shadow) == 0


def test_one_that_is_ejected_elsewhere_is_tried_once_when_it_recovers_there() -> None:
    """Or when its time is over, if nothing is heard; one that is down or ejected already stays as it is."""
    admission = an_admission(a_backend(slots=3), a_backend("other", slots=0))
    assert admission.ejected_elsewhere("backend", 0.0) == [
        StateChanged("backend", State.EJECTED, "another gateway ejected it")
    ]
    assert admission.ejections == {("backend", "elsewhere"): 1}
    assert admission.ejected_elsewhere("backend", 20.0) == [], "nobody can keep it out for longer"
    assert granted(admission.submit(a_call("a"), 20.0)) == granted(admission.tick(44.9)) == {}
    assert granted(admission.tick(45.0)) == {"a": "backend"}
    admission.first_token("a", 46.0)
    assert admission.backends["backend"].state is State.READY
    assert admission.ejected_elsewhere("backend", 75.0) == [], "it works here"
    admission.finish("a", 75.0)
    eject(admission, now=80.0)
    admission.submit(a_call("b"), 81.0)
    admission.submit(a_call("c"), 81.0)
    assert granted(admission.recovered_elsewhere("backend", 90.0)) == {"b": "backend"}
    admission.set_state("backend", State.DOWN, 91.0)
    assert (
        admission.ejected_elsewhere("backend", 92.0) == admission.recovered_elsewhere("backend", 92.0) == []
    )
    assert admission.backends["backend"].state is State.DOWN
