"""SGLang."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.engines import ENGINES
from gateway.engines.base import CHAT, MESSAGES, RESPONSES, Count, Report
from tests.unit.engines.answers import SGLANG as ANSWERS
from tests.unit.engines.answers import answer, edited, recorded

SGLANG = ENGINES["sglang"]
LOADS = recorded("sglang/loads")
TOLD = Report(
    slots=8,
    context_tokens=32768,
    models=("qwen/qwen2.5-0.5b-instruct", "adapter"),
    kv_tokens=20480,
    busy=7,
    running=5,
    waiting=2,
    spec_accept_ratio=0.6,
    started="23.482913",
)


def test_it_reports_slots_memory_context_models_load_and_start() -> None:
    """An adapter has no context of its own, and takes none away from the model."""
    assert SGLANG.read(ANSWERS) == TOLD


def test_ranks_add_up() -> None:
    """Each has slots and memory of its own; the ratio is their mean."""
    report = SGLANG.read(ANSWERS | {"/v1/loads": recorded("sglang/loads_2ranks")})
    assert report == replace(
        TOLD, slots=16, kv_tokens=40960, busy=8, running=6, waiting=2, spec_accept_ratio=pytest.approx(0.7)
    )


def test_older_versions_tell_slots_but_no_load() -> None:
    """They have no `/v1/loads`; the seed, drawn at each start, tells one process from another."""
    answers = ANSWERS | {"/v1/loads": answer(404), "/server_info": recorded("sglang/server_info_old")}
    assert SGLANG.read(answers) == replace(
        TOLD, busy=None, running=None, waiting=None, spec_accept_ratio=None, started="832251587"
    )


@pytest.mark.parametrize(("waiting", "tokens", "running"), [(0, 900, 6), (0, 0, 5), (2, 900, 5)])
def test_a_long_prompt_that_is_read_takes_a_slot(waiting: int, tokens: int, running: int) -> None:
    """The engine counts its tokens among those that wait, but not the request."""
    loads = edited(LOADS, b'"num_waiting_reqs":2', b'"num_waiting_reqs":%d' % waiting)
    loads = edited(loads, b'"num_waiting_uncached_tokens":900', b'"num_waiting_uncached_tokens":%d' % tokens)
    report = SGLANG.read(ANSWERS | {"/v1/loads": loads})
    assert (report.running, report.waiting, report.busy) == (running, waiting, running + waiting)


def test_half_of_a_sum_is_none() -> None:
    """A rank that does not tell its load leaves the whole unknown."""
    loads = edited(recorded("sglang/loads_2ranks"), b'"num_running_reqs":1', b'"num_running_reqs":null')
    report = SGLANG.read(ANSWERS | {"/v1/loads": loads})
    assert (report.running, report.waiting, report.busy) == (None, 2, None)


@pytest.mark.parametrize(
    ("asked", "prompt", "context", "estimated", "counted"),
    [
        (32768, 1100, 32768, 32768 - 1100 - 137, 32768 - 1100),
        (65536, 0, 32768, 32768, 32768),
        (31000, 1100, 32768, None, None),
        (65536, 26000, 32768, 3518, 6768),
        (65536, 27000, 32768, None, 5768),  # the estimate may be wrong by more than half of what is left
        (100, 32000, 32768, None, None),
        (1000, 32000, 32768, None, 768),
        (100, 32768, 32768, None, None),
        (None, 1100, 32768, None, None),
        (32768, 1100, None, None, None),
    ],
)
def test_a_limit_is_lowered_to_what_fits_behind_the_prompt(
    asked: int | None, prompt: int, context: int | None, estimated: int | None, counted: int | None
) -> None:
    """With an eighth of an estimated prompt to spare; never to a fragment of an answer."""
    assert SGLANG.max_tokens(asked, 16384, prompt, context, counted=False) == estimated
    assert SGLANG.max_tokens(asked, 16384, prompt, context, counted=True) == counted


def test_it_counts_by_the_routes_own_body() -> None:
    """A version that does not count messages refuses, which is no count."""
    assert SGLANG.count(CHAT, b"{}") == Count("/tokenize", b"{}")
    assert SGLANG.count(MESSAGES, b"{}") == Count("/v1/messages/count_tokens", b"{}")
    assert SGLANG.count(RESPONSES, b"{}") is None
    assert SGLANG.counted(recorded("sglang/tokenize")) == 4
    assert SGLANG.counted(answer(200, {"tokens": [[1, 2]], "count": [2]})) is None
    assert SGLANG.counted(answer(400, {"object": "error", "count": 3})) is None
