"""vLLM, from versions patched for a DGX Spark up to 0.32: of its flags and metrics the newer ones may lack.

How many sequences it runs at once (`--max-num-seqs`) it tells only in development mode; how many tokens they
may hold together it always tells. `/health` and `/load` are not asked: the first is green also while vLLM
drains and while its engine hangs, the second is always 0 without a flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from gateway.engines.base import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    TOKENIZE,
    Answer,
    Report,
)
from gateway.engines.exposition import Exposition
from gateway.engines.fields import drafts, positive, told
from gateway.engines.listing import MODELS, owned_by
from gateway.engines.openai import OpenAI
from policies.capacity import Division, Memory
from policies.service_model import ServiceModel

METRICS = "/metrics"
SERVER_INFO = "/server_info?config_format=json"  # development mode only

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"


class VLLM(OpenAI):
    """vLLM. What it cannot start waits in it without a bound; what memory cannot hold is preempted."""

    name = "vllm"
    paths = (MODELS, METRICS, SERVER_INFO)
    routes = frozenset({CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS, TOKENIZE})
    # Measured: 70 ms after its client closed, a request is gone, streamed or not, running or waiting; but
    # it leaves between two steps, and a step with a long chunk of prefill takes seconds.
    cancel_seconds = 10.0
    close_is_stop = False  # the HTTP side closes at once
    prefix_kind = "block"
    memory = Memory(Division.POOL)
    service = ServiceModel(
        setup_seconds=0.301,
        first_token_seconds=0.296,
        prefill_tokens_per_second=1742.0,
        prefill_head_tokens_per_second=8469.0,
        decode_base_seconds=0.01234,
        decode_step_seconds=0.00229,
        starved_tokens_per_second=8.45,
        cache_block_tokens=16,
    )
    counting = MappingProxyType({CHAT: TOKENIZE, COMPLETIONS: TOKENIZE, MESSAGES: COUNT_TOKENS})

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """By the owner of its models, else (a list behind a key) by its metrics."""
        return owned_by(answers, "vllm") or bool(Exposition(answers.get(METRICS)).series(RUNNING))

    def read(self, answers: Mapping[str, Answer]) -> Report:
        """Models, context, tokens of memory, load and start; slots in development mode.

        One server may front several engines, each with slots and memory of its own: figures are sums. An
        engine put to sleep (development mode) answers, but serves nothing.
        """
        report, metrics = super().read(answers), Exposition(answers.get(METRICS))
        engines = len(metrics.series(RUNNING)) or 1
        slots = positive(told(answers, SERVER_INFO, "vllm_config", "scheduler_config", "max_num_seqs"))
        awake = [v for labels, v in metrics.series("vllm:engine_sleep_state") if _is_awake(labels)]
        started = metrics.series("process_start_time_seconds")
        return replace(
            report,
            loading=report.loading or 0.0 in awake,
            slots=None if slots is None else slots * engines,
            kv_tokens=_kv_tokens(metrics, report.context_tokens),
            busy=metrics.total(RUNNING, WAITING),
            running=metrics.total(RUNNING),
            waiting=metrics.total(WAITING),
            refused=metrics.total("vllm:num_preemptions_total"),
            drafts=drafts(
                metrics.total("vllm:spec_decode_num_draft_tokens_total"),
                metrics.total("vllm:spec_decode_num_accepted_tokens_total"),
            ),
            started=str(started[0][1]) if started else None,
        )

    def max_tokens(
        self,
        asked: int | None,
        default: int | None,
        prompt_tokens: int,
        context_tokens: int | None,
        *,
        counted: bool,
    ) -> int | None:
        """No more than the context: a limit above it is refused (400), whatever the prompt. What prompt and
        limit together have too much is cut by the engine."""
        too_many = asked is not None and context_tokens is not None and asked > context_tokens
        return context_tokens if too_many else None


def _is_awake(labels: Mapping[str, str]) -> bool:
    return labels.get("sleep_state") == "awake"


def _kv_tokens(metrics: Exposition, context_tokens: int | None) -> int | None:
    """Tokens that all running requests may hold together.

    Newer versions say it twice: `kv_cache_size_tokens`, and `kv_cache_max_concurrency` as requests of full
    length. Older ones tell blocks; with several kinds of layers that counts each token more than once.
    """
    total = 0
    for labels, _ in metrics.series("vllm:cache_config_info"):
        requests = _number(labels.get("kv_cache_max_concurrency"))
        tokens = (
            _number(labels.get("kv_cache_size_tokens"))
            or requests * (context_tokens or 0)
            or _number(labels.get("num_gpu_blocks")) * _number(labels.get("block_size"))
        )
        if not tokens:
            return None
        total += int(tokens)
    return total or None


def _number(label: str | None) -> float:
    """The figure that a label holds, 0.0 for "None" and for what is no figure."""
    return float(label) if label and label.replace(".", "", 1).isdecimal() and len(label) < 20 else 0.0
