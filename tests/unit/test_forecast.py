"""When a backend could take one more call."""

from __future__ import annotations

from typing import Any

import pytest

from policies.admission import Admission
from policies.forecast import FOREIGN_SECONDS, Booking, Forecast
from policies.types import Backend, Limits
from tests.unit.fleet import LONG, SHORT, a_backend, a_call, an_admission

# At the prior rates a prompt of LONG takes 5.1 s and one of SHORT 0.2, an answer of 100 tokens alone 3.8 s;
# a stream stops while a prompt is read.


def running(*prompt_tokens: int, slots: int = 3, **fields: Any) -> tuple[Admission, Backend]:
    """A backend that was given these prompts at 0, each with an answer of 100 tokens."""
    admission = an_admission(a_backend(slots=slots, **fields), long_prefills_per_backend=9)
    for number, tokens in enumerate(prompt_tokens):
        admission.submit(a_call(str(number), prompt_tokens=tokens, output_tokens_max=100), 0.0)
    return admission, admission.backends["backend"]


def test_an_idle_backend_is_free_at_once() -> None:
    """Nothing to wait for."""
    forecast = Forecast(a_backend(), Limits(), 0.0)
    assert (forecast.wait(0, long=True), forecast.reading) == (0.0, 0.0)


def test_prompts_are_read_one_after_the_other() -> None:
    """What is left of the first, and the others whole."""
    _, backend = running(LONG, SHORT)
    assert Forecast(backend, Limits(), 2.0).reading == pytest.approx(3.1 + 0.2)


def test_a_slot_frees_when_the_first_answer_should_be_over() -> None:
    """Each stream waits for what is still to be read; an answer longer than usual has a quarter to go,
    and the longer it has taken the more: it has proven what was foreseen wrong."""
    admission, backend = running(SHORT, slots=1)
    assert Forecast(backend, Limits(), 0.0).wait(0, long=False) == pytest.approx(0.2 + 3.8)
    admission.first_token("0", 0.2)
    for now, left in ((1.2, 2.8), (3.9, 0.95), (40.2, 10.0)):
        assert Forecast(backend, Limits(), now).wait(0, long=False) == pytest.approx(left)


def test_the_gate_opens_when_the_long_prompts_are_read() -> None:
    """A short one passes it; a reserved slot does not count as free."""
    _, backend = running(LONG, slots=3)
    forecast = Forecast(backend, Limits(), 1.0)
    assert forecast.wait(0, long=True) == pytest.approx(4.1)
    assert forecast.wait(1, long=False) == 0.0
    assert forecast.wait(2, long=False) == pytest.approx(4.1 + 3.8)
    assert Forecast(backend, Limits(long_prefills_per_backend=2), 1.0).wait(0, long=True) == 0.0


def test_others_who_wait_are_counted_on() -> None:
    """The next one gets the slot after theirs, and its prompt is read after theirs."""
    _, backend = running(SHORT, slots=1)
    forecast = Forecast(backend, Limits(), 0.0)
    forecast.book(Booking(0, 4.0, 5.0, 10.0, long=True))
    assert forecast.booked == pytest.approx(9.0)
    assert forecast.wait(0, long=True) == pytest.approx(19.0)
    forecast.book(Booking(0, 19.0, 1.0, 1.0, long=False))
    assert forecast.wait(0, long=False) == pytest.approx(21.0)
    assert forecast.reading == pytest.approx(0.2)  # what starts now goes before them


def test_promises_outlast_the_start_of_another_call() -> None:
    """The forecast is made anew, those who wait still do."""
    admission, backend = running(SHORT, slots=2)
    forecast = Forecast(backend, Limits(), 0.0)
    forecast.book(Booking(0, 0.0, 5.0, 10.0, long=True))
    admission.submit(a_call("next", output_tokens_max=100), 0.0)
    again = forecast.again(backend, Limits(), 0.0)
    assert again.booked == pytest.approx(0.4 + 5.0)
    assert again.wait(0, long=False) > 4.0


def test_requests_of_others_end_at_some_time() -> None:
    """Nobody knows when."""
    assert Forecast(a_backend(foreign=1), Limits(), 0.0).wait(0, long=False) == FOREIGN_SECONDS
