"""vLLM."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.engines import ENGINES
from gateway.engines.base import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    Answer,
    Count,
    Drafts,
    Report,
)
from tests.unit.engines.answers import VLLM as ANSWERS
from tests.unit.engines.answers import edited, recorded

VLLM = ENGINES["vllm"]
METRICS = ANSWERS["/metrics"]
SERVER_INFO = "/server_info?config_format=json"
TOLD = Report(
    context_tokens=2048,
    models=("tiny",),
    kv_tokens=2_097_152,
    busy=5,
    running=3,
    waiting=2,
    refused=0,
    started="1796041761.33",
)


def read(page: Answer) -> Report:
    """The report with this page of metrics."""
    return VLLM.read(ANSWERS | {"/metrics": page})


def test_in_production_it_reports_all_but_its_slots() -> None:
    """Context, memory in tokens, load, preemptions and start; the number of sequences is told nowhere."""
    assert VLLM.read(ANSWERS) == TOLD


def test_in_development_mode_it_reports_its_slots() -> None:
    """As the scheduler was configured."""
    answers = ANSWERS | {SERVER_INFO: recorded("vllm/server_info_dev")}
    assert VLLM.read(answers) == replace(TOLD, slots=3)


def test_one_that_has_just_started_is_idle_not_unknown() -> None:
    """All its gauges are there from the start."""
    report = VLLM.read(ANSWERS | {"/metrics": recorded("vllm/metrics_start")})
    assert (report.busy, report.running, report.waiting, report.loading) == (0, 0, 0, False)


def test_several_engines_behind_one_server_add_up() -> None:
    """Each has slots and memory of its own."""
    first = METRICS.body.decode()
    second = "".join(
        f"{line}\n"
        for line in first.replace('engine="0"', 'engine="1"').splitlines()
        if line.startswith("vllm:")
    )
    both = Answer(200, {}, (first + second).encode())
    report = VLLM.read({"/metrics": both, SERVER_INFO: recorded("vllm/server_info_dev")})
    assert (report.slots, report.kv_tokens, report.busy) == (6, 4_194_304, 10)


@pytest.mark.parametrize(
    ("old", "new", "tokens"),
    [
        (b'kv_cache_size_tokens="2097152"', b'kv_cache_size_tokens="4096"', 4096),
        # As the engine with 2 MB of memory said it; as a version that knows only requests of full length;
        # as one that tells blocks only; as one that tells nothing.
        (b'max_concurrency="1024.0",', b'max_concurrency="2.0",', 2_097_152),
        (b'kv_cache_size_tokens="2097152",', b"", 2_097_152),
        (b'kv_cache_size_tokens="2097152",', b'kv_cache_size_tokens="None",', 2_097_152),
        (b"kv_cache_size_tokens", b"something_else", 2_097_152),
        (b"cache_config_info{", b"other_info{", None),
        (b'"2097152"', b'"much"', 2_097_152),
    ],
)
def test_memory_is_told_in_tokens(old: bytes, new: bytes, tokens: int | None) -> None:
    """Of several ways to say it, the plainest counts."""
    assert read(edited(METRICS, old, new)).kv_tokens == tokens


def test_older_versions_tell_memory_in_blocks() -> None:
    """16,384 blocks of 128 tokens; without them nothing is known."""
    page = edited(METRICS, b"kv_cache_size_tokens", b"a")
    page = edited(page, b"kv_cache_max_concurrency", b"b")
    assert read(page).kv_tokens == 16384 * 128
    assert read(edited(page, b'num_gpu_blocks="16384"', b'num_gpu_blocks="None"')).kv_tokens is None


def test_requests_of_full_length_are_tokens_of_the_context() -> None:
    """1.81 requests of 1,048,576 tokens, as a model on two machines was reported to hold."""
    page = edited(METRICS, b"kv_cache_size_tokens", b"a")
    page = edited(page, b'max_concurrency="1024.0"', b'max_concurrency="1.81"')
    assert read(page).kv_tokens == int(1.81 * 2048)


def test_preemptions_are_refusals() -> None:
    """A request that memory could not hold any more stands still until it can again."""
    counted = b'vllm:num_preemptions_total{engine="0",model_name="tiny"} '
    assert read(edited(METRICS, counted + b"0.0", counted + b"7.0")).refused == 7


def test_drafts_are_told() -> None:
    """Counters since the start; without speculation they are not there."""
    drafts = (
        b'vllm:spec_decode_num_draft_tokens_total{engine="0"} 400.0\n'
        b'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 300.0\n'
    )
    assert read(Answer(200, {}, METRICS.body + drafts)).drafts == Drafts(400, 300)


def test_one_that_sleeps_cannot_serve() -> None:
    """Development mode can put an engine to sleep; it answers all probes."""
    awake = b'sleep_state="awake"} '
    assert read(edited(METRICS, awake + b"1.0", awake + b"0.0")).loading


def test_without_metrics_only_the_list_of_models_speaks() -> None:
    """Unknown is not 0."""
    assert VLLM.read(
        {"/v1/models": ANSWERS["/v1/models"], "/metrics": recorded("vllm/server_info")}
    ) == Report(context_tokens=2048, models=("tiny",))


@pytest.mark.parametrize(
    ("asked", "context", "limit"),
    [(65536, 2048, 2048), (2049, 2048, 2048), (2048, 2048, None), (65536, None, None), (None, 2048, None)],
)
def test_a_limit_above_the_context_is_lowered_to_it(
    asked: int | None, context: int | None, limit: int | None
) -> None:
    """The engine refuses it, whatever the prompt; prompt and limit together it cuts by itself."""
    assert VLLM.max_tokens(asked, 16384, 2000, context, counted=False) == limit


@pytest.mark.parametrize(
    ("route", "path", "counting", "tokens"),
    [
        (CHAT, "/tokenize", "vllm/tokenize_messages", 19),
        (COMPLETIONS, "/tokenize", "vllm/tokenize_prompt", 7),
        (MESSAGES, "/v1/messages/count_tokens", "vllm/count_tokens", 19),
    ],
)
def test_it_counts_by_the_routes_own_body(route: str, path: str, counting: str, tokens: int) -> None:
    """Template and tools included."""
    assert VLLM.count(route, b'{"model": "tiny"}') == Count(path, b'{"model": "tiny"}')
    assert VLLM.counted(recorded(counting)) == tokens


def test_what_cannot_be_counted_is_none() -> None:
    """A prompt that is refused as too long is none that was counted."""
    assert VLLM.count(RESPONSES, b"{}") is None
    assert VLLM.count(EMBEDDINGS, b"{}") is None
    assert VLLM.counted(recorded("vllm/overlength_messages")) is None
