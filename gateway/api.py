"""What the FastAPI applications of both ports have in common: the error object and the metrics page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gateway import errors
from gateway.metrics import Metrics
from gateway.settings import worded


async def exposition(metrics: Metrics) -> bytes:
    """The metrics as text, rendered off the loop: with many backends that takes too long for a stream."""
    return await asyncio.to_thread(metrics.snapshot())


def metrics_page(text: bytes) -> Response:
    """The metrics as Prometheus reads them."""
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def answer(error: errors.GatewayError) -> Response:
    """The failure as a response."""
    fields = (errors.unnamed(), *error.headers())
    headers = {name.decode(): value.decode() for name, value in fields}
    return Response(error.body(), error.status, headers, "application/json")


def nowhere(path: str) -> errors.GatewayError:
    """What is wrong with a path that no route takes."""
    return errors.NotFound()


def answer_errors(api: FastAPI, missed: Callable[[str], errors.GatewayError] = nowhere) -> None:
    """Every failure of a route as the error object of the interface; `missed` makes that of a path that no
    route takes."""

    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, errors.GatewayError)
        return answer(error)

    async def unknown(request: Request, _: Exception) -> Response:
        return answer(missed(request.url.path))

    async def method_not_allowed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return answer(errors.MethodNotAllowed(request.url.path, (error.headers or {}).get("Allow", "")))

    async def unreadable(_: Request, __: Exception) -> Response:
        return answer(errors.InvalidJson("The request's body cannot be read as JSON."))

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(_fault(error))

    async def defective(_: Request, __: Exception) -> Response:
        return answer(errors.GatewayError())  # the server logs the exception after this answer

    api.add_exception_handler(errors.GatewayError, failed)
    api.add_exception_handler(400, unreadable)
    api.add_exception_handler(404, unknown)
    api.add_exception_handler(405, method_not_allowed)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(Exception, defective)


def _fault(error: RequestValidationError) -> errors.ClientError:
    """The first thing that is wrong with a request, without the value that was sent."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return errors.InvalidJson("The request's body is not JSON.")
    name = ".".join(map(str, first["loc"][1:]))  # the first part says only that it is in the body
    if not name:
        return errors.InvalidRequest("The body must be a JSON object, sent as application/json.")
    reason = "is no option" if first["type"] == "extra_forbidden" else worded(first)
    return errors.InvalidRequest(f"{name} {reason}.", name)
