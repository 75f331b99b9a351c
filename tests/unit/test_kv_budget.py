"""The tokens that an engine has room for, all requests together."""

from __future__ import annotations

from policies.types import Refusal, Source
from tests.unit.fleet import a_backend, a_call, an_admission, granted, rejected


def test_tokens_in_flight_stay_within_the_budget() -> None:
    """Prompt and a usual answer of each lease, until it ends; then the next one starts."""
    admission = an_admission(a_backend(slots=4, kv_tokens=10_000), prefill_gate_seconds=60.0)
    size = {"prompt_tokens": 3000, "output_tokens_max": 500}
    for id in ("a", "b"):
        assert granted(admission.submit(a_call(id, **size), 0.0)) == {id: "backend"}
    assert admission.backends["backend"].held_tokens == 7000
    assert granted(admission.submit(a_call("c", **size), 0.0)) == {}
    assert admission.queue.ordered(0.0)[0].why == {"backend": "kv_budget"}
    assert granted(admission.submit(a_call("small", prompt_tokens=900, output_tokens_max=100), 1.0)) == {
        "small": "backend"
    }
    admission.leave("a", 2.0)
    assert admission.backends["backend"].held_tokens == 8000  # the engine may still be at it
    assert granted(admission.finish("a", 3.0)) == {"c": "backend"}


def test_a_call_alone_may_outgrow_the_budget() -> None:
    """Its prompt fits and its answer will probably be short; beside others it would push them out."""
    admission = an_admission(a_backend(slots=4, kv_tokens=4096), prefill_gate_seconds=60.0)
    assert granted(admission.submit(a_call("large", prompt_tokens=4000), 0.0)) == {"large": "backend"}
    assert granted(admission.submit(a_call("small", output_tokens_max=1), 0.0)) == {}
    assert granted(admission.finish("large", 1.0)) == {"small": "backend"}


def test_a_prompt_beyond_the_budget_fits_nowhere() -> None:
    """The budget bounds a call as the context of a slot does; the smaller one counts."""
    backend = a_backend(kv_tokens=4096, context_tokens=8192)
    assert backend.window == 4096
    rejection = rejected(an_admission(backend).submit(a_call(prompt_tokens=6000), 0.0))["call"]
    assert (rejection.refusal, rejection.limit_tokens) == (Refusal.CONTEXT_LENGTH_EXCEEDED, 4096)
    assert (a_backend().window, a_backend(kv_tokens=7).window, a_backend(context_tokens=9).window) == (
        None,
        7,
        9,
    )


def test_a_budget_may_become_known_while_calls_run() -> None:
    """What they hold was counted from the start; a larger budget starts who waits at once."""
    admission = an_admission(a_backend(slots=4), prefill_gate_seconds=60.0)
    size = {"prompt_tokens": 3000, "output_tokens_max": 1000}

    def budget(tokens: int) -> dict[str, str]:
        sizes = {"slots": 4, "source": Source.REPORTED, "context_tokens": None, "kv_tokens": tokens}
        return granted(admission.resize("backend", 1.0, **sizes))  # type: ignore[arg-type]

    admission.submit(a_call("a", **size), 0.0)
    assert budget(6000) == {}
    assert granted(admission.submit(a_call("b", **size), 1.0)) == {}
    assert budget(7999) == {}
    assert budget(8000) == {"b": "backend"}


def test_small_calls_do_not_pass_a_large_one_for_ever() -> None:
    """After four times its own length what becomes free on one backend is kept for it, until it starts or
    leaves."""
    admission = an_admission(
        a_backend("a", slots=9, kv_tokens=10_000),
        a_backend("b", slots=9, kv_tokens=9_000),
        prefill_gate_seconds=60.0,
    )

    def small(id: str, now: float) -> dict[str, str]:
        call = a_call(id, arrived=now, prompt_tokens=3000, output_tokens_max=1000)
        return granted(admission.submit(call, now))

    for number in range(4):
        assert small(f"s{number}", 0.0)
    large = a_call("large", prompt_tokens=8000, output_tokens_max=1000)
    assert granted(admission.submit(large, 0.0)) == {}
    held = sorted(admission.backends["a"].leases), sorted(admission.backends["b"].leases)
    admission.finish(held[0][0], 30.0)
    assert small("early", 30.0) == {"early": "a"}
    admission.finish("early", 91.0)
    assert small("late", 91.0) == {}
    admission.finish(held[1][0], 92.0)
    assert small("other", 92.0) == {}  # "late" took what became free on the other backend
    assert admission.lease("late") is not None
    assert granted(admission.finish(held[0][1], 93.0)) == {"large": "a"}


def test_what_was_kept_for_a_call_is_free_when_it_leaves() -> None:
    """Nobody has to wait for the next event."""
    admission = an_admission(a_backend(slots=9, kv_tokens=10_000), prefill_gate_seconds=60.0)
    size = {"prompt_tokens": 3000, "output_tokens_max": 1000}
    admission.submit(a_call("a", **size), 0.0)
    admission.submit(a_call("large", prompt_tokens=8000, output_tokens_max=1000), 0.0)
    assert granted(admission.submit(a_call("b", arrived=91.0, **size), 91.0)) == {}
    assert granted(admission.finish("large", 92.0)) == {"b": "backend"}
