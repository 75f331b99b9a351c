"""How fast a backend is, learnt from what it did."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from policies.calibration import Calibration
from policies.service_model import ServiceModel

# The published fits of three deployments on DGX Spark machines.
LLAMACPP = ServiceModel(0.0845, 0.0, 465.0, None, 1.28e-8, 0.0412, 0.0107, 1.67e-7, 0.227)
VLLM = ServiceModel(0.301, 0.296, 1742.0, 8469.0, 0.0, 0.01234, 0.00229, 0.0, 8.45)
DS4 = ServiceModel(0.05, 0.05, 1435.0, 1526.0, 4e-9, 0.0462, 0.0111, 0.0, 3.1)
SIZES = [(100, 0), (1500, 0), (6000, 0), (20_000, 0), (20_000, 18_000), (60_000, 0)]


def run_prefills(
    calibration: Calibration, truth: ServiceModel, count: int, seed: int = 1, noise: float = 0.08
) -> None:
    """Prompts of 64 to 60,000 tokens, cold, half and almost wholly cached."""
    chance = random.Random(seed)
    for _ in range(count):
        prompt = int(64 * 1000 ** chance.random())
        cached = int(prompt * chance.choice([0, 0, 0.5, 0.9]))
        seconds = truth.first_token(prompt, cached) * chance.lognormvariate(0, noise)
        calibration.prefilled(prompt, cached, seconds)


def worst_error(model: ServiceModel, truth: ServiceModel) -> float:
    """The largest relative error over prompts of all sizes."""
    return max(abs(model.first_token(*size) / truth.first_token(*size) - 1) for size in SIZES)


@pytest.mark.parametrize("truth", [LLAMACPP, VLLM, DS4], ids=["llama.cpp", "vLLM", "ds4"])
@pytest.mark.parametrize("prior", [ServiceModel(), LLAMACPP, VLLM, DS4], ids=["none", "l", "v", "d"])
def test_learns_any_prefill_curve_from_any_prior(prior: ServiceModel, truth: ServiceModel) -> None:
    """200 requests and the curve is known within a fifth at any size, within 6 % if the prior was right."""
    calibration = Calibration(prior)
    run_prefills(calibration, truth, 200)
    assert calibration.learnt
    assert worst_error(calibration.model, truth) < (0.06 if prior is truth else 0.2)


def test_the_prior_stands_until_enough_was_seen() -> None:
    """The first sample of a length is dropped, and four of one length are not enough."""
    calibration = Calibration(DS4)
    for _ in range(5):
        calibration.prefilled(1000, 0, 60.0)
    assert calibration.model == DS4 and not calibration.learnt
    calibration.prefilled(1000, 0, 60.0)
    assert calibration.model.first_token(1000) == pytest.approx(60.0, rel=0.1)


def test_the_first_of_each_length_is_dropped_again_after_a_restart() -> None:
    """Engines tune their kernels on it, for 5 to 10 s; what was learnt stands until more is."""
    calibration = Calibration(VLLM)
    run_prefills(calibration, VLLM, 100)
    known = calibration.model
    calibration.restarted()
    for prompt in (100, 1000, 4000, 17_000, 60_000):
        calibration.prefilled(prompt, 0, VLLM.first_token(prompt) + 10.0)
    assert calibration.model == known and calibration.samples == 0


def test_another_machine_behind_the_same_url_is_noticed() -> None:
    """Three times slower, without a restart that anybody saw: within 40 requests it is known."""
    calibration = Calibration(DS4)
    run_prefills(calibration, DS4, 200)
    slower = replace(
        DS4,
        setup_seconds=0.15,
        first_token_seconds=0.15,
        prefill_tokens_per_second=480.0,
        prefill_head_tokens_per_second=510.0,
    )
    run_prefills(calibration, slower, 40, seed=2)
    assert worst_error(calibration.model, slower) < 0.2


@pytest.mark.parametrize("truth", [LLAMACPP, VLLM, DS4], ids=["llama.cpp", "vLLM", "ds4"])
def test_learns_decode_by_batch_and_starvation(truth: ServiceModel) -> None:
    """Answers with 1 to 8 in the batch, some held up by a prefill for a moment and some for most of it."""
    calibration = Calibration(ServiceModel())
    chance = random.Random(3)
    for _ in range(300):
        prompt, tokens, batch = (
            chance.randrange(100, 30_000),
            chance.randrange(50, 2000),
            chance.uniform(1, 8),
        )
        free = tokens * truth.token_seconds(batch, prompt + tokens / 2)
        held = chance.choice([0.0, 0.0, 0.1 * free, 3 * free])
        tokens += round(held * truth.starved_tokens_per_second)
        noise = chance.lognormvariate(0, 0.05)
        calibration.decoded(prompt, tokens, (free + held) * noise, held * noise, batch)
    model = calibration.model
    for batch, depth in ((1, 500), (4, 5000), (8, 25_000)):
        assert model.token_seconds(batch, depth) == pytest.approx(truth.token_seconds(batch, depth), rel=0.12)
    assert model.starved_tokens_per_second == pytest.approx(truth.starved_tokens_per_second, rel=0.35)


@pytest.mark.parametrize(("tokens", "seconds"), [(15, 1.0), (100, 0.0)])
def test_a_burst_tells_no_pace(tokens: int, seconds: float) -> None:
    """Fifteen tokens may come in two events, and a whole answer in one."""
    calibration = Calibration(ServiceModel())
    for _ in range(50):
        calibration.decoded(100, tokens, seconds, 0.0, 1.0)
    assert calibration.model == ServiceModel()


def test_learns_blocks_and_efficiency_of_a_cache() -> None:
    """Whole blocks of 256; then an engine that finds a fifth of what it should, as one did of 2,000."""
    blocks = Calibration(ServiceModel())
    for matched in (300, 1000, 5000, 7777, 12_345, 20_001) * 5:
        blocks.found(matched, matched // 256 * 256)
    assert blocks.model.cache_block_tokens == 256
    assert blocks.model.found(1000) == pytest.approx(768, abs=2)
    assert [blocks.share(matched, 256) for matched in (255, 300, 1100)] == [None, 1.0, 0.25]
    poor = Calibration(ServiceModel())
    for turn in range(30):
        poor.found(2000 + turn, 400 + turn % 7)
    assert poor.model.cache_efficiency == pytest.approx(0.2, abs=0.02)
    assert poor.model.cache_block_tokens == 1


def test_an_eviction_now_and_then_is_not_the_cache_s_efficiency() -> None:
    """One conversation in five was pushed out: that says nothing of the other four."""
    calibration = Calibration(ServiceModel())
    for turn in range(50):
        calibration.found(5000 + turn, 0 if turn % 5 == 4 else 5000 + turn)
    assert calibration.model.cache_efficiency == 1.0


def test_little_shared_text_says_nothing_of_a_cache() -> None:
    """A head of 200 tokens may be anybody's."""
    calibration = Calibration(ServiceModel())
    for _ in range(20):
        calibration.found(200, 0)
    assert calibration.model.cache_efficiency == 1.0


def test_times_tell_of_a_cache_that_nobody_reports() -> None:
    """vLLM says nothing of cached tokens unless told to: half the saving means half was found."""
    calibration = Calibration(DS4)
    run_prefills(calibration, DS4, 100)
    cold, warm = (calibration.model.first_token(20_000, cached) for cached in (0, 18_000))
    for _ in range(20):
        calibration.found_by(20_000, 18_000, (cold + warm) / 2)
    assert calibration.model.cache_efficiency == pytest.approx(0.5, abs=0.02)


def test_the_error_of_predictions_is_told() -> None:
    """None before the first; then an average of what they were off by, as a share of the truth."""
    calibration = Calibration(ServiceModel())
    assert calibration.error_ratio is None
    calibration.predicted(2.0, 1.0)
    assert calibration.error_ratio == 1.0
    for _ in range(200):
        calibration.predicted(0.9, 1.0)
    assert calibration.error_ratio == pytest.approx(0.1, abs=0.01)
    calibration.restarted()
    assert calibration.error_ratio is None
