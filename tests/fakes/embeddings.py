"""The form of answers on `/v1/embeddings`: no stream, no tokens but the prompt's."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any, ClassVar

from tests.fakes.answer import Answer
from tests.fakes.chat import Event

DIMENSIONS = 8


class Embeddings:
    """One vector for each input, the same one for the same words."""

    done: ClassVar[bool] = False

    def __init__(self, answer: Answer, body: dict[str, Any]) -> None:
        self.answer = answer
        given = body.get("input", "")
        self._inputs = given if isinstance(given, list) else [given]
        self._base64 = body.get("encoding_format") == "base64"

    def opening(self) -> list[Event]:
        """Nothing: it never streams."""
        return []

    def token(self, delta: dict[str, Any], usage: bool) -> list[Event]:
        """Nothing: it has no tokens."""
        return []

    def closing(self, usage_on_finish: bool) -> list[Event]:
        """Nothing: it never streams."""
        return []

    def whole(self) -> dict[str, Any]:
        """All vectors."""
        answer = self.answer
        data = [
            {"object": "embedding", "index": index, "embedding": self._encoded(vector(str(text)))}
            for index, text in enumerate(self._inputs)
        ]
        usage = {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens}
        return {"object": "list", "data": data, "model": answer.model, "usage": usage}

    def _encoded(self, values: list[float]) -> list[float] | str:
        if not self._base64:
            return values
        return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def vector(text: str) -> list[float]:
    """Some numbers that hang on the words; each is exact in 32 bits."""
    return [(zlib.crc32(f"{i}{text}".encode()) % 256) / 256 for i in range(DIMENSIONS)]
