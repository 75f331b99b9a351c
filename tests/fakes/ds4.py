"""ds4: upstream, which tells nothing of its slots, and the batching fork, which tells all in /v1/stats.

Both send a stream's head when the prefill begins, and comments while it lasts; both close each connection.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Literal

from tests.fakes.answer import Answer
from tests.fakes.chat import Chat, Completion, Event
from tests.fakes.exposition import family, labels, text
from tests.fakes.messages import Messages
from tests.fakes.openai import OpenAI, Refusal
from tests.fakes.responses import Responses
from tests.fakes.routes import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.fakes.slots import Record
from tests.fakes.warmth import Kind
from tests.fakes.wire import Request, Response

ANTHROPIC_TYPES = {429: "rate_limit_error", 503: "overloaded_error"}


class Ds4Chat(Chat):
    """Chat of upstream."""

    def usage(self) -> dict[str, Any]:
        usage = super().usage()
        usage["prompt_tokens_details"]["cache_write_tokens"] = 0
        return usage


class Ds4Completion(Completion, Ds4Chat):
    """Text of upstream."""


class ForkChat(Ds4Chat):
    """Chat of the fork: `timings` beside usage, in its chunk and in whole answers."""

    def usage_events(self) -> list[Event]:
        timings = {"timings": timings_of(self.answer)}
        return [(name, chunk | timings) for name, chunk in super().usage_events()]

    def whole(self) -> dict[str, Any]:
        return super().whole() | {"timings": timings_of(self.answer)}


class ForkCompletion(Completion, ForkChat):
    """Text of the fork."""


class Ds4Upstream(OpenAI):
    """Five routes and not one more; one request after the other, the rest waits without a word."""

    name = "ds4-upstream"
    owner = "ds4.c"
    json_type = "application/json"
    forms: ClassVar = {
        CHAT: Ds4Chat,
        COMPLETIONS: Ds4Completion,
        RESPONSES: Responses,
        MESSAGES: Messages,
    }
    refusals: ClassVar = {"shutdown": Refusal(503, "server shutting down", "server_error")}
    closes = True
    reads_chunked = False
    head: ClassVar[Literal["arrival", "prefill", "token"]] = "prefill"
    comment_seconds: ClassVar[float | None] = 5.0
    length_at_arrival = True
    error_name = True
    sees_leaving = False

    def knows(self, model: object) -> bool:
        return True

    def full(self, record: Record) -> str:
        return ""

    def error(self, route: str, status: int, message: str, kind: str, **more: Any) -> Response:
        if route == MESSAGES:
            kind = ANTHROPIC_TYPES.get(status, kind)
            figures = {name: value for name, value in more.items() if name.startswith("n_")}
            return self.json({"type": "error", "error": {"type": kind, "message": message} | figures}, status)
        return self.json({"error": {"message": message, "type": kind} | more}, status)

    def overlength(self, route: str, tokens: int) -> Response:
        limit = self.options.context_tokens
        message = f"Prompt has {tokens} tokens, but the configured context size is {limit} tokens"
        parameter = {COMPLETIONS: "prompt", RESPONSES: "input"}.get(route, "messages")
        more = {
            "param": parameter,
            "code": "context_length_exceeded",
            "n_prompt_tokens": tokens,
            "n_ctx": limit,
        }
        return self.error(route, 400, message, "invalid_request_error", **more)

    def stream_error(self, route: str) -> dict[str, Any]:
        if route == MESSAGES:
            return super().stream_error(route)
        return {"error": {"message": "it broke", "type": "server_error"}}

    def unknown(self, request: Request) -> Response:
        return self.error(CHAT, 404, "unknown endpoint", "invalid_request_error")

    def other(self, request: Request, body: dict[str, Any]) -> Response:
        name = request.path.removeprefix("/v1/models/")
        if request.method == "GET" and name in self.models:
            return self.json(self.model(name))
        return super().other(request, body)

    def model(self, name: str) -> dict[str, Any]:
        limit = self.options.context_tokens
        more = {"context_length": limit, "top_provider": {"max_completion_tokens": limit}}
        return super().model(name) | more


class Ds4(Ds4Upstream):
    """The fork: banks, refusals with Retry-After, a page of figures that is never refused."""

    name = "ds4"
    warm: ClassVar[Kind] = "bank"
    sees_leaving = True
    forms: ClassVar = {
        CHAT: ForkChat,
        COMPLETIONS: ForkCompletion,
        RESPONSES: Responses,
        MESSAGES: Messages,
    }
    refusals: ClassVar = {
        "clients": Refusal(503, "server connection capacity reached; retry later", "server_error", 10),
        "queue_depth": Refusal(429, "request queue is full; retry later", "rate_limit_error", 5),
        "queue_bytes": Refusal(429, "request queue is full; retry later", "rate_limit_error", 5),
        "queue_age": Refusal(503, "request waited over the 600s limit; retry later", "server_error", 5),
        "continuation_hold": Refusal(
            503, "all banks are held for tool turns; retry later", "server_error", 5
        ),
        "memory": Refusal(503, "not enough memory for this request now; retry later", "server_error", 5),
        "continuation": Refusal(409, "continuation state is not available", "invalid_request_error"),
        "shutdown": Refusal(503, "server shutting down", "server_error"),
    }

    def keepalive(self, route: str) -> tuple[str | None, dict[str, Any]] | None:
        match route:
            case "/v1/messages":
                return "ping", {"type": "ping"}
            case "/v1/responses":
                return "response.in_progress", {"type": "response.in_progress", "response": {}}
        return None

    def full(self, record: Record) -> str:
        slots, limit = self.slots, self.options.queue_limit
        if limit is not None and len(slots.waiting) >= limit and slots.concurrent >= slots.total:
            return "queue_depth"
        funded = sum(other.budget for other in (*slots.running, *slots.waiting))
        if self.options.kv_tokens and funded + record.budget > self.options.kv_tokens:
            return "memory"
        return ""

    def other(self, request: Request, body: dict[str, Any]) -> Response:
        match request.method, request.path:
            case "GET", "/v1/stats":
                stats = self._stats()
                if "application/json" in request.header("accept"):
                    return self.json(stats)
                return Response(200, _info(stats), list(self.headers), "text/plain")
            case "GET", "/metrics":
                return Response(200, self._metrics(), list(self.headers), "text/plain; version=0.0.4")
        return super().other(request, body)

    @property
    def uptime_seconds(self) -> float:
        """Since its start; less than before means another process."""
        return time.monotonic() - self.booted

    def _stats(self) -> dict[str, dict[str, Any]]:
        tokens, slots = self.records.tokens, self.slots
        drafts, hits = self.options.drafted(tokens["completion"])
        return {
            "server": {
                "model": self.models[0],
                "context": self.options.context_tokens,
                "max_seq": slots.total,
                "uptime_seconds": int(self.uptime_seconds),
                "requests_inflight": slots.concurrent,
            },
            "serving": {
                "requests_started": self.records.received,
                "requests_completed": self.records.outcomes["completed"],
                "requests_canceled": self.records.outcomes["aborted"],
                "requests_refused_deep_serial": 0,
                "tokens_decoded": tokens["completion"],
                "decode_tok_s_60s": 0.0,
                "tok_per_step_60s": 1.0,
            },
            "sheds": dict(self.refused),
            "backpressure": {
                "clients_connected": slots.concurrent,
                "queue_depth": len(slots.waiting),
                "inflight_body_bytes": 0,
                "out_backlog_bytes": 0,
            },
            "speculation": {
                "spec_drafts": drafts,
                "spec_hits": hits,
                "spec_accept_ratio": hits / drafts if drafts else 0.0,
                "spec_quench_events": 0,
            },
            "cache": {
                "tokens_prefilled_computed": tokens["prompt"],
                "tokens_prefilled_cached": tokens["cached"],
                "cont_admit_rejects": self.refused["memory"],
                "graph_fit_refusals": 0,
                "banks_live": len(slots.running),
                "banks_total": slots.total,
            },
        }

    def _metrics(self) -> bytes:
        stats = self._stats()
        server, cache, speculation = stats["server"], stats["cache"], stats["speculation"]
        gauges = {
            "banks_total": cache["banks_total"],
            "banks_live": cache["banks_live"],
            "requests_inflight": server["requests_inflight"],
            "queue_depth": stats["backpressure"]["queue_depth"],
            "clients_connected": stats["backpressure"]["clients_connected"],
            "spec_accept_ratio": speculation["spec_accept_ratio"],
            "uptime_seconds": server["uptime_seconds"],
        }
        outcomes = self.records.outcomes
        prefilled = [
            (labels(kind=kind), cache[f"tokens_prefilled_{kind}"]) for kind in ("computed", "cached")
        ]
        requests = [
            (labels(outcome="completed"), outcomes["completed"]),
            (labels(outcome="canceled"), outcomes["aborted"]),
        ]
        shed = [(labels(reason=kind), self.refused[kind]) for kind in self.refusals if "queue" in kind]
        rejected = (labels(lane="batch", reason="live_headroom"), self.refused["memory"])
        return text(
            [
                *(family(f"ds4_{name}", "gauge", name, ("", value)) for name, value in gauges.items()),
                family("ds4_spec_drafts_total", "counter", "Drafted.", ("", speculation["spec_drafts"])),
                family("ds4_spec_hits_total", "counter", "Accepted.", ("", speculation["spec_hits"])),
                family("ds4_tokens_prefilled_total", "counter", "Prompts.", *prefilled),
                family("ds4_requests_total", "counter", "Requests.", *requests),
                family("ds4_requests_shed_total", "counter", "Shed.", *shed),
                family("ds4_requests_rejected_total", "counter", "Rejected.", rejected),
            ]
        )


def timings_of(answer: Answer) -> dict[str, Any]:
    """Times and speeds; what is not known is left out."""
    computed = answer.prompt_tokens - answer.cached_tokens
    known: dict[str, Any] = {
        "ttft_ms": round(answer.prefill_seconds * 1000, 3),
        "prefill_tokens": computed,
        "prefill_cached_tokens": answer.cached_tokens,
    }
    if answer.prefill_seconds:
        known["prefill_tok_s"] = computed / answer.prefill_seconds
    if answer.decode_seconds:
        known["decode_tok_s"] = answer.sent / answer.decode_seconds
    return known


def _info(stats: dict[str, dict[str, Any]]) -> bytes:
    """The figures as sections of `name:value` lines."""
    sections = (
        "\r\n".join([f"# {name}", *(f"{key}:{value}" for key, value in figures.items())])
        for name, figures in stats.items()
    )
    return ("\r\n\r\n".join(sections) + "\r\n").encode()
