"""llama.cpp's `llama-server`. Its `/slots` is never asked: that wakes a sleeping engine, and asked often
it keeps a non-streaming request of a client that left alive; `/props` and `/metrics` do neither."""

from __future__ import annotations

import json
import re
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
    Count,
    Failed,
    Refusal,
    Report,
)
from gateway.engines.exposition import Exposition
from gateway.engines.fields import drafts, member, positive, told
from gateway.engines.listing import MODELS, listed, names, owned_by
from gateway.engines.openai import OpenAI
from policies.capacity import Division, Memory
from policies.service_model import ServiceModel

PROPS = "/props"
METRICS = "/metrics"

_FULL = re.compile(r"(?:decode\(\) failed: )?Context size has been exceeded")


class LlamaCpp(OpenAI):
    """llama.cpp tells its slots and the context of each; more requests than slots wait in it, unseen."""

    name = "llamacpp"
    paths = (PROPS, MODELS, METRICS)
    routes = frozenset({CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS, TOKENIZE})
    # It notices that a non-streaming client left only after a second in which nothing happens in the
    # whole engine: with another slot at work, 25 s later it still generated.
    streams_always = True
    # It promises "Keep-Alive: timeout=5, max=100", and closes within 1 ms after the end of a stream: a
    # request sent on that connection is lost in one case of three.
    reuses_connections = False
    # A stream that is closed frees its slot in 0.2 s, but not within a batch of prefill: the default
    # batch of 2,048 tokens ends within 30 s on an engine that reads 70 tokens a second or more.
    cancel_seconds = 30.0
    close_is_stop = False  # it closes at once, and cancels behind the batch at hand
    prefix_kind = "slot"
    memory = Memory(Division.SPLIT)  # `--ctx-size` over `--parallel`
    service = ServiceModel(
        setup_seconds=0.0845,
        prefill_tokens_per_second=465.0,
        prefill_square_seconds=1.28e-8,
        decode_base_seconds=0.0412,
        decode_step_seconds=0.0107,
        decode_depth_seconds=1.67e-7,
        starved_tokens_per_second=0.227,
    )
    counting = MappingProxyType(
        {CHAT: f"{CHAT}/input_tokens", RESPONSES: f"{RESPONSES}/input_tokens", MESSAGES: COUNT_TOKENS}
    )

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """By the slots in `/props`, else by the owner of its models.

        While it loads, every path answers 503 "Loading model"; others could say that, so it is no proof.
        """
        return positive(told(answers, PROPS, "total_slots")) is not None or owned_by(answers, "llamacpp")

    def read(self, answers: Mapping[str, Answer]) -> Report:
        """Slots, context per slot, models, load and start.

        An engine that sleeps (`is_sleeping`) is not loading: the next request wakes it. With unified KV
        every slot shows the context that all of them share, and nothing tells that it does. Requests that
        arrive while a batch is computed show neither as running nor as waiting.
        """
        props, models, page = told(answers, PROPS), listed(answers), answers.get(METRICS)
        metrics = Exposition(page if member(props, "endpoint_metrics") is True else None)
        return Report(
            loading=any(answer.status == 503 for answer in answers.values()),
            slots=positive(member(props, "total_slots")),
            context_tokens=positive(member(props, "default_generation_settings", "n_ctx")),
            models=None if models is None else names(models),
            busy=metrics.total("llamacpp:requests_processing", "llamacpp:requests_deferred"),
            running=metrics.total("llamacpp:requests_processing"),
            waiting=metrics.total("llamacpp:requests_deferred"),
            drafts=drafts(
                metrics.total("llamacpp:spec_decode_num_draft_tokens_total"),
                metrics.total("llamacpp:spec_decode_num_accepted_tokens_total"),
            ),
            started=page.headers.get("process-start-time-unix") if page else None,
        )

    def refusal(self, answer: Answer) -> Refusal:
        """With unified KV, running answers fail (500, or in a stream) when it is full; without it an answer
        only ends at its slot's context."""
        refusal = super().refusal(answer)
        if isinstance(refusal, Failed):
            message = member(answer.json(), "error", "message")
            return replace(refusal, overfilled=isinstance(message, str) and bool(_FULL.match(message)))
        return refusal

    def count(self, route: str, body: bytes) -> Count | None:
        """Exact, template included; a prompt that is not one string is not counted."""
        if route != COMPLETIONS:
            return super().count(route, body)
        prompt = member(Answer(200, {}, body).json(), "prompt")
        if not isinstance(prompt, str):
            return None
        return Count(TOKENIZE, json.dumps({"content": prompt, "add_special": True}).encode())

    def counted(self, answer: Answer) -> int | None:
        """`input_tokens`, or the length of the list of tokens."""
        tokens = member(answer.json(), "tokens") if answer.status == 200 else None
        return len(tokens) if isinstance(tokens, list) else super().counted(answer)
