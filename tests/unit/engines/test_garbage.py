"""Whatever an engine sends becomes a report, a refusal and a count, or none; it never raises."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.engines import DETECTION_PATHS, ENGINES, detect
from gateway.engines.base import COMPLETIONS, Answer, Report
from gateway.engines.refusals import as_answer, names_usage
from tests.unit.engines.answers import DS4_FORK, LLAMACPP, SGLANG, VLLM, recorded

KEYS = [
    "data", "id", "aliases", "owned_by", "context_length", "max_model_len", "error", "object", "message",
    "code", "type", "n_ctx", "n_prompt_tokens", "total_slots", "default_generation_settings",
    "endpoint_metrics", "prompt", "tokens", "count", "input_tokens", "server", "max_seq", "context",
    "uptime_seconds", "requests_inflight", "backpressure", "queue_depth", "speculation", "spec_hits",
    "spec_drafts", "cache", "cont_admit_rejects", "vllm_config", "scheduler_config", "max_num_seqs", "loads",
    "max_running_requests", "max_total_num_tokens", "num_running_reqs", "num_waiting_reqs", "speculative",
    "accept_rate", "internal_states", "effective_max_running_requests_per_dp", "startup_time",
    "scheduler_e2e", "random_seed",
]  # fmt: skip
METRIC = st.sampled_from(
    [
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:cache_config_info",
        "vllm:engine_sleep_state", "vllm:num_preemptions_total", "process_start_time_seconds",
        "llamacpp:requests_processing", "llamacpp:requests_deferred",
    ]
)  # fmt: skip
LABEL = st.sampled_from(["kv_cache_size_tokens", "kv_cache_max_concurrency", "block_size", "sleep_state"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
LINES = st.lists(
    st.tuples(METRIC, LABEL, st.text(max_size=12), st.text(alphabet="0123456789.e+-NaIf ", max_size=12)),
    max_size=6,
)
EVERYTHING = DS4_FORK | LLAMACPP | VLLM | SGLANG | {
    "/server_info?config_format=json": recorded("vllm/server_info_dev")
}  # fmt: skip


def read_everything(status: int, body: bytes, header: str = "") -> None:
    """Every reading of every engine, on the same bytes."""
    odd = Answer(status, {"retry-after": header, "date": header}, body)
    ready = Answer(200, {}, body)
    detect(dict.fromkeys(DETECTION_PATHS, ready))
    names_usage(odd)
    said = odd.json()
    event = as_answer(said if isinstance(said, dict) else {})
    for engine in ENGINES.values():
        engine.refusal(odd)
        engine.refusal(event)
        engine.counted(ready)
        engine.count(COMPLETIONS, body)
        engine.recognises(dict.fromkeys(engine.paths, ready))
        assert sane(engine.read(dict.fromkeys(engine.paths, ready)))
        for path in engine.paths:  # one answer is garbage, the others are not
            assert sane(engine.read(EVERYTHING | {path: ready}))


def sane(report: Report) -> bool:
    """No size of nothing, no load below zero, no share above the whole."""
    sizes = (report.slots, report.context_tokens, report.kv_tokens)
    loads = (report.busy, report.running, report.waiting, report.refused, report.uptime_seconds)
    return (
        all(size is None or size > 0 for size in sizes)
        and all(load is None or load >= 0 for load in loads)
        and (report.spec_accept_ratio is None or 0 <= report.spec_accept_ratio <= 1)
        and (report.drafts is None or 0 <= report.drafts.share <= 1)
    )


@given(status=st.integers(300, 599), body=st.binary(max_size=200), header=st.text(max_size=60))
def test_no_bytes_break_the_reading(status: int, body: bytes, header: str) -> None:
    """Not even those that are no text."""
    read_everything(status, body, header)


@given(value=JSON)
def test_no_json_breaks_the_reading(value: object) -> None:
    """Known names with values of any type are read or ignored."""
    read_everything(400, json.dumps(value).encode())


@given(lines=LINES)
def test_no_metrics_break_the_reading(lines: list[tuple[str, str, str, str]]) -> None:
    """Known metrics with any labels and figures are read or ignored."""
    page = "".join(f'{metric}{{{label}="{value}"}} {figure}\n' for metric, label, value, figure in lines)
    read_everything(500, page.encode("utf-8", "surrogatepass"))
