"""A message of Anthropic's kind, from the events of its stream."""

from __future__ import annotations

import json
from typing import Any

from gateway.routes.counts import table_of

# Which member of a block each kind of delta makes longer.
GROWS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}


class MessageAssembly:
    """Takes the events in order and says what the answer would have been."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {"type": "message", "role": "assistant"}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}  # what grows, by block and member

    def add(self, chunk: dict[str, Any]) -> None:
        """Take the next event."""
        match chunk:
            case {"type": "message_start", "message": dict(message)}:
                self._message |= message
                self._usage |= table_of(message, "usage")
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                self._blocks[index] = dict(block)
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)}:
                self._grow(index, delta)
            case {"type": "message_delta"}:
                self._message |= table_of(chunk, "delta")
                self._usage |= table_of(chunk, "usage")

    def answer(self) -> bytes:
        """The message as JSON."""
        for (index, member), pieces in self._texts.items():
            told = "".join(pieces)
            self._blocks.setdefault(index, {})[member] = _input(told) if member == "input" else told
        content = [block for _, block in sorted(self._blocks.items())]
        whole = self._message | {"content": content, "usage": self._usage}
        return json.dumps(whole, separators=(",", ":")).encode()

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "citations_delta":
            block = self._blocks.setdefault(index, {})
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
            return
        piece, member = GROWS.get(str(kind), ("", ""))
        text = delta.get(piece)
        if isinstance(text, str):
            start = self._blocks.get(index, {}).get(member)
            pieces = self._texts.setdefault((index, member), [start] if isinstance(start, str) else [])
            pieces.append(text)


def _input(text: str) -> object:
    """A tool's input; one that the engine cut off in mid-JSON stays text, as nobody can use it."""
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return text
