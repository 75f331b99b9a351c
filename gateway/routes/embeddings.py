"""`/v1/embeddings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.accounting import TokenSource, Usage
from gateway.engines.base import EMBEDDINGS
from gateway.errors import InvalidRequest
from gateway.json_spans import Span
from gateway.routes.base import Route
from gateway.routes.counts import count_of, table_of
from gateway.routes.prompt import Part

TOKEN_BYTES = 4  # of a text, that a token given by its number counts for


class Embeddings(Route):
    """Texts in, vectors out. No token is generated, and no prefix is kept."""

    path = EMBEDDINGS

    def prompt(self, text: str, values: dict[str, Any], spans: dict[str, Span]) -> Iterator[Part]:
        """The longest of the texts: each has a context of its own."""
        if "input" not in values:
            raise InvalidRequest("`input` is missing.", "input")
        start, end = spans["input"]
        given = values["input"]
        texts = given if isinstance(given, list) and any(map(_is_text, given)) else [given]
        yield Part(start, end, max(map(_size, texts)))

    def is_answer(self, document: dict[str, Any]) -> bool:
        """An answer has data."""
        return isinstance(document.get("data"), list)

    def usage(self, chunk: Mapping[str, object]) -> Usage | None:
        """The prompt's tokens; of others there are none."""
        prompt = count_of(table_of(chunk, "usage"), "prompt_tokens")
        return Usage(TokenSource.REPORTED, prompt_tokens=prompt, completion_tokens=0)


def _is_text(value: object) -> bool:
    return isinstance(value, str | list)


def _size(value: object) -> int:
    """Bytes of a text, or what its tokens count for."""
    if isinstance(value, str):
        return len(value)
    return TOKEN_BYTES * len(value) if isinstance(value, list) else 0
