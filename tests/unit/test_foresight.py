"""When each waiting call will probably start."""

from __future__ import annotations

import pytest

from policies.admission import Admission
from policies.foresight import starts
from policies.types import Priority, State
from tests.unit.fleet import LONG, a_backend, a_call, an_admission

# At the prior rates a prompt of LONG takes 5.1 s and one of SHORT 0.2, an answer of 100 tokens alone 3.8 s.


def foreseen(admission: Admission, now: float) -> dict[str, float | None]:
    """Seconds until each waiting call starts, the next one first."""
    calls = admission.queue.ordered(now)
    return {w.call.id: at for w, at in zip(calls, starts(calls, admission, now), strict=True)}


def test_who_waits_behind_the_gate_starts_when_the_prompts_before_are_read() -> None:
    """Free slots do not help: one long prompt is read after the other."""
    admission = an_admission(a_backend(slots=8))
    for number in range(4):
        call = a_call(str(number), prompt_tokens=LONG, arrived=number / 10, output_tokens_max=100)
        admission.submit(call, 0.5)
    (reads,) = admission.backends["backend"].leases
    waiting = foreseen(admission, 2.5)
    assert list(waiting) == [id for id in "0123" if id != reads]
    first = 5.1 - 2.0
    assert list(waiting.values()) == pytest.approx([first, first + 5.1, first + 2 * 5.1], abs=0.1)


def test_who_waits_for_a_slot_starts_when_an_answer_ends() -> None:
    """The second one waits for the first one's answer too, where there is one slot."""
    admission = an_admission(a_backend(slots=1))
    for number in range(3):
        admission.submit(a_call(str(number), arrived=number / 10, output_tokens_max=100), 0.5)
    first, second = foreseen(admission, 0.5).values()
    assert (first, second) == pytest.approx((4.0, 8.0), abs=0.2)


def test_queues_of_unlike_models_do_not_count_for_each_other() -> None:
    """Many wait for one backend; who comes last, but for another one, starts first."""
    admission = an_admission(a_backend("a"), a_backend("b", models=frozenset({"other"})))
    for number in range(6):
        admission.submit(a_call(str(number), output_tokens_max=100), 0.0)
    admission.submit(a_call("runs", model="other", output_tokens_max=10), 0.0)
    admission.submit(a_call("last", model="other"), 0.0)
    waiting = foreseen(admission, 0.0)
    alone = waiting.pop("last")
    assert alone is not None
    assert all(at is not None and at > alone for at in waiting.values())


def test_people_start_on_the_slot_that_is_kept_for_them() -> None:
    """What an agent waits for is the second slot that frees."""
    admission = an_admission(a_backend(slots=3), interactive_reserve_slots=1)
    for number in range(3):
        limit = 100 * (number + 1)
        admission.submit(a_call(str(number), priority=Priority.INTERACTIVE, output_tokens_max=limit), 0.0)
    admission.submit(a_call("agent"), 0.0)
    admission.submit(a_call("person", priority=Priority.INTERACTIVE), 0.0)
    waiting = foreseen(admission, 0.0)
    assert list(waiting) == ["person", "agent"]
    person, agent = waiting.values()
    assert person is not None
    assert agent is not None
    assert agent > person + 3


def test_who_is_passed_by_others_starts_at_the_pace_of_its_group() -> None:
    """By what runs, a slot is free in seconds; but batch calls have started a minute apart."""
    admission = an_admission(a_backend(slots=1))
    admission.submit(a_call("runs", output_tokens_max=100), 0.0)
    for number in range(5):
        admission.submit(a_call(f"b{number}", priority=Priority.BATCH, output_tokens_max=100), 0.0)
    for now in (60.0, 120.0):
        (running,) = admission.backends["backend"].leases
        admission.finish(running, now)
    first, *others = foreseen(admission, 121.0).values()
    assert [first, *others] == pytest.approx([60.0, 120.0, 180.0])


@pytest.mark.parametrize("state", [State.DOWN, State.DRAINING, State.WARMING])
def test_nobody_knows_when_a_backend_comes_back(state: State) -> None:
    """No start is made up."""
    admission = an_admission(a_backend())
    admission.submit(a_call("runs"), 0.0)
    admission.submit(a_call("waits"), 0.0)
    admission.set_state("backend", state, 1.0)
    assert foreseen(admission, 1.0) == {"waits": None}


def test_nothing_is_changed_by_looking() -> None:
    """Reasons, holds and gate waits are what admission found."""
    admission = an_admission(a_backend(slots=2))
    for number in range(3):
        admission.submit(a_call(str(number), prompt_tokens=LONG), 0.0)
    before = [(w.why, w.held_since, dict(w.quotes)) for w in admission.queue]
    gates = dict(admission.gate_waits)
    assert foreseen(admission, 1.0) == foreseen(admission, 1.0)
    assert [(w.why, w.held_since, dict(w.quotes)) for w in admission.queue] == before
    assert dict(admission.gate_waits) == gates
