"""What an answer that is not 2xx means, read by its shape alone: a plain engine may be any of them, and
stands behind proxies that hide which.

The error is described by OpenAI's `{"error": {...}}` (ds4, llama.cpp, vLLM), by Anthropic's
`{"type": "error", "error": {...}}` (ds4, vLLM and SGLang on `/v1/messages`), by SGLang's `{"object": "error",
"message", ...}`, or by words alone: `{"detail": "..."}` or `{"error": "..."}` of frameworks and key checks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from gateway.engines.base import Answer, Failed, NoRoom, Overlength, Overload, Passed, Refusal
from gateway.engines.fields import member, positive

# How an engine says that a prompt is too long. All are anchored, because an error text may quote a prompt.
_LIMIT = re.compile(r"This model's maximum context length is (\d{1,9}) tokens")  # OpenAI, vLLM
# vLLM's "at least N input tokens" is the limit plus one, whatever the length: that is no count.
_PROMPT = re.compile(
    r"(?:resulted in|prompt contains|\() ?(\d{1,9}) (?:(?:input )?tokens|in the (?:messages|prompt))"
)
_SGLANG = re.compile(
    r"(?:The input|Input length) \((\d{1,9}) tokens\) "
    r"(?:is longer than the model's context length|exceeds the maximum allowed length) \((\d{1,9}) tokens\)"
)
# How SGLang says that it is the limit of the answer.
_ROOM = re.compile(
    r"Requested token count exceeds the model's maximum context length of \d{1,9} tokens\. "
    r"You requested a total of \d{1,9} tokens: (\d{1,9}) tokens from the input messages"
)
# vLLM between SIGTERM and its end, with a status of 500 and a green /health: nothing was started.
_DRAINING = "cannot schedule new futures after shutdown"
_LABEL = re.compile(r"\w{1,40}", re.ASCII)


def refusal(answer: Answer) -> Refusal:
    """What the refusal means. A 409 (ds4: the continuation of a tool turn is gone) is for the client, who
    must send the whole history again: it passes, as every 4xx without a meaning of its own."""
    if answer.status in (429, 503):
        return Overload(_pause_seconds(answer.headers))
    document = answer.json()
    error = document if member(document, "object") == "error" else member(document, "error")
    if answer.status in (401, 403) or not 400 <= answer.status < 500:
        return Overload(None) if _text(error) == _DRAINING else Failed(_cause(answer.status, error))
    if room := _ROOM.match(_text(error)):
        return NoRoom(int(room[1]))
    return _overlength(error) or Passed()


def as_answer(error: Mapping[str, object]) -> Answer:
    """An error that came as the first event under 200, as the answer it would have been. SGLang says so to
    clients that stream that its queue is full (503); older versions also that a prompt is too long (400)."""
    code = error.get("code")
    status = code if type(code) is int and 400 <= code < 600 else 500
    return Answer(status, {}, json.dumps({"error": error}).encode())


def names_usage(answer: Answer) -> bool:
    """Whether a refusal is about `stream_options`. Only what the engine says of its own counts: some
    echo the whole input, and a prompt may speak of anything."""
    document = answer.json()
    error = document.get("error", document) if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return False
    said = f"{error.get('message')} {error.get('param')}"
    details = error.get("detail")
    if isinstance(details, list):
        said += "".join(f" {one.get('loc')} {one.get('msg')}" for one in details if isinstance(one, dict))
    return "stream_options" in said or "include_usage" in said


def _overlength(error: object) -> Overlength | None:
    """The prompt is too long: said in words, by `code` (OpenAI, ds4), by `type` (llama.cpp), or by figures
    alone (ds4 on `/v1/messages`).

    A prompt of exactly vLLM's limit is refused in words that a client's own `max_tokens: 0` earns too:
    it passes as it is.
    """
    text = _text(error)
    if both := _SGLANG.match(text):
        return Overlength(int(both[1]), int(both[2]))
    limit = _LIMIT.match(text)
    prompt = _PROMPT.search(text) if limit else None
    told = positive(member(error, "n_prompt_tokens")), positive(member(error, "n_ctx"))
    named = (
        member(error, "code") == "context_length_exceeded"
        or member(error, "type") == "exceed_context_size_error"
    )
    if not (limit or named or all(told)):
        return None
    return Overlength(
        told[0] or (int(prompt[1]) if prompt else None), told[1] or (int(limit[1]) if limit else None)
    )


def _text(error: object) -> str:
    message = member(error, "message")
    return message if isinstance(message, str) else ""


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
