"""Turns of the simulator as bodies of chat requests, and back: text whose length and digests are those of
the turn's segments.

A segment is a message: four letters that stand for its digest, which is its first token, then filler. Four
bytes are one token to the fake engines, and by the gateway's prior too, which takes a letter or space for
0.21 tokens and a full stop for 0.53. How long the answer is to be, which no real engine can be told, goes
in `metadata`, which gateways pass on.
"""

from __future__ import annotations

import string
from typing import Any

from policies.simulation.workload import Segment, Turn

TOKEN_BYTES = 4
FILLER = "heron s."  # two tokens
LETTERS = string.ascii_letters


def body_of(turn: Turn, model: str) -> dict[str, Any]:
    """A request for this turn, streamed, with usage."""
    messages = []
    start = 0
    for segment in turn.prompt:
        messages.append({"role": "user", "content": _text(segment.digest, segment.end_tokens - start)})
        start = segment.end_tokens
    return {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "metadata": {"answer": f"{turn.answer}", "tokens": f"{turn.output_tokens}"},
        "messages": messages,
    }


def turn_of(body: dict[str, Any]) -> Turn:
    """The turn that such a request stands for."""
    prompt: list[Segment] = []
    end = 0
    for message in body["messages"]:
        text = message["content"]
        end += len(text) // TOKEN_BYTES
        prompt.append(Segment(_digest(text), end))
    metadata = body["metadata"]
    return Turn(tuple(prompt), int(metadata["tokens"]), int(metadata["answer"]))


def _text(digest: int, tokens: int) -> str:
    mark = ""
    for _ in range(TOKEN_BYTES):
        digest, letter = divmod(digest, len(LETTERS))
        mark += LETTERS[letter]
    assert not digest, "no four letters stand for this digest"
    filler = (tokens - 1) * TOKEN_BYTES
    return mark + (FILLER * (filler // len(FILLER) + 1))[:filler]


def _digest(text: str) -> int:
    return sum(LETTERS.index(letter) * len(LETTERS) ** i for i, letter in enumerate(text[:TOKEN_BYTES]))
