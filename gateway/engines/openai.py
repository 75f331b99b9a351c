"""Any engine that speaks OpenAI's protocol and tells no more of itself than its list of models."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from gateway.engines.base import (
    CHAT,
    COMPLETIONS,
    Answer,
    Count,
    Failed,
    Overlength,
    Overload,
    Passed,
    Refusal,
    Report,
)
from policies.service_model import ServiceModel

MODELS = "/v1/models"

# OpenAI and vLLM begin with these words; anchored, because an error text may quote a prompt.
_LIMIT = re.compile(r"This model's maximum context length is (\d{1,9}) tokens")
# vLLM's "at least N input tokens" is the limit plus one, whatever the length: that is no count.
_PROMPT = re.compile(
    r"(?:resulted in|prompt contains|\() ?(\d{1,9}) (?:(?:input )?tokens|in the (?:messages|prompt))"
)
_LABEL = re.compile(r"\w{1,40}", re.ASCII)


class OpenAI:
    """A plain OpenAI-compatible engine, and what all others have in common."""

    name: str = "openai"
    paths: tuple[str, ...] = (MODELS,)
    routes: frozenset[str] = frozenset({CHAT, COMPLETIONS})
    streams_always: bool = False
    reuses_connections: bool = True
    cancel_seconds: float = 5.0
    close_is_stop: bool = True
    sends_done: bool = True
    prefix_kind: str = "block"
    block_tokens: int = 16
    service: ServiceModel = ServiceModel()

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """A list of models is all that such engines share; so this one is asked last."""
        return listed(answers) is not None

    def read(self, answers: Mapping[str, Answer]) -> Report:
        """The models and, where the list gives it, the smallest context of them."""
        models = listed(answers)
        contexts = [
            tokens
            for model in models or ()
            for key in ("context_length", "max_model_len")
            if (tokens := positive(model.get(key))) is not None
        ]
        return Report(
            loading=MODELS in answers and answers[MODELS].status == 503,
            context_tokens=min(contexts, default=None),
            models=None if models is None else names(models),
        )

    def refusal(self, answer: Answer) -> Refusal:
        """What an answer that is not 2xx means, by its shape: a plain engine may be any of them."""
        if answer.status in (429, 503):
            return Overload(_pause_seconds(answer.headers))
        error = member(answer.json(), "error")
        if answer.status in (401, 403) or not 400 <= answer.status < 500:
            return Failed(_cause(answer.status, error))
        return _overlength(error) or Passed()

    def max_tokens(
        self, asked: int | None, default: int | None, prompt_tokens: int, context_tokens: int | None
    ) -> int | None:
        """The client's own limit, or its lack of one, is left alone."""
        return None

    def count(self, route: str, body: bytes) -> Count | None:
        """The protocol has no way to count."""
        return None

    def counted(self, answer: Answer) -> int | None:
        """Never asked."""
        return None


def listed(answers: Mapping[str, Answer]) -> list[dict[str, Any]] | None:
    """The entries of the list of models, None where there is no such list."""
    answer = answers.get(MODELS)
    if answer is None or answer.status != 200:
        return None
    data = member(answer.json(), "data")
    return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else None


def names(models: list[dict[str, Any]]) -> tuple[str, ...]:
    """Every id and alias that a request may name, once each, in the engine's order."""

    def all_names() -> Iterator[object]:
        for model in models:
            yield model.get("id")
            aliases = model.get("aliases")
            yield from aliases if isinstance(aliases, list) else ()

    return tuple(dict.fromkeys(name for name in all_names() if isinstance(name, str) and name))


def member(value: object, key: str) -> Any:
    """`value[key]` where `value` is an object that has it, else None."""
    return value.get(key) if isinstance(value, dict) else None


def positive(value: object) -> int | None:
    """A whole number above 0; in JSON `true` and 2.5 are none."""
    return value if type(value) is int and value > 0 else None


def _overlength(error: object) -> Overlength | None:
    """The four ways to say that a prompt is too long.

    ds4 and OpenAI: `code`; llama.cpp: `type`; vLLM: words only. The first and third also give figures.
    A prompt of exactly vLLM's limit is refused in words that a client's own `max_tokens: 0` earns too:
    it passes as it is.
    """
    message = member(error, "message")
    text = message if isinstance(message, str) else ""
    limit = _LIMIT.match(text)
    named = (
        member(error, "code") == "context_length_exceeded"
        or member(error, "type") == "exceed_context_size_error"
    )
    if not (limit or named):
        return None
    prompt = _PROMPT.search(text) if limit else None
    return Overlength(
        positive(member(error, "n_prompt_tokens")) or (int(prompt[1]) if prompt else None),
        positive(member(error, "n_ctx")) or (int(limit[1]) if limit else None),
    )


def _cause(status: int, error: object) -> str:
    """The status and the engine's own label of it; never its message, which may quote the prompt."""
    label = member(error, "type")
    return f"HTTP {status} {label}" if _LABEL.fullmatch(str(label)) and label else f"HTTP {status}"


def _pause_seconds(headers: Mapping[str, str]) -> float | None:
    """Retry-After, held between 1 and 60 seconds: an engine that asks for an hour is asked again sooner.

    A date is read against the answer's own Date, so that no clock has to agree with the engine's.
    """
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment, now = parsedate_to_datetime(value), parsedate_to_datetime(headers.get("date", ""))
            seconds = (moment - now).total_seconds()
        except (ValueError, TypeError, OverflowError):  # no date; or only one of the two has a time zone
            return None
    return None if math.isnan(seconds) else min(60.0, max(1.0, seconds))
