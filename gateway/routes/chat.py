"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.engines.base import CHAT
from gateway.errors import InvalidRequest
from gateway.json_spans import Span
from gateway.routes.choice_assembly import ChoiceAssembly, message_choice
from gateway.routes.choices import Choices
from gateway.routes.prompt import Part, message


class Chat(Choices):
    """Messages in, a message out."""

    path = CHAT
    listed = "messages"
    chunk_object = "chat.completion.chunk"

    def prompt(self, text: str, values: dict[str, Any], spans: dict[str, Span]) -> Iterator[Part]:
        """One piece per message."""
        messages = values.get("messages")
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("`messages` must be an array with at least one message.", "messages")
        return (message(text, item) for item in messages)

    def assembly(self) -> ChoiceAssembly:
        """A chat completion."""
        return ChoiceAssembly("chat.completion", message_choice)
