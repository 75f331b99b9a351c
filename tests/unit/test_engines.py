"""Engines: answers in, facts out. Answers are recorded, but for ds4's and OpenAI's, made from their texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines import DETECTION_PATHS, ENGINES, detect
from gateway.engines.base import (
    CHAT,
    COMPLETIONS,
    Answer,
    Count,
    Failed,
    Overlength,
    Overload,
    Passed,
    Refusal,
    Report,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMACPP = ENGINES["llamacpp"]
OPENAI = ENGINES["openai"]


def recorded(name: str) -> Answer:
    """The answer in `fixtures/NAME.http`."""
    head, _, body = (FIXTURES / f"{name}.http").read_bytes().partition(b"\n\n")
    status, *fields = head.decode().splitlines()
    pairs = (field.split(": ", 1) for field in fields)
    return Answer(int(status.split()[1]), {name.lower(): value for name, value in pairs}, body)


def answer(status: int, value: object = None, **headers: str) -> Answer:
    """An answer with this JSON body."""
    return Answer(status, {k.replace("_", "-"): v for k, v in headers.items()}, json.dumps(value).encode())


def llamacpp_answers(metrics: str = "metrics_idle") -> dict[str, Answer]:
    """What a ready llama.cpp answers to a probe."""
    return {
        "/props": recorded("llamacpp/props"),
        "/v1/models": recorded("llamacpp/models"),
        "/metrics": recorded(f"llamacpp/{metrics}"),
    }


LOADING = dict.fromkeys(("/props", "/v1/models", "/metrics"), recorded("llamacpp/loading"))


def test_detection_asks_every_engines_paths_once() -> None:
    """An unknown engine is asked all that any engine is recognised by, each path once."""
    assert sorted(DETECTION_PATHS) == ["/metrics", "/props", "/v1/models"]


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        (llamacpp_answers(), "llamacpp"),
        ({"/props": recorded("llamacpp/props")}, "llamacpp"),
        # A probe that met the end of loading, or a proxy that hides /props: the list's owner tells.
        ({"/props": recorded("llamacpp/loading"), "/v1/models": recorded("llamacpp/models")}, "llamacpp"),
        ({"/props": answer(404), "/v1/models": recorded("openai/vllm_models")}, "openai"),
        ({"/props": answer(200, {}), "/v1/models": recorded("openai/vllm_models")}, "openai"),
        ({"/props": answer(200, {"total_slots": True}), "/v1/models": answer(200, {"data": []})}, "openai"),
        (LOADING, None),
        ({}, None),
        ({"/v1/models": answer(401, {"error": "Unauthorized"})}, None),
        ({"/v1/models": answer(200, {"data": None})}, None),
        ({"/v1/models": Answer(200, {}, b"<html>it works</html>")}, None),
    ],
)
def test_an_engine_is_recognised_by_what_only_it_answers(
    answers: dict[str, Answer], name: str | None
) -> None:
    """llama.cpp shows by its slots or as owner of its models; any list of models is a plain engine."""
    engine = detect(answers)
    assert (engine.name if engine else None) == name


def test_llamacpp_reports_slots_context_models_load_and_start() -> None:
    """A ready llama.cpp tells everything; load is what it works on and what it holds back."""
    expected = Report(
        slots=2, context_tokens=2048, models=("gemma-test",), busy=3, started="1971112419", loading=False
    )
    assert LLAMACPP.read(llamacpp_answers("metrics_2busy_1deferred")) == expected


def test_llamacpp_that_loads_reports_only_that() -> None:
    """503 "Loading model" on every path says that it loads, and nothing of slots or models."""
    assert LLAMACPP.read(LOADING) == Report(loading=True)


def test_llamacpp_that_sleeps_is_not_loading() -> None:
    """A sleeping engine is woken by the next request, so it may get one."""
    props = recorded("llamacpp/props")
    asleep = Answer(200, {}, props.body.replace(b'"is_sleeping": false', b'"is_sleeping": true'))
    assert asleep.body != props.body
    report = LLAMACPP.read(llamacpp_answers() | {"/props": asleep})
    assert (report.loading, report.slots) == (False, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"/metrics": answer(501, {"error": {"type": "not_supported_error"}})},
        {"/metrics": Answer(200, {}, b"llamacpp:requests_processing 2\n")},
        {
            "/props": Answer(
                200, {}, recorded("llamacpp/props").body.replace(b'metrics": true', b'metrics": false')
            )
        },
    ],
)
def test_llamacpp_without_metrics_has_no_known_load(change: dict[str, Answer]) -> None:
    """No figure, or half of it, is no load of zero."""
    report = LLAMACPP.read(llamacpp_answers() | change)
    assert (report.busy, report.slots) == (None, 2)


def test_llamacpp_lists_ids_and_aliases_once_each() -> None:
    """A request may name a model by its id or by any alias."""
    data = [{"id": "a", "aliases": ["a", "b", 7]}, {"id": "c"}, {"id": None}, "noise"]
    assert LLAMACPP.read({"/v1/models": answer(200, {"data": data})}).models == ("a", "b", "c")


@pytest.mark.parametrize(
    ("models", "report"),
    [
        (recorded("openai/vllm_models"), Report(context_tokens=2048, models=("tiny",))),
        (
            answer(200, {"data": [{"id": "a", "context_length": 65536}, {"id": "b", "max_model_len": 4096}]}),
            Report(context_tokens=4096, models=("a", "b")),
        ),
        (answer(200, {"data": [{"id": "a", "context_length": "much"}]}), Report(models=("a",))),
        (answer(200, {"data": []}), Report(models=())),
        (answer(404, {"detail": "Not Found"}), Report()),
        (recorded("llamacpp/loading"), Report(loading=True)),
    ],
)
def test_a_plain_engine_reports_its_models_and_their_smallest_context(models: Answer, report: Report) -> None:
    """Slots, load and start of a plain engine stay unknown."""
    assert OPENAI.read({"/v1/models": models}) == report


@pytest.mark.parametrize(
    ("given_answer", "refusal"),
    [
        (recorded("llamacpp/overlength"), Overlength(13914, 2048)),
        (recorded("openai/ds4_overlength"), Overlength(70001, 65536)),
        (recorded("openai/openai_overlength"), Overlength(10017, 8192)),
        (recorded("openai/vllm_overlength"), Overlength(None, 2048)),  # "at least 2049" is no count
        (recorded("openai/vllm_overlength_messages"), Overlength(None, 2048)),
        (answer(400, {"error": {"code": "context_length_exceeded"}}), Overlength(None, None)),
        (
            answer(400, {"error": {"message": "This model's maximum context length is 99 tokens. "
                                   "However, you requested 120 tokens (90 in the messages, 30 more)."}}),
            Overlength(90, 99),
        ),
        (recorded("llamacpp/loading"), Overload(None)),
        (recorded("llamacpp/no_slot"), Overload(None)),
        (recorded("openai/vllm_queue_full"), Overload(None)),
        (answer(429, {"error": {"type": "rate_limit_error"}}, retry_after="5"), Overload(5.0)),
        (recorded("llamacpp/embeddings_off"), Failed("HTTP 501 not_supported_error")),
        (recorded("openai/vllm_wrong_key"), Failed("HTTP 401")),
        (answer(403), Failed("HTTP 403")),
        (answer(500, {"error": {"message": "secret", "type": "said: secret"}}), Failed("HTTP 500")),
        (Answer(502, {}, b"<html>secret words</html>"), Failed("HTTP 502")),
        (answer(302, None, location="/login"), Failed("HTTP 302")),
        (recorded("llamacpp/bad_messages"), Passed()),
        (recorded("openai/vllm_wrong_model"), Passed()),
        (recorded("openai/vllm_unknown_route"), Passed()),
        (recorded("openai/vllm_max_tokens_over"), Passed()),
        (recorded("openai/vllm_prompt_at_limit"), Passed()),
        (
            answer(400, {"error": {"message": "bad: 'This model's maximum context length is 9 tokens'"}}),
            Passed(),
        ),
    ],
)  # fmt: skip
def test_a_refusal_is_read_by_its_shape(given_answer: Answer, refusal: Refusal) -> None:
    """Each engine's words for too long, busy and broken mean the same; the rest is the client's own."""
    assert OPENAI.refusal(given_answer) == refusal
    assert LLAMACPP.refusal(given_answer) == refusal


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7),
        ({"retry_after": "0"}, 1),
        ({"retry_after": "-3"}, 1),
        ({"retry_after": "86400"}, 60),
        ({"retry_after": "inf"}, 60),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "soon"}, None),
        ({"retry_after": ""}, None),
        ({}, None),
        ({"retry_after": "Mon, 30 Nov 2026 12:00:20 GMT", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, 20),
        ({"retry_after": "Tue, 01 Dec 2026 12:00:00 GMT", "date": "Mon, 30 Nov 2026 12:00:00 GMT"}, 60),
        ({"retry_after": "Mon, 30 Nov 2026 12:00:20 GMT", "date": "Mon, 30 Nov 2026 12:00:00 -0000"}, None),
        ({"retry_after": "Mon, 30 Nov 2026 12:00:20 GMT"}, None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_bounded(
    headers: dict[str, str], seconds: float | None
) -> None:
    """Seconds or a date against the answer's own Date, always 1 to 60; what cannot be read is no pause."""
    assert OPENAI.refusal(answer(503, None, **headers)) == Overload(seconds)


def read_everything(status: int, body: bytes, header: str) -> None:
    """Every reading of every engine, on the same bytes."""
    odd = Answer(status, {"retry-after": header, "date": header}, body)
    ready = Answer(200, {}, body)
    for engine in ENGINES.values():
        engine.refusal(odd)
        engine.counted(ready)
        engine.count(COMPLETIONS, body)
        engine.recognises(dict.fromkeys(engine.paths, ready))
        engine.read(dict.fromkeys(engine.paths, ready))


@given(status=st.integers(300, 599), body=st.binary(max_size=200), header=st.text(max_size=60))
def test_no_bytes_break_the_reading(status: int, body: bytes, header: str) -> None:
    """Whatever an engine sends becomes a report, a refusal and a count, or none."""
    read_everything(status, body, header)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["data", "id", "aliases", "error", "message", "code", "type", "n_ctx", "total_slots",
                         "default_generation_settings", "prompt", "tokens", "owned_by"]), inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(value=JSON)
def test_no_json_breaks_the_reading(value: object) -> None:
    """Known names with values of any type are read or ignored."""
    read_everything(400, json.dumps(value).encode(), "")


def test_llamacpp_counts_a_chat_with_its_own_template() -> None:
    """The same body goes to the counting path, and the figure of its answer is the count."""
    body = b'{"messages": [{"role": "user", "content": "Hi"}]}'
    assert LLAMACPP.count(CHAT, body) == Count("/v1/chat/completions/input_tokens", body)
    assert LLAMACPP.counted(recorded("llamacpp/input_tokens")) == 25


def test_llamacpp_counts_a_plain_prompt_with_its_tokenizer() -> None:
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
    """A route without a tokenizer, a plain engine, and an answer that is an error give no count."""
    assert LLAMACPP.count("/v1/embeddings", b'{"input": "Hi"}') is None
    assert OPENAI.count(CHAT, b"{}") is None
    assert OPENAI.counted(recorded("llamacpp/input_tokens")) is None
    assert LLAMACPP.counted(recorded("llamacpp/loading")) is None
