"""What an answer that is not 2xx means: the same for every engine, by its shape."""

from __future__ import annotations

import pytest

from gateway.engines import ENGINES
from gateway.engines.base import Answer, Engine, Failed, NoRoom, Overlength, Overload, Passed, Refusal
from gateway.engines.refusals import as_answer, names_usage
from tests.unit.engines.answers import answer, recorded

TOO_LONG = "The input (9 tokens) is longer than the model's context length (8 tokens)."
ENGINE = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)


@ENGINE
@pytest.mark.parametrize(
    ("given_answer", "refusal"),
    [
        (recorded("llamacpp/overlength"), Overlength(13914, 2048)),
        (recorded("ds4/overlength"), Overlength(70001, 65536)),
        (recorded("ds4/overlength_responses"), Overlength(70001, 65536)),
        (recorded("ds4/overlength_messages"), Overlength(70001, 65536)),  # no code there
        (recorded("openai/overlength"), Overlength(10017, 8192)),
        (recorded("vllm/overlength"), Overlength(None, 2048)),  # "at least 2049" is no count
        (recorded("vllm/overlength_completions"), Overlength(None, 2048)),
        (recorded("vllm/overlength_messages"), Overlength(None, 2048)),
        (recorded("vllm/overlength_responses"), Overlength(None, 2048)),
        (recorded("sglang/overlength"), Overlength(70001, 32768)),
        (recorded("sglang/overlength_messages"), Overlength(70001, 32768)),
        (recorded("sglang/overlength_responses"), Overlength(70001, 32768)),
        (recorded("sglang/overlength_memory"), Overlength(20474, 20474)),
        (answer(400, {"error": {"code": "context_length_exceeded"}}), Overlength(None, None)),
        (
            answer(400, {"error": {"message": "This model's maximum context length is 99 tokens. "
                                   "However, you requested 120 tokens (90 in the messages, 30 more)."}}),
            Overlength(90, 99),
        ),
    ],
)  # fmt: skip
def test_a_prompt_that_is_too_long_is_told_in_many_ways(
    engine: Engine, given_answer: Answer, refusal: Refusal
) -> None:
    """On every route, with the figures where the engine counted."""
    assert engine.refusal(given_answer) == refusal


@ENGINE
def test_a_limit_that_does_not_fit_behind_its_prompt_tells_how_long_the_prompt_is(engine: Engine) -> None:
    """The prompt itself fits: with a lower limit it would be served."""
    assert engine.refusal(recorded("sglang/max_tokens_over")) == NoRoom(1100)


@ENGINE
@pytest.mark.parametrize(
    ("given_answer", "pause"),
    [
        (recorded("llamacpp/loading"), None),
        (recorded("llamacpp/no_slot"), None),
        (recorded("vllm/queue_full"), None),
        (recorded("vllm/queue_full_messages"), None),
        (recorded("vllm/queue_full_responses"), None),
        (recorded("vllm/draining"), None),  # a 500, but nothing was started
        (
            answer(
                500, {"type": "error", "error": {"message": "cannot schedule new futures after shutdown"}}
            ),
            None,
        ),
        (recorded("sglang/queue_full"), None),
        (recorded("sglang/queue_full_messages"), None),
        (recorded("ds4/queue_full"), 5.0),
        (recorded("ds4/clients_full_messages"), 10.0),
        (recorded("ds4/shutting_down"), None),
    ],
)
def test_an_engine_that_is_full_or_ends_has_started_nothing(
    engine: Engine, given_answer: Answer, pause: float | None
) -> None:
    """The call may go elsewhere; the engine is left alone for as long as it asks."""
    assert engine.refusal(given_answer) == Overload(pause)


@ENGINE
@pytest.mark.parametrize(
    ("given_answer", "cause"),
    [
        (recorded("llamacpp/embeddings_off"), "HTTP 501 not_supported_error"),
        (recorded("vllm/wrong_key"), "HTTP 401"),
        (recorded("vllm/engine_dead"), "HTTP 500 InternalServerError"),
        (answer(403), "HTTP 403"),
        (answer(500, {"error": {"message": "secret", "type": "said: secret"}}), "HTTP 500"),
        (
            answer(500, {"error": {"message": "it said: cannot schedule new futures after shutdown"}}),
            "HTTP 500",
        ),
        (answer(500, {"object": "error", "message": "secret", "type": "InternalServerError"}),
         "HTTP 500 InternalServerError"),
        (Answer(502, {}, b"<html>secret words</html>"), "HTTP 502"),
        (answer(302, None, location="/login"), "HTTP 302"),
    ],
)  # fmt: skip
def test_an_engine_that_failed_is_named_by_status_and_label(
    engine: Engine, given_answer: Answer, cause: str
) -> None:
    """Never by its message, which may quote the prompt."""
    assert engine.refusal(given_answer) == Failed(cause)


@ENGINE
@pytest.mark.parametrize(
    "given_answer",
    [
        recorded("llamacpp/bad_messages"),
        recorded("vllm/wrong_model"),
        recorded("vllm/wrong_model_messages"),
        recorded("vllm/unknown_route"),
        recorded("vllm/malformed"),
        recorded("vllm/max_tokens_over"),
        recorded("vllm/prompt_at_limit"),
        recorded("ds4/unknown_endpoint"),
        recorded("ds4/continuation_gone"),  # 409: the client must send the whole history
        answer(400, {"error": {"message": "bad: 'This model's maximum context length is 9 tokens'"}}),
        answer(400, {"error": {"message": "bad: 'The input (9 tokens) is longer than the model's context "
                               "length (9 tokens)'"}}),
        answer(400, {"error": {"message": "bad: 'Requested token count exceeds the model's maximum context "
                               "length of 9 tokens. You requested a total of 9 tokens: 9 tokens from the "
                               "input messages'"}}),
        answer(400, {"error": {"message": "bad", "n_ctx": 9}}),
        answer(400, {"detail": "Not Found"}),
        answer(400, {"error": "context_length_exceeded"}),
        answer(400, [1, 2]),
    ],
)  # fmt: skip
def test_what_is_about_the_request_itself_passes(engine: Engine, given_answer: Answer) -> None:
    """The client reads it as the engine said it; words that a prompt may hold prove nothing."""
    assert engine.refusal(given_answer) == Passed()


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (
            {"message": "The request queue is full.", "code": 503},
            Overload(None),
        ),
        ({"message": "cannot schedule new futures after shutdown", "code": 500}, Overload(None)),
        (
            {
                "message": "The input (9 tokens) is longer than the model's context length (8 tokens).",
                "code": 400,
            },
            Overlength(9, 8),
        ),
        ({"code": "context_length_exceeded"}, Failed("HTTP 500")),  # no status, so nobody knows whose fault
        ({"message": "it broke", "type": "server_error"}, Failed("HTTP 500 server_error")),
        ({"code": 40001}, Failed("HTTP 500")),
        ({"code": True}, Failed("HTTP 500")),
        ({"code": 200}, Failed("HTTP 500")),
        ({"code": 400}, Passed()),
    ],
)
def test_an_error_event_is_read_as_the_answer_it_would_have_been(
    error: dict[str, object], refusal: Refusal
) -> None:
    """By the status in it; without one the engine failed."""
    assert ENGINES["sglang"].refusal(as_answer(error)) == refusal


@pytest.mark.parametrize(
    ("refused", "names"),
    [
        (answer(400, {"error": {"message": "Unknown parameter: stream_options"}}), True),
        (answer(400, {"error": {"message": "no", "param": "stream_options.include_usage"}}), True),
        (answer(422, {"detail": [{"loc": ["body", "stream_options"], "msg": "extra"}]}), True),
        (answer(400, {"object": "error", "message": "stream_options are not known"}), True),
        (answer(422, {"detail": [{"loc": ["body", "seed"], "input": {"stream_options": 1}}]}), False),
        (answer(400, {"error": {"message": "no"}, "input": "stream_options"}), False),
        (answer(400, {"error": "stream_options"}), False),
        (answer(400, ["stream_options"]), False),
        (Answer(400, {}, b"stream_options"), False),
    ],
)
def test_a_refusal_of_usage_is_told_by_the_engines_own_words(refused: Answer, names: bool) -> None:
    """Some echo the whole input, and a prompt may speak of anything."""
    assert names_usage(refused) is names


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
    assert ENGINES["openai"].refusal(answer(503, None, **headers)) == Overload(seconds)
