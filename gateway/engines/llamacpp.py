"""llama.cpp's `llama-server`. Its `/slots` is never asked: that wakes a sleeping engine, and asked often
it keeps a non-streaming request of a client that left alive; `/props` and `/metrics` do neither."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from gateway.engines.base import CHAT, COMPLETIONS, Answer, Count, Report
from gateway.engines.openai import MODELS, OpenAI, listed, member, names, positive
from policies.service_model import ServiceModel

PROPS = "/props"
METRICS = "/metrics"

_BUSY = re.compile(rb"^llamacpp:requests_(?:processing|deferred) (\d{1,9})", re.MULTILINE)


class LlamaCpp(OpenAI):
    """llama.cpp tells its slots and the context of each; more requests than slots wait in it, unseen."""

    name = "llamacpp"
    paths = (PROPS, MODELS, METRICS)
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
    block_tokens = 1
    service = ServiceModel(
        setup_seconds=0.0845,
        prefill_tokens_per_second=465.0,
        decode_base_seconds=0.0412,
        decode_step_seconds=0.0107,
    )

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """By the slots in `/props`, else by the owner of its models.

        While it loads, every path answers 503 "Loading model"; others could say that, so it is no proof.
        """
        return positive(member(_props(answers), "total_slots")) is not None or any(
            model.get("owned_by") == "llamacpp" for model in listed(answers) or ()
        )

    def read(self, answers: Mapping[str, Answer]) -> Report:
        """Slots, context per slot, models, load and start.

        An engine that sleeps (`is_sleeping`) is not loading: the next request wakes it. With unified KV
        every slot shows the context that all of them share, and nothing tells that it does.
        """
        props, models = _props(answers), listed(answers)
        metrics = answers.get(METRICS)
        return Report(
            loading=any(answer.status == 503 for answer in answers.values()),
            slots=positive(member(props, "total_slots")),
            context_tokens=positive(member(member(props, "default_generation_settings"), "n_ctx")),
            models=None if models is None else names(models),
            busy=_busy(metrics) if metrics and member(props, "endpoint_metrics") is True else None,
            started=metrics.headers.get("process-start-time-unix") if metrics else None,
        )

    def count(self, route: str, body: bytes) -> Count | None:
        """Exact, template included; a prompt that is not one string is not counted."""
        if route == CHAT:
            return Count(f"{CHAT}/input_tokens", body)
        if route != COMPLETIONS:
            return None
        prompt = member(Answer(200, {}, body).json(), "prompt")
        if not isinstance(prompt, str):
            return None
        return Count("/tokenize", json.dumps({"content": prompt, "add_special": True}).encode())

    def counted(self, answer: Answer) -> int | None:
        """`input_tokens`, or the length of the list of tokens."""
        if answer.status != 200:
            return None
        value = answer.json()
        tokens = member(value, "tokens")
        return len(tokens) if isinstance(tokens, list) else positive(member(value, "input_tokens"))


def _props(answers: Mapping[str, Answer]) -> object:
    answer = answers.get(PROPS)
    return answer.json() if answer is not None and answer.status == 200 else None


def _busy(metrics: Answer) -> int | None:
    """Requests in slots and held back. What arrives while a batch is computed shows in neither."""
    figures = _BUSY.findall(metrics.body) if metrics.status == 200 else []
    return sum(map(int, figures)) if len(figures) == 2 else None
