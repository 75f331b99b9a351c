"""llama.cpp."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gateway.engines import ENGINES
from gateway.engines.base import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    Answer,
    Count,
    Drafts,
    Failed,
    Report,
)
from gateway.engines.refusals import as_answer
from tests.unit.engines.answers import LLAMACPP as ANSWERS
from tests.unit.engines.answers import LLAMACPP_LOADING, answer, edited, recorded

LLAMACPP = ENGINES["llamacpp"]
BUSY = Report(
    slots=2, context_tokens=2048, models=("gemma-test",), busy=3, running=2, waiting=1, started="1971112419"
)


def test_it_reports_slots_context_models_load_and_start() -> None:
    """A ready llama.cpp tells everything; load is what it works on and what it holds back."""
    answers = ANSWERS | {"/metrics": recorded("llamacpp/metrics_2busy_1deferred")}
    assert LLAMACPP.read(answers) == BUSY


def test_one_that_loads_reports_only_that() -> None:
    """503 "Loading model" on every path says that it loads, and nothing of slots or models."""
    assert LLAMACPP.read(LLAMACPP_LOADING) == Report(loading=True)


def test_one_that_sleeps_is_not_loading() -> None:
    """A sleeping engine is woken by the next request, so it may get one."""
    asleep = edited(ANSWERS["/props"], b'"is_sleeping": false', b'"is_sleeping": true')
    report = LLAMACPP.read(ANSWERS | {"/props": asleep})
    assert (report.loading, report.slots) == (False, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"/metrics": answer(501, {"error": {"type": "not_supported_error"}})},
        {"/metrics": Answer(200, {}, b"llamacpp:requests_processing 2\n")},
        {"/props": edited(ANSWERS["/props"], b'metrics": true', b'metrics": false')},
    ],
)
def test_without_metrics_its_load_is_not_known(change: dict[str, Answer]) -> None:
    """No figure, or half of it, is no load of zero."""
    report = LLAMACPP.read(ANSWERS | change)
    assert (report.busy, report.slots) == (None, 2)


def test_it_reports_how_many_drafted_tokens_were_accepted() -> None:
    """From its counters since the start; without a draft there are no figures."""
    assert LLAMACPP.read(ANSWERS).drafts is None
    drafted = LLAMACPP.read(ANSWERS | {"/metrics": recorded("llamacpp/metrics_spec")})
    assert drafted.drafts == Drafts(161, 146)
    assert replace(drafted, drafts=None, started=None) == replace(
        BUSY, busy=0, running=0, waiting=0, started=None
    )


@pytest.mark.parametrize(
    ("route", "path", "counting", "tokens"),
    [
        (CHAT, "/v1/chat/completions/input_tokens", "llamacpp/input_tokens", 25),
        (RESPONSES, "/v1/responses/input_tokens", "llamacpp/responses_input_tokens", 25),
        (MESSAGES, "/v1/messages/count_tokens", "llamacpp/count_tokens", 25),
    ],
)
def test_it_counts_with_its_own_template(route: str, path: str, counting: str, tokens: int) -> None:
    """The same body goes to the counting path, and the figure of its answer is the count."""
    body = b'{"messages": [{"role": "user", "content": "Hi"}]}'
    assert LLAMACPP.count(route, body) == Count(path, body)
    assert LLAMACPP.counted(recorded(counting)) == tokens


def test_it_counts_a_plain_prompt_with_its_tokenizer() -> None:
    """The prompt alone is tokenized, and the length of the list is the count."""
    count = LLAMACPP.count(COMPLETIONS, b'{"prompt": "Hello world", "max_tokens": 8}')
    assert count is not None
    assert (count.path, json.loads(count.body)) == (
        "/tokenize",
        {"content": "Hello world", "add_special": True},
    )
    assert LLAMACPP.counted(recorded("llamacpp/tokenize")) == 3


@pytest.mark.parametrize(
    "body", [b'{"prompt": [1, 2, 3]}', b'{"prompt": ["a", "b"]}', b"{}", b"not json", b"[]"]
)
def test_a_prompt_that_is_not_one_string_is_not_counted(body: bytes) -> None:
    """Token lists, several prompts and no prompt are left to the estimate."""
    assert LLAMACPP.count(COMPLETIONS, body) is None


def test_what_cannot_be_counted_is_none() -> None:
    """A route without a counting path, and an answer that is an error."""
    assert LLAMACPP.count(EMBEDDINGS, b'{"input": "Hi"}') is None
    assert LLAMACPP.counted(recorded("llamacpp/loading")) is None


@pytest.mark.parametrize(
    ("message", "full"),
    [
        ("Context size has been exceeded.", True),
        ("decode() failed: Context size has been exceeded. off = 156, n_batch = 1, ret = 1", True),
        ('unknown argument: "Context size has been exceeded."', False),
        (None, False),
    ],
)
def test_its_shared_memory_was_full(message: object, full: bool) -> None:
    """As it says it; a prompt may say so too, but not at the beginning of an error."""
    error = {"code": 500, "message": message, "type": "server_error"}
    for said in (Answer(500, {}, json.dumps({"error": error}).encode()), as_answer(error)):
        assert LLAMACPP.refusal(said) == Failed("HTTP 500 server_error", overfilled=full)
