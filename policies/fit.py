"""A linear law whose coefficients are roughly known beforehand, and better with each sample.

Recursive least squares on relative errors, so that a prompt of 100 tokens teaches as much as one of
100,000. Outliers weigh less (Huber): a first request after a restart takes seconds longer for reasons that
no law has. Directions in which samples say nothing keep what they had, and those in which they say much
never become deaf: about the last thirty count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import exp, log, sqrt
from operator import mul
from statistics import median

FIRST_SAMPLES = 5  # until so many were seen the prior stands
NOISE = 0.2  # relative deviation of a good sample
OUTLIER = 2.0  # standard deviations; an error beyond them weighs in proportion less
SCALE_DEVIATION = 2.0  # machines differ first of all by how fast they are, the same factor in everything
OWN_DEVIATION = 1.0  # and then in shape
MEMORY_SAMPLES = 30
SURPRISE = log(1.5)  # FIRST_SAMPLES in a row so far off: the law has changed
DRIFT = log(1.12)  # so far off and all on one side: the machine as a whole has become slower or faster
SENSIBLE = (1e-6, 1e9)  # seconds or tokens; a sample outside it is a mistake of somebody's
LEAST = 1e-3  # of a prior coefficient: none becomes 0, since rates are their inverses


class Middle:
    """A figure whose samples are now and then far off for reasons of their own: the median of the latest."""

    def __init__(self, prior: float) -> None:
        self.value = prior  # stands until enough was seen
        self._latest: deque[float] = deque(maxlen=2 * FIRST_SAMPLES - 1)

    def learn(self, sample: float) -> None:
        """One sample."""
        self._latest.append(sample)
        if len(self._latest) >= FIRST_SAMPLES:
            self.value = median(self._latest)

    def doubt(self) -> None:
        """It may have changed: what was learnt becomes the prior."""
        self._latest.clear()


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
        self._offs: deque[float] = deque(maxlen=FIRST_SAMPLES)  # logarithms of the latest errors
        self._spread = self._unknown()

    @property
    def learnt(self) -> bool:
        """Whether samples, and not the prior alone, made the coefficients."""
        return self.samples >= FIRST_SAMPLES

    def predict(self, x: Sequence[float]) -> float:
        """The law's y."""
        y: float = sum(map(mul, self.coefficients, x))
        return y

    def learn(self, x: Sequence[float], y: float) -> None:
        """One sample."""
        predicted = self.predict(x)
        if not SENSIBLE[0] < y < SENSIBLE[1] or predicted <= 0:
            return
        self.samples += 1
        self._recent.append((x, y))
        self._offs.append(log(y / predicted))
        if self.samples < FIRST_SAMPLES:
            return
        many = len(self._offs) == FIRST_SAMPLES
        if self.samples == FIRST_SAMPLES or (many and min(map(abs, self._offs)) > SURPRISE):
            self._rescale(median(y / self.predict(x) for x, y in self._recent))
            self._spread = self._unknown()
            for sample in self._recent:
                self._step(*sample)
        elif many and (min(self._offs) > DRIFT or max(self._offs) < -DRIFT):
            self._rescale(exp(min(self._offs, key=abs)))  # as far as all agree
        else:
            self._step(x, y)

    def check(self, coefficients: Sequence[float], most: float) -> None:
        """Raises ValueError for what cannot be its own: one is negative, or over `most` times its prior."""
        if len(coefficients) != len(self._least):
            raise ValueError("not so many coefficients")
        for value, least, slack in zip(coefficients, self._least, self._slack, strict=True):
            if not 0 <= value <= most * max(least / LEAST, slack):
                raise ValueError("a coefficient that cannot be")

    def begin(self, coefficients: Sequence[float]) -> None:
        """What another has learnt becomes the prior, if nothing was learnt here yet."""
        if not self.samples:
            self.coefficients = list(map(max, self._least, coefficients))
            self._spread = self._unknown()

    def doubt(self) -> None:
        """What it describes may have changed: what was learnt becomes the prior."""
        self.samples = 0
        self._recent.clear()
        self._offs.clear()

    def _rescale(self, scale: float) -> None:
        """The machine as a whole is slower or faster than it was taken to be."""
        self.coefficients = [
            max(least, value * scale) for least, value in zip(self._least, self.coefficients, strict=True)
        ]
        self._offs.clear()

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
        along = [sum(map(mul, row, scaled)) for row in self._spread]
        known = sum(map(mul, along, scaled))
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
