"""llama-server: slots and context per slot in /props, `timings` on every answer."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.fakes.answer import Answer
from tests.fakes.chat import Chat, Completion, Event
from tests.fakes.exposition import family, text
from tests.fakes.messages import Messages
from tests.fakes.openai import OpenAI
from tests.fakes.prompt import count_tokens, prompt_text
from tests.fakes.responses import Responses
from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from tests.fakes.wire import Headers, Request, Response

BUILD = "b0-fake"


class LlamaCppChat(Chat):
    """The members in its order, no `logprobs`, and `timings` on the last chunk."""

    def opening(self) -> list[Event]:
        return [(None, self.chunk({"role": "assistant", "content": None}, None))]

    def closing(self, usage_on_finish: bool) -> list[Event]:
        finish = self.chunk({}, self.answer.finish_reason)
        timings = {"timings": timings_of(self.answer)}
        if usage_on_finish:
            return [(None, finish | {"usage": self.usage()} | timings)]
        if not self.answer.wants_usage:
            return [(None, finish | timings)]
        usage = {"choices": []} | self.envelope(self.chunk_object) | {"usage": self.usage()}
        return [(None, finish), (None, usage | timings)]

    def whole(self) -> dict[str, Any]:
        choice = {"finish_reason": self.answer.finish_reason} | self.choice()
        tail = {"usage": self.usage(), "timings": timings_of(self.answer)}
        return {"choices": [choice]} | self.envelope(self.object) | tail

    def chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"finish_reason": finish_reason, "index": 0, "delta": delta}
        return {"choices": [choice]} | self.envelope(self.chunk_object)

    def envelope(self, kind: str) -> dict[str, Any]:
        return ordered(super().envelope(kind))


class LlamaCppCompletion(Completion):
    """The same, with usage on the finish chunk itself."""

    prefix = "chatcmpl-"

    def closing(self, usage_on_finish: bool) -> list[Event]:
        finish = self.chunk({}, self.answer.finish_reason)
        usage = {"usage": self.usage()} if usage_on_finish or self.answer.wants_usage else {}
        return [(None, finish | usage | {"timings": timings_of(self.answer)})]

    def whole(self) -> dict[str, Any]:
        return super().whole() | {"timings": timings_of(self.answer)}

    def envelope(self, kind: str) -> dict[str, Any]:
        return ordered(super().envelope(kind))


class LlamaCppMessages(Messages):
    """Ids of chat, and no count of what the cache took in."""

    prefix = "chatcmpl-"

    def usage(self) -> dict[str, Any]:
        usage = super().usage()
        del usage["cache_creation_input_tokens"]
        return usage

    def last_usage(self) -> dict[str, Any]:
        return {"output_tokens": self.answer.sent}

    def whole(self) -> dict[str, Any]:
        return super().whole() | {"stop_sequence": None}


class LlamaCppResponses(Responses):
    """Few members and no numbers, and completed also where the limit cut it."""

    text_part: ClassVar[dict[str, Any]] = {"type": "output_text", "annotations": [], "logprobs": []}
    unsaid: ClassVar[frozenset[str]] = frozenset({"sequence_number", "output_index", "content_index"})

    def opening(self) -> list[Event]:
        begun = {"id": f"resp_{self.answer.number}", "object": "response", "status": "in_progress"}
        return [(name, event | {"response": begun}) for name, event in super().opening()]

    def closing(self, usage_on_finish: bool) -> list[Event]:
        *events, (name, last) = super().closing(usage_on_finish)
        last["response"].pop("completed_at")
        return [*events, (name, last | {"timings": timings_of(self.answer)})]

    def first_part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": ""}

    def status(self) -> str:
        return "completed"

    def response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        answer = self.answer
        begun = {"created_at": answer.created, "id": f"resp_{answer.number}", "model": answer.model}
        ended = {"completed_at": answer.created} if status == "completed" else {}
        return ended | begun | {"object": "response", "output": list(output), "status": status}

    def usage(self) -> dict[str, Any]:
        usage = super().usage()
        del usage["output_tokens_details"]
        return usage


class LlamaCpp(OpenAI):
    """Its routes and its words."""

    name = "llamacpp"
    owner = "llamacpp"
    headers: ClassVar[Headers] = [("Server", "llama.cpp")]
    forms: ClassVar = {
        CHAT: LlamaCppChat,
        COMPLETIONS: LlamaCppCompletion,
        RESPONSES: LlamaCppResponses,
        MESSAGES: LlamaCppMessages,
    }
    refusals: ClassVar = {}

    def knows(self, model: object) -> bool:
        return True

    def full(self, record: Any) -> str:
        return ""

    def loading(self) -> Response:
        return self.error(CHAT, 503, "Loading model", "unavailable_error")

    def error(self, route: str, status: int, message: str, kind: str, **more: Any) -> Response:
        return self.json({"error": {"code": status, "message": message, "type": kind} | more}, status)

    def overlength(self, route: str, tokens: int) -> Response:
        limit = self.options.context_tokens
        message = f"request ({tokens} tokens) exceeds the available context size ({limit} tokens)"
        message += ", try increasing it"
        figures = {"n_prompt_tokens": tokens, "n_ctx": limit}
        return self.error(route, 400, message, "exceed_context_size_error", **figures)

    def unknown(self, request: Request) -> Response:
        error = {"message": "File Not Found", "type": "not_found_error", "code": 404}
        return self.json({"error": error}, 404)

    def other(self, request: Request, body: dict[str, Any]) -> Response:
        match request.method, request.path:
            case "GET", "/health" | "/v1/health":
                return self.json({"status": "ok"})
            case "GET", "/props":
                return self.json(self._props())
            case "GET", "/slots":
                return self.json(self._slots())
            case "GET", "/metrics":
                started = ("Process-Start-Time-Unix", str(self.started))
                headers = [*self.headers, started]
                return Response(200, self._metrics(), headers, "text/plain; version=0.0.4")
            case "POST", path if path == TOKENIZE:
                return self.json({"tokens": _tokens(str(body.get("content", "")), body)})
            case "POST", "/v1/chat/completions/input_tokens" | "/v1/responses/input_tokens":
                tokens = count_tokens(prompt_text(body))
                return self.json({"input_tokens": tokens, "object": "response.input_tokens"})
            case "POST", path if path == COUNT_TOKENS:
                return self.json({"input_tokens": count_tokens(prompt_text(body))})
            case "POST", path if path == EMBEDDINGS:
                words = "This server does not support embeddings. Start it with `--embeddings`"
                return self.error(EMBEDDINGS, 501, words, "not_supported_error")
            case "GET", "/v1/models" | "/models":
                models = [{"name": name, "model": name, "type": "model"} for name in self.models]
                data = [self.model(name) for name in self.models]
                return self.json({"models": models, "object": "list", "data": data})
        return self.unknown(request)

    def model(self, name: str) -> dict[str, Any]:
        meta = {"n_ctx": self.options.context_tokens, "n_ctx_train": 1_048_576}
        return super().model(name) | {"meta": meta}

    def _props(self) -> dict[str, Any]:
        return {
            "default_generation_settings": {"params": {}, "n_ctx": self.options.context_tokens},
            "total_slots": self.slots.total,
            "model_alias": self.models[0],
            "model_path": "model.gguf",
            "endpoint_slots": True,
            "endpoint_metrics": True,
            "build_info": BUILD,
            "is_sleeping": False,
        }

    def _slots(self) -> list[dict[str, Any]]:
        busy = set(self.slots.running.values())
        idle = {"n_ctx": self.options.context_tokens, "speculative": False}
        return [{"id": i} | idle | {"is_processing": i in busy} for i in range(self.slots.total)]

    def _metrics(self) -> bytes:
        tokens = self.records.tokens
        drafted, accepted = self.options.drafted(tokens["completion"])
        figures = {
            "prompt_tokens_total": ("counter", tokens["prompt"]),
            "prompt_tokens_cached_total": ("counter", tokens["cached"]),
            "tokens_predicted_total": ("counter", tokens["completion"]),
            "spec_decode_num_draft_tokens_total": ("counter", drafted),
            "spec_decode_num_accepted_tokens_total": ("counter", accepted),
            "requests_processing": ("gauge", len(self.slots.running)),
            "requests_deferred": ("gauge", len(self.slots.waiting)),
        }
        return text(
            family(f"llamacpp:{name}", kind, name, ("", value)) for name, (kind, value) in figures.items()
        )


def ordered(envelope: dict[str, Any]) -> dict[str, Any]:
    """The members as it orders them, and its build."""
    begin = {name: envelope[name] for name in ("created", "id", "model")}
    return begin | {"system_fingerprint": BUILD, "object": envelope["object"]}


def timings_of(answer: Answer) -> dict[str, Any]:
    """Tokens and speeds, always there."""
    prompt = answer.prompt_tokens - answer.cached_tokens
    return {
        "cache_n": answer.cached_tokens,
        **_rates("prompt", prompt, answer.prefill_seconds),
        **_rates("predicted", answer.sent, answer.decode_seconds),
    }


def _rates(name: str, tokens: int, seconds: float) -> dict[str, float]:
    milliseconds = max(seconds * 1000, 0.001)
    return {
        f"{name}_n": tokens,
        f"{name}_ms": milliseconds,
        f"{name}_per_token_ms": milliseconds / max(1, tokens),
        f"{name}_per_second": tokens * 1000 / milliseconds,
    }


def _tokens(content: str, body: dict[str, Any]) -> list[Any]:
    numbers = range(count_tokens(content))
    if body.get("with_pieces"):
        return [{"id": i, "piece": content[4 * i : 4 * i + 4]} for i in numbers]
    return list(numbers)
