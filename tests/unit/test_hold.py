"""Whether a call starts where a slot is free, or waits for a better one."""

from __future__ import annotations

import pytest

from policies.admission import Admission
from policies.foresight import starts
from policies.placement import GATES_MAX
from policies.service_model import ServiceModel
from policies.types import Call, Priority, Reason, State
from tests.unit.fleet import LONG, SHORT, a_backend, a_call, a_chain, an_admission, granted

WARM = a_chain(1, 2)


def warm_and_cold(**limits: float) -> Admission:
    """Two backends of one slot; the first holds a long conversation, and runs a call of 2 s."""
    admission = an_admission(a_backend("warm"), **limits)
    admission.submit(a_call("turn-1", prompt_tokens=30_000, chain=WARM), 0.0)
    admission.first_token("turn-1", 30.0)
    admission.finish("turn-1", 31.0)
    admission.submit(a_call("other", prompt_tokens=SHORT, output_tokens_max=50), 40.0)
    admission.add(a_backend("cold"), 40.0)
    return admission


def turn_2(id: str = "turn-2") -> Call:
    return a_call(id, arrived=40.0, prompt_tokens=30_100, chain=a_chain(1, 2, 3))


def test_a_call_waits_for_the_slot_with_its_prefix_while_that_pays() -> None:
    """2 s for the slot and 10 s to read a third of the prompt, against 30 s at once elsewhere."""
    admission = warm_and_cold()
    backends = admission.backends
    backends["warm"].shadow.book(WARM, 30_000)
    assert granted(admission.submit(turn_2(), 40.0)) == {}
    (waiting,) = admission.queue
    assert waiting.why == {"warm": Reason.SLOTS, "cold": Reason.HOLD}
    assert list(starts([waiting], admission, 40.0)) == [pytest.approx(0.2 + 50 * 0.038)]
    assert granted(admission.finish("other", 42.0)) == {"turn-2": "warm"}
    lease = admission.lease("turn-2")
    assert lease is not None
    assert (lease.rival, lease.held_seconds) == ("cold", 2.0)
    assert lease.cost_seconds < lease.rival_seconds


def test_it_waits_no_longer_than_it_may() -> None:
    """Promises fail: what was to be over in 2 s goes on and on."""
    admission = warm_and_cold(hold_seconds_max=5.0)
    admission.backends["warm"].shadow.book(WARM, 30_000)
    admission.submit(turn_2(), 40.0)
    assert granted(admission.tick(44.9)) == {}
    assert granted(admission.tick(45.0)) == {"turn-2": "cold"}


def test_a_hold_ends_when_reality_proves_the_forecast_wrong() -> None:
    """A fast engine was to be free in 30 ms. The longer it takes, the longer it is expected to; soon the idle
    one is the better place, long before a call may hold no more."""
    fast = a_backend("fast")
    fast.service = ServiceModel(setup_seconds=0.01, decode_base_seconds=0.001, decode_step_seconds=0.0)
    admission = an_admission(fast)
    admission.submit(a_call("other", output_tokens_max=30), 0.0)
    admission.first_token("other", 0.01)
    admission.add(a_backend("idle"), 0.01)
    assert granted(admission.submit(a_call("call", arrived=0.02, output_tokens_max=30), 0.02)) == {}
    until = next(tick * 0.25 for tick in range(1, 240) if granted(admission.tick(tick * 0.25)))
    assert until < 10.0


def test_it_does_not_wait_behind_others_who_wait_already() -> None:
    """The first three wait for the warm slot; at some point the next one is done sooner elsewhere."""
    admission = warm_and_cold()
    admission.backends["warm"].shadow.book(WARM, 30_000)
    started = [granted(admission.submit(turn_2(f"{number}"), 40.0)) for number in range(9)]
    first = next(number for number, decision in enumerate(started) if decision)
    assert 0 < first < 8 and started[first] == {f"{first}": "cold"}


def test_nobody_waits_for_a_slot_that_is_no_better() -> None:
    """A cold call takes what is free."""
    admission = warm_and_cold()
    assert granted(admission.submit(a_call("stranger", arrived=40.0), 40.0)) == {"stranger": "cold"}


def busy_home() -> Admission:
    """A conversation of 30,000 tokens that came back within 5 s runs at home, a call of 2 s elsewhere."""
    admission = an_admission(a_backend("home"))
    for number, start in enumerate((0.0, 40.0), 1):
        turn = a_call(
            f"turn-{number}", prompt_tokens=30_000, conversation="talk", chain=a_chain(*range(number))
        )
        admission.submit(turn, start)
        admission.first_token(turn.id, start + 34.0)
        if number == 1:
            admission.finish(turn.id, 35.0)
    admission.add(a_backend("elsewhere"), 80.0)
    admission.submit(a_call("other", prompt_tokens=SHORT, output_tokens_max=50), 80.0)
    return admission


def a_stranger(number: int) -> Call:
    """New to all, for 2 s."""
    return a_call(
        f"stranger-{number}",
        arrived=80.0,
        prompt_tokens=100,
        output_tokens_max=50,
        chain=a_chain(90 + number),
    )


def test_a_crowd_pushes_nobody_out_who_is_expected_back() -> None:
    """While others wait, too, a call leaves the slot of a conversation that goes on, and waits for another;
    the last one takes it, since nobody else would."""
    admission = busy_home()
    for number in range(2):
        assert granted(admission.submit(a_stranger(number), 80.0)) == {}
    assert granted(admission.finish("turn-2", 80.5)) == {}
    assert {waiting.why["home"] for waiting in admission.queue} == {Reason.HOLD}
    assert granted(admission.finish("other", 82.0)) == {"stranger-0": "elsewhere"}
    assert granted(admission.tick(82.25)) == {"stranger-1": "home"}


def test_of_many_that_hold_a_few_are_looked_at() -> None:
    """The others still hold, and are charged with it; who is new behind many has its turn at the next event.
    As soon as one may hold no more, it starts."""
    admission = busy_home()
    for number in range(9):
        admission.submit(a_stranger(number), 80.0)
    assert granted(admission.finish("turn-2", 80.5)) == {}
    admission.tick(80.75)
    assert sorted(waiting.held(85.0) for waiting in admission.queue) == [0.0] * 3 + [4.25] + [4.5] * 5
    assert len(granted(admission.tick(80.5 + 60.0))) == 1


def test_nobody_holds_for_an_engine_that_is_lost() -> None:
    """However many others hold before it, each of which is looked at first."""
    admission = busy_home()
    for number in range(5):
        admission.submit(a_stranger(number), 80.0)
    admission.finish("turn-2", 80.5)
    fast, slow = (a_backend(name, models=frozenset({"other-model"})) for name in ("fast", "slow"))
    fast.service = ServiceModel(setup_seconds=0.01, decode_base_seconds=0.001, decode_step_seconds=0.0)
    admission.add(fast, 80.5)
    admission.submit(a_call("quick", model="other-model", output_tokens_max=30), 80.5)
    admission.first_token("quick", 80.51)
    admission.add(slow, 80.51)
    call = a_call("call", model="other-model", arrived=80.52, output_tokens_max=30)
    assert granted(admission.submit(call, 80.52)) == {}
    assert [waiting.held_since is not None for waiting in admission.queue] == [True] * 6
    assert granted(admission.set_state("fast", State.DOWN, 80.53)) == {"call": "slow"}


def test_of_many_that_the_gate_keeps_a_few_are_looked_at() -> None:
    """Those behind them wait for the gate, too; people do not wait for them, and it opens for the first."""
    admission = an_admission(a_backend(slots=4))
    admission.submit(a_call("reading", prompt_tokens=LONG), 0.0)
    for number in range(GATES_MAX + 9):
        admission.submit(a_call(f"{number:03}", prompt_tokens=LONG, arrived=0.1), 0.1)
    assert sum(waiting.why == {"backend": Reason.GATE} for waiting in admission.queue) == GATES_MAX
    person = a_call("person", priority=Priority.INTERACTIVE, arrived=1.0)
    assert granted(admission.submit(person, 1.0)) == {"person": "backend"}
    assert granted(admission.first_token("reading", 5.0)) == {"000": "backend"}


def test_a_call_may_wait_for_a_faster_engine() -> None:
    """Warm or not: seconds are all that counts."""
    admission = an_admission(a_backend("fast"))
    admission.submit(a_call("a", output_tokens_max=50), 0.0)
    slow = a_backend("slow")
    slow.service = ServiceModel(prefill_tokens_per_second=100.0)
    admission.add(slow, 0.0)
    assert granted(admission.submit(a_call("long", prompt_tokens=LONG), 0.0)) == {}
    assert granted(admission.submit(a_call("short", prompt_tokens=10), 0.0)) == {"short": "slow"}


def test_failures_in_a_row_make_a_backend_dearer() -> None:
    """Before it is ejected: the next request may have to be done again."""
    admission = an_admission(a_backend("a", slots=9), a_backend("b", slots=9))
    admission.failed("a", 0.0, "simulated")
    assert granted(admission.submit(a_call(), 0.0)) == {"call": "b"}


def test_people_go_where_they_are_read_first_agents_where_they_are_done_first() -> None:
    """A second until the first token counts six times for somebody at a screen."""
    reader = ServiceModel(prefill_tokens_per_second=2000.0, decode_base_seconds=0.08)
    writer = ServiceModel(prefill_tokens_per_second=500.0)
    for priority, chosen in ((Priority.INTERACTIVE, "reader"), (Priority.AGENT, "writer")):
        admission = an_admission(*(a_backend(name) for name in ("reader", "writer")))
        admission.backends["reader"].service, admission.backends["writer"].service = reader, writer
        call = a_call(prompt_tokens=2000, priority=priority)
        assert granted(admission.submit(call, 0.0)) == {"call": chosen}
