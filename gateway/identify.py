"""Who asks, in which conversation, and with what urgency; no header is needed for any of it."""

from __future__ import annotations

from collections.abc import Hashable

from gateway.accounting import Record
from gateway.auth import Key
from gateway.options import AliasSettings
from gateway.request import Request
from policies.output_length import OutputLength
from policies.prefix import Link
from policies.types import Call, Priority

SESSION_HEADERS = (
    b"x-slotgate-session",
    b"x-session-id",
    b"x-agent-session-id",
    b"x-claude-code-session-id",
    b"x-hermes-session-id",
    b"x-session-affinity",
    b"x-litellm-session-id",
)
FIRST_MESSAGE = 2  # of a chain's links, behind tools and system prompt
PARENT_HEADER = b"x-parent-session-id"  # of a sub-agent's session (OpenCode)
INTERACTIVE_PROMPT_TOKENS_MAX = 4096
INTERACTIVE_OUTPUT_TOKENS_MAX = 1024
NAME_LENGTH_MAX = 128
PRIORITIES = {priority.label.encode(): priority for priority in Priority}


def agent_of(headers: dict[bytes, bytes], request: Request, key: Key) -> str:
    """The agent's name: its header, else the body's `user`, else the key."""
    named = headers.get(b"x-slotgate-agent", b"").decode("latin-1") or request.user or key.name
    return named[:NAME_LENGTH_MAX]


def conversation_of(headers: dict[bytes, bytes], request: Request) -> str | None:
    """The session that the harness names; None: the message-hash chain must do."""
    for name in SESSION_HEADERS:
        if value := headers.get(name):
            return value.decode("latin-1")[:NAME_LENGTH_MAX]
    return request.session[:NAME_LENGTH_MAX] if request.session else None


def thread_of(conversation: str | None, chain: tuple[Link, ...]) -> Hashable:
    """What tells the turns of one conversation from others: its name, else how its prompt begins, first
    message included; None: neither is there."""
    if conversation is not None or not chain:
        return conversation
    return chain[min(FIRST_MESSAGE, len(chain) - 1)].digest


def accounts_of(
    headers: dict[bytes, bytes], key: Key, agent: str, thread: Hashable
) -> tuple[tuple[Hashable, ...], ...]:
    """Who is charged for the call, from the key down: a sub-agent's calls are its parent's."""
    if parent := headers.get(PARENT_HEADER):
        thread = parent.decode("latin-1")[:NAME_LENGTH_MAX]
    owner = (key.name, agent)
    return ((key.name,), owner) if thread is None else ((key.name,), owner, (*owner, thread))


def priority_of(headers: dict[bytes, bytes], request: Request, key: Key, prompt_tokens: int) -> Priority:
    """The class of the call: as asked, else by its shape; never above the key's ceiling.

    An unknown class is ignored.
    """
    named = headers.get(b"x-slotgate-priority")
    asked = PRIORITIES.get(named.strip().lower()) if named else None
    if asked is None:
        short_answer = (request.output_tokens_max or 0) <= INTERACTIVE_OUTPUT_TOKENS_MAX
        short = prompt_tokens < INTERACTIVE_PROMPT_TOKENS_MAX and short_answer
        asked = Priority.INTERACTIVE if short and not request.has_tools else Priority.AGENT
    return max(asked, key.priority)


def start_by(headers: dict[bytes, bytes], arrived: float, *, heartbeats: bool) -> float | None:
    """When a client that hears nothing until its answer stops listening; None: it is kept patient.

    The OpenAI SDKs send their read limit.
    """
    told = headers.get(b"x-stainless-read-timeout")
    if heartbeats or not told:
        return None
    try:
        seconds = float(told)
    except ValueError:
        return None
    return arrived + seconds if 0 < seconds < 86_400 else None


def call_of(
    record: Record,
    headers: dict[bytes, bytes],
    request: Request,
    key: Key,
    *,
    chain: tuple[Link, ...],
    prompt_tokens: int,
    outputs: OutputLength,
    heartbeats: bool,
    alias: AliasSettings | None = None,
) -> Call:
    """The request as scheduling sees it; who asks goes into the record too. `alias`: what its model stands
    for."""
    record.key, record.agent = key.name, agent_of(headers, request, key)
    record.priority = priority_of(headers, request, key, prompt_tokens)
    record.prompt_tokens_estimated = prompt_tokens
    thread = thread_of(record.conversation, chain)
    return Call(  # by position, as other large values of a request: with their names it takes twice as long
        record.id,
        request.model,
        record.route,
        record.priority,
        record.agent,
        record.arrived,
        prompt_tokens,
        thread,
        accounts_of(headers, key, record.agent, thread),
        False,  # not counted yet
        request.output_tokens_max,
        outputs.of(request.model, record.priority, thread),
        chain,
        request.inside(chain),
        len(request.body),
        start_by(headers, record.arrived, heartbeats=heartbeats),
        alias.targets if alias is not None else (),
        alias.fallbacks if alias is not None else (),
    )
