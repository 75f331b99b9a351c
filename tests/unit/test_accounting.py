"""The record of one request: counts, their sources, times."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from gateway import errors
from gateway.accounting import (
    TOKENS_PER_EVENT_BYTE,
    UNTOUCHED,
    Accounts,
    ByteRatio,
    Record,
    TokenSource,
    Usage,
)

FIXTURES = Path(__file__).parent.parent / "fixtures" / "usage"


class Observed:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def observe(self, record: Record) -> None:
        self.records.append(record)


def record(**given: object) -> Record:
    """A request that was dispatched at 2 s and gave tokens from 5 s to 15 s."""
    plain = Record(id="r", route="/v1/chat/completions", arrived=1.0)
    for name, value in {
        "model": "m",
        "backend": "b",
        "dispatched": 2.0,
        "first_token": 5.0,
        "last_token": 15.0,
        "events": 40,
        "answer_bytes": 9600,
        "prompt_tokens_estimated": 100,
        "outcome": "completed",
        **given,
    }.items():
        setattr(plain, name, value)
    return plain


def reported(prompt: int, completion: int, cached: int | None = None) -> Usage:
    """Counts by the engine."""
    return Usage(TokenSource.REPORTED, prompt, cached, completion)


def test_running_totals_are_not_added_up() -> None:
    """Fifty chunks that count up to 50 are 50 tokens (B-020)."""
    request = record()
    for i in range(51):
        request.count(reported(200, i))
    request.count(reported(200, 50))
    assert (request.prompt_tokens, request.completion_tokens) == (200, 50)


@pytest.mark.parametrize(("cached", "known"), [(0, 0), (200, 200), (201, None), (2**40, None)])
def test_more_cached_tokens_than_the_prompt_has_are_no_count(cached: int, known: int | None) -> None:
    """A share of cached tokens is one at most."""
    request = record()
    request.count(reported(200, 5, cached))
    assert (request.prompt_tokens, request.cached_tokens, request.completion_tokens) == (200, known, 5)


def test_usage_is_not_replaced_by_timings() -> None:
    """After the engine reported, timings only tell of drafts; before, they are replaced."""
    timings = Usage(TokenSource.ENGINE_TIMINGS, 9, 1, 9, None, 4, 2)
    request = record()
    request.count(timings)
    assert (request.source, request.completion_tokens) == (TokenSource.ENGINE_TIMINGS, 9)
    request.count(reported(10, 8))
    request.count(timings)
    assert (request.source, request.prompt_tokens, request.completion_tokens) == ("reported", 10, 8)
    assert (request.spec_drafted, request.spec_accepted) == (4, 2)


def test_times_are_differences_or_unknown() -> None:
    """Each time is known when both its ends are."""
    request = record()
    request.count(reported(100, 41))
    assert (request.queue_wait, request.ttft, request.backend_ttft) == (1.0, 4.0, 3.0)
    assert request.tpot == 10.0 / 40
    assert request.seconds is None
    waited = Record(id="r", route="", arrived=0.0)
    assert (waited.queue_wait, waited.ttft, waited.backend_ttft, waited.tpot) == (None,) * 4


@pytest.mark.parametrize(
    "given",
    [
        {"completion_tokens": 1},
        {"completion_tokens": 0},
        {"completion_tokens": None},
        {"completion_tokens": 9, "last_token": 5.0},  # all in one event
        {"completion_tokens": 9, "first_token": None, "last_token": None},
        {"completion_tokens": 9, "source": TokenSource.ESTIMATED},
    ],
)
def test_tpot_is_unknown_rather_than_wrong(given: dict[str, object]) -> None:
    """No time per token from one token, one event, or an estimate."""
    assert record(**{"source": TokenSource.REPORTED, **given}).tpot is None


def test_a_stream_that_was_left_is_estimated_and_says_so() -> None:
    """The client left before the usage chunk: prompt estimate, tokens seen so far, marked (B-022)."""
    observed = Observed()
    request = record(outcome="client_gone", events=20, answer_bytes=4800)
    Accounts(observed).close(request, 16.0)
    assert request.source is TokenSource.ESTIMATED
    assert (request.prompt_tokens, request.completion_tokens) == (100, 20)
    assert request.cached_tokens is None
    assert request.seconds == 15.0
    assert observed.records == [request]


def test_the_estimate_follows_what_was_counted() -> None:
    """With 4.5 tokens to an event the next abort on this model and route is estimated so, others by the
    prior: another route wraps its tokens in other bytes."""
    accounts = Accounts(Observed())
    for _ in range(5):
        request = record()
        request.count(reported(100, 180))
        accounts.close(request, 16.0)
    left = record(outcome="client_gone")
    others = [record(outcome="client_gone", **other) for other in ({"model": "n"}, {"route": "/v1/messages"})]
    for request in (left, *others):
        accounts.close(request, 16.0)
    assert left.completion_tokens == 180
    assert [other.completion_tokens for other in others] == [round(9600 * TOKENS_PER_EVENT_BYTE)] * 2


def test_whole_documents_have_their_own_ratio() -> None:
    """A document without usage is mostly text, so its bytes are more tokens than a stream's."""
    accounts = Accounts(Observed())
    stream = record()
    stream.count(reported(100, 40))
    document = record(events=0, first_token=None, last_token=None)
    accounts.close(stream, 16.0)
    accounts.close(document, 16.0)
    assert (document.source, document.completion_tokens) == (TokenSource.ESTIMATED, 9600 // 5)


def test_a_count_that_lacks_a_part_is_as_weak_as_its_estimate() -> None:
    """The engine counted only the answer: the prompt is estimated, and the record says estimated."""
    request = record()
    request.count(Usage(TokenSource.ENGINE_TIMINGS, completion_tokens=44))
    Accounts(Observed()).close(request, 16.0)
    assert (request.prompt_tokens, request.completion_tokens) == (100, 44)
    assert request.source is TokenSource.ESTIMATED


@pytest.mark.parametrize(
    ("outcome", "dispatched"), [*((outcome, 2.0) for outcome in sorted(UNTOUCHED)), ("client_gone", None)]
)
def test_a_request_that_no_engine_worked_on_has_no_tokens(outcome: str, dispatched: float | None) -> None:
    """Refused by gateway or engine, or gone while it waited: no tokens and no source, rather than zeros."""
    request = record(outcome=outcome, dispatched=dispatched, first_token=None, last_token=None, events=0)
    accounts = Accounts(Observed())
    accounts.close(request, 16.0)
    assert (request.source, request.prompt_tokens, request.completion_tokens) == (None, None, None)
    assert accounts.outcomes == {outcome: 1}
    assert not accounts.totals


def test_a_record_closes_once() -> None:
    """A second close changes nothing and counts nothing."""
    observed = Observed()
    accounts = Accounts(observed)
    request = record()
    request.count(Usage(TokenSource.REPORTED, 100, 60, 50, 10))
    accounts.close(request, 16.0)
    accounts.close(request, 99.0)
    assert request.ended == 16.0
    assert len(observed.records) == 1
    totals = accounts.totals[TokenSource.REPORTED]
    assert (totals.requests, totals.prompt_tokens, totals.cached_tokens) == (1, 100, 60)
    assert (totals.completion_tokens, totals.reasoning_tokens) == (50, 10)


def test_a_failure_of_the_gateway_itself_has_an_outcome() -> None:
    """A record that nobody judged counts as failed."""
    request = record(outcome=None)
    Accounts(Observed()).close(request, 16.0)
    assert request.outcome == errors.GatewayError.outcome


def test_the_outcomes_that_leave_prompts_untouched_are_outcomes_of_errors() -> None:
    """The names are those of the failures that clients are told."""
    outcomes = {
        failure.outcome
        for _, failure in inspect.getmembers(errors, inspect.isclass)
        if issubclass(failure, errors.GatewayError)
    }
    assert outcomes > UNTOUCHED


def test_the_learnt_ratio_moves_a_fifth_of_the_way() -> None:
    """One odd answer does not spoil the ratio."""
    ratio = ByteRatio(0.5)
    assert ratio.tokens("m", 100) == 50
    ratio.learn("m", 10, 100)
    ratio.learn("m", 60, 100)
    assert ratio.tokens("m", 100) == 20
    assert ratio.tokens("m", 1) == 1
    assert ratio.tokens("m", 0) == 0


def test_an_engine_that_lies_once_does_not_spoil_the_ratio() -> None:
    """A count without measure was learnt, and each left stream was billions of tokens from then on."""
    ratio = ByteRatio(0.5)
    ratio.learn("m", 2**40, 100)
    assert ratio.tokens("m", 100) == 100


def test_the_ratios_are_bounded() -> None:
    """Two thousand model names are not all remembered; the rest go by the prior."""
    ratio = ByteRatio(0.5)
    for i in range(2000):
        ratio.learn(f"m{i}", 1, 100)
    assert ratio.tokens("m0", 1000) == 10
    assert ratio.tokens("m1999", 1000) == 500
