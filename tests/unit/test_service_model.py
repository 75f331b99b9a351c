"""How fast a backend is, from its priors."""

from __future__ import annotations

import pytest

from policies.service_model import ServiceModel

MODEL = ServiceModel(
    setup_seconds=0.5,
    prefill_tokens_per_second=200.0,
    decode_base_seconds=0.02,
    decode_step_seconds=0.01,
)


def test_prefill_is_linear_after_its_setup() -> None:
    """No token at all still costs the setup."""
    assert MODEL.prefill_seconds(0) == pytest.approx(0.5)
    assert MODEL.prefill_seconds(1000) == pytest.approx(5.5)


def test_decode_grows_with_the_batch() -> None:
    """A token costs base + step x batch."""
    assert MODEL.decode_seconds(100, 1) == pytest.approx(3.0)
    assert MODEL.decode_seconds(100, 4) == pytest.approx(6.0)
