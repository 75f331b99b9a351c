"""A fake engine looks like its original: the shapes of its answers are those of recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.questions import LLAMACPP, USAGE, VLLM, Question, chat, get, post, respond, text
from tests.fakes.routes import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.fakes.shape import Answered, differences
from tests.processes.harness import Engine, engine

ANSWERS = Path(__file__).parents[1] / "fixtures/answers"


def http(one: Engine) -> httpx.AsyncClient:
    """A client of one engine."""
    return httpx.AsyncClient(base_url=one.url, trust_env=False, verify=False, timeout=60)


@pytest.mark.parametrize(("personality", "questions"), [("vllm", VLLM), ("llamacpp", LLAMACPP)])
async def test_answers_have_the_recorded_shapes(personality: str, questions: tuple[Question, ...]) -> None:
    """Status, header, members, kinds of values and the order of events, on every route."""
    found: list[str] = []
    async with (
        engine(personality, model="tiny", context_tokens=2048, slots=2, tokens=20, instant=True) as one,
        http(one) as client,
    ):
        for question in questions:
            real = Answered.recorded(ANSWERS / personality / f"{question.name}.http")
            wrong = differences(await question.ask(client), real, question.but)
            found += [f"{question.name}: {line}" for line in wrong]
    assert not found, "\n".join(found)


FULL = {"slots": 3, "queue_limit": 0}
DETAILS = {"prefix_cache": True, "usage_details": True}
THOUGHTS = {"reasoning_tokens": 20}
SITUATIONS: tuple[tuple[str, dict[str, Any], dict[str, Any], Question], ...] = (
    ("vllm", FULL, {}, post("queue-full", CHAT, chat())),
    ("vllm", FULL, {}, post("messages-queue-full", MESSAGES, chat())),
    ("vllm", FULL, {}, post("responses-queue-full", RESPONSES, respond())),
    ("vllm", {}, THOUGHTS, post("reasoning", CHAT, chat())),
    ("vllm", {}, THOUGHTS, post("reasoning-stream", CHAT, chat(**USAGE))),
    ("vllm", DETAILS, {}, post("chat-details", CHAT, chat(), "metrics")),
    ("vllm", DETAILS, {}, post("messages-details", MESSAGES, chat())),
    ("vllm", {}, {}, post("prompt-at-limit", COMPLETIONS, text("x" * 4 * 2048))),
)


@pytest.mark.parametrize(
    ("personality", "options", "script", "question"), SITUATIONS, ids=[row[-1].name for row in SITUATIONS]
)
async def test_situations_have_the_recorded_shapes(
    personality: str, options: dict[str, Any], script: dict[str, Any], question: Question
) -> None:
    """What an engine says only when started so, or of such an answer."""
    options = {"model": "tiny", "context_tokens": 2048, "tokens": 20, "instant": True} | options
    async with engine(personality, **options) as one, http(one) as client:
        await one.script(**script)
        real = Answered.recorded(ANSWERS / personality / f"{question.name}.http")
        wrong = differences(await question.ask(client), real, question.but)
        assert not wrong, "\n".join(wrong)


async def test_llamacpp_loads_in_the_recorded_words() -> None:
    """Every route says 503 while the model is read."""
    async with engine("llamacpp", loading_seconds=60.0) as one, http(one) as client:
        real = Answered.recorded(ANSWERS.parent / "llamacpp/loading.http")
        for question in (get("models", "/v1/models"), post("chat", CHAT, chat())):
            assert not differences(await question.ask(client), real)


# -- the comparison is not blind


def answered(body: bytes, kind: str = "application/json", status: int = 200) -> Answered:
    """An answer for comparing."""
    return Answered(status, {"content-type": kind}, body)


@pytest.mark.parametrize(
    ("fake", "real", "found"),
    [
        (b'{"a":1}', b'{"a":1.5}', []),
        (b'{"a":1}', b'{"a":"x"}', ["a: number for str"]),
        (b'{"a":null}', b'{"a":{}}', ["a: null for dict"]),
        (b'{"a":true}', b'{"a":0}', ["a: bool for number"]),
        (b'{"a":{"b":1}}', b'{"a":{"c":1}}', ["a.b: added", "a.c: missing"]),
        (b'{"a":[{"b":1}]}', b'{"a":[{"b":""},{"b":""}]}', ["a.0.b: number for str"]),
        (b'{"a":[]}', b'{"a":[1]}', ["a: 0 entries for 1"]),
    ],
)
def test_sees_members_that_differ(fake: bytes, real: bytes, found: list[str]) -> None:
    """A member too many, one too few, and values of another kind, however deep."""
    assert sorted(differences(answered(fake), answered(real))) == found
    assert not differences(answered(fake), answered(real), frozenset({"a"}))


def test_sees_heads_that_differ() -> None:
    """Another status, another type."""
    assert differences(answered(b"{}", status=503), answered(b"{}")) == ["status: 503 for 200"]
    assert differences(answered(b"{}", "application/json; charset=utf-8"), answered(b"{}"))


def test_sees_events_that_differ() -> None:
    """An event missing, out of order or of another shape; not that there are more of a kind."""
    kind = "text/event-stream"
    token = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    finish = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    done = b"data: [DONE]\n\n"
    real = answered(token + finish + done, kind)
    assert not differences(answered(token * 3 + finish + done, kind), real)
    for spoilt in (token + done, token + finish, finish + token + done, token + finish + done + finish):
        assert differences(answered(spoilt, kind), real)
    thought = token.replace(b"content", b"reasoning")
    assert differences(answered(thought + finish + done, kind), real)
    numbered = token.replace(b"{", b'{"n":1,', 1)
    assert differences(answered(numbered + finish + done, kind), real)
    named = b"event: a\n" + token
    assert differences(answered(named + finish + done, kind), real)


def test_sees_metrics_that_differ() -> None:
    """Of a metric: its kind and labels; metrics that the fake does not have are not missed."""
    kind = "text/plain; version=0.0.4"
    real = answered(b'# TYPE a gauge\na{x="1"} 1\n# TYPE b counter\nb_total 1\n', kind)
    assert not differences(answered(b'# TYPE a gauge\na{x="2"} 5\n', kind), real)
    for spoilt in (b'# TYPE a counter\na{x="1"} 1\n', b"# TYPE a gauge\na 1\n", b"# TYPE c gauge\nc 1\n"):
        assert differences(answered(spoilt, kind), real)
