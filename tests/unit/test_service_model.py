"""How fast a backend is, by its rates."""

from __future__ import annotations

import pytest

from policies.service_model import ServiceModel

MODEL = ServiceModel(
    setup_seconds=0.5,
    first_token_seconds=0.25,
    prefill_tokens_per_second=200.0,
    decode_base_seconds=0.02,
    decode_step_seconds=0.01,
)


def test_prefill_is_linear_after_its_setup() -> None:
    """No token at all still costs the setup."""
    assert MODEL.prefill_seconds(0) == pytest.approx(0.5)
    assert MODEL.prefill_seconds(1000) == pytest.approx(5.5)
    assert MODEL.first_token(1000) == pytest.approx(5.75)


def test_the_first_tokens_have_a_rate_of_their_own() -> None:
    """Published for vLLM on two machines: 0.301 s, 8,469 tokens a second up to 2,048, 1,742 beyond."""
    model = ServiceModel(
        setup_seconds=0.301, prefill_tokens_per_second=1742, prefill_head_tokens_per_second=8469
    )
    assert model.prefill_seconds(2048) == pytest.approx(0.301 + 2048 / 8469)
    assert model.prefill_seconds(32768) == pytest.approx(0.301 + 2048 / 8469 + 30720 / 1742)
    assert model.prefill_seconds(32768, 2048) == pytest.approx(0.301 + 30720 / 1742)


def test_long_prompts_cost_more_per_token() -> None:
    """Published for llama.cpp: 4.542, 13.762 and 44.060 s for 2,048, 6,144 and 18,432 tokens, within 1 %."""
    model = ServiceModel(
        setup_seconds=0.0845, prefill_tokens_per_second=465.0, prefill_square_seconds=1.28e-8
    )
    told = [model.first_token(tokens) for tokens in (2048, 6144, 18432)]
    assert told == pytest.approx([4.542, 13.762, 44.060], rel=0.01)


def test_what_is_cached_is_not_read_again() -> None:
    """The tokens behind a long cached prefix attend to it all the same."""
    model = ServiceModel(setup_seconds=0.0, prefill_tokens_per_second=1000.0, prefill_square_seconds=1e-8)
    assert model.prefill_seconds(20_000, 19_000) == pytest.approx(1.0 + 0.39)


def test_decode_grows_with_the_batch_and_the_depth() -> None:
    """A token costs base + step x batch, and a little for each token that it follows."""
    assert MODEL.decode_seconds(100, 1) == pytest.approx(3.0)
    assert MODEL.decode_seconds(100, 4) == pytest.approx(6.0)
    deep = ServiceModel(decode_base_seconds=0.02, decode_step_seconds=0.01, decode_depth_seconds=1e-6)
    assert deep.decode_seconds(100, 1, 9950) == pytest.approx(3.0 + 1.0)


def test_a_cache_finds_whole_blocks_and_not_always_all() -> None:
    """255 of 256 tokens are no block; what an engine finds less than it should is learnt."""
    blocks = ServiceModel(cache_block_tokens=256)
    assert [blocks.found(tokens) for tokens in (0, 255, 256, 1000)] == [0, 0, 256, 768]
    assert ServiceModel(cache_efficiency=0.5).found(1000) == 500
