"""The last ten minutes in steps of five seconds: what the lines of the live page are drawn from.

It is fed by requests that end, so that a page which is opened in trouble shows how it came to that;
nothing runs for it in between. Tokens count in the steps in which they came, not where the request ended.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gateway.accounting import Batch, Record

STEP_SECONDS = 5
STEPS = 120
TTFTS_MAX = 32  # of one step; more would not move the percentiles of a minute by much
AGENTS_MAX = 32  # of one step; the others count together
OTHERS = ""


@dataclass(slots=True)
class Used:
    """What an agent used, as far as it is known."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, requests: int, prompt: int | None, cached: int | None, completion: int | None) -> None:
        """So much more."""
        self.requests += requests
        self.prompt_tokens += prompt or 0
        self.cached_tokens += cached or 0
        self.completion_tokens += completion or 0

    @property
    def tokens(self) -> int:
        """Read and written."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True)
class Step:
    """Five seconds: times to first token of streams, tokens by backend and by agent."""

    ttfts: list[float] = field(default_factory=list)
    tokens: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    agents: dict[str, Used] = field(default_factory=dict)

    def add_ttft(self, seconds: float) -> None:
        """A first token came, so long after its request."""
        if len(self.ttfts) < TTFTS_MAX:
            self.ttfts.append(seconds)

    def add_agent(self, record: Record) -> None:
        """A request of this agent ended, and its tokens are known."""
        known = record.agent in self.agents or len(self.agents) < AGENTS_MAX
        used = self.agents.setdefault(record.agent if known else OTHERS, Used())
        used.add(1, record.prompt_tokens, record.cached_tokens, record.completion_tokens)


class History:
    """Steps by number: seconds since 1970 over five, so that a page can put those of two runs together."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        self._offset = wall() - clock()  # records are on the monotonic clock
        self._steps: dict[int, Step] = {}
        self._began = self.number(clock())
        self._batch = Batch(self._look)
        self.observe = self._batch.add  # a request ended

    def _look(self, records: Sequence[Record]) -> None:
        step, begin, end = Step(), 0.0, 0.0
        for record in records:
            ended, start = record.ended, record.arrived
            if ended is None:
                continue
            if not begin <= ended < end:
                number = self.number(ended)
                step = self._step(number)
                begin = number * STEP_SECONDS - self._offset
                end = begin + STEP_SECONDS
            if record.source is not None:
                step.add_agent(record)
            if start >= begin:  # as most do that are many
                if record.completion_tokens and record.dispatched is not None:
                    step.tokens[record.backend] += record.completion_tokens
                if record.streamed and (ttft := record.ttft) is not None:
                    step.add_ttft(ttft)
                continue
            if record.streamed and record.first_token is not None and record.ttft is not None:
                self._step(self.number(record.first_token)).add_ttft(record.ttft)
            for number, tokens in self._spread(record, ended, record.completion_tokens):
                self._step(number).tokens[record.backend] += tokens

    def number(self, at: float) -> int:
        """The step of this monotonic time."""
        return int((at + self._offset) // STEP_SECONDS)

    def steps(
        self, now: float, running: Iterable[Record], tokens_so_far: Callable[[Record], int]
    ) -> dict[int, Step]:
        """All steps since the start that are kept, that of `now` included, with what the running streams add
        to them; only that is copied: the agents' sums are those of ended requests."""
        self._batch.settle()
        current = self.number(now)
        seen = {number: Step() for number in range(max(self._began, current - STEPS), current + 1)}
        for number, step in self._steps.items():
            if number in seen:
                seen[number] = Step([*step.ttfts], defaultdict(float, step.tokens), step.agents)
        for record in running:
            if record.streamed and record.first_token is not None and record.ttft is not None:
                seen.get(self.number(record.first_token), Step()).add_ttft(record.ttft)
            for number, tokens in self._spread(record, now, tokens_so_far(record)):
                seen.get(number, Step()).tokens[record.backend] += tokens
        return seen

    def _spread(self, record: Record, now: float, tokens: int | None) -> Iterable[tuple[int, float]]:
        """Steps and the tokens of an answer in each, taken as evenly spread over the time in which they
        came; of a longer time than is kept, only its end."""
        start = record.dispatched if record.first_token is None else record.first_token
        if not tokens or start is None:
            return ()
        end = now if record.last_token is None else record.last_token
        first, last = self.number(start), self.number(end)
        if first == last:
            return ((last, tokens),)
        return self._spread_over(range(max(first, last - STEPS), last + 1), start, end, tokens)

    def _spread_over(
        self, numbers: range, start: float, end: float, tokens: int
    ) -> Iterator[tuple[int, float]]:
        rate = tokens / (end - start)
        for number in numbers:
            begin = number * STEP_SECONDS - self._offset
            yield number, rate * (min(end, begin + STEP_SECONDS) - max(start, begin))

    def _step(self, number: int) -> Step:
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = Step()
            if len(self._steps) > 2 * STEPS:
                oldest = max(self._steps) - STEPS
                self._steps = {number: kept for number, kept in self._steps.items() if number >= oldest}
        return step
