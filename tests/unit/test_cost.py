"""What a call costs on a backend, in seconds."""

from __future__ import annotations

import pytest

from policies.cost import cached_tokens, cost
from policies.output_length import OutputTokens
from policies.returns import Returns
from tests.unit.fleet import a_backend, a_call, a_chain


def test_is_prefill_and_decode() -> None:
    """1,000 tokens at 1,000 a second after 0.1 s of setup; 100 tokens at 38 ms each."""
    price = cost(a_call(prompt_tokens=1000, output_tokens_max=100), a_backend())
    assert price.prefill_seconds == pytest.approx(1.1)
    assert price.decode_seconds == pytest.approx(3.8)
    assert price.seconds == pytest.approx(4.9)


def test_never_believes_in_a_huge_max_tokens() -> None:
    """65,536 is what agents send; the usual answer is what is paid for."""
    huge, usual = (cost(a_call(output_tokens_max=n), a_backend()) for n in (65536, None))
    assert huge == usual


def test_the_usual_answer_is_that_of_the_class() -> None:
    """Its mean is paid for, unless the client wants less."""
    outputs = OutputTokens(mean=1000, p90=3000)
    long, short = (cost(a_call(output_tokens_max=n, outputs=outputs), a_backend()) for n in (65536, 100))
    assert long.decode_seconds == pytest.approx(38.0)
    assert short.decode_seconds == pytest.approx(3.8)


def test_a_cached_prefix_is_not_paid_again() -> None:
    """The share of the bytes that is shared is the share of the tokens that is free."""
    backend = a_backend()
    backend.shadow.book(a_chain(1, 2, 3))
    call = a_call(prompt_tokens=4000, chain=a_chain(1, 2, 3, 4))
    assert cached_tokens(call, backend) == 3000
    assert cost(call, backend).prefill_seconds == pytest.approx(1.1)


def test_the_last_token_is_always_computed() -> None:
    """An engine needs its logits, so a prompt is never cached whole."""
    backend = a_backend()
    backend.shadow.book(a_chain(1))
    assert cached_tokens(a_call(prompt_tokens=500, chain=a_chain(1)), backend) == 499


def test_nothing_is_cached_without_a_chain() -> None:
    """No messages, or messages of no bytes: no claim."""
    assert cached_tokens(a_call(), a_backend()) == 0
    empty = a_call(chain=(a_chain(1)[0].__class__(1, 0),))
    assert cached_tokens(empty, a_backend()) == 0


def test_a_fuller_batch_decodes_slower() -> None:
    """Foreign requests share the batch as ours do."""
    idle, busy = a_backend(slots=4), a_backend(slots=4, foreign=3)
    assert cost(a_call(), busy).decode_seconds == pytest.approx(256 * (0.03 + 0.008 * 4))
    assert cost(a_call(), idle).decode_seconds == pytest.approx(256 * (0.03 + 0.008))


def test_a_prompt_that_gives_way_costs_what_it_will_take_to_read_it_again() -> None:
    """Beside one other stream, which that stops. A fifth of it where nobody is known to come back for it."""
    backend = a_backend(slots=2, foreign=1)
    backend.shadow.resize(1, None)
    held, returns = a_call(chain=a_chain(1), conversation="held"), Returns()
    backend.shadow.book(held.chain, 4000)
    backend.shadow.ended(held.chain)
    newcomer = a_call(prompt_tokens=100, chain=a_chain(9))
    assert cost(newcomer, backend, returns).displaced_seconds == pytest.approx(0.2 * 4.1)
    returns.answered(held, 0.0)
    returns.asks(held, 5.0)
    assert cost(newcomer, backend, returns).displaced_seconds == pytest.approx(2 * 4.1)
