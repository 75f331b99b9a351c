"""What a fake engine reads of a request on any route: the prompt, its tools, the limit of the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
TOOL_RESULTS = ("function_call_output", "tool_result")


def prompt_text(body: dict[str, Any]) -> str:
    """Everything of a request that a model would read, tools first as chat templates have them."""
    if "prompt" in body:
        return str(body["prompt"])
    tools = json.dumps(body["tools"]) if body.get("tools") else ""
    opening = _text(body.get("system")) + _text(body.get("instructions"))
    return tools + opening + "".join(_text(turn) for turn in _turns(body))


def prompt_key(body: dict[str, Any]) -> str:
    """The first 64 characters of the last message."""
    turns = _turns(body)
    return (_text(turns[-1]) if turns else str(body.get("prompt", "")))[:64]


def count_tokens(text: str) -> int:
    """Four bytes are one token, and there is always one."""
    return max(1, len(text.encode()) // 4)


def limit_asked(body: dict[str, Any]) -> int | None:
    """The most tokens the client wants, None: it does not say."""
    given = next((body[name] for name in LIMITS if body.get(name) is not None), None)
    return None if given is None else int(given)


def tool_loop(body: dict[str, Any]) -> list[dict[str, str]]:
    """An agent's turn: one harmless command, and after its result the final words."""
    turns = _turns(body)
    names = [tool.get("function", tool).get("name", "") for tool in body.get("tools") or []]
    if not names or (turns and _is_result(turns[-1])):
        return []
    name = "terminal" if "terminal" in names else names[0]
    return [{"name": name, "arguments": '{"command":"echo hi"}'}]


def _turns(body: dict[str, Any]) -> list[Any]:
    given = body.get("messages", body.get("input", []))
    return given if isinstance(given, list) else [given]


def _is_result(turn: Any) -> bool:
    if not isinstance(turn, dict):
        return False
    parts = turn.get("content")
    inside = any(_is_result(part) for part in parts) if isinstance(parts, list) else False
    return inside or turn.get("role") == "tool" or turn.get("type") in TOOL_RESULTS


def _text(value: Any) -> str:
    """The words of a message, a part of one, or a list of them."""
    return "".join(_words(value))


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _words(one)
    elif isinstance(value, dict):
        for name in ("text", "thinking", "content", "output"):
            yield from _words(value.get(name))
