"""What one request was: tokens, times, outcome, and where each figure comes from.

Tokens are counted by the engine, never by counting events: with speculation one event carries several
tokens, and published figures that were counted so are 4.5 times too low. Where no count arrives, as
when a client leaves in mid-stream, bytes times a learnt ratio stand in, and the record says so.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.prompt_length import Content
from policies.types import Lease, Priority

# Priors of tokens per byte. A chunk of a stream is 218 to 277 bytes on llama.cpp and vLLM, of which
# the token's text is four: the envelope decides. A whole answer is text but for one envelope.
TOKENS_PER_EVENT_BYTE = 1 / 240
TOKENS_PER_DOCUMENT_BYTE = 1 / 5

RATIO_MAX = 1.0  # that is learnt: more tokens than bytes are hidden thoughts, or no count
RATIO_WEIGHT = 0.2  # of the newest record
BATCH_RECORDS = 64  # an eighth of a millisecond
RATIOS_MAX = 1000  # kinds of answers; beyond it the prior serves

# After a dispatch that ends so, the engine has not worked on the prompt.
UNTOUCHED = frozenset({"rejected", "invalid", "wait_timeout", "no_backend"})


class TokenSource(enum.StrEnum):
    """Where the token counts of a record come from; the weakest source of any of them."""

    REPORTED = "reported"
    ENGINE_TIMINGS = "engine_timings"
    ESTIMATED = "estimated"


@dataclass(slots=True)
class Usage:
    """What an engine counted. None: it did not say. `prompt_tokens` includes cached ones.
    Nobody changes it; frozen, it would take several times as long to make."""

    source: TokenSource
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    spec_drafted: int | None = None
    spec_accepted: int | None = None

    def after(self, earlier: Usage) -> Usage:
        """These counts with those of an earlier event of the same stream: Anthropic's first event counts
        the prompt, its last the output. Totals only grow, so a smaller count of the prompt is part of it:
        vLLM repeats `input_tokens` without the cached ones."""
        if earlier.source is not self.source:
            return self
        prompts = [count for count in (self.prompt_tokens, earlier.prompt_tokens) if count is not None]
        return Usage(
            self.source,
            prompt_tokens=max(prompts, default=None),
            cached_tokens=earlier.cached_tokens if self.cached_tokens is None else self.cached_tokens,
            completion_tokens=self.completion_tokens,
            reasoning_tokens=self.reasoning_tokens,
            spec_drafted=self.spec_drafted,
            spec_accepted=self.spec_accepted,
        )


class Record:
    """One request, from arrival to end. Times are seconds on the monotonic clock; None: not known, or
    it did not happen.

    The defaults are the class's: thirty of them, written into each record, took as long as its parse.
    """

    model: str = ""
    agent: str = ""
    key: str = ""
    priority: Priority | None = None
    conversation: str | None = None
    streamed: bool = False  # to the client
    backend: str = ""  # of the last dispatch
    lease: Lease | None = None
    prepare_seconds: float | None = None  # of the gateway's own, from a whole body to a known call
    dispatched: float | None = None  # the last time
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    prompt: Content | None = None  # what it is made of
    prompt_bytes: int = 0
    prompt_tokens_estimated: int | None = None
    cached_tokens_predicted: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None  # reasoning included
    reasoning_tokens: int | None = None
    spec_drafted: int | None = None
    spec_accepted: int | None = None
    source: TokenSource | None = None
    events: int = 0  # with tokens; 0: a whole document
    answer_bytes: int = 0  # of these events, or of the document
    outcome: str | None = None
    error: str | None = None  # its code
    retries: int = 0
    request_id: str | None = None  # the client's own

    def __init__(self, id: str, route: str, arrived: float) -> None:
        self.id = id
        self.route = route
        self.arrived = arrived

    def count(self, usage: Usage) -> None:
        """Take over what the engine counted. Engines repeat running totals: the last count stands,
        and nothing is added up. More cached tokens than the prompt has are none."""
        if self.source is not TokenSource.REPORTED or usage.source is TokenSource.REPORTED:
            self.source = usage.source  # each by itself: a loop over their names takes four times as long
            if usage.prompt_tokens is not None:
                self.prompt_tokens = usage.prompt_tokens
            if usage.cached_tokens is not None:
                self.cached_tokens = usage.cached_tokens
            if usage.completion_tokens is not None:
                self.completion_tokens = usage.completion_tokens
            if usage.reasoning_tokens is not None:
                self.reasoning_tokens = usage.reasoning_tokens
            if self.cached_tokens is not None and self.cached_tokens > (self.prompt_tokens or 0):
                self.cached_tokens = None
        if usage.spec_drafted is not None:
            self.spec_drafted, self.spec_accepted = usage.spec_drafted, usage.spec_accepted

    @property
    def counted(self) -> bool:
        """Whether the engine itself counted all tokens."""
        return self.source is not None and self.source is not TokenSource.ESTIMATED

    @property
    def queue_wait(self) -> float | None:
        """Seconds from arrival to the dispatch that led to the answer."""
        return None if self.dispatched is None else self.dispatched - self.arrived

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token of any kind."""
        return None if self.first_token is None else self.first_token - self.arrived

    @property
    def backend_ttft(self) -> float | None:
        """Seconds from dispatch to the first token."""
        start, end = self.dispatched, self.first_token
        return None if start is None or end is None else end - start

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first. A burst in one event has no duration to divide."""
        tokens, start, end = self.completion_tokens, self.first_token, self.last_token
        if start is None or end is None or end <= start or not tokens or tokens < 2 or not self.counted:
            return None
        return (end - start) / (tokens - 1)

    @property
    def seconds(self) -> float | None:
        """Seconds from arrival to the end."""
        return None if self.ended is None else self.ended - self.arrived


class ByteRatio:
    """Tokens per byte of answer, by kind of answer, learnt from answers that were counted."""

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._learnt: dict[str, float] = {}

    def learn(self, kind: str, tokens: int, answer_bytes: int) -> None:
        """An answer of this many bytes had this many tokens."""
        seen = min(tokens / answer_bytes, RATIO_MAX)
        known = self._learnt.get(kind)
        if known is not None:
            self._learnt[kind] = known + RATIO_WEIGHT * (seen - known)
        elif len(self._learnt) < RATIOS_MAX:
            self._learnt[kind] = seen

    def tokens(self, kind: str, answer_bytes: int) -> int:
        """About how many tokens these bytes are; at least one, if there are any."""
        tokens = round(answer_bytes * self._learnt.get(kind, self._prior))
        return max(tokens, 1) if answer_bytes else 0


@dataclass(slots=True)
class Totals:
    """Sums over requests; what is not known adds nothing."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, record: Record) -> None:
        """Count one ended request."""
        self.requests += 1
        self.prompt_tokens += record.prompt_tokens or 0
        self.cached_tokens += record.cached_tokens or 0
        self.completion_tokens += record.completion_tokens or 0
        self.reasoning_tokens += record.reasoning_tokens or 0


class Observer(Protocol):
    """Who wants to know of each request that ended."""

    def observe(self, record: Record) -> None:
        """The record is complete and will not change."""
        ...


class Batch:
    """Records that are looked at together: when there are some, or when somebody asks for what they add up
    to. One by one, between requests, each would find a processor that has forgotten how; and what some have
    in common is looked up once for all of them."""

    def __init__(self, look: Callable[[Sequence[Record]], None]) -> None:
        self._look = look
        self._records: list[Record] = []

    def add(self, record: Record) -> None:
        """One more."""
        self._records.append(record)
        if len(self._records) >= BATCH_RECORDS:
            self.settle()

    def settle(self) -> None:
        """Look at all of them."""
        if self._records:
            records, self._records = self._records, []
            self._look(records)


class Accounts:
    """Closes records, and keeps the sums since the start."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._event_ratio = ByteRatio(TOKENS_PER_EVENT_BYTE)
        self._document_ratio = ByteRatio(TOKENS_PER_DOCUMENT_BYTE)
        self.outcomes: Counter[str] = Counter()
        self.totals: defaultdict[TokenSource, Totals] = defaultdict(Totals)

    def close(self, record: Record, now: float) -> None:
        """The request is over, whatever became of it. A record closes once; again does nothing."""
        if record.ended is not None:
            return
        record.ended = now
        if record.outcome is None:  # the gateway itself failed: what the client was told is a 500
            record.outcome = "backend_failed"
        self._estimate(record)
        self.outcomes[record.outcome] += 1
        if record.source is not None:
            self.totals[record.source].add(record)
        for observer in self._observers:
            observer.observe(record)

    def _estimate(self, record: Record) -> None:
        """Learn from an answer that was counted; put estimates where counts are missing."""
        ratio = self._event_ratio if record.events else self._document_ratio
        kind = f"{record.route} {record.model}"  # of answer: each route wraps its tokens differently
        if record.completion_tokens is None or record.prompt_tokens is None:
            if record.dispatched is None or record.outcome in UNTOUCHED:
                return
            record.source = TokenSource.ESTIMATED
            if record.prompt_tokens is None:
                record.prompt_tokens = record.prompt_tokens_estimated
            if record.completion_tokens is None:
                record.completion_tokens = ratio.tokens(kind, record.answer_bytes)
        elif record.completion_tokens and record.answer_bytes and record.outcome == "completed":
            ratio.learn(kind, record.completion_tokens, record.answer_bytes)
