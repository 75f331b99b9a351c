"""What engines count, as they say it and as they should not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.accounting import TokenSource, Usage
from gateway.routes.counts import usage_from

FIXTURES = Path(__file__).parent.parent / "fixtures" / "usage"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llamacpp-usage-and-timings", Usage(TokenSource.REPORTED, 35, 1, 40, None, 47, 32)),
        ("llamacpp-timings-only", Usage(TokenSource.ENGINE_TIMINGS, 27, 22, 8)),
        ("vllm-usage", Usage(TokenSource.REPORTED, 19, None, 8)),
    ],
)
def test_recorded_chunks_are_read(name: str, expected: Usage) -> None:
    """Last chunks as engines sent them give their counts."""
    assert usage_from(json.loads((FIXTURES / f"{name}.json").read_bytes())) == expected


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        ({}, None),
        ({"usage": None}, None),
        ({"usage": {}}, None),
        ({"usage": "many", "timings": 3}, None),
        ({"usage": {"prompt_tokens": None, "completion_tokens": "7"}}, None),
        ({"usage": {"prompt_tokens": True, "completion_tokens": -1}}, None),
        ({"usage": {"prompt_tokens": 10**400, "completion_tokens": 1.5}}, None),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, Usage(TokenSource.REPORTED, 0, None, 0)),
        (
            {"usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": None}},
            Usage(TokenSource.REPORTED, 7, None, 3),
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 7,
                    "completion_tokens": 3,
                    "prompt_tokens_details": {"cached_tokens": 5},
                    "completion_tokens_details": {"reasoning_tokens": 2},
                }
            },
            Usage(TokenSource.REPORTED, 7, 5, 3, 2),
        ),
        ({"timings": {"prompt_n": 7}}, None),  # an older llama.cpp: the cached part is not known
        ({"timings": {"prompt_n": 7, "predicted_n": 3}}, Usage(TokenSource.ENGINE_TIMINGS, None, None, 3)),
        (
            {"usage": {"prompt_tokens": None}, "timings": {"prompt_n": 1, "cache_n": 6, "predicted_n": 3}},
            Usage(TokenSource.ENGINE_TIMINGS, 7, 6, 3),
        ),
    ],
)
def test_odd_counts_are_no_counts(chunk: dict[str, object], expected: Usage | None) -> None:
    """Nulls, other types and missing members are unknown; zero is zero."""
    assert usage_from(chunk) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["prompt_tokens", "completion_tokens", "prompt_tokens_details", "prompt_n", "cache_n", "predicted_n"]


@settings(deadline=None)
@given(
    usage=st.dictionaries(st.sampled_from(NAMES), JSON) | JSON,
    timings=st.dictionaries(st.sampled_from(NAMES), JSON),
)
def test_no_chunk_breaks_the_reading(usage: object, timings: object) -> None:
    """Whatever an engine sends, the counts are whole numbers or unknown."""
    found = usage_from({"usage": usage, "timings": timings})
    if found is not None:
        assert found.prompt_tokens is not None or found.completion_tokens is not None
        assert all(
            n is None or (type(n) is int and n >= 0) for n in (found.prompt_tokens, found.cached_tokens)
        )
