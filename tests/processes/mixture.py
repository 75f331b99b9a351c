"""Requests of every kind that agents send, and what a right answer to each of them is."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.answer import words
from tests.fakes.embeddings import vector
from tests.fakes.prompt import count_tokens, prompt_text
from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from tests.processes.asking import Reply

TOKENS = 6  # of an answer: what the engines are started with
LIMIT_KEYS = {CHAT: "max_tokens", COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens"}
CLASSES = ("interactive", "agent", "batch")
COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = {
    CHAT: [{"type": "function", "function": {"name": "terminal", "parameters": COMMAND}}],
    RESPONSES: [{"type": "function", "name": "terminal", "parameters": COMMAND}],
    MESSAGES: [{"name": "terminal", "input_schema": COMMAND}],
}
CALLED = '{"command":"echo hi"}'  # what the engines do with such a tool
PROSE = "The river runs past the mill and under the old bridge before it meets the sea at noon. " * 6000
NOTHING_FITS = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and how its answer is judged."""

    path: str
    body: dict[str, Any]
    tokens: int  # of its prompt, as engines count
    headers: list[tuple[str, str]] = field(default_factory=list)

    def check(self, reply: Reply, context_tokens: int) -> None:
        """The answer is whole, and that to this very request; `context_tokens`: the most its model holds."""
        assert reply.ended == "clean", reply
        if self.tokens >= context_tokens:
            error = json.loads(reply.body)["error"]
            assert (reply.head.status, error["code"]) == (400, NOTHING_FITS), (self.tokens, reply)
            return
        assert reply.head.status == 200, (self.path, self.tokens, reply)
        match self.path:
            case "/v1/embeddings":
                [entry] = json.loads(reply.body)["data"]
                assert entry["embedding"] == vector(self.body["input"])
            case "/tokenize":
                assert json.loads(reply.body)["count"] == self.tokens
            case "/v1/messages/count_tokens":
                assert json.loads(reply.body)["input_tokens"] == self.tokens
            case _:
                # A prompt that just fits leaves room for the beginning of an answer only.
                room = min(TOKENS, context_tokens - self.tokens)
                expected = "".join(words(prompt_text(self.body), room))
                if "tools" not in self.body:
                    assert said(self.path, reply) == expected, (self.path, self.tokens, reply)
                elif room == TOKENS:
                    assert said(self.path, reply) == CALLED, (self.path, self.tokens, reply)


def mixed(dice: random.Random, number: int) -> Asked:
    """One of them, by chance: any route and model, streamed or not, short or long."""
    path = dice.choices(
        (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS, TOKENIZE),
        weights=(30, 12, 18, 22, 6, 6, 6),
    )[0]
    model = dice.choice(("flash", "large", "agent"))
    if path in (EMBEDDINGS, TOKENIZE):  # ds4 has neither of them; llama.cpp only if started for it
        model = "large"
    long = path not in (EMBEDDINGS, TOKENIZE, COUNT_TOKENS) and dice.random() < 0.05
    if long and path == RESPONSES:  # vLLM and SGLang can count every prompt but these
        model = "flash"
    body = {"model": model} | _prompt(path, f"request {number} {_text(dice, long)}")
    if path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        body |= _manner(dice, path)
    return Asked(path, body, count_tokens(prompt_text(body)), [("X-Slotgate-Priority", dice.choice(CLASSES))])


def _text(dice: random.Random, long: bool) -> str:
    size = dice.randrange(20_000, 280_000) if long else dice.randrange(600)
    start = dice.randrange(1000)
    return PROSE[start : start + size]


def _prompt(path: str, text: str) -> dict[str, Any]:
    match path:
        case "/v1/chat/completions" | "/v1/messages" | "/v1/messages/count_tokens":
            return {"messages": [{"role": "user", "content": text}]}
        case "/v1/completions" | "/tokenize":
            return {"prompt": text}
    return {"input": text}


def _manner(dice: random.Random, path: str) -> dict[str, Any]:
    """Streamed or not, with tools or not; no limit, a near one, or the one that Hermes always sends."""
    manner: dict[str, Any] = {"stream": dice.random() < 0.6}
    limit = dice.choice((None, 8, 65_536))
    if limit is not None or path == MESSAGES:
        manner[LIMIT_KEYS.get(path, "max_tokens")] = limit or 1000
    if path in TOOLS and dice.random() < 0.2:
        manner["tools"] = TOOLS[path]
    if manner["stream"] and path in (CHAT, COMPLETIONS) and dice.random() < 0.5:
        manner["stream_options"] = {"include_usage": True}
    return manner


# -- what an answer says -------------------------------------------------------------------------------


def said(path: str, reply: Reply) -> str:
    """All its words, or the arguments of its tool call; a stream must have its route's end."""
    if not reply.head.headers["content-type"].startswith("text/event-stream"):
        return "".join(_in_document(path, json.loads(reply.body)))
    events = [event for event in reply.events if event.data is not None]
    if path in (CHAT, COMPLETIONS):
        assert events[-1].done, events[-1]
        return "".join(event.token for event in events)
    documents = [event.json() for event in events if not event.done]
    ends = {MESSAGES: "message_stop", RESPONSES: "response.completed"}
    assert documents[-1]["type"] == ends[path], documents[-1]
    return "".join(text for one in documents for text in _in_event(path, one))


def _in_document(path: str, document: dict[str, Any]) -> Iterator[str]:
    match path:
        case "/v1/completions":
            yield document["choices"][0]["text"]
        case "/v1/chat/completions":
            message = document["choices"][0]["message"]
            yield message["content"] or ""
            yield from (call["function"]["arguments"] for call in message.get("tool_calls") or ())
        case "/v1/messages":
            for block in document["content"]:
                yield block["text"] if block["type"] == "text" else _compact(block["input"])
        case _:
            for item in document["output"]:
                yield item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]


def _in_event(path: str, event: dict[str, Any]) -> Iterator[str]:
    if path == RESPONSES:
        if event["type"] in ("response.output_text.delta", "response.function_call_arguments.delta"):
            yield event["delta"]
    elif event["type"] == "content_block_delta":
        delta = event["delta"]
        yield delta["text"] if "text" in delta else delta["partial_json"]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
