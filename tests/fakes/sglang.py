"""SGLang 0.5: its errors are flat, its slots stand in /server_info, and limits must fit beside prompts."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.fakes.answer import Answer
from tests.fakes.chat import Chat, Completion
from tests.fakes.exposition import family, labels, text
from tests.fakes.messages import Messages
from tests.fakes.openai import OpenAI, Refusal
from tests.fakes.prompt import count_tokens, limit_asked, prompt_text
from tests.fakes.responses import Responses
from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES, TOKENIZE
from tests.fakes.slots import Record
from tests.fakes.warmth import Kind
from tests.fakes.wire import EVENTS, Headers, Request, Response

VERSION = "0.5.23"
ANTHROPIC_TYPES = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}


class SglangChat(Chat):
    """Chat: every delta has all its members, most of them null."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.details = False  # of the prompt's tokens

    def chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        members: dict[str, Any] = {"role": None, "content": None, "reasoning_content": None}
        chunk = super().chunk(members | delta, finish_reason)
        chunk["choices"][0]["matched_stop"] = None
        return chunk | {"usage": None}

    def choice(self) -> dict[str, Any]:
        choice = super().choice()
        choice["message"].setdefault("reasoning_content", None)
        return choice | {"matched_stop": None}

    def whole(self) -> dict[str, Any]:
        return super().whole() | {"metadata": {"weight_version": "default"}}

    def usage(self) -> dict[str, Any]:
        answer = self.answer
        return {
            "prompt_tokens": answer.prompt_tokens,
            "total_tokens": answer.prompt_tokens + answer.sent,
            "completion_tokens": answer.sent,
            "prompt_tokens_details": {"cached_tokens": answer.cached_tokens} if self.details else None,
            "reasoning_tokens": answer.reasoned,
        }


class SglangCompletion(Completion, SglangChat):
    """Text."""

    def chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        chunk = Completion.chunk(self, delta, finish_reason)
        chunk["choices"][0]["matched_stop"] = None
        return chunk | {"usage": None}

    def choice(self) -> dict[str, Any]:
        return Completion.choice(self) | {"matched_stop": None}


class Sglang(OpenAI):
    """Its routes and its words."""

    name = "sglang"
    owner = "sglang"
    warm: ClassVar[Kind] = "block"
    headers: ClassVar[Headers] = [("Server", "uvicorn")]
    json_type = "application/json"
    stream_type = f"{EVENTS}; charset=utf-8"
    forms: ClassVar = {
        CHAT: SglangChat,
        COMPLETIONS: SglangCompletion,
        RESPONSES: Responses,
        MESSAGES: Messages,
    }
    refusals: ClassVar = {
        "queue": Refusal(503, "The request queue is full.", "503"),
    }
    length_at_arrival = True
    done_after_error = True

    def knows(self, model: object) -> bool:
        return True

    def form(self, route: str, answer: Answer, body: dict[str, Any]) -> Any:
        form = super().form(route, answer, body)
        if isinstance(form, SglangChat):
            form.details = self.options.usage_details
        return form

    # -- what it refuses

    def error(self, route: str, status: int, message: str, kind: str, **more: Any) -> Response:
        if route.startswith(MESSAGES):
            kind = ANTHROPIC_TYPES.get(status, "api_error")
            words = "Internal server error" if status >= 500 else message
            return super().error(route, status, words, kind)
        error = {"message": message, "type": kind, "param": None, "code": status}
        if route == RESPONSES:
            return self.json({"error": error}, status)
        return self.json({"object": "error"} | error, status)

    def overlength(self, route: str, tokens: int) -> Response:
        limit = self.options.context_tokens
        message = f"The input ({tokens} tokens) is longer than the model's context length ({limit} tokens)."
        return self.error(route, 400, message, "BadRequestError")

    def invalid(self, route: str, body: dict[str, Any], prompt_tokens: int) -> Response | None:
        asked, limit = limit_asked(body), self.options.context_tokens
        if asked is None or prompt_tokens + asked <= limit:
            return None
        message = (
            f"Requested token count exceeds the model's maximum context length of {limit} tokens. "
            f"You requested a total of {prompt_tokens + asked} tokens: {prompt_tokens} tokens from the "
            f"input messages and {asked} tokens for the completion. Please reduce the number of tokens in "
            "the input messages or the completion to fit within the limit."
        )
        return self.error(route, 400, message, "BadRequestError")

    def full(self, record: Record) -> str:
        slots, limit = self.slots, self.options.queue_limit
        full = limit is not None and len(slots.waiting) >= limit and slots.concurrent >= slots.total
        return "queue" if full else ""

    def refused_in_stream(self, kind: str, route: str) -> dict[str, Any] | None:
        if route not in (CHAT, COMPLETIONS):
            return None
        self.refused[kind] += 1
        refusal = self.refusals[kind]
        return self._streamed(refusal.message, "SERVICE_UNAVAILABLE", refusal.status)

    def stream_error(self, route: str) -> dict[str, Any]:
        if route == MESSAGES:
            return super().stream_error(route)
        return self._streamed("it broke", "INTERNAL_SERVER_ERROR", 500)

    @staticmethod
    def _streamed(message: str, kind: str, code: int) -> dict[str, Any]:
        """An error in a stream is not flat."""
        return {"error": {"object": "error", "message": message, "type": kind, "param": None, "code": code}}

    # -- what else it answers

    def other(self, request: Request, body: dict[str, Any]) -> Response:
        match request.method, request.path:
            case "GET", "/health" | "/health_generate" | "/ready":
                return Response(200, b"", list(self.headers), "")
            case "GET", "/server_info" | "/get_server_info":
                return self.json(self._server_info())
            case "GET", "/v1/loads":
                return self.json({"version": VERSION, "loads": [self._load()]})
            case "GET", "/model_info" | "/get_model_info":
                return self.json({"model_path": self.models[0], "is_generation": True})
            case "GET", "/metrics":
                return Response(
                    200, self._metrics(), list(self.headers), "text/plain; version=0.0.4; charset=utf-8"
                )
            case "POST", path if path in (TOKENIZE, "/v1/tokenize"):
                count, limit = count_tokens(prompt_text(body)), self.options.context_tokens
                return self.json({"tokens": list(range(count)), "count": count, "max_model_len": limit})
            case "POST", path if path == COUNT_TOKENS:
                return self.json({"input_tokens": count_tokens(prompt_text(body))})
        return super().other(request, body)

    def unknown(self, request: Request) -> Response:
        return self.json({"detail": "Not Found"}, 404)

    def model(self, name: str) -> dict[str, Any]:
        return super().model(name) | {
            "root": name,
            "parent": None,
            "max_model_len": self.options.context_tokens,
        }

    def _load(self) -> dict[str, Any]:
        """The one rank's load, made for routers."""
        slots = self.slots
        load: dict[str, Any] = {
            "dp_rank": 0,
            "num_running_reqs": len(slots.running),
            "num_waiting_reqs": len(slots.waiting),
            "num_used_tokens": slots.held,
            "max_total_num_tokens": self.kv_tokens,
            "max_running_requests": slots.total,
            "token_usage": min(1.0, slots.held / self.kv_tokens),
        }
        if self.options.spec_accept:
            load["speculative"] = {"accept_rate": self.options.spec_accept}
        return load

    def _server_info(self) -> dict[str, Any]:
        state = {
            "effective_max_running_requests_per_dp": self.slots.total,
            "last_gen_throughput": 0.0,
            "memory_usage": {"weight": 1.0, "kvcache": 1.0, "token_capacity": self.kv_tokens, "graph": 0},
        }
        if self.options.spec_accept:
            state["avg_spec_accept_length"] = 1 + self.options.spec_accept
        return {
            "model_path": self.models[0],
            "served_model_name": self.models[0],
            "context_length": self.options.context_tokens,
            "max_total_num_tokens": self.kv_tokens,
            "startup_time": {"load_weight": 1.0, "scheduler_e2e": 10 + self.started % 1000 / 100},
            "internal_states": [state],
            "version": VERSION,
            "frontend": "python",
        }

    def _metrics(self) -> bytes:
        slots, tokens = self.slots, self.records.tokens
        own = labels(model_name=self.models[0], tp_rank=0)
        gauges = {
            "num_running_reqs": len(slots.running),
            "num_queue_reqs": len(slots.waiting),
            "token_usage": min(1.0, slots.held / self.kv_tokens),
            "max_total_num_tokens": self.kv_tokens,
            "spec_accept_rate": self.options.spec_accept,
        }
        counters = {
            "prompt_tokens_total": tokens["prompt"] + tokens["cached"],
            "cached_tokens_total": tokens["cached"],
            "generation_tokens_total": tokens["completion"],
            "num_retracted_requests_total": slots.preemptions,
        }
        return text(
            [
                *(
                    family(f"sglang:{name}", "gauge", name, (own, float(value)))
                    for name, value in gauges.items()
                ),
                *(
                    family(f"sglang:{name}", "counter", name, (own, float(value)))
                    for name, value in counters.items()
                ),
            ]
        )
