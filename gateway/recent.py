"""What backends did of late: rates and ratios that no counter of Prometheus's gives."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from gateway.accounting import Record
from gateway.families import OUTPUT_RATE, PREFIX_HITS, SPEC_ACCEPT, TOKENS_PER_EVENT

WINDOW_SECONDS = 10.0
WINDOW_ANSWERS_MAX = 20_000
JOINED_SECONDS = 0.1  # answers that end together and began so shortly before count as one
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

    def add(self, backend: str, records: Sequence[Record]) -> None:
        """Requests ended there, all with tokens from the same source."""
        for start, end, tokens in _joined(records):
            while self._answers and self._answers[0][2] < end - WINDOW_SECONDS:
                self._answers.popleft()
            self._answers.append((backend, start, end, tokens))
        if not records[0].counted:
            return
        shares = self._shares[backend]
        shares.tokens_per_event.add([(one.completion_tokens, one.events) for one in records if one.events])
        shares.accepted.add([(one.spec_accepted, one.spec_drafted) for one in records if one.spec_drafted])
        shares.hits_reported.add(
            [(one.cached_tokens, one.prompt_tokens) for one in records if one.cached_tokens is not None]
        )
        shares.hits_predicted.add(
            [(one.cached_tokens_predicted, one.prompt_tokens_estimated) for one in records]
        )

    def drop(self, backends: Collection[str]) -> None:
        """These are no more."""
        self._answers = deque((one for one in self._answers if one[0] not in backends), WINDOW_ANSWERS_MAX)
        for backend in backends:
            self._shares.pop(backend, None)

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


def _joined(records: Iterable[Record]) -> Iterator[tuple[float, float, int]]:
    """Start, end and tokens of answers; short ones that came close together as one."""
    start = end = 0.0
    tokens = 0
    for record in records:
        began = record.dispatched if record.first_token is None else record.first_token
        ended = record.ended if record.last_token is None else record.last_token
        if began is None or ended is None or not record.completion_tokens:
            continue
        first, last = (min(start, began), max(end, ended)) if tokens else (began, ended)
        if tokens and last - first > JOINED_SECONDS:
            yield start, end, tokens
            first, last, tokens = began, ended, 0
        start, end, tokens = first, last, tokens + record.completion_tokens
    if tokens:
        yield start, end, tokens


class Ratio:
    """A share over recent requests, weighted by their size; older ones fade."""

    __slots__ = ("_part", "_whole")

    def __init__(self) -> None:
        self._part = 0.0
        self._whole = 0.0

    def add(self, recent: Iterable[tuple[int | None, int | None]]) -> None:
        """Part and whole of more requests; what is not known does not count."""
        for part, whole in recent:
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
