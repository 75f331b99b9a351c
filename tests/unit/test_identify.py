"""Who asks, in which conversation, with what urgency."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import pytest

from gateway.accounting import Record
from gateway.auth import OPEN, Key
from gateway.engines.base import CHAT
from gateway.identify import agent_of, call_of, conversation_of, priority_of, start_by
from gateway.options import AliasSettings
from gateway.request import Request, parse
from gateway.routes.chat import Chat
from policies.output_length import LEARNT, OutputLength
from policies.types import Priority


def request(**more: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]} | more
    return parse(json.dumps(body).encode(), Chat())


def test_the_agent_is_named_by_header_body_or_key() -> None:
    """Each stands in where the one before is missing."""
    assert agent_of({b"x-slotgate-agent": b"a"}, request(user="u"), OPEN) == "a"
    assert agent_of({}, request(user="u"), OPEN) == "u"
    assert agent_of({}, request(), Key("team")) == "team"
    assert len(agent_of({b"x-slotgate-agent": b"a" * 999}, request(), OPEN)) == 128


def test_the_conversation_is_what_the_harness_names() -> None:
    """Headers of known harnesses first, then the body; None leaves it to the message hashes."""
    assert conversation_of({b"x-session-id": b"s"}, request()) == "s"
    assert conversation_of({}, request(prompt_cache_key="k")) == "k"
    assert conversation_of({}, request(metadata={"session_id": "i"})) == "i"
    assert conversation_of({}, request()) is None


@pytest.mark.parametrize(
    ("header", "body", "tokens", "ceiling", "expected"),
    [
        (b"batch", {}, 10, Priority.INTERACTIVE, Priority.BATCH),
        (b"INTERACTIVE", {"tools": [{}]}, 10, Priority.INTERACTIVE, Priority.INTERACTIVE),
        (b"interactive", {}, 10, Priority.AGENT, Priority.AGENT),
        (b"nonsense", {}, 10, Priority.INTERACTIVE, Priority.INTERACTIVE),
        (b"", {}, 10, Priority.INTERACTIVE, Priority.INTERACTIVE),
        (b"", {}, 10, Priority.BATCH, Priority.BATCH),
        (b"", {}, 4096, Priority.INTERACTIVE, Priority.AGENT),
        (b"", {"max_tokens": 1024}, 10, Priority.INTERACTIVE, Priority.INTERACTIVE),
        (b"", {"max_tokens": 1025}, 10, Priority.INTERACTIVE, Priority.AGENT),
        (b"", {"tools": [{"type": "function"}]}, 10, Priority.INTERACTIVE, Priority.AGENT),
    ],
)
def test_the_class_is_asked_for_or_seen(
    header: bytes, body: dict[str, Any], tokens: int, ceiling: Priority, expected: Priority
) -> None:
    """A header up to the key's ceiling, else the shape of the request; unknown classes are ignored."""
    headers = {b"x-slotgate-priority": header} if header else {}
    assert priority_of(headers, request(**body), Key("k", priority=ceiling), tokens) is expected


def test_a_read_limit_counts_only_without_heartbeats() -> None:
    """A client that is kept patient has no deadline; nonsense is none either."""
    headers = {b"x-stainless-read-timeout": b"30.0"}
    assert start_by(headers, 100.0, heartbeats=False) == 130.0
    assert start_by(headers, 100.0, heartbeats=True) is None
    for nonsense in (b"", b"x", b"-1", b"nan", b"inf", b"1e99"):
        assert start_by({b"x-stainless-read-timeout": nonsense}, 0.0, heartbeats=False) is None


def test_an_alias_brings_its_models() -> None:
    """The call keeps the name that the client used; without an alias the model itself serves it."""
    alias = AliasSettings(targets=("t",), fallbacks=("f", "g"))
    asked = request()
    for given, expected in ((alias, (("t",), ("f", "g"))), (None, ((), ()))):
        record = Record("id", CHAT, 0.0)
        call = call_of(
            record,
            {},
            asked,
            OPEN,
            chain=(),
            prompt_tokens=9,
            heartbeats=True,
            outputs=OutputLength(),
            alias=given,
        )
        assert (call.model, (call.targets, call.fallbacks)) == (asked.model, expected)


def test_a_call_knows_how_long_answers_of_its_class_are() -> None:
    """As learnt of the model that the client names; until then by a guess."""
    outputs = OutputLength()
    for _ in range(LEARNT):
        outputs.learn("m", Priority.INTERACTIVE, 77, None)
    for model, p90 in (("m", 77), ("other", 2048)):
        asked = request(model=model)
        record = Record("id", CHAT, 0.0)
        call = call_of(record, {}, asked, OPEN, chain=(), prompt_tokens=9, heartbeats=True, outputs=outputs)
        assert (call.priority, call.outputs.p90) == (Priority.INTERACTIVE, p90)


def test_a_call_holds_no_text() -> None:
    """What scheduling sees is lengths, hashes and names."""
    record = Record("id", CHAT, 5.0)
    asked = request(messages=[{"role": "user", "content": "secret words"}], max_tokens=7)
    call = call_of(
        record, {}, asked, OPEN, chain=asked.chain(), prompt_tokens=9, heartbeats=True, outputs=OutputLength()
    )
    assert (call.id, call.prompt_tokens, call.output_tokens_max) == ("id", 9, 7)
    assert call.chain[-1].end_bytes == asked.prompt_bytes
    assert "secret" not in repr(call)
    assert record.priority is call.priority


def test_the_turns_of_a_conversation_are_charged_to_one_account() -> None:
    """By its name, else by how its prompt begins; below the agent, below the key."""

    def accounts(headers: dict[bytes, bytes], *texts: str) -> tuple[tuple[Hashable, ...], ...]:
        asked = request(messages=[{"role": "user", "content": text} for text in ("system", *texts)])
        record = Record("id", CHAT, 0.0)
        record.conversation = conversation_of(headers, asked)
        chain, outputs = asked.chain(), OutputLength()
        call = call_of(
            record, headers, asked, OPEN, chain=chain, prompt_tokens=9, heartbeats=True, outputs=outputs
        )
        assert call.conversation == call.accounts[-1][-1] or b"x-parent-session-id" in headers
        return call.accounts

    first, later, other = accounts({}, "a"), accounts({}, "a", "b", "c"), accounts({}, "x", "b")
    assert first == later != other
    assert first[:2] == other[:2] == ((OPEN.name,), (OPEN.name, OPEN.name))
    named = accounts({b"x-session-id": b"s"}, "x")
    assert named[-1] == (OPEN.name, OPEN.name, "s")
    assert accounts({b"x-session-id": b"child", b"x-parent-session-id": b"s"}, "y") == named
