"""The form of answers on `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.fakes.answer import Answer

Event = tuple[str | None, dict[str, Any]]  # its name, where the protocol has names, and its data


class Chat:
    """One chat answer in the plainest form; engines derive theirs from it."""

    done: ClassVar[bool] = True  # the stream ends with [DONE]
    reasoning: ClassVar[str] = "reasoning_content"
    prefix: ClassVar[str] = "chatcmpl-"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    object: ClassVar[str] = "chat.completion"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def opening(self) -> list[Event]:
        """The events before the first token."""
        return [(None, self.chunk({"role": "assistant", "content": ""}, None))]

    def token(self, delta: dict[str, Any], usage: bool) -> list[Event]:
        """The event of one piece, with the usage so far if told."""
        chunk = self.chunk(self.named(delta), None)
        return [(None, chunk | {"usage": self.usage()} if usage else chunk)]

    def closing(self, usage_on_finish: bool) -> list[Event]:
        """The events after the last token."""
        finish = self.chunk({}, self.answer.finish_reason)
        if usage_on_finish:
            return [(None, finish | {"usage": self.usage()})]
        return [(None, finish), *self.usage_events()]

    def usage_events(self) -> list[Event]:
        """The usage in a chunk of its own, if wanted."""
        if not self.answer.wants_usage:
            return []
        return [(None, self.envelope(self.chunk_object) | {"choices": [], "usage": self.usage()})]

    def whole(self) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choice = self.choice() | {"logprobs": None, "finish_reason": self.answer.finish_reason}
        return self.envelope(self.object) | {"choices": [choice], "usage": self.usage()}

    def chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        """One event of a stream."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self.envelope(self.chunk_object) | {"choices": [choice]}

    def choice(self) -> dict[str, Any]:
        """The beginning of the only choice of a whole answer."""
        message: dict[str, Any] = {"role": "assistant", "content": self.answer.text or None}
        if self.answer.reasoning:
            message[self.reasoning] = self.answer.reasoning
        if self.answer.tool_calls:
            message["tool_calls"] = self.answer.tool_calls
        return {"index": 0, "message": message}

    def named(self, delta: dict[str, Any]) -> dict[str, Any]:
        """A piece under this engine's name for thoughts."""
        return {self.reasoning: delta["reasoning"]} if "reasoning" in delta else delta

    def envelope(self, kind: str) -> dict[str, Any]:
        """What each chunk and the whole answer begin with."""
        answer = self.answer
        return {
            "id": f"{self.prefix}{answer.number}",
            "object": kind,
            "created": answer.created,
            "model": answer.model,
        }

    def usage(self) -> dict[str, Any]:
        """Tokens so far."""
        answer = self.answer
        return {
            "completion_tokens": answer.sent,
            "prompt_tokens": answer.prompt_tokens,
            "total_tokens": answer.prompt_tokens + answer.sent,
            "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        }


class Completion(Chat):
    """One text completion: no roles, and the text itself instead of deltas."""

    prefix = "cmpl-"
    chunk_object = object = "text_completion"

    def opening(self) -> list[Event]:
        return []

    def chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": _text(delta), "logprobs": None, "finish_reason": finish_reason}
        return self.envelope(self.chunk_object) | {"choices": [choice]}

    def choice(self) -> dict[str, Any]:
        return {"index": 0, "text": self.answer.reasoning + self.answer.text}

    def named(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"content": _text(delta)}


def _text(delta: dict[str, Any]) -> str:
    return str(delta.get("content", delta.get("reasoning", "")))
