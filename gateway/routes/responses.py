"""`/v1/responses`, OpenAI's newer route."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.accounting import TokenSource, Usage
from gateway.engines.base import RESPONSES
from gateway.json_spans import Span
from gateway.routes.base import ABORTED, FINISHED, NAMED_ERROR, NOTHING, TOKEN, Route, Seen
from gateway.routes.counts import count_of, table_of, usage_from
from gateway.routes.prompt import Part, blocks, message, piece
from gateway.sse import named_event

ENDS = ("response.completed", "response.incomplete")
GIVEN_UP = ("failed", "cancelled")  # vLLM completes with the latter what it breaks off when it is told to end
FAILED = "response.failed"
CALLS = ("function_call", "custom_tool_call")


class Responses(Route):
    """Items in, items out."""

    path = RESPONSES
    generates = True
    listed = "input"
    limit_keys: tuple[str, ...] = ("max_output_tokens",)
    markers: tuple[bytes, ...] = (
        b"response.completed",
        b"response.incomplete",
        b"response.failed",
        b'"error"',
        b"[DONE]",
    )
    token_mark = b'"delta"'
    error_field = NAMED_ERROR

    def prompt(self, text: str, values: dict[str, Any], spans: dict[str, Span]) -> Iterator[Part]:
        """The instructions, which stand before all items wherever they are in the body; then one piece
        per item, or per KiB of a text. Without input it is the engine's to judge: it may know the rest of
        the conversation."""
        if "instructions" in spans:
            yield piece(spans["instructions"])
        items = values.get("input")
        if isinstance(items, str):
            yield from blocks(*spans["input"])
        elif isinstance(items, list):
            for item in items:
                yield message(text, item)

    def is_answer(self, document: dict[str, Any]) -> bool:
        """An answer has output, and the engine did not give it up."""
        return isinstance(document.get("output"), list) and document.get("status") not in GIVEN_UP

    def usage(self, chunk: Mapping[str, object]) -> Usage | None:
        """Of an answer, or of the last event; `timings` stand beside the response."""
        response = chunk.get("response")
        usage = table_of(response if isinstance(response, Mapping) else chunk, "usage")
        prompt, completion = count_of(usage, "input_tokens"), count_of(usage, "output_tokens")
        timings = usage_from({"timings": table_of(chunk, "timings")})
        if prompt is None and completion is None:
            return timings
        return Usage(
            TokenSource.REPORTED,
            prompt_tokens=prompt,
            cached_tokens=count_of(table_of(usage, "input_tokens_details"), "cached_tokens"),
            completion_tokens=completion,
            reasoning_tokens=count_of(table_of(usage, "output_tokens_details"), "reasoning_tokens"),
            spec_drafted=timings.spec_drafted if timings else None,
            spec_accepted=timings.spec_accepted if timings else None,
        )

    def seen(self, chunk: dict[str, Any]) -> Seen:
        """Any delta with something in it is a token, and so is the name of a function."""
        kind = chunk.get("type")
        if kind in ENDS:
            return ABORTED if table_of(chunk, "response").get("status") in GIVEN_UP else FINISHED
        if kind == "response.output_item.added":
            return TOKEN if table_of(chunk, "item").get("type") in CALLS else NOTHING
        return TOKEN if str(kind).endswith(".delta") and chunk.get("delta") else NOTHING

    def failure(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """Also `response.failed`, and an event that is an error as a whole."""
        if chunk.get("type") == FAILED:
            return dict(table_of(table_of(chunk, "response"), "error")) or {"type": "failed"}
        return super().failure(chunk) or (chunk if chunk.get("type") == "error" else None)

    def tells(self, chunk: dict[str, Any]) -> bool:
        """The events of this protocol that say so."""
        return chunk.get("type") in ("error", "response.failed") or super().tells(chunk)

    def assembly(self) -> ResponseAssembly:
        """A response."""
        return ResponseAssembly()

    def as_stream(self, document: dict[str, Any], *, wants_usage: bool) -> bytes:
        """Each item in one piece."""
        begun = document | {"output": [], "status": "in_progress", "usage": None}
        told: list[tuple[str, dict[str, Any]]] = [("response.created", {"response": begun})]
        for index, item in enumerate(document["output"]):
            told.append(("response.output_item.added", {"output_index": index, "item": item}))
            told.append(("response.output_item.done", {"output_index": index, "item": item}))
        end = ENDS[document.get("status") == "incomplete"]
        told.append((end, {"response": document}))
        return b"".join(
            named_event(kind, {"type": kind, "sequence_number": number} | fields)
            for number, (kind, fields) in enumerate(told)
        )


class ResponseAssembly:
    """The response that the last event carries; where that holds no output, the items that were done."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: list[Any] = []

    def add(self, chunk: dict[str, Any]) -> None:
        """Take the next event."""
        match chunk:
            case {"type": "response.output_item.done", "item": item}:
                self._items.append(item)
            case {"response": dict(response)}:
                self._response = response

    def answer(self) -> bytes:
        """The response as JSON."""
        output = self._response.get("output") or self._items
        return json.dumps(self._response | {"output": output}, separators=(",", ":")).encode()
