"""How each kind of engine looks on the wire; the shapes are those of recorded answers."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from tests.fakes.answer import Answer, count_tokens, prompt_text
from tests.fakes.options import Options
from tests.fakes.slots import Records, Slots
from tests.fakes.wire import Headers, Request, Response, json_response


class OpenAI:
    """An engine of which nothing is known but the OpenAI routes."""

    name: ClassVar[str] = "openai"
    headers: ClassVar[Headers] = []
    checks_model: ClassVar[bool] = True

    def __init__(self, options: Options, slots: Slots, records: Records) -> None:
        self.options = options
        self.slots = slots
        self.records = records
        self.started = int(time.time())

    @property
    def models(self) -> list[str]:
        """The models it lists."""
        return self.options.model or ["fake-model"]

    def loading(self) -> Response:
        """What it says to everything while it loads."""
        return self.error(503, "The model is not loaded yet", "unavailable_error")

    def error(self, status: int, message: str, kind: str, **more: Any) -> Response:
        """Its error form."""
        error = {"message": message, "type": kind, "param": None, "code": None} | more
        return json_response({"error": error}, status)

    def model_not_found(self, model: str) -> Response:
        """A model it does not serve."""
        return self.error(
            404,
            f"The model `{model}` does not exist",
            "not_found_error",
            code="model_not_found",
            param="model",
        )

    def overlength(self, tokens: int) -> Response:
        """A prompt that its context does not hold."""
        limit = self.options.context_tokens
        message = f"This model's maximum context length is {limit} tokens. Your prompt has {tokens} tokens."
        return self.error(
            400, message, "invalid_request_error", code="context_length_exceeded", param="messages"
        )

    def other(self, request: Request, body: dict[str, Any]) -> Response:
        """Every route that is not a completion."""
        if (request.method, request.path) == ("GET", "/v1/models"):
            data = [self.model(name) for name in self.models]
            return json_response({"object": "list", "data": data})
        return self.error(404, "Not Found", "not_found_error")

    def model(self, name: str) -> dict[str, Any]:
        """One entry of the model list."""
        return {"id": name, "object": "model", "created": self.started, "owned_by": "fake"}

    def chunk(self, answer: Answer, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        """One event of a stream."""
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": delta} if answer.chat else {"text": delta.get("content", "")}
        choice |= {"logprobs": None, "finish_reason": finish_reason}
        return self._envelope(answer, ".chunk") | {"choices": [choice]}

    def opening(self, answer: Answer) -> list[dict[str, Any]]:
        """The events before the first token."""
        return [self.chunk(answer, {"role": "assistant", "content": ""}, None)] if answer.chat else []

    def closing(self, answer: Answer, usage_on_finish: bool) -> list[dict[str, Any]]:
        """The events after the last token."""
        finish = self.chunk(answer, {}, answer.finish_reason)
        if usage_on_finish:
            return [finish | {"usage": answer.usage}]
        if answer.wants_usage:
            return [finish, self._envelope(answer, ".chunk") | {"choices": [], "usage": answer.usage}]
        return [finish]

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choice: dict[str, Any] = {"index": 0}
        if answer.chat:
            message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
            if answer.reasoning:
                message["reasoning_content"] = answer.reasoning
            if answer.tool_calls:
                message["tool_calls"] = answer.tool_calls
            choice["message"] = message
        else:
            choice["text"] = answer.text
        choice |= {"logprobs": None, "finish_reason": answer.finish_reason}
        return self._envelope(answer, "") | {"choices": [choice], "usage": answer.usage}

    def _envelope(self, answer: Answer, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if answer.chat else "text_completion"
        return {"id": answer.id, "object": kind, "created": answer.created, "model": answer.model}


class LlamaCpp(OpenAI):
    """llama-server: slots and context per slot in /props, `timings` on every answer."""

    name = "llamacpp"
    headers: ClassVar[Headers] = [("Server", "llama.cpp")]
    checks_model = False

    def loading(self) -> Response:
        return self.error(503, "Loading model", "unavailable_error")

    def error(self, status: int, message: str, kind: str, **more: Any) -> Response:
        return json_response({"error": {"code": status, "message": message, "type": kind} | more}, status)

    def overlength(self, tokens: int) -> Response:
        limit = self.options.context_tokens
        message = f"request ({tokens} tokens) exceeds the available context size ({limit} tokens)"
        message += ", try increasing it"
        return self.error(400, message, "exceed_context_size_error", n_prompt_tokens=tokens, n_ctx=limit)

    def other(self, request: Request, body: dict[str, Any]) -> Response:
        context = self.options.context_tokens
        match request.method, request.path:
            case "GET", "/health" | "/v1/health":
                return json_response({"status": "ok"})
            case "GET", "/props":
                return json_response(
                    {
                        "default_generation_settings": {"params": {}, "n_ctx": context},
                        "total_slots": self.slots.total,
                        "model_alias": self.models[0],
                        "model_path": "model.gguf",
                        "endpoint_slots": True,
                        "endpoint_metrics": True,
                        "build_info": "b0-fake",
                        "is_sleeping": False,
                    }
                )
            case "GET", "/slots":
                busy = set(self.slots.running.values())
                slots = range(self.slots.total)
                return json_response(
                    [
                        {"id": i, "n_ctx": context, "speculative": False, "is_processing": i in busy}
                        for i in slots
                    ]
                )
            case "GET", "/metrics":
                started = ("Process-Start-Time-Unix", str(self.started))
                return Response(200, self._metrics(), [started], "text/plain; version=0.0.4")
            case "POST", "/tokenize":
                text = str(body.get("content", ""))
                return json_response({"tokens": list(range(count_tokens(text)))})
            case "POST", "/v1/chat/completions/input_tokens":
                tokens = count_tokens(prompt_text(body))
                return json_response({"input_tokens": tokens, "object": "response.input_tokens"})
            case "GET", "/v1/models" | "/models":
                data = [self.model(name) for name in self.models]
                models = [{"name": name, "model": name} for name in self.models]
                return json_response({"models": models, "object": "list", "data": data})
        return json_response(
            {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}, 404
        )

    def model(self, name: str) -> dict[str, Any]:
        meta = {"n_ctx": self.options.context_tokens, "n_ctx_train": 1_048_576}
        return {"id": name, "object": "model", "created": self.started, "owned_by": "llamacpp", "meta": meta}

    def chunk(self, answer: Answer, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        if answer.chat:
            choice = {"finish_reason": finish_reason, "index": 0, "delta": delta}
        else:
            text = delta.get("content", "")
            choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish_reason}
        return {"choices": [choice]} | self._envelope(answer, ".chunk")

    def opening(self, answer: Answer) -> list[dict[str, Any]]:
        return [self.chunk(answer, {"role": "assistant", "content": None}, None)] if answer.chat else []

    def closing(self, answer: Answer, usage_on_finish: bool) -> list[dict[str, Any]]:
        finish = self.chunk(answer, {}, answer.finish_reason)
        timings = {"timings": self._timings(answer)}
        usage = {"usage": answer.usage}
        if usage_on_finish or (answer.wants_usage and not answer.chat):
            return [finish | usage | timings]
        if answer.wants_usage:
            return [finish, {"choices": []} | self._envelope(answer, ".chunk") | usage | timings]
        return [finish | timings]

    def whole(self, answer: Answer) -> dict[str, Any]:
        return super().whole(answer) | {"timings": self._timings(answer)}

    def _envelope(self, answer: Answer, suffix: str) -> dict[str, Any]:
        return {
            "created": answer.created,
            "id": answer.id,
            "model": answer.model,
            "system_fingerprint": "b0-fake",
            "object": f"chat.completion{suffix}" if answer.chat else "text_completion",
        }

    def _timings(self, answer: Answer) -> dict[str, Any]:
        prompt = answer.prompt_tokens - answer.cached_tokens
        return {
            "cache_n": answer.cached_tokens,
            **_rates("prompt", prompt, answer.prefill_seconds),
            **_rates("predicted", answer.sent, answer.decode_seconds),
        }

    def _metrics(self) -> bytes:
        tokens = self.records.tokens
        figures = {
            "prompt_tokens_total": ("counter", tokens["prompt"]),
            "prompt_tokens_cached_total": ("counter", tokens["cached"]),
            "tokens_predicted_total": ("counter", tokens["completion"]),
            "requests_processing": ("gauge", len(self.slots.running)),
            "requests_deferred": ("gauge", len(self.slots.waiting)),
        }
        return "".join(
            f"# HELP llamacpp:{name} {name}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"
            for name, (kind, value) in figures.items()
        ).encode()


def _rates(name: str, tokens: int, seconds: float) -> dict[str, float]:
    milliseconds = max(seconds * 1000, 0.001)
    return {
        f"{name}_n": tokens,
        f"{name}_ms": milliseconds,
        f"{name}_per_token_ms": milliseconds / max(1, tokens),
        f"{name}_per_second": tokens * 1000 / milliseconds,
    }


PERSONALITIES: dict[str, type[OpenAI]] = {kind.name: kind for kind in (OpenAI, LlamaCpp)}
