"""The form of answers on Anthropic's `/v1/messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from tests.fakes.answer import Answer
from tests.fakes.chat import Event

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Messages:
    """One message: content blocks, each opened, filled and closed."""

    done: ClassVar[bool] = False
    prefix: ClassVar[str] = "msg_"
    tells_cache: ClassVar[bool] = True  # `input_tokens` leaves out the cached ones, which are told beside it

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._index = -1
        self._open = ""  # the type of the open block

    def opening(self) -> list[Event]:
        """The message without content."""
        usage = self.usage() | {"output_tokens": 0}
        message = self._message([]) | {"stop_reason": None, "stop_sequence": None, "usage": usage}
        return [_event("message_start", message=message)]

    def token(self, delta: dict[str, Any], usage: bool) -> list[Event]:
        """The events of one piece; they never tell usage."""
        return list(self._piece(delta))

    def closing(self, usage_on_finish: bool) -> list[Event]:
        """The events after the last token."""
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        usage = {"usage": self.last_usage()} if self.answer.wants_usage else {}
        return [*self._close(), _event("message_delta", delta=delta, **usage), _event("message_stop")]

    def whole(self) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        answer = self.answer
        blocks: list[dict[str, Any]] = []
        if answer.reasoning:
            blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
        if answer.text or not (answer.tool_calls or answer.reasoning):
            blocks.append({"type": "text", "text": answer.text})
        for call in answer.tool_calls:
            function = call["function"]
            arguments = json.loads(function["arguments"])
            blocks.append(
                {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}
            )
        return self._message(blocks) | {"stop_reason": self._stop_reason(), "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Tokens so far."""
        answer = self.answer
        if not self.tells_cache:
            return {"input_tokens": answer.prompt_tokens, "output_tokens": answer.sent}
        return {
            "input_tokens": answer.prompt_tokens - answer.cached_tokens,
            "output_tokens": answer.sent,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": answer.cached_tokens,
        }

    def last_usage(self) -> dict[str, Any]:
        """What `message_delta` tells of them."""
        return self.usage()

    def _stop_reason(self) -> str:
        return STOP_REASONS.get(self.answer.finish_reason, "end_turn")

    def _message(self, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        answer = self.answer
        return {
            "id": f"{self.prefix}{answer.number}",
            "type": "message",
            "role": "assistant",
            "content": blocks,
            "model": answer.model,
        }

    def _piece(self, delta: dict[str, Any]) -> Iterator[Event]:
        name, value = next(iter(delta.items()))
        match name:
            case "content":
                yield from self._begin("text", {"text": ""})
                yield self._delta({"type": "text_delta", "text": value})
            case "reasoning":
                yield from self._begin("thinking", {"thinking": ""})
                yield self._delta({"type": "thinking_delta", "thinking": value})
            case _:
                (part,) = value
                function = part["function"]
                if "id" in part:
                    block = {"id": part["id"], "name": function["name"], "input": {}}
                    yield from self._begin("tool_use", block)
                else:
                    yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterator[Event]:
        """Open a block, unless text or thoughts go on in the open one."""
        if kind == self._open != "tool_use":
            return
        yield from self._close()
        self._index += 1
        self._open = kind
        yield _event("content_block_start", content_block={"type": kind} | block, index=self._index)

    def _close(self) -> Iterator[Event]:
        if self._open:
            self._open = ""
            yield _event("content_block_stop", index=self._index)

    def _delta(self, delta: dict[str, Any]) -> Event:
        return _event("content_block_delta", delta=delta, index=self._index)


def _event(kind: str, **members: Any) -> Event:
    return kind, {"type": kind} | members
