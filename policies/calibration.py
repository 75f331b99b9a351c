"""How fast one backend is, learnt from the requests that it served; from its engine's priors until then.

Only clean samples teach: a prefill counts from when the engine came to it, an answer's pace if no prefill
held it up for long. Of each length the first one after a restart is dropped: engines tune their kernels
on it, 5 to 10 seconds in published tables, which no later request takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from policies.fit import FIRST_SAMPLES, Fit, Middle
from policies.service_model import HEAD_TOKENS, ServiceModel

ERROR_WEIGHT = 0.1  # of the newest prediction
DEEP_TOKENS = 32768  # where a small square, or a slope over the depth, may begin to show
OVERLAP_MAX = 0.25  # share of an answer during which a prefill held it up, to tell its own pace
OVERLAP_MIN = 0.5  # and to tell the pace of a stream that is held up
TOKENS_MIN = 16  # of an answer: a shorter one comes in a burst or two
MATCHED_MIN = 256  # tokens: less shared text may be cached for anybody's sake
TOLD_MOST = 1000.0  # times its prior, a coefficient that another gateway tells
BLOCK_TOKENS_MAX = 4096  # of a cache; what has a larger common divisor was seen too seldom


class Calibration:
    """The service model of one backend, and what makes it better."""

    def __init__(self, prior: ServiceModel) -> None:
        self.prior = prior
        self.model = prior
        # Of predicted times to first token, as a share of the true ones; None: nothing was predicted yet.
        self.error_ratio: float | None = None
        self.predictions = 0  # and the sums of what was predicted and of what came, for means over any time
        self.predicted_seconds = self.observed_seconds = 0.0
        rate, step = 1 / prior.prefill_tokens_per_second, prior.decode_base_seconds
        head_rate = prior.prefill_head_tokens_per_second or prior.prefill_tokens_per_second
        self._prefill = Fit(
            [
                prior.setup_seconds + prior.first_token_seconds,
                1 / head_rate,
                rate,
                prior.prefill_square_seconds,
            ],
            [0.05, 0.0, 0.0, 0.3 * rate / DEEP_TOKENS],
        )
        self._decode = Fit(
            [step, prior.decode_step_seconds, prior.decode_depth_seconds],
            [0.0, 0.1 * step, 0.3 * step / DEEP_TOKENS],
        )
        self._starved = Middle(prior.starved_tokens_per_second)
        self._efficiency = Middle(prior.cache_efficiency)
        self._lengths: set[int] = set()  # powers of four of uncached tokens that were seen since the start
        self._reports = self._divisor = 0  # numbers of cached tokens that were told; what divides them all
        self.found_less = self.found_more = 0  # prompts of which much less, or more, was cached than believed

    @property
    def samples(self) -> int:
        """Clean prefills since the engine's start."""
        return self._prefill.samples

    @property
    def learnt(self) -> bool:
        """Whether the rates of prefill are the backend's own."""
        return self._prefill.learnt

    def prefilled(self, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        """A prompt took this long from dispatch to its first token, with no other one in its way."""
        length = (prompt_tokens - cached_tokens).bit_length() // 2
        if length not in self._lengths:
            self._lengths.add(length)
            return
        self._prefill.learn(_prefill_terms(prompt_tokens, cached_tokens), seconds)
        if self._prefill.learnt:
            self._go_by_prefill()

    def decoded(
        self, prompt_tokens: int, tokens: int, seconds: float, prefill_seconds: float, batch: float
    ) -> None:
        """So many tokens followed the first one in `seconds`, with `batch` sequences on average, during
        `prefill_seconds` of which a prompt was being read."""
        if tokens < TOKENS_MIN or seconds <= 0:
            return
        free, depth = max(0.0, seconds - prefill_seconds), prompt_tokens + tokens / 2
        if prefill_seconds <= OVERLAP_MAX * seconds:
            own = tokens - prefill_seconds * self._starved.value
            self._decode.learn((1.0, batch, depth), free / max(own, 1.0))
            if self._decode.learnt:
                self._go_by_decode()
        elif prefill_seconds >= OVERLAP_MIN * seconds:
            pace = self.model.token_seconds(batch, depth)
            starved = (tokens - free / pace) / prefill_seconds
            self._starved.learn(min(max(starved, 0.0), 1 / pace))
            self.model = replace(self.model, starved_tokens_per_second=self._starved.value)

    def found(self, matched_tokens: int, cached_tokens: int) -> float | None:
        """Of so many tokens that should have been cached, the engine says how many it found. The share of
        them; None where they were too few to matter."""
        if cached_tokens > 0:
            self._divisor = gcd(self._divisor, cached_tokens)
            self._reports += 1
            known = self._reports >= FIRST_SAMPLES and self._divisor <= BLOCK_TOKENS_MAX
            if known and self._divisor != self.model.cache_block_tokens:
                self.model = replace(self.model, cache_block_tokens=self._divisor)
        share = self.share(matched_tokens, cached_tokens)
        return None if share is None else self._found(share)

    def share(self, matched_tokens: int, cached_tokens: int) -> float | None:
        """How much of what should be cached was found; None: too little to tell, as less than a block never
        is."""
        block = self.model.cache_block_tokens
        if matched_tokens < max(MATCHED_MIN, block):
            return None
        return cached_tokens / (matched_tokens // block * block)

    def found_by(self, prompt_tokens: int, matched_tokens: int, seconds: float) -> float | None:
        """Of an engine that does not tell what it found, the time to the first token tells the share; None
        where it cannot."""
        cold, warm = (self.model.first_token(prompt_tokens, cached) for cached in (0, matched_tokens))
        if matched_tokens < MATCHED_MIN or not self.learnt or cold < 1.5 * warm:
            return None
        return self._found((cold - seconds) / (cold - warm))

    def predicted(self, predicted_seconds: float, seconds: float) -> None:
        """What was predicted at dispatch, and what came: the health of all that is learnt."""
        self.predictions += 1
        self.predicted_seconds += predicted_seconds
        self.observed_seconds += seconds
        off = abs(predicted_seconds - seconds) / max(seconds, 1e-3)
        known = self.error_ratio
        self.error_ratio = off if known is None else known + ERROR_WEIGHT * (min(off, 10.0) - known)

    def lesson(self) -> tuple[list[float] | None, list[float] | None]:
        """Coefficients of prefill and of decode, for another gateway's `begin`; None: not learnt."""
        prefill, decode = self._prefill, self._decode
        return (
            list(prefill.coefficients) if prefill.learnt else None,
            list(decode.coefficients) if decode.learnt else None,
        )

    def begin(self, prefill: Sequence[float] | None, decode: Sequence[float] | None) -> None:
        """Another gateway's `lesson` is the best guess, where nothing was learnt here. Raises ValueError for
        one that cannot be."""
        for fit, told in ((self._prefill, prefill), (self._decode, decode)):
            if told is not None:
                fit.check(told, TOLD_MOST)
        if prefill is not None and not self._prefill.samples:
            self._prefill.begin(prefill)
            self._go_by_prefill()
        if decode is not None and not self._decode.samples:
            self._decode.begin(decode)
            self._go_by_decode()

    def restarted(self) -> None:
        """Another process, perhaps with other settings: the rates are a guess again, though the best one.
        What its cache finds follows from settings alone, and is that of its kind again."""
        for learnt in (self._prefill, self._decode, self._starved):
            learnt.doubt()
        self._efficiency = Middle(self.prior.cache_efficiency)
        self.model = replace(self.model, cache_efficiency=self._efficiency.value)
        self._lengths.clear()
        self._reports = self._divisor = 0
        self.error_ratio = None

    def _go_by_prefill(self) -> None:
        first, head, rate, square = self._prefill.coefficients
        prior = self.prior
        whole = prior.setup_seconds + prior.first_token_seconds
        setup = first * prior.setup_seconds / whole if whole else first
        self.model = replace(
            self.model,
            setup_seconds=setup,
            first_token_seconds=first - setup,
            prefill_tokens_per_second=1 / rate,
            prefill_head_tokens_per_second=1 / head,
            prefill_square_seconds=square,
        )

    def _go_by_decode(self) -> None:
        base, step, slope = self._decode.coefficients
        self.model = replace(
            self.model, decode_base_seconds=base, decode_step_seconds=step, decode_depth_seconds=slope
        )

    def _found(self, share: float) -> float:
        share = min(max(share, 0.0), 1.0)
        self._efficiency.learn(share)
        if self._efficiency.value != self.model.cache_efficiency:  # a new model voids all prices
            self.model = replace(self.model, cache_efficiency=self._efficiency.value)
        return share


def _prefill_terms(prompt_tokens: int, cached_tokens: int) -> tuple[float, float, float, float]:
    """Setup, tokens of the first piece, tokens of the second, squares."""
    head = min(prompt_tokens, HEAD_TOKENS) - min(cached_tokens, HEAD_TOKENS)
    return (
        1.0,
        float(head),
        float(prompt_tokens - cached_tokens - head),
        float(prompt_tokens**2 - cached_tokens**2),
    )
