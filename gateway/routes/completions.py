"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.engines.base import COMPLETIONS
from gateway.errors import InvalidRequest
from gateway.json_spans import Span
from gateway.routes.choice_assembly import ChoiceAssembly, text_choice
from gateway.routes.choices import Choices
from gateway.routes.prompt import Part, blocks, piece


class Completions(Choices):
    """A text in, its continuation out."""

    path = COMPLETIONS
    chunk_object = "text_completion"

    def prompt(self, text: str, values: dict[str, Any], spans: dict[str, Span]) -> Iterator[Part]:
        """One piece per KiB of a text; several texts, or tokens, are one piece."""
        if "prompt" not in values:
            raise InvalidRequest("`prompt` is missing.", "prompt")
        span = spans["prompt"]
        return blocks(*span) if isinstance(values["prompt"], str) else iter((piece(span),))

    def assembly(self) -> ChoiceAssembly:
        """A completion."""
        return ChoiceAssembly("text_completion", text_choice)
