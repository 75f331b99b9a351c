"""SGLang. `/health` is not asked: on an idle engine it generates a token and takes at least a second. Nor is
`/ready`: it says 503 also while the engine ends and its last requests still run."""

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
from gateway.engines.fields import member, members, natural, positive, share, told
from gateway.engines.listing import MODELS, owned_by
from gateway.engines.openai import OpenAI
from policies.capacity import Division, Memory
from policies.service_model import ServiceModel

LOADS = "/v1/loads"  # made for routers; since 2026
SERVER_INFO = "/server_info"


class SGLang(OpenAI):
    """SGLang tells slots and memory per data-parallel rank; here they are one engine with the sum."""

    name = "sglang"
    paths = (MODELS, LOADS, SERVER_INFO)
    routes = frozenset({CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS, TOKENIZE})
    # It looks for clients that left when it has output for them, else every few seconds, and tells its
    # scheduler, which drops the request behind the step at hand.
    cancel_seconds = 15.0
    close_is_stop = False
    prefix_kind = "block"  # a tree that all requests share
    memory = Memory(Division.POOL)
    # Nobody published a sweep: as vLLM without its steps of fixed size.
    service = ServiceModel(
        setup_seconds=0.1,
        prefill_tokens_per_second=1742.0,
        decode_base_seconds=0.01234,
        decode_step_seconds=0.00229,
        starved_tokens_per_second=8.45,
    )
    counting = MappingProxyType({CHAT: TOKENIZE, COMPLETIONS: TOKENIZE, MESSAGES: COUNT_TOKENS})

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """By the owner of its models, or by the state of its ranks."""
        ranks = members(told(answers, SERVER_INFO, "internal_states"))
        return ranks is not None or owned_by(answers, "sglang")

    def read(self, answers: Mapping[str, Answer]) -> Report:
        """Slots, tokens of memory, context, models, load and start."""
        report = super().read(answers)
        info = told(answers, SERVER_INFO)
        loads = members(told(answers, LOADS, "loads")) or []
        ranks = members(member(info, "internal_states")) or []
        decoding, waiting = _sum(loads, "num_running_reqs"), _sum(loads, "num_waiting_reqs")
        running = None if decoding is None else decoding + sum(map(_is_reading, loads))
        return replace(
            report,
            slots=positive(
                _sum(loads, "max_running_requests") or _sum(ranks, "effective_max_running_requests_per_dp")
            ),
            kv_tokens=positive(
                _sum(loads, "max_total_num_tokens")
                or (natural(member(info, "max_total_num_tokens")) or 0) * (len(ranks) or 1)
            ),
            busy=None if running is None or waiting is None else running + waiting,
            running=running,
            waiting=waiting,
            spec_accept_ratio=_mean([member(load, "speculative", "accept_rate") for load in loads]),
            started=_started(info),
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
        """No more than fits behind the prompt: prompt and limit above the context are refused (400).

        An estimated prompt may be an eighth longer. Where that would take half of the room, the limit stays:
        the refusal tells the engine's own count, and the call is sent again.
        """
        if asked is None or context_tokens is None:
            return None
        room = context_tokens - prompt_tokens
        if not counted:
            spare = prompt_tokens // 8
            if room < 2 * spare:
                return None
            room -= spare
        return room if 0 < room < asked else None


def _sum(ranks: list[dict[str, object]], key: str) -> int | None:
    """Over all ranks; None unless each tells it."""
    figures = [natural(rank.get(key)) for rank in ranks]
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known and len(known) == len(figures) else None


def _is_reading(rank: dict[str, object]) -> bool:
    """Whether a long prompt is being read, in chunks: it counts neither as running nor as waiting, but its
    tokens do. Beside waiting requests it cannot be told; a short one is read between two looks."""
    return rank.get("num_waiting_reqs") == 0 and positive(rank.get("num_waiting_uncached_tokens")) is not None


def _mean(rates: list[object]) -> float | None:
    known = [rate for rate in (share(rate, 1) for rate in rates) if rate is not None]
    return sum(known) / len(known) if known else None


def _started(info: object) -> str | None:
    """How long this start took, to the microsecond; older versions: the seed, drawn at each start."""
    startup = member(info, "startup_time")
    mark = member(startup, "scheduler_e2e") if startup else member(info, "random_seed")
    return str(mark) if isinstance(mark, int | float) else None
