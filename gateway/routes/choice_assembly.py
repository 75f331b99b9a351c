"""A whole answer with `choices` for a client that did not ask for a stream, from the chunks of one.

The gateway streams upstream even then, where closing a connection cancels only a stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

# Strings that come whole, and on some engines again with every chunk; all others come in pieces.
WHOLE = frozenset({"role", "id", "type", "name", "finish_reason", "stop_reason", "matched_stop"})
REASONING = ("reasoning_content", "reasoning")


class ChoiceAssembly:
    """Takes the chunks of one answer in order and says what the answer would have been.

    `kind` is its `object`; `whole` makes a choice from an index and what has grown there.
    """

    def __init__(self, kind: str, whole: Callable[[int, dict[str, Any]], dict[str, Any]]) -> None:
        self._kind = kind
        self._whole = whole
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, _Fields] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        """Take the next chunk.

        Of the fields beside `choices` the last value counts, usage too: engines that send it with every
        chunk send the running total, or null.
        """
        for choice in _objects(chunk.get("choices")):
            index = choice.get("index")
            self._choices.setdefault(index if isinstance(index, int) else 0, _Fields()).add(choice)
        for key, value in chunk.items():
            if value is not None or key not in self._fields:
                self._fields[key] = value

    def answer(self) -> bytes:
        """The answer as JSON."""
        choices = [self._whole(index, fields.whole()) for index, fields in sorted(self._choices.items())]
        answer = self._fields | {"object": self._kind, "choices": choices}
        # As ASCII: an engine may cut a surrogate pair in two, and its halves only join again as escapes.
        return json.dumps(answer, separators=(",", ":")).encode()


def message_choice(index: int, fields: dict[str, Any]) -> dict[str, Any]:
    """A choice of chat."""
    delta = fields.pop("delta", None)
    message: dict[str, Any] = {"role": None, "content": None} | (delta if isinstance(delta, dict) else {})
    message["role"] = message["role"] or "assistant"
    silent = any(message.get(key) for key in ("tool_calls", "function_call", *REASONING))
    message["content"] = message["content"] or (None if silent else "")
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None} | fields


def text_choice(index: int, fields: dict[str, Any]) -> dict[str, Any]:
    """A choice of completions."""
    return {"index": index, "text": "", "logprobs": None, "finish_reason": None} | fields


class _Fields:
    """An object that grows: text and lists get longer, objects grow likewise, of the rest the last counts."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def add(self, fields: dict[str, Any]) -> None:
        for key, value in fields.items():
            if value is None:
                self._values.setdefault(key, None)
            elif isinstance(value, str) and key in WHOLE:
                self._values[key] = value or self._values.get(key)
            elif isinstance(value, str):
                self._grown(key, _Text).append(value)
            elif key == "tool_calls":
                self._grown(key, _Calls).add(value)
            elif isinstance(value, list):
                self._grown(key, list).extend(value)
            elif isinstance(value, dict):
                self._grown(key, _Fields).add(value)
            else:
                self._values[key] = value

    def _grown(self, key: str, kind: type[Any]) -> Any:
        if type(self._values.get(key)) is not kind:
            self._values[key] = kind()
        return self._values[key]

    def whole(self) -> dict[str, Any]:
        return {
            key: value.whole() if isinstance(value, (_Text, _Calls, _Fields)) else value
            for key, value in self._values.items()
        }


class _Text(list[str]):
    """Pieces of a text."""

    def whole(self) -> str:
        return "".join(self)


class _Calls:
    """Tool calls. Some engines give every parallel call the index 0, so a new id is a new call
    (vercel/ai#14277); a piece without id belongs to the latest call of its index."""

    def __init__(self) -> None:
        self._calls: list[_Fields] = []
        self._by_id: dict[tuple[str, str], _Fields] = {}
        self._latest: dict[str, _Fields] = {}  # by index; without one, of all

    def add(self, pieces: object) -> None:
        for piece in _objects(pieces):
            index, id = _key(piece.get("index")), _key(piece.get("id"))
            call = self._by_id.get((index, id)) if id else self._latest.get(index)
            if call is None:
                call = _Fields()
                self._calls.append(call)
            self._by_id[index, id] = self._latest[index] = self._latest[""] = call
            call.add(piece)

    def whole(self) -> list[dict[str, Any]]:
        calls = [call.whole() for call in self._calls]
        return [{key: value for key, value in call.items() if key != "index"} for call in calls]


def _key(value: object) -> str:
    return "" if value is None else str(value)


def _objects(items: object) -> Iterator[dict[str, Any]]:
    return (item for item in (items if isinstance(items, list) else ()) if isinstance(item, dict))
