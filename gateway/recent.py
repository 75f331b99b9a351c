"""What backends did of late: rates and ratios that no counter of Prometheus's gives."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import Metric

from gateway.accounting import Record
from gateway.families import OUTPUT_RATE, PREFIX_HITS, SPEC_ACCEPT, TOKENS_PER_EVENT

WINDOW_SECONDS = 10.0
WINDOW_ANSWERS_MAX = 20_000
RATIO_MEMORY = 0.95  # of the older requests at each new one: about the last 20 count


class Recent:
    """Answers of the last seconds, and shares over the last requests, by backend."""

    def __init__(
        self,
        running: Callable[[], Iterable[Record]],
        accepted: Callable[[], Mapping[str, float]],
        clock: Callable[[], float],
    ) -> None:
        self._running = running
        self._accepted = accepted
        self._clock = clock
        self._answers: deque[tuple[str, float, float, int]] = deque(maxlen=WINDOW_ANSWERS_MAX)
        self._shares: defaultdict[str, Shares] = defaultdict(Shares)

    def add(self, record: Record) -> None:
        """A request ended whose backend is known."""
        start = record.dispatched if record.first_token is None else record.first_token
        end = record.ended if record.last_token is None else record.last_token
        if start is not None and end is not None and record.completion_tokens:
            while self._answers and self._answers[0][2] < end - WINDOW_SECONDS:
                self._answers.popleft()
            self._answers.append((record.backend, start, end, record.completion_tokens))
        if not record.counted:
            return
        shares = self._shares[record.backend]
        shares.tokens_per_event.add(record.completion_tokens, record.events)
        shares.accepted.add(record.spec_accepted, record.spec_drafted)
        shares.hits_reported.add(record.cached_tokens, record.prompt_tokens)
        shares.hits_predicted.add(record.cached_tokens_predicted, record.prompt_tokens_estimated)

    def collect(self) -> Iterator[Metric]:
        """Rates and ratios of now."""
        rates = OUTPUT_RATE.gauge()
        for name, rate in self.rates().items():
            rates.add_metric((name,), rate)
        carried, accepted, hits = TOKENS_PER_EVENT.gauge(), SPEC_ACCEPT.gauge(), PREFIX_HITS.gauge()
        for backend, shares in self._shares.items():
            for gauge, labels, ratio in (
                (carried, (backend,), shares.tokens_per_event),
                (accepted, (backend,), shares.accepted),
                (hits, (backend, "reported"), shares.hits_reported),
                (hits, (backend, "predicted"), shares.hits_predicted),
            ):
                if ratio.value is not None:
                    gauge.add_metric(labels, ratio.value)
        for backend, share in self._accepted().items():
            of_answers = self._shares.get(backend)
            if of_answers is None or of_answers.accepted.value is None:  # they do not tell
                accepted.add_metric((backend,), share)
        yield from (rates, carried, accepted, hits)

    def tokens_so_far(self, record: Record) -> int:
        """Of a stream that still runs: its events times the tokens per event of those before it."""
        return round(record.events * (self._shares[record.backend].tokens_per_event.value or 1.0))

    def rates(self) -> dict[str, float]:
        """Tokens per second by backend; the tokens of an answer are taken as evenly spread."""
        now, answers = self._clock(), list(self._answers)
        for record in self._running():
            if record.first_token is not None and record.last_token is not None:
                tokens = self.tokens_so_far(record)
                answers.append((record.backend, record.first_token, record.last_token, tokens))
        rates: defaultdict[str, float] = defaultdict(float)
        for backend, start, end, tokens in answers:
            inside = end - max(start, now - WINDOW_SECONDS)
            if inside >= 0:
                rates[backend] += tokens * (inside / (end - start) if end > start else 1) / WINDOW_SECONDS
        return rates

    def prefix_hit_ratio(self, backend: str) -> float | None:
        """As the engine reported it; None until it did."""
        return self._shares[backend].hits_reported.value


class Ratio:
    """A share over recent requests, weighted by their size; older ones fade."""

    __slots__ = ("_part", "_whole")

    def __init__(self) -> None:
        self._part = 0.0
        self._whole = 0.0

    def add(self, part: int | None, whole: int | None) -> None:
        """One more request; what is not known does not count."""
        if part is not None and whole:
            self._part = self._part * RATIO_MEMORY + part
            self._whole = self._whole * RATIO_MEMORY + whole

    @property
    def value(self) -> float | None:
        """The share; None before the first request."""
        return self._part / self._whole if self._whole else None


class Shares:
    """Those of one backend."""

    __slots__ = ("accepted", "hits_predicted", "hits_reported", "tokens_per_event")

    def __init__(self) -> None:
        self.tokens_per_event = Ratio()
        self.accepted = Ratio()
        self.hits_reported = Ratio()
        self.hits_predicted = Ratio()
