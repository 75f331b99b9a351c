"""What a fake engine says: the same words for the same prompt, so that mixed-up streams show."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.script import Script

VOCABULARY = (
    "amber birch cedar delta ember fjord grove heron inlet jetty kelp larch maple north ochre pine "
    "quartz river slate thyme umber vale willow yarrow"
)
WORDS = tuple(f" {word}" for word in VOCABULARY.split())


def prompt_text(body: dict[str, Any]) -> str:
    """Everything of a request that a model would read, tools first as chat templates have them."""
    if "prompt" in body:
        return str(body["prompt"])
    tools = json.dumps(body["tools"]) if body.get("tools") else ""
    return tools + "".join(_content(message) for message in body.get("messages", []))


def prompt_key(body: dict[str, Any]) -> str:
    """The first 64 characters of the last message."""
    messages = body.get("messages")
    return (_content(messages[-1]) if messages else str(body.get("prompt", "")))[:64]


def count_tokens(text: str) -> int:
    """Four bytes are one token, and there is always one."""
    return max(1, len(text.encode()) // 4)


def words(prompt: str, tokens: int, skip: int = 0) -> list[str]:
    """The tokens that answer a prompt."""
    start = zlib.crc32(prompt.encode()) + skip
    return [WORDS[(start + i) % len(WORDS)] for i in range(tokens)]


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content or "")


@dataclass(slots=True)
class Answer:
    """One answer, in pieces of one token each."""

    id: str
    created: int
    model: str
    chat: bool
    prompt_tokens: int
    cached_tokens: int
    wants_usage: bool
    deltas: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"
    sent: int = 0  # tokens so far
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def text(self) -> str:
        """All words."""
        return "".join(delta.get("content", "") for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        """All words thought before."""
        return "".join(delta.get("reasoning_content", "") for delta in self.deltas)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """All tool calls, whole."""
        calls: dict[int, dict[str, Any]] = {}
        for part in (part for delta in self.deltas for part in delta.get("tool_calls", [])):
            call = calls.setdefault(part["index"], part | {"function": {"name": "", "arguments": ""}})
            for key, value in part["function"].items():
                call["function"][key] += value
        return [{key: value for key, value in call.items() if key != "index"} for call in calls.values()]

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far."""
        return {
            "completion_tokens": self.sent,
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.sent,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def events(self, tokens_per_event: int) -> Iterator[tuple[dict[str, Any], int]]:
        """The deltas, words joined to so many tokens per event, and the tokens in each."""
        group: list[str] = []
        kind = ""
        for delta in self.deltas:
            name, value = next(iter(delta.items()))
            if group and (name != kind or len(group) == tokens_per_event):
                yield {kind: "".join(group)}, len(group)
                group = []
            if name == "tool_calls":
                yield delta, 1
            else:
                kind = name
                group.append(value)
        if group:
            yield {kind: "".join(group)}, len(group)

    def say(self, body: dict[str, Any], prompt: str, script: Script, tokens: int, room: int) -> None:
        """Decide what is answered: tool calls where the script or the request calls for them, else words."""
        calls = script.tool_calls if script.tool_calls is not None else _tool_loop(body)
        if calls and self.chat:
            self.finish_reason = "tool_calls"
            for index, call in enumerate(calls):
                self._call(index, call["name"], call["arguments"])
            return
        tokens = tokens if script.tokens is None else script.tokens
        limit = min(_limit(body, room), room)
        if tokens > limit:
            tokens, self.finish_reason = limit, "length"
        thought = min(script.reasoning_tokens, tokens)
        self.deltas += [{"reasoning_content": word} for word in words(prompt, thought)]
        self.deltas += [{"content": word} for word in words(prompt, tokens - thought, thought)]

    def _call(self, index: int, name: str, arguments: str) -> None:
        opening = {"index": index, "id": f"call_{self.id[-8:]}{index}", "type": "function"}
        self.deltas.append({"tool_calls": [opening | {"function": {"name": name, "arguments": ""}}]})
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]):
            self.deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})


def _limit(body: dict[str, Any], default: int) -> int:
    given = body.get("max_completion_tokens", body.get("max_tokens"))
    return default if given is None else int(given)


def _tool_loop(body: dict[str, Any]) -> list[dict[str, str]]:
    """An agent's turn: one harmless command, and after its result the final words."""
    messages = body.get("messages") or [{}]
    names = [tool.get("function", {}).get("name", "") for tool in body.get("tools") or []]
    if not names or messages[-1].get("role") == "tool":
        return []
    name = "terminal" if "terminal" in names else names[0]
    return [{"name": name, "arguments": '{"command":"echo hi"}'}]
