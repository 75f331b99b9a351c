"""When an estimate will not do."""

from __future__ import annotations

import pytest

from policies.doubt import Doubt, at_gate, doubt, uncertain
from policies.prefix import Link
from tests.unit.fleet import a_backend, a_call
from tests.unit.test_filters import LIMITS, SMALL, occupy


@pytest.mark.parametrize(
    ("prompt_tokens", "counted", "doubtful"),
    [
        (2000, False, False),
        (3000, False, True),
        (5800, False, True),
        (5900, False, False),
        (3000, True, False),
    ],
)
def test_an_estimate_near_a_context_is_uncertain(prompt_tokens: int, counted: bool, doubtful: bool) -> None:
    """Near a limit only the engine's own tokenizer can tell the side."""
    call = a_call(prompt_tokens=prompt_tokens, prompt_counted=counted)
    assert uncertain(call, SMALL) is doubtful
    assert uncertain(call, a_backend()) is False


@pytest.mark.parametrize(
    ("prompt_tokens", "counted", "doubtful"),
    [
        (600, False, False),  # 0.94 s at the very most
        (700, False, True),
        (1200, False, True),
        (1300, False, False),  # 1.01 s at the very least
        (900, True, False),
    ],
)
def test_an_estimate_near_the_gate_is_doubtful(prompt_tokens: int, counted: bool, doubtful: bool) -> None:
    """Only while the gate is shut does it matter; 1,000 tokens a second, the gate at one second."""
    call = a_call(prompt_tokens=prompt_tokens, prompt_counted=counted)
    backend = a_backend(slots=3)
    assert at_gate(call, backend, LIMITS) is False
    occupy(backend, "long", long=True)
    assert at_gate(call, backend, LIMITS) is doubtful


def test_what_is_cached_is_no_doubt_at_the_gate() -> None:
    """Of 3,000 tokens 2,900 are there: no estimate makes the rest long."""
    backend = a_backend(slots=3)
    occupy(backend, "long", long=True)
    head, whole = Link(1, 2900), Link(2, 3000)
    assert at_gate(a_call(prompt_tokens=1000, chain=(head, whole)), backend, LIMITS) is True
    backend.shadow.book((head,), 2900)
    assert at_gate(a_call(prompt_tokens=3000, chain=(head, whole)), backend, LIMITS) is False


@pytest.mark.parametrize(
    ("prompt_tokens", "contexts", "found"),
    [
        (3000, (4096, 65_536), Doubt.LIMIT),  # the small one may hold it
        (9000, (4096, 65_536), None),  # the large one does
        (9000, (4096,), Doubt.LIMIT),  # nobody does, by an estimate alone
        (9000, (4096, None), None),
        (900, (None,), None),
    ],
)
def test_a_limit_is_in_doubt_near_a_context_or_if_all_would_refuse(
    prompt_tokens: int, contexts: tuple[int | None, ...], found: Doubt | None
) -> None:
    """An estimate that leaves one backend for certain will do."""
    backends = [a_backend(str(context), context_tokens=context) for context in contexts]
    assert doubt(a_call(prompt_tokens=prompt_tokens), backends, LIMITS) is found


def test_a_backend_that_does_not_serve_the_call_raises_no_doubt() -> None:
    """Nor does its gate."""
    backends = [a_backend("large"), a_backend("other", context_tokens=4096, routes=frozenset())]
    occupy(backends[1], "long", long=True)
    assert doubt(a_call(prompt_tokens=3000), backends, LIMITS) is None
    assert doubt(a_call(prompt_tokens=1000), backends, LIMITS) is None


def test_the_gate_is_in_doubt_while_a_long_prompt_is_read() -> None:
    """A limit in doubt matters more."""
    backends = [a_backend(slots=3), a_backend("small", context_tokens=1200)]
    occupy(backends[0], "long", long=True)
    assert doubt(a_call(prompt_tokens=700), backends, LIMITS) is Doubt.GATE
    assert doubt(a_call(prompt_tokens=1000), backends, LIMITS) is Doubt.LIMIT
    assert doubt(a_call(prompt_tokens=100), backends, LIMITS) is None
