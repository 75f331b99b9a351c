"""What a fake engine says: the same words for the same prompt, so that mixed-up streams show."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.prompt import count_tokens, limit_asked, prompt_key, prompt_text, tool_loop
from tests.fakes.script import Script

__all__ = ["VOCABULARY", "Answer", "count_tokens", "prompt_key", "prompt_text", "words"]

VOCABULARY = (
    "amber birch cedar delta ember fjord grove heron inlet jetty kelp larch maple north ochre pine "
    "quartz river slate thyme umber vale willow yarrow"
)
WORDS = tuple(f" {word}" for word in VOCABULARY.split())


def words(prompt: str, tokens: int, skip: int = 0) -> list[str]:
    """The tokens that answer a prompt."""
    start = zlib.crc32(prompt.encode()) + skip
    return [WORDS[(start + i) % len(WORDS)] for i in range(tokens)]


@dataclass(slots=True)
class Answer:
    """One answer, in pieces of one token each.

    A piece is `{"content": word}`, `{"reasoning": word}` or `{"tool_calls": [...]}` as chat has them.
    """

    number: str  # the changing part of its id
    created: int
    model: str
    prompt_tokens: int
    cached_tokens: int
    limit: int | None  # the client's
    wants_usage: bool
    deltas: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"
    sent: int = 0  # tokens so far
    reasoned: int = 0  # of them, thoughts
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def text(self) -> str:
        """All words."""
        return "".join(delta.get("content", "") for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        """All words thought before."""
        return "".join(delta.get("reasoning", "") for delta in self.deltas)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """All tool calls, whole."""
        calls: dict[int, dict[str, Any]] = {}
        for part in (part for delta in self.deltas for part in delta.get("tool_calls", [])):
            call = calls.setdefault(part["index"], part | {"function": {"name": "", "arguments": ""}})
            for key, value in part["function"].items():
                call["function"][key] += value
        return [{key: value for key, value in call.items() if key != "index"} for call in calls.values()]

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
        calls = script.tool_calls if script.tool_calls is not None else tool_loop(body)
        if calls and "prompt" not in body:
            self.finish_reason = "tool_calls"
            for index, call in enumerate(calls):
                self._call(index, call["name"], call["arguments"])
            return
        tokens = tokens if script.tokens is None else script.tokens
        asked = limit_asked(body)
        limit = room if asked is None else min(asked, room)
        if tokens > limit:
            tokens, self.finish_reason = limit, "length"
        thought = min(script.reasoning_tokens, tokens)
        self.deltas += [{"reasoning": word} for word in words(prompt, thought)]
        self.deltas += [{"content": word} for word in words(prompt, tokens - thought, thought)]

    def took(self, delta: dict[str, Any], tokens: int) -> None:
        """So many tokens more have been sent."""
        self.sent += tokens
        if "reasoning" in delta:
            self.reasoned += tokens

    def _call(self, index: int, name: str, arguments: str) -> None:
        opening = {"index": index, "id": f"call_{self.number}{index}", "type": "function"}
        self.deltas.append({"tool_calls": [opening | {"function": {"name": name, "arguments": ""}}]})
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]):
            self.deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
