"""Every way a request can fail, as an exception that carries its data and becomes HTTP once.

The words are part of the interface. Agents match error texts with patterns: "context size" or
"token limit" makes Hermes rewrite the conversation, "at capacity" makes it ignore Retry-After,
"quota" reads as billing. Such words stand only where they are true.
"""

from __future__ import annotations

import json
import math
import secrets
from typing import ClassVar

Headers = list[tuple[bytes, bytes]]


class GatewayError(Exception):
    """A failure the client is told about, as `{"error": {message, type, param, code}}`."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    outcome: ClassVar[str] = "backend_failed"  # in metrics and journal
    closes: ClassVar[bool] = False  # the connection cannot be used again: its bytes were not all read
    param: str | None = None
    retry_after_seconds: float | None = None
    should_retry: bool | None = None  # False: the work may have been done already

    def __init__(self, message: str = "The gateway failed; the request was not completed.") -> None:
        super().__init__(message)
        self.message = message

    def headers(self) -> Headers:
        """Response headers of this failure, beside the content type."""
        headers: Headers = []
        if self.closes:
            headers.append((b"connection", b"close"))
        if self.retry_after_seconds is not None:
            seconds = min(60, max(1, math.ceil(self.retry_after_seconds)))
            headers.append((b"retry-after", b"%d" % seconds))
        if self.should_retry is False:
            headers.append((b"x-should-retry", b"false"))
        return headers

    def details(self) -> dict[str, object]:
        """Further members of the error object."""
        return {}

    def body(self) -> bytes:
        """The error object as JSON."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error | self.details()}).encode()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled with its words and data: made anew from its message it would be worded twice."""
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(kind: type[GatewayError], args: tuple[object, ...], data: dict[str, object]) -> GatewayError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(data)
    return error


def unnamed() -> tuple[bytes, bytes]:
    """The id of a request that failed before the handler gave it one, as a header field."""
    return b"x-request-id", secrets.token_hex(8).encode()


class ClientError(GatewayError):
    """The request itself is at fault."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"
    outcome = "invalid"


class InvalidRequest(ClientError):
    """The body is JSON but not a request."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidJson(ClientError):
    """The body is not JSON."""

    code = "invalid_json"


class ContextLengthExceeded(ClientError):
    """No backend's slot holds the prompt; worded so that agents find the limit in it."""

    code = "context_length_exceeded"
    param = "messages"
    outcome = "rejected"

    def __init__(self, prompt_tokens: int | None, limit_tokens: int, *, counted: bool) -> None:
        has = f"has {'' if counted else 'about '}{prompt_tokens} tokens" if prompt_tokens else "is longer"
        super().__init__(
            f"This model's maximum context length is {limit_tokens} tokens. However, your prompt {has}. "
            "Please shorten it."
        )
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens
        self.counted = counted

    def details(self) -> dict[str, object]:
        figures: dict[str, object] = {"n_prompt_tokens": self.prompt_tokens, "n_ctx": self.limit_tokens}
        return figures if self.counted else figures | {"estimated": True}


class InvalidApiKey(ClientError):
    """No key, or one that is not in the configuration."""

    status = 401
    code = "invalid_api_key"
    type = "authentication_error"
    outcome = "rejected"

    def __init__(self, message: str = "The API key is missing or not known to this gateway.") -> None:
        super().__init__(message)


class Forbidden(ClientError):
    """The key is known but may not do this."""

    status = 403
    code = "forbidden"
    type = "permission_error"
    outcome = "rejected"


NO_PATH = "This gateway has no such path."


class NotFound(ClientError):
    """A path, model or backend that does not exist."""

    status = 404
    code = "not_found"
    type = "not_found_error"

    def __init__(self, message: str = NO_PATH) -> None:
        super().__init__(message)


class MethodNotAllowed(ClientError):
    """The path exists, but not for this method. `allowed`: those that it takes, as in the header Allow."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, path: str, allowed: str) -> None:
        super().__init__(f"The path {path} takes {allowed}.")
        self.allowed = allowed

    def headers(self) -> Headers:
        """Also the methods that would do."""
        return [*super().headers(), (b"allow", self.allowed.encode())]


class ModelNotFound(NotFound):
    """No backend serves the model."""

    code = "model_not_found"
    param = "model"

    def __init__(self, model: str, models: tuple[str, ...]) -> None:
        exist = f"These exist: {', '.join(models)}." if models else "No model is served yet."
        super().__init__(f"The model {model[:200]!r} is not found: no backend serves it. {exist}")
        self.model = model
        self.models = models


class RequestTimeout(ClientError):
    """The request came too slowly."""

    status = 408
    code = "request_timeout"
    closes = True

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request did not arrive within {seconds:g} seconds.")


class BodyTooLarge(ClientError):
    """The body is over `server.body_bytes_max`."""

    status = 413
    code = "body_too_large"
    closes = True

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"The request's body is larger than {bytes_max} bytes, the most this gateway takes.")


class HeadersTooLarge(ClientError):
    """More header fields or bytes than any client of ours sends."""

    status = 431
    code = "headers_too_large"
    closes = True

    def __init__(self, fields_max: int, bytes_max: int) -> None:
        super().__init__(f"The request has more than {fields_max} header fields or {bytes_max} header bytes.")


class Refused(GatewayError):
    """The queue does not take the request, or not any longer."""

    status = 429
    type = "rate_limit_error"
    outcome = "rejected"

    def __init__(self, message: str, retry_after_seconds: float | None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QueueFull(Refused):
    """Too many requests wait already."""

    code = "queue_full"

    def __init__(self, retry_after_seconds: float | None) -> None:
        super().__init__("Too many requests are waiting: retry later.", retry_after_seconds)


class KeyConcurrency(Refused):
    """The key has as many requests as it may have at a time."""

    code = "key_concurrency"

    def __init__(self, requests_max: int, retry_after_seconds: float | None) -> None:
        super().__init__(
            f"This API key has {requests_max} requests running or waiting, as many as it may: retry later.",
            retry_after_seconds,
        )


class WaitTooLong(Refused):
    """The request waited as long as it may, or cannot start in time."""

    code = "wait_too_long"
    outcome = "wait_timeout"

    def __init__(self, retry_after_seconds: float | None) -> None:
        super().__init__("The request could not be started in time: retry later.", retry_after_seconds)


class NoBackendReady(Refused):
    """Every backend of the model was down for the whole grace."""

    status = 503
    code = "no_backend_ready"
    type = "server_error"
    outcome = "no_backend"

    def __init__(self, retry_after_seconds: float | None = 5.0) -> None:
        super().__init__("No backend of this model is ready: retry later.", retry_after_seconds)


class ShuttingDown(Refused):
    """The gateway is about to stop."""

    status = 503
    code = "shutting_down"
    type = "server_error"
    outcome = "shutdown"

    def __init__(self, retry_after_seconds: float | None = 5.0) -> None:
        super().__init__("The gateway is shutting down: retry later.", retry_after_seconds)


class WorkersSilent(Refused):
    """The processes of the gateway do not answer each other, so nothing can be said of the whole."""

    status = 503
    code = "workers_silent"
    type = "server_error"

    def __init__(self) -> None:
        super().__init__("The processes of the gateway do not answer: retry later.", 5.0)


class WorkerSilent(GatewayError):
    """A worker lives, and does not answer: nothing can be promised for it."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"Worker {number} does not answer, so this is not done everywhere; end it and ask again."
        )


class BackendFailed(GatewayError):
    """The engine failed and no retry is left. The cause stands on the admin port, not here."""

    status = 502
    code = "backend_failed"

    def __init__(self, cause: str, *, started: bool) -> None:
        super().__init__(
            "The backend failed while it worked on the request."
            if started
            else "The backend failed before it started on the request."
        )
        self.cause = cause
        self.should_retry = False if started else None


class Timeout(GatewayError):
    """A time limit of the configuration passed while the engine worked."""

    status = 504
    type = "timeout_error"
    outcome = "timeout"
    should_retry = False
    what: ClassVar[str]

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{self.what} within {seconds:g} seconds; the request was ended.")


class FirstTokenTimeout(Timeout):
    """`timeouts.first_token_seconds` after dispatch."""

    code = "first_token_timeout"
    what = "The backend sent no first token"


class IdleTimeout(Timeout):
    """`timeouts.idle_seconds` without a data event after the first token."""

    code = "idle_timeout"
    what = "The backend sent nothing more"


class TotalTimeout(Timeout):
    """`queue.total_seconds_max` after arrival."""

    code = "total_timeout"
    what = "The request was not complete"


class Ended(GatewayError):
    """An operator ended the request by the admin port."""

    status = 502
    code = "backend_failed"
    outcome = "shutdown"
    should_retry = False

    def __init__(self) -> None:
        super().__init__("The request was ended by the operator.")


class ClientGone(Exception):
    """The client left; nobody is there to be told."""

    outcome = "client_gone"
