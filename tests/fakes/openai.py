"""An engine of which nothing is known but the OpenAI routes, and what all personalities have in common."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from tests.fakes.answer import Answer
from tests.fakes.chat import Chat, Completion, Event
from tests.fakes.embeddings import Embeddings
from tests.fakes.options import Options
from tests.fakes.prompt import limit_asked
from tests.fakes.routes import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from tests.fakes.slots import Record, Records, Slots
from tests.fakes.warmth import Kind
from tests.fakes.wire import EVENTS, Headers, Request, Response, json_response

DEFAULT_TOKENS = 32_768  # charged for the answer of a request that names no limit


class Form(Protocol):
    """How one answer looks on its route."""

    done: ClassVar[bool]

    def opening(self) -> list[Event]: ...

    def token(self, delta: dict[str, Any], usage: bool) -> list[Event]: ...

    def closing(self, usage_on_finish: bool) -> list[Event]: ...

    def whole(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an engine says instead of an answer, for a reason of its own."""

    status: int
    message: str
    type: str
    retry_after: int | None = None  # seconds


class OpenAI:
    """A plain engine."""

    name: ClassVar[str] = "openai"
    owner: ClassVar[str] = "fake"  # of its models
    headers: ClassVar[Headers] = []
    json_type: ClassVar[str] = "application/json; charset=utf-8"
    stream_type: ClassVar[str] = EVENTS
    forms: ClassVar[Mapping[str, type]] = {CHAT: Chat, COMPLETIONS: Completion}
    refusals: ClassVar[Mapping[str, Refusal]] = {
        "queue": Refusal(429, "Too many requests", "rate_limit_error", 1)
    }
    closes: ClassVar[bool] = False  # after each response
    reads_chunked: ClassVar[bool] = True
    head: ClassVar[Literal["arrival", "prefill", "token"]] = "token"  # when a stream's head is sent
    comment_seconds: ClassVar[float | None] = None  # between its comments during the prefill
    length_at_arrival: ClassVar[bool] = False  # a prompt too long is refused before it waits for a slot
    done_after_error: ClassVar[bool] = False
    error_name: ClassVar[bool] = False  # `event: error` before an error in a stream of chat
    sees_leaving: ClassVar[bool] = True  # at once; else when it writes to a connection that is closed
    warm: ClassVar[Kind] = "slot"  # what keeps prompts warm
    block_tokens: ClassVar[int] = 1  # a warm prefix counts in multiples of this
    drains: ClassVar[bool] = False  # SIGTERM ends it in an orderly way

    def __init__(self, options: Options, slots: Slots, records: Records) -> None:
        self.options = options
        self.slots = slots
        self.records = records
        self.refused: Counter[str] = Counter()  # by kind
        self.started = int(time.time())
        self.booted = time.monotonic()

    # -- who it is

    @property
    def models(self) -> list[str]:
        """The models it lists."""
        return self.options.model or ["fake-model"]

    @property
    def kv_tokens(self) -> int:
        """What all running requests may hold together."""
        return self.options.kv_tokens or self.slots.total * self.options.context_tokens

    def restarted(self) -> None:
        """Look like a new process."""
        self.started += 1
        self.booted = time.monotonic()

    def serves(self, route: str) -> bool:
        """Whether it answers this client route by generating, or by embedding."""
        return route in self.forms or (route == EMBEDDINGS and self.options.embeddings)

    def knows(self, model: object) -> bool:
        """Whether a request may name this model; None: it names none."""
        return model in self.models

    def form(self, route: str, answer: Answer, body: dict[str, Any]) -> Form:
        """The form of an answer."""
        if route == EMBEDDINGS:
            return Embeddings(answer, body)
        made: Form = self.forms[route](answer)
        return made

    # -- what it refuses

    def error(self, route: str, status: int, message: str, kind: str, **more: Any) -> Response:
        """Its error form, on messages Anthropic's."""
        if route.startswith(MESSAGES):
            return self.json({"type": "error", "error": {"type": kind, "message": message}}, status)
        return self.json(
            {"error": {"message": message, "type": kind, "param": None, "code": None} | more}, status
        )

    def refuse(self, kind: str, route: str) -> Response:
        """One of its refusals, counted."""
        self.refused[kind] += 1
        refusal = self.refusals[kind]
        response = self.error(route, refusal.status, refusal.message, refusal.type)
        if refusal.retry_after is not None:
            response.headers.append(("Retry-After", str(refusal.retry_after)))
        return response

    def loading(self) -> Response:
        """What it says to everything while it loads."""
        return self.error(CHAT, 503, "The model is not loaded yet", "unavailable_error")

    def unread(self, route: str) -> Response:
        """A body that it cannot read."""
        return self.error(route, 400, "The body is not JSON", "invalid_request_error")

    def model_not_found(self, route: str, model: str) -> Response:
        """A model it does not serve."""
        more = {"code": "model_not_found", "param": "model"}
        return self.error(route, 404, f"The model `{model}` does not exist", "not_found_error", **more)

    def overlength(self, route: str, tokens: int) -> Response:
        """A prompt that its context does not hold."""
        limit = self.options.context_tokens
        message = f"This model's maximum context length is {limit} tokens. Your prompt has {tokens} tokens."
        more = {"code": "context_length_exceeded", "param": "messages"}
        return self.error(route, 400, message, "invalid_request_error", **more)

    def invalid(self, route: str, body: dict[str, Any], prompt_tokens: int) -> Response | None:
        """What else it finds wrong with a request whose prompt fits."""
        return None

    def full(self, record: Record) -> str:
        """The refusal for a request that finds too many there already; empty: there is room."""
        limit = self.options.queue_limit
        return "queue" if limit is not None and self.slots.concurrent >= self.slots.total + limit else ""

    def refused_in_stream(self, kind: str, route: str) -> dict[str, Any] | None:
        """The same to a client that streams, as an event of a stream; None: as to everybody."""
        return None

    def stream_error(self, route: str) -> dict[str, Any]:
        """An error in a stream whose head has left."""
        if route == MESSAGES:
            return {"type": "error", "error": {"type": "api_error", "message": "it broke"}}
        return {"error": {"message": "it broke", "type": "server_error", "code": 500}}

    def keepalive(self, route: str) -> tuple[str | None, dict[str, Any]] | None:
        """What a stream gets during the prefill if not a comment: an event's name and data."""
        return None

    def names_error(self, route: str) -> bool:
        """Whether `event: error` stands before such an error."""
        return self.error_name or route in (MESSAGES, RESPONSES)

    # -- what else it answers

    def other(self, request: Request, body: dict[str, Any]) -> Response:
        """Every route that does not generate."""
        if (request.method, request.path) == ("GET", "/v1/models"):
            return self.json({"object": "list", "data": [self.model(name) for name in self.models]})
        return self.unknown(request)

    def unknown(self, request: Request) -> Response:
        """A route it does not have."""
        return self.error(CHAT, 404, "Not Found", "not_found_error")

    def model(self, name: str) -> dict[str, Any]:
        """One entry of the model list."""
        return {"id": name, "object": "model", "created": self.started, "owned_by": self.owner}

    def json(self, value: Any, status: int = 200) -> Response:
        """A response with its headers."""
        response = json_response(value, status, list(self.headers))
        response.type = self.json_type
        return response


def budget(body: dict[str, Any], prompt_tokens: int) -> int:
    """What a request may come to hold: its prompt and the most it may answer."""
    asked = limit_asked(body)
    return prompt_tokens + (DEFAULT_TOKENS if asked is None else asked)
