"""What chat and completions share: chunks with `choices`, and `[DONE]` at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gateway.accounting import Usage
from gateway.routes.base import ABORTED, COMMENT, FINISHED, NOTHING, TOKEN, Route, Seen
from gateway.routes.counts import usage_from
from gateway.sse import event_of

DONE = b"data: [DONE]\n\n"
TOKEN_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal", "text")

TOKEN_AND_FINISHED = Seen(token=True, finished=True)
USAGE_ONLY = Seen(usage_only=True)

# vLLM that is told to end answers all its requests so, under 200 and with `[DONE]`: 197 tokens of 1,900 were
# one such answer.
ABORT = "abort"


class Choices(Route):
    """A route of OpenAI's older kind."""

    chunk_object: str
    everywhere = True
    generates = True
    asks_usage = True
    limit_keys: tuple[str, ...] = ("max_completion_tokens", "max_tokens")
    markers: tuple[bytes, ...] = (
        b'"usage"',
        b'"timings"',
        b'"error"',
        b'"detail"',
        b"[DONE]",
        b'"finish_reason":"',
        b'"finish_reason": "',
    )
    ending = DONE

    def is_answer(self, document: dict[str, Any]) -> bool:
        """An answer has a choice, and the engine did not give it up."""
        reasons = [choice.get("finish_reason") for choice in _choices(document)]
        return bool(reasons) and ABORT not in reasons

    def usage(self, chunk: Mapping[str, object]) -> Usage | None:
        """`usage`, else llama.cpp's `timings`."""
        return usage_from(chunk)

    def seen(self, chunk: dict[str, Any]) -> Seen:
        """By the choices: a delta with something in it, a finish_reason."""
        choices = _choices(chunk)
        if not choices:
            return USAGE_ONLY
        finished = token = False
        for choice in choices:
            reason = choice.get("finish_reason")
            if reason == ABORT:
                return ABORTED
            finished = finished or reason is not None
            token = token or _has_token(choice)
        if token:
            return TOKEN_AND_FINISHED if finished else TOKEN
        return FINISHED if finished else NOTHING

    def failure(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """Also an object that is an error as a whole."""
        if chunk.get("error"):
            return super().failure(chunk)
        whole = chunk.get("object") == "error" or ("detail" in chunk and "choices" not in chunk)
        return chunk if whole else None

    def as_stream(self, document: dict[str, Any], *, wants_usage: bool) -> bytes:
        """One chunk with everything, the usage if it was asked for, and the end."""
        rest = {key: value for key, value in document.items() if key not in ("choices", "usage", "timings")}
        rest["object"] = self.chunk_object
        choices = [choice for choice in document["choices"] if isinstance(choice, dict)]
        stream = event_of(rest | {"choices": [_as_delta(choice) for choice in choices]})
        if wants_usage and document.get("usage"):
            stream += event_of(rest | {"choices": [], "usage": document["usage"]})
        return stream + DONE

    def heartbeat(self, mode: str, model: str, request_id: str, *, include_usage: bool) -> bytes:
        """Hermes counts only `data` events as life: with comments it lets the answer finish after 180 s,
        throws it away and asks again, for ever; a chunk with `choices: []` keeps it patient. Clients that
        did not ask for usage may index `choices[0]` of every chunk, so they get comments."""
        if mode == "off":
            return b""
        if mode == "comment" or (mode == "auto" and not include_usage):
            return COMMENT
        chunk: dict[str, object] = {
            "id": request_id,
            "object": self.chunk_object,
            "created": int(time.time()),
            "model": model,
            "choices": [],
        }
        return event_of(chunk)


def _choices(chunk: Mapping[str, object]) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _has_token(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or choice
    return isinstance(delta, dict) and any(delta.get(name) for name in TOKEN_FIELDS)


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(choice.get("message"), dict):
        return choice
    delta = dict(choice["message"])
    calls = delta.get("tool_calls")
    if isinstance(calls, list):  # clients put the pieces of a call together by its index
        named = (call for call in calls if isinstance(call, dict))
        delta["tool_calls"] = [{"index": index} | call for index, call in enumerate(named)]
    return {key: value for key, value in choice.items() if key != "message"} | {"delta": delta}
