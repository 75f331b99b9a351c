"""The state machine of admission: what each event decides."""

from __future__ import annotations

import pytest

from policies.types import Priority, Reason, Refusal, Source, State, StateChanged
from tests.unit.fleet import LONG, SHORT, a_backend, a_call, a_chain, an_admission, granted, rejected

# -- calls start, wait and end -----------------------------------------------------------------------


def test_a_call_starts_at_once_where_a_slot_is_free() -> None:
    """Choosing and taking are one step: the lease is recorded with the decision."""
    admission = an_admission(a_backend())
    assert granted(admission.submit(a_call(), 0.0)) == {"call": "backend"}
    lease = admission.lease("call")
    assert lease is admission.backends["backend"].leases["call"]
    assert (lease.cached_tokens, lease.long, lease.trial) == (0, False, False)
    assert admission.backends["backend"].free == 0


def test_the_next_call_waits_and_starts_when_the_slot_is_free() -> None:
    """The end of one is the start of the next, in the same decision."""
    admission = an_admission(a_backend())
    admission.submit(a_call("a"), 0.0)
    assert admission.submit(a_call("b", arrived=1.0), 1.0) == []
    assert granted(admission.finish("a", 2.0)) == {"b": "backend"}
    assert admission.finish("b", 3.0) == []
    assert admission.backends["backend"].free == 1


def test_finish_is_total() -> None:
    """Waiting, running, leaving, ended or never seen: `finish` forgets the call, twice does no harm."""
    admission = an_admission(a_backend())
    for id in ("running", "waiting", "last"):
        admission.submit(a_call(id), 0.0)
    assert admission.finish("waiting", 1.0) == []
    assert admission.finish("waiting", 1.0) == []
    assert granted(admission.finish("running", 2.0)) == {"last": "backend"}
    assert admission.finish("running", 2.0) == []
    admission.leave("last", 3.0)
    admission.finish("last", 4.0)
    assert admission.finish("never seen", 4.0) == []
    assert (admission.backends["backend"].free, admission.queue.ordered(4.0)) == (1, [])


def test_a_slot_that_is_being_left_is_not_free() -> None:
    """A closed connection is not a free slot: only `finish` gives it back."""
    admission = an_admission(a_backend())
    admission.submit(a_call("a"), 0.0)
    admission.submit(a_call("b"), 0.0)
    assert admission.leave("a", 1.0) == []
    backend = admission.backends["backend"]
    assert (backend.leaving, backend.in_use, backend.free) == ({"a"}, 0, 0)
    assert granted(admission.finish("a", 2.0)) == {"b": "backend"}
    assert backend.leaving == set()


def test_leaving_the_queue_frees_the_place_at_once() -> None:
    """A waiting call holds no slot, so there is nothing to wait for."""
    admission = an_admission(a_backend())
    admission.submit(a_call("a"), 0.0)
    admission.submit(a_call("b"), 0.0)
    assert admission.leave("b", 1.0) == []
    assert admission.queue.ordered(1.0) == []


def test_a_refused_start_returns_to_its_place() -> None:
    """The engine did not begin: the call is again before those who came after it, and the backend
    has its pause."""
    admission = an_admission(a_backend())
    first = a_call("first")
    admission.submit(first, 0.0)
    admission.submit(a_call("second", arrived=1.0), 1.0)
    assert granted(admission.not_started(first, 2.0, 3.0)) == {}
    assert [w.call.id for w in admission.queue.ordered(2.0)] == ["first", "second"]
    assert admission.queue.ordered(2.0)[0].why == {"backend": Reason.PAUSED}
    assert granted(admission.tick(4.9)) == {}
    assert granted(admission.tick(5.0)) == {"first": "backend"}


def test_a_refused_start_may_go_elsewhere_at_once() -> None:
    """Only the backend that refused is paused; a later, shorter pause does not shorten it."""
    admission = an_admission(a_backend("a"), a_backend("b"))
    call = a_call()
    home = granted(admission.submit(call, 0.0))["call"]
    other = granted(admission.not_started(call, 1.0, 10.0))["call"]
    assert {home, other} == {"a", "b"}
    assert granted(admission.not_started(call, 2.0, 0.5)) == {}
    assert granted(admission.tick(2.5)) == {"call": other}
    assert admission.backends[home].paused_until == 11.0
    assert admission.not_started(a_call("stranger"), 3.0) == []


def test_a_refused_start_may_bring_its_count() -> None:
    """The engine counted the prompt while it refused: a backend too small for it is out."""
    admission = an_admission(
        a_backend("a", context_tokens=4096), a_backend("b", context_tokens=32768, slots=0)
    )
    admission.submit(a_call(prompt_tokens=1000), 0.0)
    admission.not_started(a_call(prompt_tokens=6000, prompt_counted=True), 1.0)
    assert granted(admission.resize("b", 2.0, slots=1, source=Source.REPORTED, context_tokens=32768)) == {
        "call": "b"
    }


def test_the_first_token_ends_the_prefill() -> None:
    """A second long prompt may be read then, and no earlier; short ones pass."""
    admission = an_admission(a_backend(slots=3))
    admission.submit(a_call("long-1", prompt_tokens=LONG), 0.0)
    assert granted(admission.submit(a_call("long-2", prompt_tokens=LONG), 0.0)) == {}
    assert granted(admission.submit(a_call("short", prompt_tokens=SHORT), 0.0)) == {"short": "backend"}
    assert admission.queue.ordered(0.0)[0].why == {"backend": Reason.GATE}
    admission.tick(1.0)
    assert admission.gate_waits == {"backend": 1}
    assert granted(admission.first_token("long-1", 2.0)) == {"long-2": "backend"}
    assert admission.first_token("long-1", 2.0) == []
    assert admission.first_token("stranger", 2.0) == []


def test_the_end_of_a_long_prefill_opens_the_gate() -> None:
    """Also where it ends without a token."""
    admission = an_admission(a_backend(slots=2))
    admission.submit(a_call("long-1", prompt_tokens=LONG), 0.0)
    admission.submit(a_call("long-2", prompt_tokens=LONG), 0.0)
    assert granted(admission.finish("long-1", 1.0)) == {"long-2": "backend"}


def test_the_reserve_keeps_a_slot_while_interactive_calls_come() -> None:
    """For 60 s after one was seen; then agents may have all slots."""
    admission = an_admission(a_backend(slots=3), interactive_reserve_slots=1)
    admission.submit(a_call("person", priority=Priority.INTERACTIVE), 0.0)
    admission.submit(a_call("agent-1"), 0.0)
    assert granted(admission.submit(a_call("agent-2"), 0.0)) == {}
    assert admission.queue.ordered(0.0)[0].why == {"backend": Reason.RESERVE}
    assert granted(admission.tick(60.0)) == {}
    assert granted(admission.tick(60.1)) == {"agent-2": "backend"}


def test_the_reserve_is_for_interactive_calls() -> None:
    """The slot that agents leave empty is taken by the next person."""
    admission = an_admission(a_backend(slots=3), interactive_reserve_slots=1)
    admission.submit(a_call("person-1", priority=Priority.INTERACTIVE), 0.0)
    admission.submit(a_call("agent-1"), 0.0)
    admission.submit(a_call("agent-2"), 0.0)
    person = a_call("person-2", priority=Priority.INTERACTIVE)
    assert granted(admission.submit(person, 1.0)) == {"person-2": "backend"}


# -- where -------------------------------------------------------------------------------------------


def test_ties_rotate() -> None:
    """Equal backends take turns, the one granted longest ago first: no hot spot."""
    admission = an_admission(*(a_backend(name, slots=9) for name in ("a", "b", "c")))
    places = []
    for number in range(6):
        places += granted(admission.submit(a_call(str(number)), 0.0)).values()
        admission.finish(str(number), 0.0)
    assert places == ["a", "b", "c", "a", "b", "c"]


def test_load_is_spread() -> None:
    """The emptier batch decodes faster."""
    admission = an_admission(a_backend("a", slots=4), a_backend("b", slots=4))
    places = [granted(admission.submit(a_call(str(n)), 0.0))[str(n)] for n in range(4)]
    assert sorted(places) == ["a", "a", "b", "b"]


def test_a_warm_cache_attracts() -> None:
    """The next turn of a conversation goes where the last one was, though it is not its turn."""
    admission = an_admission(a_backend("a"), a_backend("b"))
    home = granted(admission.submit(a_call("1", chain=a_chain(1)), 0.0))["1"]
    admission.finish("1", 1.0)
    again = a_call("2", prompt_tokens=LONG, chain=a_chain(1, 2))
    assert granted(admission.submit(again, 2.0)) == {"2": home}
    assert admission.lease("2").cached_tokens == LONG // 2


def test_model_and_route_decide_who_serves() -> None:
    """A backend of another model or without the route is no candidate."""
    admission = an_admission(
        a_backend("other", models=frozenset({"other"})),
        a_backend("mine"),
        a_backend("bare", routes=frozenset()),
    )
    assert granted(admission.submit(a_call(), 0.0)) == {"call": "mine"}
    assert admission.models() == ("m", "other")
    assert admission.has_ready(a_call())
    assert not admission.has_ready(a_call(model="nobody's"))


# -- rejections --------------------------------------------------------------------------------------


def test_rejects_a_model_that_nobody_serves() -> None:
    """At once, and says which exist."""
    admission = an_admission(a_backend())
    rejection = rejected(admission.submit(a_call(model="x"), 0.0))["call"]
    assert (rejection.refusal, rejection.models) == (Refusal.MODEL_NOT_FOUND, ("m",))


def test_rejects_a_route_that_no_backend_of_the_model_has() -> None:
    """At once; one that turns out to be missing rejects those that wait for it, too."""
    admission = an_admission(
        a_backend("a", routes=frozenset({"/a"}), slots=1), a_backend("b", routes=frozenset({"/b"}))
    )
    assert rejected(admission.submit(a_call("1", route="/c"), 0.0))["1"].refusal is Refusal.NOT_FOUND
    assert granted(admission.submit(a_call("2", route="/a"), 0.0)) == {"2": "a"}
    assert admission.submit(a_call("3", route="/a"), 0.0) == []
    assert rejected(admission.serve_routes("a", frozenset(), 1.0))["3"].refusal is Refusal.NOT_FOUND


def test_says_who_serves_a_call_that_takes_no_slot() -> None:
    """Ready or not, full or not; or why nobody does."""
    admission = an_admission(a_backend("a", slots=1), a_backend("b", routes=frozenset()))
    admission.submit(a_call("1"), 0.0)
    assert [[backend.name for backend in tier] for tier in admission.serving(a_call("2"))] == [["a"]]
    assert admission.serving(a_call("2", model="x")).refusal is Refusal.MODEL_NOT_FOUND
    admission.close()
    assert admission.serving(a_call("2")).refusal is Refusal.SHUTTING_DOWN


def test_waits_for_a_backend_that_has_not_told_its_models() -> None:
    """While one starts, its models are unknown; when it has told them, the call starts or is rejected."""
    admission = an_admission(a_backend(models=None, state=State.STARTING, slots=2))
    assert admission.submit(a_call("served"), 0.0) == []
    assert admission.submit(a_call("not served", model="x"), 0.0) == []
    decisions = admission.serve_models("backend", ["m"], 1.0)
    assert rejected(decisions)["not served"].refusal is Refusal.MODEL_NOT_FOUND
    assert granted(admission.set_state("backend", State.READY, 2.0)) == {"served": "backend"}


def test_rejects_a_prompt_that_no_backend_holds() -> None:
    """And says how much the largest would hold."""
    admission = an_admission(a_backend("a", context_tokens=4096), a_backend("b", context_tokens=8192))
    rejection = rejected(admission.submit(a_call(prompt_tokens=20_000), 0.0))["call"]
    assert (rejection.refusal, rejection.limit_tokens) == (Refusal.CONTEXT_LENGTH_EXCEEDED, 8192)


def test_a_restart_with_a_smaller_context_rejects_who_waits_in_vain() -> None:
    """The call fitted when it came; now it never will."""
    admission = an_admission(a_backend(context_tokens=32768))
    admission.submit(a_call("running"), 0.0)
    admission.submit(a_call("too long", prompt_tokens=20_000), 0.0)
    admission.set_state("backend", State.DOWN, 1.0, "connection refused")
    admission.finish("running", 1.0)
    admission.restarted("backend")
    decisions = admission.resize("backend", 2.0, slots=1, source=Source.REPORTED, context_tokens=4096)
    rejection = rejected(decisions)["too long"]
    assert (rejection.refusal, rejection.limit_tokens) == (Refusal.CONTEXT_LENGTH_EXCEEDED, 4096)


def test_the_queue_has_a_bound() -> None:
    """A call that finds neither slot nor place is rejected; those inside stay."""
    admission = an_admission(a_backend(), waiting_max=2)
    for number in range(3):
        assert not rejected(admission.submit(a_call(str(number)), 0.0))
    assert rejected(admission.submit(a_call("3"), 0.0))["3"].refusal is Refusal.QUEUE_FULL
    assert [w.call.id for w in admission.queue.ordered(0.0)] == ["1", "2"]
    admission.finish("0", 1.0)
    assert not rejected(admission.submit(a_call("4"), 1.0))


def test_no_place_to_wait_is_needed_where_a_slot_is_free() -> None:
    """`waiting_max = 0` serves what can start at once."""
    admission = an_admission(a_backend(), waiting_max=0, waiting_bytes_max=0)
    assert granted(admission.submit(a_call("a", body_bytes=10), 0.0)) == {"a": "backend"}
    assert rejected(admission.submit(a_call("b", body_bytes=10), 0.0))["b"].refusal is Refusal.QUEUE_FULL


def test_the_bytes_of_waiting_bodies_have_a_bound() -> None:
    """Bodies of calls that run do not count; those that left the queue free their bytes."""
    admission = an_admission(a_backend(), waiting_bytes_max=100)
    admission.submit(a_call("running", body_bytes=1000), 0.0)
    assert not rejected(admission.submit(a_call("a", body_bytes=60), 0.0))
    assert rejected(admission.submit(a_call("b", body_bytes=60), 0.0))["b"].refusal is Refusal.QUEUE_FULL
    assert not rejected(admission.submit(a_call("c", body_bytes=40), 0.0))
    admission.finish("a", 1.0)
    assert not rejected(admission.submit(a_call("d", body_bytes=60), 1.0))


def test_a_wait_has_a_bound() -> None:
    """`wait_seconds_max` after its arrival a call that still waits is rejected."""
    admission = an_admission(a_backend(), wait_seconds_max=100.0)
    admission.submit(a_call("running"), 0.0)
    admission.submit(a_call("waiting", arrived=5.0), 5.0)
    assert admission.tick(104.9) == []
    assert rejected(admission.tick(105.0))["waiting"].refusal is Refusal.WAIT_TOO_LONG
    assert admission.queue.ordered(105.0) == []


def test_a_deadline_ends_the_wait() -> None:
    """A client that will have gone by then is told before."""
    admission = an_admission(a_backend())
    admission.submit(a_call("running"), 0.0)
    admission.submit(a_call("waiting", start_by=20.0), 0.0)
    assert admission.tick(19.9) == []
    assert rejected(admission.tick(20.0))["waiting"].refusal is Refusal.WAIT_TOO_LONG


def test_a_deadline_that_cannot_be_met_is_refused_on_arrival() -> None:
    """With a release every 10 s, the second in the queue starts in 20 s, not in 15."""
    admission = an_admission(a_backend())
    for number in range(3):
        admission.submit(a_call(str(number)), 0.0)
    admission.finish("0", 10.0)
    soon = a_call("soon", arrived=10.0, start_by=25.0)
    rejection = rejected(admission.submit(soon, 10.0))["soon"]
    assert rejection.refusal is Refusal.WAIT_TOO_LONG
    assert rejection.retry_after_seconds == pytest.approx(20.0)
    assert not rejected(admission.submit(a_call("later", arrived=10.0, start_by=31.0), 10.0))


def test_retry_after_comes_from_measured_releases() -> None:
    """Seconds between two releases while calls wait, the newest counting a fifth; unknown before."""
    admission = an_admission(a_backend(), waiting_max=2)
    for number in range(3):
        admission.submit(a_call(str(number)), 0.0)
    assert rejected(admission.submit(a_call("x"), 0.0))["x"].retry_after_seconds is None
    admission.finish("0", 10.0)
    admission.submit(a_call("3"), 10.0)
    assert rejected(admission.submit(a_call("x"), 10.0))["x"].retry_after_seconds == pytest.approx(10.0)
    admission.finish("1", 15.0)
    assert admission.queue.predicted_wait(0) == pytest.approx(9.0)
    assert admission.queue.predicted_wait(2) == pytest.approx(27.0)


def test_an_idle_hour_is_no_rate() -> None:
    """Nothing waited, so nothing was measured: the next interval begins with the next waiting call."""
    admission = an_admission(a_backend())
    admission.submit(a_call("early"), 0.0)
    admission.finish("early", 1.0)
    admission.submit(a_call("a", arrived=3600.0), 3600.0)
    admission.submit(a_call("b", arrived=3601.0), 3601.0)
    admission.finish("a", 3605.0)
    assert admission.queue.predicted_wait(0) == pytest.approx(4.0)


def test_a_refused_start_is_no_release() -> None:
    """It freed nothing that was in use."""
    admission = an_admission(a_backend(slots=1))
    first = a_call("a")
    admission.submit(first, 0.0)
    admission.submit(a_call("b"), 0.0)
    admission.not_started(first, 1.0, 1.0)
    assert admission.queue.predicted_wait(0) is None


# -- backends change ---------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.DOWN, State.EJECTED])
def test_no_backend_for_the_whole_grace_is_an_error(state: State) -> None:
    """The grace begins when the last one is gone."""
    backend = a_backend(state=state)
    backend.ejection.until = 1e9
    admission = an_admission(backend, unavailable_grace_seconds=60.0)
    admission.submit(a_call(), 0.0)
    admission.tick(1.0)
    assert admission.tick(60.9) == []
    rejection = rejected(admission.tick(61.0))["call"]
    assert rejection.refusal is Refusal.NO_BACKEND_READY and rejection.retry_after_seconds is not None


@pytest.mark.parametrize("state", [State.STARTING, State.WARMING, State.DRAINING, State.DRAINED])
def test_a_backend_on_its_way_is_waited_for(state: State) -> None:
    """As long as a call may wait at all: a restart under drain is no failure."""
    admission = an_admission(a_backend(state=state), unavailable_grace_seconds=60.0)
    admission.submit(a_call(), 0.0)
    for now in range(1, 900):
        assert admission.tick(float(now)) == []
    assert rejected(admission.tick(900.0))["call"].refusal is Refusal.WAIT_TOO_LONG


def test_a_return_within_the_grace_starts_it_anew() -> None:
    """Two short outages are not one long one."""
    admission = an_admission(a_backend(state=State.DOWN), unavailable_grace_seconds=60.0)
    admission.submit(a_call(), 0.0)
    admission.tick(0.0)
    admission.set_state("backend", State.STARTING, 50.0)
    admission.tick(50.0)
    admission.set_state("backend", State.DOWN, 55.0)
    admission.tick(55.0)
    assert admission.tick(114.9) == []
    assert rejected(admission.tick(115.0))["call"].refusal is Refusal.NO_BACKEND_READY


def test_draining_takes_nothing_new_and_ends_drained() -> None:
    """Running requests finish; the last one, though its client has left, makes it drained."""
    admission = an_admission(a_backend(slots=2))
    admission.submit(a_call("a"), 0.0)
    admission.submit(a_call("b"), 0.0)
    assert admission.set_state("backend", State.DRAINING, 1.0, "update") == [
        StateChanged("backend", State.DRAINING, "update")
    ]
    assert admission.submit(a_call("c"), 1.0) == []
    assert admission.finish("a", 2.0) == []
    admission.leave("b", 3.0)
    assert admission.backends["backend"].state is State.DRAINING
    assert admission.finish("b", 4.0) == [StateChanged("backend", State.DRAINED, "update")]
    assert granted(admission.set_state("backend", State.READY, 5.0)) == {"c": "backend"}


def test_draining_an_idle_backend_is_drained_at_once() -> None:
    """There is nothing to wait for."""
    admission = an_admission(a_backend())
    assert admission.set_state("backend", State.DRAINING, 1.0) == [StateChanged("backend", State.DRAINED, "")]


def test_a_state_is_told_once() -> None:
    """The same state for the same reason is no event; a new reason is one, but the time stands."""
    admission = an_admission(a_backend())
    admission.set_state("backend", State.WARMING, 1.0, "warming up")
    assert admission.set_state("backend", State.WARMING, 2.0, "warming up") == []
    assert admission.set_state("backend", State.WARMING, 3.0, "it failed") == [
        StateChanged("backend", State.WARMING, "it failed")
    ]
    assert admission.backends["backend"].since == 1.0


def test_fewer_slots_than_in_use_take_effect_as_requests_end() -> None:
    """Nothing is cut off, nothing new starts until the rest fits."""
    admission = an_admission(a_backend(slots=3))
    for number in range(4):
        admission.submit(a_call(str(number)), 0.0)
    admission.resize("backend", 1.0, slots=1, source=Source.REPORTED, context_tokens=None)
    assert admission.backends["backend"].free == 0
    assert admission.finish("0", 2.0) == []
    assert admission.finish("1", 3.0) == []
    assert granted(admission.finish("2", 4.0)) == {"3": "backend"}


def test_more_slots_start_more_calls_at_once() -> None:
    """Nobody has to end first."""
    admission = an_admission(a_backend())
    for number in range(3):
        admission.submit(a_call(str(number)), 0.0)
    decisions = admission.resize("backend", 1.0, slots=3, source=Source.REPORTED, context_tokens=None)
    assert granted(decisions) == {"1": "backend", "2": "backend"}


def test_slots_that_are_withheld_are_not_given() -> None:
    """They are free, and for others; as soon as they are not any more, who waits here has them."""
    admission = an_admission(a_backend(slots=2))
    admission.observe("backend", 0, 0.0, withheld=1)
    assert granted(admission.submit(a_call("a"), 0.0)) == {"a": "backend"}
    assert admission.submit(a_call("b"), 0.0) == []
    assert granted(admission.observe("backend", 0, 1.0)) == {"b": "backend"}


def test_a_call_that_was_not_even_sent_has_waited_all_the_time() -> None:
    """Its limit counts from when it came to wait, not from the slot that it did not get."""
    admission = an_admission(a_backend(), wait_seconds_max=10.0)
    call = a_call()
    admission.submit(call, 0.0)
    admission.backends["backend"].withheld = 1
    admission.not_started(call, 8.0, since=0.0)
    assert rejected(admission.tick(9.9)) == {}
    assert rejected(admission.tick(10.0)).keys() == {"call"}


def test_foreign_load_that_ends_frees_its_slots() -> None:
    """Somebody else used the engine; now it is ours."""
    admission = an_admission(a_backend(slots=2))
    admission.observe("backend", 2, 0.0)
    assert admission.submit(a_call(), 0.0) == []
    assert granted(admission.observe("backend", 1, 1.0)) == {"call": "backend"}


def test_a_backend_that_joins_takes_from_the_queue() -> None:
    """And one that was drained may leave."""
    admission = an_admission(a_backend("a"))
    admission.submit(a_call("1"), 0.0)
    admission.submit(a_call("2"), 0.0)
    assert granted(admission.add(a_backend("b"), 5.0)) == {"2": "b"}
    assert admission.backends["b"].since == 5.0
    admission.set_state("a", State.DRAINING, 6.0)
    admission.finish("1", 7.0)
    admission.remove("a")
    assert list(admission.backends) == ["b"]


def test_a_call_whose_last_backend_was_removed_does_not_wait_for_ever() -> None:
    """Nobody serves its model any more."""
    admission = an_admission(a_backend(slots=0), unavailable_grace_seconds=60.0)
    admission.submit(a_call(), 0.0)
    admission.remove("backend")
    admission.tick(1.0)
    assert set(rejected(admission.tick(61.0))) == {"call"}


def test_a_backend_that_comes_under_the_name_of_one_that_left_begins_anew() -> None:
    """What was counted of that one is not its own."""
    admission = an_admission(a_backend("gone"), a_backend("stays"))
    for name in ("gone", "stays"):
        admission.ejections[name, "stall"] = admission.gate_waits[name] = 1
    admission.remove("gone")
    admission.add(a_backend("gone"), 1.0)
    assert (set(admission.ejections), set(admission.gate_waits)) == ({("stays", "stall")}, {"stays"})


def test_closing_rejects_the_new_and_serves_the_old() -> None:
    """Shutting down: those that wait or run go on."""
    admission = an_admission(a_backend())
    running = a_call("running")
    admission.submit(running, 0.0)
    admission.submit(a_call("waiting", arrived=1.0), 1.0)
    admission.close()
    assert rejected(admission.submit(a_call("new"), 1.0))["new"].refusal is Refusal.SHUTTING_DOWN
    assert granted(admission.not_started(running, 2.0)) == {"running": "backend"}
    assert granted(admission.finish("running", 3.0)) == {"waiting": "backend"}


def test_counts_the_queue_by_class() -> None:
    """What metrics show."""
    admission = an_admission(a_backend(slots=0))
    admission.submit(a_call("a"), 0.0)
    admission.submit(a_call("b"), 0.0)
    admission.submit(a_call("c", priority=Priority.BATCH), 0.0)
    assert admission.queue.lengths() == {Priority.AGENT: 2, Priority.BATCH: 1}


def test_a_misspelt_model_does_not_wait_for_a_backend_that_is_down() -> None:
    """While another backend tells its models, one that is down and never told any is not waited for; alone,
    it is."""
    down = a_backend("down", models=None)
    admission = an_admission(a_backend("up"), down)
    admission.set_state("down", State.DOWN, 0.0)
    answer = rejected(admission.submit(a_call("a", model="misspelt"), 0.0))
    assert answer["a"].refusal is Refusal.MODEL_NOT_FOUND
    admission.set_state("down", State.STARTING, 1.0)
    assert admission.submit(a_call("b", model="misspelt"), 1.0) == []
    alone = an_admission(a_backend("down", models=None))
    alone.set_state("down", State.DOWN, 0.0)
    assert alone.submit(a_call("c"), 0.0) == []
