"""vLLM 0.32: tells no slots, counts its load in /metrics, and has four forms of error."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from tests.fakes.exposition import family, labels, text
from tests.fakes.openai import OpenAI, Refusal
from tests.fakes.prompt import count_tokens, limit_asked, prompt_text
from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES, TOKENIZE
from tests.fakes.slots import Record
from tests.fakes.vllm_forms import VllmChat, VllmCompletion, VllmMessages, VllmResponses
from tests.fakes.warmth import Kind
from tests.fakes.wire import EVENTS, Headers, Request, Response

POSTED = {CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, TOKENIZE}


class Vllm(OpenAI):
    """Its routes and its words."""

    name = "vllm"
    owner = "vllm"
    warm: ClassVar[Kind] = "block"
    block_tokens = 16  # as on GPUs; 128 on the CPU
    headers: ClassVar[Headers] = [("Server", "uvicorn")]
    json_type = "application/json"
    stream_type = f"{EVENTS}; charset=utf-8"
    forms: ClassVar = {
        CHAT: VllmChat,
        COMPLETIONS: VllmCompletion,
        RESPONSES: VllmResponses,
        MESSAGES: VllmMessages,
    }
    refusals: ClassVar = {
        "queue": Refusal(
            503,
            "The engine is currently busy and cannot accept new requests. "
            "Please try again later or on a different instance.",
            "Service Unavailable",
        ),
        "draining": Refusal(500, "cannot schedule new futures after shutdown", "InternalServerError"),
    }
    head: ClassVar[Literal["arrival", "prefill", "token"]] = "arrival"  # also while it waits for a slot
    length_at_arrival = True
    done_after_error = True
    drains = True

    def knows(self, model: object) -> bool:
        return model is None or model in self.models

    def form(self, route: str, answer: Any, body: dict[str, Any]) -> Any:
        form = super().form(route, answer, body)
        if isinstance(form, VllmChat | VllmMessages):
            form.details = self.options.usage_details
        return form

    # -- what it refuses

    def error(self, route: str, status: int, message: str, kind: str, **more: Any) -> Response:
        return super().error(route, status, message, kind, **({"code": status} | more))

    def unread(self, route: str) -> Response:
        message = (
            "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.0', 'msg': 'JSON decode error'}"
        )
        return self.error(route, 400, message, "Bad Request", param="body.0")

    def model_not_found(self, route: str, model: str) -> Response:
        aliases = ", ".join(self.models)
        message = f"The model `{model}` does not exist. Valid aliases: {aliases}."
        return self.error(route, 404, message, "NotFoundError", param="model")

    def overlength(self, route: str, tokens: int) -> Response:
        limit = self.options.context_tokens
        if tokens == limit:
            return self._bad(route, "max_tokens", 0, "max_tokens must be at least 1, got 0.")
        message = (
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
            f"{limit + 1} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        return self._bad(route, "input_tokens", limit + 1, message)

    def invalid(self, route: str, body: dict[str, Any], prompt_tokens: int) -> Response | None:
        asked, limit = limit_asked(body), self.options.context_tokens
        if "stream_options" in body and body.get("stream") is not True:
            message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
            return self.error(route, 400, message, "BadRequestError", param="stream_options")
        if asked is not None and asked < 1:
            message = f"max_tokens must be at least 1, got {asked}."
            return self._bad(route, "max_tokens", asked, message)
        if asked is not None and asked > limit:
            message = f"max_tokens={asked} cannot be greater than max_model_len={limit}. "
            return self._bad(route, "max_tokens", asked, message + "Please request fewer output tokens.")
        return None

    def full(self, record: Record) -> str:
        limit = self.options.queue_limit  # here of all in flight
        return "queue" if limit is not None and self.slots.concurrent >= limit else ""

    def stream_error(self, route: str) -> dict[str, Any]:
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        if route == MESSAGES:
            return {"type": "error", "error": {"type": "InternalServerError", "message": message}}
        return {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}

    def _bad(self, route: str, parameter: str, value: int, message: str) -> Response:
        message = f"{message} (parameter={parameter}, value={value})"
        return self.error(route, 400, message, "BadRequestError", param=parameter)

    # -- what else it answers

    def other(self, request: Request, body: dict[str, Any]) -> Response:
        match request.method, request.path:
            case "GET", "/health" | "/ping":
                return Response(200, b"", list(self.headers), "")
            case "GET", "/version":
                return self.json({"version": "0.32.0"})
            case "GET", "/load":
                return self.json({"server_load": 0})  # whatever the load, without a flag
            case "GET", "/metrics":
                return Response(
                    200, self._metrics(), list(self.headers), "text/plain; version=1.0.0; charset=utf-8"
                )
            case "GET", "/server_info" if self.options.dev_mode:
                return self.json({"vllm_config": {"scheduler_config": {"max_num_seqs": self.slots.total}}})
            case "POST", path if path in (TOKENIZE, COUNT_TOKENS) and not self.knows(body.get("model")):
                return self.model_not_found(path, str(body.get("model")))
            case "POST", path if path == TOKENIZE:
                return self._tokenized(body)
            case "POST", path if path == COUNT_TOKENS:
                return self._counted(body)
        return super().other(request, body)

    def unknown(self, request: Request) -> Response:
        if request.path in POSTED:
            response = self.json({"detail": "Method Not Allowed"}, 405)
            response.headers.append(("Allow", "POST"))
            return response
        return self.json({"detail": "Not Found"}, 404)

    def model(self, name: str) -> dict[str, Any]:
        more = {"root": name, "parent": None, "max_model_len": self.options.context_tokens, "permission": []}
        return super().model(name) | more

    def _tokenized(self, body: dict[str, Any]) -> Response:
        words = prompt_text(body)
        count = count_tokens(words)
        pieces = [words[4 * i : 4 * i + 4] for i in range(count)] if body.get("return_token_strs") else None
        limit = self.options.context_tokens
        tokens = list(range(count))
        return self.json({"count": count, "max_model_len": limit, "tokens": tokens, "token_strs": pieces})

    def _counted(self, body: dict[str, Any]) -> Response:
        tokens = count_tokens(prompt_text(body))
        if tokens > self.options.context_tokens:
            return self.overlength(COUNT_TOKENS, tokens)
        return self.json({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})

    def _metrics(self) -> bytes:
        tokens, slots, mine = self.records.tokens, self.slots, {"engine": "0", "model_name": self.models[0]}
        own = labels(**mine)
        drafted, accepted = self.options.drafted(tokens["completion"])
        prompt = tokens["prompt"] + tokens["cached"]

        def by(name: str, **values: int) -> list[tuple[str, float]]:
            return [
                (labels(**dict(sorted((mine | {name: key}).items()))), float(value))
                for key, value in values.items()
            ]

        speculation = [
            ("spec_decode_num_draft_tokens_total", "counter", [(own, float(drafted))]),
            ("spec_decode_num_accepted_tokens_total", "counter", [(own, float(accepted))]),
        ]
        figures: list[tuple[str, str, list[tuple[str, float]]]] = [
            ("num_requests_running", "gauge", [(own, float(len(slots.running)))]),
            ("num_requests_waiting", "gauge", [(own, float(len(slots.waiting)))]),
            (
                "num_requests_waiting_by_reason",
                "gauge",
                by("reason", capacity=len(slots.waiting), deferred=0),
            ),
            ("kv_cache_usage_perc", "gauge", [(own, min(1.0, slots.held / self.kv_tokens))]),
            ("prefix_cache_queries_total", "counter", [(own, float(prompt))]),
            ("prefix_cache_hits_total", "counter", [(own, float(tokens["cached"]))]),
            ("num_preemptions_total", "counter", [(own, float(slots.preemptions))]),
            ("prompt_tokens_total", "counter", [(own, float(prompt))]),
            ("prompt_tokens_cached_total", "counter", [(own, float(tokens["cached"]))]),
            ("generation_tokens_total", "counter", [(own, float(tokens["completion"]))]),
            (
                "request_success_total",
                "counter",
                by("finished_reason", stop=self.records.outcomes["completed"]),
            ),
            *(speculation if drafted else ()),
        ]
        rejected = labels(model_name=self.models[0], reason="max_num_queued_reqs")
        return text(
            [
                family(
                    "process_start_time_seconds", "gauge", "Start of the process.", ("", float(self.started))
                ),
                *(family(f"vllm:{name}", kind, name, *series) for name, kind, series in figures),
                family(
                    "vllm:admission_rejections_total",
                    "counter",
                    "Refused.",
                    (rejected, self.refused["queue"]),
                ),
                family("vllm:cache_config_info", "gauge", "CacheConfig.", (self._cache_config(), 1.0)),
            ]
        )

    def _cache_config(self) -> str:
        return labels(
            block_size=self.block_tokens,
            enable_prefix_caching=self.options.prefix_cache,
            engine=0,
            kv_cache_max_concurrency=round(self.kv_tokens / self.options.context_tokens, 2),
            kv_cache_size_tokens=self.kv_tokens,
            num_gpu_blocks=self.kv_tokens // self.block_tokens,
        )
