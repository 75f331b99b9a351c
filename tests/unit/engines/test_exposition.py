"""Metrics in Prometheus' text form."""

from __future__ import annotations

import pytest

from gateway.engines.base import Answer
from gateway.engines.exposition import Exposition

PAGE = Exposition(
    Answer(
        200,
        {},
        b"# HELP a:running Requests that run\n"
        b"# TYPE a:running gauge\n"
        b'a:running{model="one {x}",note="say \\"hi\\"",engine="0"} 3.0\n'
        b'a:running{model="two",engine="1"} 1.0\n'
        b'a:running_by_reason{reason="x"} 50.0\n'
        b"a:started 1.79604176133e+09\n"
        b"a:windows 7\r\n"
        b"a:nothing NaN\n"
        b"a:much +Inf\n"
        b"a:wrong 1.2.3\n"
        b"xa:hidden 9\n",
    )
)


def test_series_have_labels_and_figures() -> None:
    """Quoted quotes and braces in labels do not end them."""
    assert PAGE.series("a:running") == [
        ({"model": "one {x}", "note": 'say \\"hi\\"', "engine": "0"}, 3.0),
        ({"model": "two", "engine": "1"}, 1.0),
    ]
    assert PAGE.series("a:started") == [({}, 1796041761.33)]


@pytest.mark.parametrize(
    ("names", "total"),
    [
        (("a:running",), 4),
        (("a:running", "a:windows"), 11),
        (("a:running", "a:missing"), None),
        (("a:nothing",), None),
        (("a:much",), None),
        (("a:wrong",), None),
        (("hidden",), None),
        (("HELP",), None),
        ((), None),
    ],
)
def test_a_total_is_of_all_series_or_none(names: tuple[str, ...], total: int | None) -> None:
    """A name that is missing, or has no plain number, leaves the sum unknown."""
    assert PAGE.total(*names) == total


def test_a_page_that_was_not_given_is_empty() -> None:
    """No answer, or a refusal, whatever its words."""
    assert Exposition(None).total("a") is None
    assert Exposition(Answer(404, {}, b"a 1\n")).total("a") is None
