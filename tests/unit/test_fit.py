"""A linear law learnt from samples, from a prior."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.fit import FIRST_SAMPLES, Fit, Middle

Sample = tuple[tuple[float, float], float]


def a_fit() -> Fit:
    """One second, and a second for each thousand."""
    return Fit([1.0, 0.001], [0.0, 0.0])


def samples(
    seed: int, count: int, setup: float, each: float, *, noise: float = 0.0, outliers: float = 0.0
) -> list[Sample]:
    """Prompts of 100 to 50,000 tokens on an engine of these rates."""
    chance = random.Random(seed)
    drawn = []
    for _ in range(count):
        size = 100 * 500 ** chance.random()
        seconds = (setup + each * size) * chance.lognormvariate(0, noise)
        drawn.append(((1.0, size), seconds * 6 if chance.random() < outliers else seconds))
    return drawn


def test_the_prior_stands_until_enough_was_seen() -> None:
    """Four samples may be four accidents."""
    fit = a_fit()
    for x, y in samples(1, FIRST_SAMPLES - 1, 5.0, 0.01):
        fit.learn(x, y)
    assert fit.coefficients == [1.0, 0.001] and not fit.learnt
    fit.learn((1.0, 1000.0), 15.0)
    assert fit.learnt and fit.predict((1.0, 1000.0)) == pytest.approx(15.0, rel=0.2)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factor", [0.05, 0.3, 1.0, 4.0, 20.0])
def test_finds_the_rates_behind_noise_and_outliers(seed: int, factor: float) -> None:
    """A machine twenty times faster or slower than its prior, and one sample of twenty six times too long."""
    fit = a_fit()
    for x, y in samples(seed, 100, factor * 0.5, factor * 0.0015, noise=0.1, outliers=0.05):
        fit.learn(x, y)
    for size in (200.0, 2000.0, 20_000.0):
        assert fit.predict((1.0, size)) == pytest.approx(factor * (0.5 + 0.0015 * size), rel=0.15)


def test_one_outlier_moves_little() -> None:
    """A first request after a restart takes seconds longer for reasons that no law has."""
    fit = a_fit()
    for x, y in samples(2, 40, 1.0, 0.001, noise=0.05):
        fit.learn(x, y)
    before = fit.predict((1.0, 1000.0))
    fit.learn((1.0, 1000.0), 60.0)
    assert fit.predict((1.0, 1000.0)) == pytest.approx(before, rel=0.15)


def test_follows_a_slow_drift() -> None:
    """An engine that loses a third of its speed over 200 requests is never misjudged by more than 15 %."""
    fit = a_fit()
    for turn, (x, y) in enumerate(samples(3, 200, 1.0, 0.001, noise=0.05)):
        drift = 1 + 0.5 * turn / 200
        fit.learn(x, y * drift)
        if turn > 20:
            assert fit.predict((1.0, 5000.0)) == pytest.approx(6.0 * drift, rel=0.15)


@pytest.mark.parametrize("factor", [0.75, 1.3])
def test_a_machine_that_changed_as_a_whole_is_soon_known(factor: float) -> None:
    """Five errors on one side are no noise: everything is rescaled as far as all agree."""
    fit = a_fit()
    for x, y in samples(8, 200, 1.0, 0.001, noise=0.05):
        fit.learn(x, y)
    for x, y in samples(9, 15, factor, factor * 0.001, noise=0.05):
        fit.learn(x, y)
    for size in (200.0, 20_000.0):
        assert fit.predict((1.0, size)) == pytest.approx(factor * (1 + 0.001 * size), rel=0.08)


def test_noise_alone_changes_little() -> None:
    """A thousand samples of one law with a deviation of 20 %: never off by more than that."""
    fit = a_fit()
    for turn, (x, y) in enumerate(samples(10, 1000, 1.0, 0.001, noise=0.2)):
        fit.learn(x, y)
        if turn > 20:
            assert fit.predict((1.0, 3000.0)) == pytest.approx(4.0, rel=0.2)


def test_the_middle_forgives_what_is_now_and_then_far_off() -> None:
    """The prior until five samples were seen; then the median of nine, which two outliers do not move."""
    figure = Middle(1.0)
    for sample in (0.5, 0.5, 0.5, 0.5):
        figure.learn(sample)
    assert figure.value == 1.0
    figure.learn(0.5)
    assert figure.value == 0.5
    for sample in (0.0, 0.0):
        figure.learn(sample)
    assert figure.value == 0.5
    figure.doubt()
    figure.learn(0.9)
    assert figure.value == 0.5


def test_notices_that_the_law_has_changed() -> None:
    """Five samples in a row of another engine are no accident, however long the old one was known."""
    fit = a_fit()
    for x, y in samples(4, 200, 1.0, 0.001, noise=0.05):
        fit.learn(x, y)
    for x, y in samples(5, 20, 3.0, 0.003, noise=0.05):
        fit.learn(x, y)
    assert fit.predict((1.0, 5000.0)) == pytest.approx(18.0, rel=0.1)


def test_doubt_keeps_the_rates_and_asks_again() -> None:
    """After a restart the old rates are the best guess, and need five samples to be believed again."""
    fit = a_fit()
    for x, y in samples(6, 50, 2.0, 0.002):
        fit.learn(x, y)
    known = list(fit.coefficients)
    fit.doubt()
    assert fit.coefficients == known and not fit.learnt
    for x, y in samples(7, FIRST_SAMPLES, 4.0, 0.004):
        fit.learn(x, y)
    assert fit.predict((1.0, 5000.0)) == pytest.approx(24.0, rel=0.1)


def test_what_is_never_seen_keeps_its_prior() -> None:
    """A law of short prompts alone says nothing of long ones: their rate changes only with the scale."""
    fit = Fit([1.0, 0.001, 0.001], [0.0, 0.0, 0.0])
    for turn in range(500):
        fit.learn((1.0, 100.0 + turn, 0.0), 1.1 + 0.001 * turn)
    assert fit.coefficients[2] == pytest.approx(0.001, rel=0.3)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6, allow_nan=False),
            st.floats(-10, 1e6, allow_nan=False),
        ),
        max_size=60,
    )
)
def test_never_breaks(stream: list[tuple[float, float]]) -> None:
    """Whatever comes, the coefficients stay positive and finite: rates are their inverses."""
    fit = a_fit()
    for size, seconds in stream:
        fit.learn((1.0, size), seconds)
        assert all(0 < value < 1e15 for value in fit.coefficients)
