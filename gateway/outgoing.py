"""What goes to an engine for a request: its body, with the edits that this engine needs."""

from __future__ import annotations

from typing import NamedTuple

from gateway.member import Member
from gateway.request import Request


class Outgoing(NamedTuple):
    """A request as one engine gets it."""

    body: bytes
    streams: bool  # the engine is asked for a stream
    adds_usage: bool  # and for its usage, which the client did not want


def outgoing(
    request: Request, member: Member, model: str, prompt_tokens: int, *, counted: bool = False
) -> Outgoing:
    """For this engine, under the name that the model has there. `counted`: the tokens of the prompt are, by a
    tokenizer."""
    streams = request.stream or (request.route.generates and member.engine.streams_always)
    adds_usage = streams and not request.include_usage and not member.refuses_usage
    body = request.edited(
        model=model,
        max_tokens=max_tokens(request, member, prompt_tokens, counted=counted),
        stream=True if streams and not request.stream else None,
        include_usage=adds_usage,
    )
    return Outgoing(body, streams, adds_usage)


def max_tokens(request: Request, member: Member, prompt_tokens: int, *, counted: bool = False) -> int | None:
    """The limit that this engine must find in the body; None: what the client gave."""
    return member.engine.max_tokens(
        request.output_tokens_max,
        member.settings.max_tokens_default or None,
        prompt_tokens,
        member.capacity.context_tokens.value,
        counted=counted,
    )
