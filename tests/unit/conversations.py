"""Recorded sessions of agents, as the requests that they were, and prompts with something wrong in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from gateway.engines.base import CHAT
from gateway.prefixes import turn_of
from gateway.request import parse
from gateway.routes import ROUTES
from policies.stability import Stability, Verdict

RECORDED = Path(__file__).parent.parent / "fixtures" / "sessions" / "airline.jsonl"
TRACES = Path(__file__).parents[2] / "gateway" / "traces" / "coding_agents.jsonl"
Message = dict[str, Any]
Body = dict[str, Any]


def tool(name: str, description: str = "Looks something up.") -> dict[str, Any]:
    """A function with a parameter."""
    city = {"type": "string", "description": "Name of the city"}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = [tool("book"), tool("cancel"), tool("search")]


def sessions() -> list[list[Message]]:
    """The messages of each recorded session, its system prompt first."""
    runs = [json.loads(line)["messages"] for line in RECORDED.read_text().splitlines()]
    return [[runs[0][0], *messages[1:]] for messages in runs]


def turns(messages: list[Message]) -> Iterator[Body]:
    """The requests of a session: each is all messages before an answer."""
    for end, message in enumerate(messages):
        if message["role"] == "assistant":
            yield body_of(messages[:end])


def coding_sessions() -> Iterator[tuple[str, list[list[int]]]]:
    """Sessions of a coding agent by name: each request as its blocks, as many as make whole messages."""
    for line in TRACES.read_text().splitlines():
        session = json.loads(line)
        runs = [request[7] for request in session["requests"]]
        every = [[id for first, number in run for id in range(first, first + number)] for run in runs]
        yield session["id"], [blocks[: len(blocks) - len(blocks) % 4] for blocks in every]


def of_blocks(blocks: list[int]) -> Body:
    """A request of 64 tokens a block, four blocks a message."""
    texts = [
        " ".join(f"block {id:06} {'w' * 240}" for id in blocks[at : at + 4])
        for at in range(0, len(blocks), 4)
    ]
    roles = ("user", "assistant")
    said = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return body_of([{"role": "system", "content": "You write programs. " * 300}, *said])


def body_of(messages: list[Message], **more: Any) -> Body:
    """A request in the order of members that openai's SDK gives it."""
    return {"messages": messages, "model": "m", "stream": True, "tools": TOOLS} | more


class Watch:
    """Compares bodies as the gateway does."""

    def __init__(self, **bounds: int) -> None:
        self.stability = Stability(xxhash.xxh3_64_intdigest, **bounds)
        self.raw = b""

    def look(
        self, body: Body | bytes, agent: str = "a", session: str | None = None, path: str = CHAT
    ) -> Verdict:
        """What the next request is, after all those before."""
        self.raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = parse(self.raw, ROUTES[path])
        turn = turn_of(request, request.chain())
        assert turn is not None
        return self.stability.look(agent, session, turn)
