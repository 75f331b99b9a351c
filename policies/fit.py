"""A linear law whose coefficients are roughly known beforehand, and better with each sample.

Recursive least squares on relative errors, so that a prompt of 100 tokens teaches as much as one of
100,000. Outliers weigh less (Huber): a first request after a restart takes seconds longer for reasons that
no law has. Directions in which samples say nothing keep what they had, and those in which they say much
never become deaf: about the last thirty count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import log, sqrt
from statistics import median

FIRST_SAMPLES = 5  # until so many were seen the prior stands
NOISE = 0.2  # relative deviation of a good sample
OUTLIER = 2.0  # standard deviations; an error beyond them weighs in proportion less
SCALE_DEVIATION = 2.0  # machines differ first of all by how fast they are, the same factor in everything
OWN_DEVIATION = 1.0  # and then in shape
MEMORY_SAMPLES = 30
SURPRISE = log(1.5)  # FIRST_SAMPLES in a row so far off: the law has changed
SENSIBLE = (1e-6, 1e9)  # seconds or tokens; a sample outside it is a mistake of somebody's
LEAST = 1e-3  # of a prior coefficient: none becomes 0, since rates are their inverses


class Average:
    """A figure of which something is known beforehand; it weighs as much as the first samples together."""

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self.samples = 0
        self._value = prior

    @property
    def value(self) -> float:
        """The prior until enough was seen, then the average with it."""
        return self.prior if self.samples < FIRST_SAMPLES else self._value

    def learn(self, sample: float) -> None:
        """One sample."""
        self.samples += 1
        self._value += (sample - self._value) / FIRST_SAMPLES

    def doubt(self) -> None:
        """It may have changed: what was learnt becomes the prior."""
        self.prior, self.samples = self.value, 0


class Fit:
    """`y = sum(coefficient * x)`, with positive coefficients and positive y.

    `slack`: what a coefficient may be off by in any case, needed where its prior is 0.
    """

    def __init__(self, prior: Sequence[float], slack: Sequence[float]) -> None:
        self.coefficients = list(prior)
        self.samples = 0
        self._least = [LEAST * value for value in prior]
        self._slack = slack
        self._recent: deque[tuple[Sequence[float], float]] = deque(maxlen=FIRST_SAMPLES)
        self._surprises = 0  # in a row
        self._spread = self._unknown()

    @property
    def learnt(self) -> bool:
        """Whether samples, and not the prior alone, made the coefficients."""
        return self.samples >= FIRST_SAMPLES

    def predict(self, x: Sequence[float]) -> float:
        """The law's y."""
        return sum(map(float.__mul__, self.coefficients, x))

    def learn(self, x: Sequence[float], y: float) -> None:
        """One sample."""
        predicted = self.predict(x)
        if not SENSIBLE[0] < y < SENSIBLE[1] or predicted <= 0:
            return
        self.samples += 1
        self._recent.append((x, y))
        if self.samples < FIRST_SAMPLES:
            return
        if self.samples == FIRST_SAMPLES or self._surprised(log(y / predicted)):
            self._begin()
        else:
            self._step(x, y)

    def doubt(self) -> None:
        """What it describes may have changed: what was learnt becomes the prior."""
        self.samples = self._surprises = 0
        self._recent.clear()

    def _begin(self) -> None:
        """Start over from the recent samples: the machine's speed is their median, then each counts."""
        scale = median(y / self.predict(x) for x, y in self._recent)
        self.coefficients = [value * scale for value in self.coefficients]
        self._spread, self._surprises = self._unknown(), 0
        for sample in self._recent:
            self._step(*sample)

    def _surprised(self, off: float) -> bool:
        self._surprises = self._surprises + 1 if abs(off) > SURPRISE else 0
        return self._surprises >= FIRST_SAMPLES

    def _unknown(self) -> list[list[float]]:
        """The covariance of coefficients that only the prior tells."""
        spread = [[SCALE_DEVIATION**2 * a * b for b in self.coefficients] for a in self.coefficients]
        for place, (value, slack) in enumerate(zip(self.coefficients, self._slack, strict=True)):
            spread[place][place] += max(OWN_DEVIATION * value, slack) ** 2
        return spread

    def _step(self, x: Sequence[float], y: float) -> None:
        predicted = self.predict(x)
        size = sqrt(predicted * y)  # so that half and twice are equally wrong
        error = (y - predicted) / size
        scaled = [value / size for value in x]
        along = [sum(map(float.__mul__, row, scaled)) for row in self._spread]
        known = sum(map(float.__mul__, along, scaled))
        total = known + NOISE**2
        total *= max(1.0, abs(error) / (OUTLIER * sqrt(total)))
        self.coefficients = [
            max(least, value + gain / total * error)
            for least, value, gain in zip(self._least, self.coefficients, along, strict=True)
        ]
        if known > NOISE**2 / MEMORY_SAMPLES:
            for row, gain in zip(self._spread, along, strict=True):
                for place, other in enumerate(along):
                    row[place] -= gain * other / total
