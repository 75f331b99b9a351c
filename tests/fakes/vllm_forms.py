"""vLLM's forms of answers: many members that are null, and `reasoning` for thoughts."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.fakes.answer import Answer
from tests.fakes.chat import Chat, Completion, Event
from tests.fakes.messages import Messages
from tests.fakes.responses import Responses

FINGERPRINT = "vllm-0.32.0-fake"
NOT_TRANSFERRED: dict[str, Any] = {"kv_transfer_params": None, "ec_transfer_params": None}
EMPTY = ("instructions", "metadata", "max_tool_calls", "previous_response_id", "prompt", "reasoning", "text")
EMPTY += ("top_logprobs", "user", "input_messages", "output_messages")
NO_PROMPT: dict[str, Any] = {"prompt_token_ids": None, "prompt_text": None}


class VllmChat(Chat):
    """Chat."""

    reasoning = "reasoning"

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.details = False  # of the prompt's tokens

    def opening(self) -> list[Event]:
        chunk = super().chunk({"role": "assistant", "content": ""}, None)
        return [(None, chunk | NO_PROMPT)]

    def chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        if finish_reason is not None:  # comes with the last token; here that is sent already
            delta = {"reasoning" if self.answer.reasoned == self.answer.sent > 0 else "content": ""}
        chunk = super().chunk(delta, finish_reason)
        more = {"token_ids": None} if finish_reason is None else {"stop_reason": None, "token_ids": None}
        chunk["choices"][0] |= more
        return chunk

    def closing(self, usage_on_finish: bool) -> list[Event]:
        *events, (name, last) = super().closing(usage_on_finish)
        return [*events, (name, last | {"system_fingerprint": FINGERPRINT})]

    def choice(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"refusal": None, "annotations": None, "audio": None, "function_call": None}
        message = {"role": "assistant", "content": self.answer.text or None} | empty
        if self.answer.tool_calls:
            message["tool_calls"] = self.answer.tool_calls
        return {"index": 0, "message": message | {"reasoning": self.answer.reasoning or None}}

    def whole(self) -> dict[str, Any]:
        answer = super().whole()
        answer["choices"][0] |= {"stop_reason": None, "token_ids": None, "routed_experts": None}
        answer["usage"] |= self._details()
        said = {"service_tier": None, "system_fingerprint": FINGERPRINT}
        return answer | said | {"prompt_logprobs": None} | NO_PROMPT | NOT_TRANSFERRED | {"metrics": None}

    def usage(self) -> dict[str, Any]:
        answer = self.answer
        usage: dict[str, Any] = {
            "prompt_tokens": answer.prompt_tokens,
            "total_tokens": answer.prompt_tokens + answer.sent,
            "completion_tokens": answer.sent,
        }
        return usage | {name: value for name, value in self._details().items() if value is not None}

    def _details(self) -> dict[str, Any]:
        """The parts of usage: null in whole answers, missing in streams, unless there is something to say."""
        answer = self.answer
        cached = {"cached_tokens": answer.cached_tokens, "created_cache_tokens": 0, "multimodal_tokens": None}
        return {
            "prompt_tokens_details": cached if self.details else None,
            "completion_tokens_details": {"reasoning_tokens": answer.reasoned} if answer.reasoned else None,
        }


class VllmCompletion(Completion, VllmChat):
    """Text; its last token comes with the finish reason, as does chat's."""

    def opening(self) -> list[Event]:
        return []

    def chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        chunk = Completion.chunk(self, delta, finish_reason)
        chunk["choices"][0] |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
        return chunk

    def choice(self) -> dict[str, Any]:
        return Completion.choice(self)

    def whole(self) -> dict[str, Any]:
        answer = VllmChat.whole(self)
        answer["choices"][0] |= {"prompt_logprobs": None, "prompt_token_ids": None}
        return {name: value for name, value in answer.items() if not name.startswith("prompt_")}


class VllmMessages(Messages):
    """Messages, with the ids of chat; the cache shows only where it is told to."""

    prefix = "chatcmpl-"

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.details = False

    def usage(self) -> dict[str, Any]:
        answer = self.answer
        if self.details:
            return super().usage()
        return {"input_tokens": answer.prompt_tokens, "output_tokens": answer.sent}


class VllmResponses(Responses):
    """Responses: the last event is `response.completed` also where the limit cut the answer."""

    text_part: ClassVar[dict[str, Any]] = {"annotations": [], "type": "output_text", "logprobs": None}
    of_text: ClassVar[dict[str, Any]] = {"logprobs": []}

    def last(self) -> str:
        return "response.completed"

    def first_part(self) -> dict[str, Any]:
        return super().first_part() | {"logprobs": []}

    def message(self, id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return super().message(id, status, content) | {"phase": None}

    def response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        asked = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        fixed = {"background": False, "service_tier": "auto", "truncation": "disabled"}
        empty = dict.fromkeys(EMPTY)
        return super().response(status, output) | asked | fixed | empty | NOT_TRANSFERRED

    def usage(self) -> dict[str, Any]:
        usage = super().usage()
        usage["input_tokens_details"] |= {
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        }
        usage["output_tokens_details"] |= {
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        }
        return usage
