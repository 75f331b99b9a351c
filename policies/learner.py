"""What an ended request teaches: how fast its backend is, what the cache holds, how long answers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from policies.calibration import MATCHED_MIN
from policies.load import Reading
from policies.output_length import OutputLength
from policies.types import Backend, Lease

SAMPLE_SECONDS = 0.1  # between two lessons of one backend: more of them teach nothing more
FOUND_MIN = 0.5  # of what an engine usually finds; if it found less, what was believed in had been evicted


class Counts(NamedTuple):
    """What the engine counted. None: it did not say."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None


class Learner:
    """Feeds what models of backends and answers learn from."""

    def __init__(self, backends: Mapping[str, Backend], outputs: OutputLength) -> None:
        self._backends = backends
        self._outputs = outputs
        self._taught: dict[str, float] = {}  # when, by backend

    def ended(self, lease: Lease, counts: Counts, *, streamed: bool, completed: bool) -> bool:
        """A request that held this lease is over.

        `streamed`: by the engine, else its first token is not known. `completed`: nothing cut it short.
        Returns whether it taught anything.
        """
        backend, first = self._backends.get(lease.backend), lease.work.first_token
        if backend is None or first is None or counts.prompt_tokens < 1:
            return False
        matched = _tokens(lease, lease.work.booking.matched_bytes, counts.prompt_tokens)
        if counts.cached_tokens is not None and (matched or counts.cached_tokens):
            _found(backend, lease, matched, counts)
        if first.at - self._taught.get(lease.backend, float("-inf")) < SAMPLE_SECONDS:
            return False
        self._taught[lease.backend] = first.at
        tokens = counts.completion_tokens
        if completed and tokens:
            call = lease.call
            self._outputs.learn(call.model, call.priority, tokens, call.output_tokens_max, call.conversation)
        if streamed:
            if (begun := lease.work.begun) is not None:
                # One that had to wait began while the first token of the one before was on its way.
                ahead = 0.0 if lease.work.alone else backend.service.first_token_seconds
                _prefill(backend, lease, counts, matched, first.at - begun + ahead)
            if completed and tokens and lease.work.ended is not None:
                _decode(backend, counts.prompt_tokens, tokens - 1, first, lease.work.ended)
        backend.service = backend.calibration.model
        return True


def _found(backend: Backend, lease: Lease, matched: int, counts: Counts) -> None:
    """What the engine says that it had cached, and what was believed. One prompt of many may be the one that
    tells, so all are looked at."""
    calibration, cached = backend.calibration, counts.cached_tokens or 0
    share = calibration.found(matched, cached)
    backend.service = calibration.model
    if share is not None:
        _missed(backend, lease, share)
    if cached - matched >= MATCHED_MIN:
        calibration.found_more += 1
        beyond = _tokens(lease, lease.work.booking.beyond_bytes, counts.prompt_tokens)
        if 0 < FOUND_MIN * (beyond - matched) <= cached - matched:
            backend.shadow.surpassed(lease.work.booking)


def _missed(backend: Backend, lease: Lease, share: float) -> None:
    """This share of what was believed to be cached was."""
    if share < FOUND_MIN * backend.calibration.model.cache_efficiency:
        backend.calibration.found_less += 1
        backend.shadow.missed(lease.work.booking)


def _prefill(backend: Backend, lease: Lease, counts: Counts, matched: int, seconds: float) -> None:
    """How long it took to read a prompt; where only the time tells what of it was cached, it tells that."""
    calibration = backend.calibration
    calibration.predicted(lease.prefill_seconds + backend.service.first_token_seconds, seconds)
    cached = counts.cached_tokens
    if cached is None and matched:
        share = calibration.found_by(counts.prompt_tokens, matched, seconds)
        if share is not None:
            _missed(backend, lease, share)
    else:
        calibration.prefilled(counts.prompt_tokens, min(cached or 0, counts.prompt_tokens - 1), seconds)


def _decode(backend: Backend, prompt_tokens: int, tokens: int, first: Reading, ended: Reading) -> None:
    seconds = ended.at - first.at
    if seconds > 0:
        batch = (ended.sequence_seconds - first.sequence_seconds) / seconds
        prefill_seconds = ended.prefill_seconds - first.prefill_seconds
        backend.calibration.decoded(prompt_tokens, tokens, seconds, prefill_seconds, batch)


def _tokens(lease: Lease, size: int, prompt_tokens: int) -> int:
    """So many bytes of the prompt, in tokens of the engine's own count."""
    chain = lease.call.chain
    whole = chain[-1].end_bytes if chain else 0
    return prompt_tokens * size // whole if whole else 0
