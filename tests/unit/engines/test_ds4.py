"""ds4, upstream and the fork."""

from __future__ import annotations

import pytest

from gateway.engines import ENGINES
from gateway.engines.base import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, Drafts, Report
from tests.unit.engines.answers import DS4_FORK, DS4_UPSTREAM, edited, recorded

DS4 = ENGINES["ds4"]
STATS = recorded("ds4/stats")


def test_the_fork_reports_slots_context_load_refusals_acceptance_and_uptime() -> None:
    """Its banks are slots; of 5 requests 2 wait; 1 + 3 + 1 were refused by memory; 21,000 of 30,000 drafts
    were accepted."""
    assert DS4.read(DS4_FORK) == Report(
        slots=11,
        context_tokens=65536,
        models=("deepseek-v4-flash",),
        busy=5,
        running=3,
        waiting=2,
        refused=5,
        drafts=Drafts(30_000, 21_000),
        uptime_seconds=3600,
    )


def test_upstream_tells_its_model_and_context_only() -> None:
    """Its sessions are known to its operator alone."""
    assert DS4.read(DS4_UPSTREAM) == Report(context_tokens=65536, models=("deepseek-v4-flash",))


@pytest.mark.parametrize(("told", "slots"), [(b"2", 2), (b"0", 1), (b"null", None), (b"-1", None)])
def test_an_engine_without_banks_serves_one_after_the_other(told: bytes, slots: int | None) -> None:
    """`max_seq` is another at each start, and 0 where no batch could be set up."""
    stats = edited(STATS, b'"max_seq":11', b'"max_seq":' + told)
    assert DS4.read(DS4_FORK | {"/v1/stats": stats}).slots == slots


def test_no_drafts_are_no_figures() -> None:
    """The engine itself says 0.0000 then, which would read as a drafter that is always wrong."""
    stats = edited(STATS, b'"spec_drafts":30000,"spec_hits":21000', b'"spec_drafts":0,"spec_hits":0')
    assert DS4.read(DS4_FORK | {"/v1/stats": stats}).drafts is None


def test_figures_that_older_versions_lack_are_unknown() -> None:
    """What is not told is not 0."""
    stats = edited(STATS, b'"backpressure"', b'"other"')
    report = DS4.read(DS4_FORK | {"/v1/stats": stats})
    assert (report.busy, report.running, report.waiting) == (5, None, None)


def test_a_limit_is_put_in_only_where_the_client_gave_none() -> None:
    """Without one the engine reserves memory for tens of thousands of tokens; with one it cuts by itself."""
    assert DS4.max_tokens(None, 16384, 1000, 65536, counted=False) == 16384
    assert DS4.max_tokens(None, None, 1000, 65536, counted=False) is None
    assert DS4.max_tokens(65536, 16384, 1000, 65536, counted=False) is None


def test_it_has_four_routes_and_no_tokenizer() -> None:
    """Everything else is answered 404 there."""
    assert {CHAT, RESPONSES, MESSAGES} < DS4.routes
    assert COUNT_TOKENS not in DS4.routes
    assert DS4.count(CHAT, b"{}") is None
    assert not DS4.reuses_connections
