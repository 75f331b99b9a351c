"""`/v1/responses`: OpenAI's items, streams, answers and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.accounting import TokenSource
from gateway.request import Request, parse
from gateway.routes.responses import Responses
from gateway.sse import events, named_event
from policies.prompt_length import MEDIA_BYTES
from tests.unit.streams import assembled, assert_any_split_is_the_same, document, passed, recorded, shape

ROUTE = Responses()
DONE = b"data: [DONE]\n\n"
RESPONSE = {"id": "r", "object": "response", "status": "in_progress", "output": [], "usage": None}


def event(type: str, **fields: Any) -> bytes:
    return named_event(f"response.{type}", {"type": f"response.{type}"} | fields)


def ended(type: str = "completed", **fields: Any) -> bytes:
    return event(type, response=RESPONSE | {"status": type} | fields)  # fields may give another status


CREATED, PROGRESS = event("created", response=RESPONSE), event("in_progress", response=RESPONSE)
ITEM = event("output_item.added", output_index=0, item={"type": "message", "content": []})
TEXT = event("output_text.delta", output_index=0, delta="Hello")
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 90},
    "output_tokens": 42,
    "output_tokens_details": {"reasoning_tokens": 30},
}


def request(**fields: Any) -> Request:
    """A parsed request with these fields beside the model."""
    return parse(json.dumps({"model": "m", "input": "hi"} | fields).encode(), ROUTE)


# --- the body --------------------------------------------------------------------------------------------


def test_the_body_is_read() -> None:
    """Limit, tools, stream and the key of the conversation."""
    one = request(stream=True, max_output_tokens=64, tools=[{"type": "function"}], prompt_cache_key="k")
    assert (one.stream, one.output_tokens_max, one.has_tools, one.session) == (True, 64, True, "k")
    assert one.include_usage
    assert json.loads(one.edited(max_tokens=5))["max_output_tokens"] == 5
    assert json.loads(request().edited(max_tokens=5))["max_output_tokens"] == 5
    assert request(max_tokens=7).output_tokens_max is None


def test_each_turn_continues_the_last() -> None:
    """Tools and instructions first, then one link per item; other instructions are another conversation."""
    turns = [{"role": "user", "content": "hi"}, {"type": "function_call", "call_id": "c"}, {"role": "user"}]
    short = request(input=turns[:1], instructions="be brief").chain()
    long = request(input=turns, instructions="be brief").chain()
    assert long[: len(short)] == short
    assert len(long) == 5
    assert request(input=turns, instructions="be long").chain()[1] != long[1]


def test_input_may_be_a_text_or_missing() -> None:
    """A text is cut like a completion's prompt; what is missing, the engine may know."""
    assert len(request(input="x" * 4000).chain()) == 5
    assert request(input=None, previous_response_id="r").prompt_bytes == 0
    assert parse(b'{"model":"m"}', ROUTE).prompt_bytes == 0


def test_an_image_counts_for_a_page_of_text() -> None:
    """Here its data is a text of its own."""
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 10**6}
    size = request(input=[{"role": "user", "content": [image]}]).prompt_bytes
    assert MEDIA_BYTES < size < MEDIA_BYTES + 500


# --- the stream ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "tokens"), [("vllm-responses", 2), ("llamacpp-responses", 4)])
def test_a_recorded_stream_passes_as_it_came(name: str, tokens: int) -> None:
    """Every byte, its end found, its tokens counted by the engine and its events by us."""
    answer, got = passed(ROUTE, recorded(name))
    assert got == recorded(name)
    assert (answer.first_token, answer.finished, answer.error) == (True, True, None)
    assert answer.end() == b""
    assert answer.events == tokens
    assert answer.usage is not None
    assert (answer.usage.source, answer.usage.completion_tokens) == (TokenSource.REPORTED, 4)


CALL = b"".join(
    (
        CREATED,
        PROGRESS,
        event("output_item.added", output_index=0, item={"type": "reasoning"}),
        event("reasoning_text.delta", output_index=0, delta='"error" says [DONE]'),
        event("output_item.added", output_index=1, item={"type": "function_call", "name": "terminal"}),
        event("function_call_arguments.delta", output_index=1, delta='{"a":'),
        event("function_call_arguments.delta", output_index=1, delta="1}"),
        event("output_item.done", output_index=1, item={"type": "function_call", "arguments": '{"a":1}'}),
        ended(output=[{"type": "function_call", "arguments": '{"a":1}'}], usage=USAGE),
        DONE,
    )
)


@pytest.mark.parametrize("stream", [recorded("vllm-responses"), recorded("llamacpp-responses"), CALL])
def test_a_stream_may_be_split_anywhere(stream: bytes) -> None:
    """However its bytes arrive, the client gets the same, and the same is learnt."""
    assert_any_split_is_the_same(ROUTE, stream)


@pytest.mark.parametrize(
    "first",
    [
        TEXT,
        event("reasoning_summary_text.delta", delta="x"),
        event("function_call_arguments.delta", delta="{"),
        event("refusal.delta", delta="no"),
        event("output_item.added", item={"type": "function_call", "name": "n"}),
    ],
)
def test_nothing_passes_before_the_first_token(first: bytes) -> None:
    """The response's creation and progress, items and empty deltas are held back."""
    before = CREATED + PROGRESS * 3 + ITEM + event("output_text.delta", delta="")
    answer, got = passed(ROUTE, before, b": prefill\n\n")
    assert (got, answer.committed) == (b"", False)
    assert passed(ROUTE, before, first)[1] == before + first


@pytest.mark.parametrize("end", ["completed", "incomplete"])
def test_no_done_is_added_and_one_that_comes_passes(end: str) -> None:
    """The last event ends a response; some engines send `[DONE]` all the same."""
    whole = CREATED + TEXT + ended(end)
    answer, got = passed(ROUTE, whole)
    assert (got, answer.finished, answer.end()) == (whole, True, b"")
    answer, got = passed(ROUTE, whole + DONE + TEXT)
    assert (got, answer.done, answer.end()) == (whole + DONE, True, b"")
    assert not passed(ROUTE, CREATED + TEXT)[0].finished


@pytest.mark.parametrize(
    "failure",
    [
        ended("failed", error={"code": "server_error", "message": "m"}),
        ended("failed"),
        named_event("error", {"type": "error", "code": "server_error", "message": "m"}),
        b'data: {"error":{"message":"m","type":"server_error"}}\n\n',
    ],
)
def test_an_error_event_ends_the_response(failure: bytes) -> None:
    """In any of its shapes; the `[DONE]` behind it is swallowed."""
    answer, got = passed(ROUTE, CREATED + TEXT + failure + DONE)
    assert got == CREATED + TEXT + failure
    assert answer.error is not None
    assert passed(ROUTE, CREATED + failure)[1] == b""


def test_a_response_that_the_engine_gave_up_is_none() -> None:
    """vLLM that is told to end completes it as cancelled: the client must not take it for whole."""
    answer, got = passed(ROUTE, CREATED + TEXT + ended("completed", status="cancelled"))
    assert answer.error is not None
    assert (answer.told, got) == (False, CREATED + TEXT)
    assert not ROUTE.is_answer(document("vllm-responses") | {"status": "cancelled"})


@given(st.lists(st.sampled_from([CREATED, ITEM, TEXT, ended(), DONE, b": c\n\n"]), max_size=9))
def test_each_event_passes_at_most_once(frames: list[bytes]) -> None:
    """Whatever the order of events, what passes is some of them, in order."""
    left = iter(frames)
    assert all(any(frame == one for frame in left) for one in events(passed(ROUTE, *frames)[1]))


@given(st.binary())
def test_no_bytes_break_it(data: bytes) -> None:
    """Whatever an engine sends is read without an exception."""
    passed(ROUTE, data + b"\n\n", TEXT, data + b"\n\n")
    assembled(ROUTE, data + b"\n\n" + TEXT)


MEMBERS = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
KINDS = ("created", "completed", "failed", "output_text.delta", "output_item.done", "output_item.added")


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(["response", "delta", "item"]), MEMBERS))
def test_no_event_breaks_it(kind: str, fields: dict[str, Any]) -> None:
    """Members of any type are read without an exception."""
    chunk = event(kind, **fields)
    passed(ROUTE, chunk, TEXT, chunk)
    assembled(ROUTE, chunk + TEXT)


# --- usage and whole answers -----------------------------------------------------------------------------


def test_every_count_is_read() -> None:
    """Here the cached tokens are among the prompt's, and the reasoning among the output."""
    usage = passed(ROUTE, CALL)[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens) == (100, 90)
    assert (usage.completion_tokens, usage.reasoning_tokens) == (42, 30)


def test_timings_stand_in_for_usage() -> None:
    """llama.cpp sends both; alone, its timings still count."""
    timings = {"cache_n": 31, "prompt_n": 1, "predicted_n": 4, "draft_n": 9, "draft_n_accepted": 5}
    usage = ROUTE.usage({"response": {"usage": None}, "timings": timings})
    assert usage is not None
    assert (usage.source, usage.prompt_tokens) == (TokenSource.ENGINE_TIMINGS, 32)
    both = ROUTE.usage({"response": {"usage": USAGE}, "timings": timings})
    assert both is not None
    assert (both.source, both.prompt_tokens, both.spec_accepted) == (TokenSource.REPORTED, 100, 5)


@pytest.mark.parametrize(("name", "expected"), [("vllm-responses", (19, 8)), ("llamacpp-responses", (32, 4))])
def test_a_whole_answer_is_counted(name: str, expected: tuple[int, int]) -> None:
    """The same members, at the top."""
    usage = ROUTE.usage(document(name))
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == expected


def test_an_assembled_answer_is_that_of_the_last_event() -> None:
    """For a client that does not stream; vLLM's and llama.cpp's hold everything."""
    whole = assembled(ROUTE, recorded("vllm-responses"))
    assert ROUTE.is_answer(whole)
    assert shape(whole) == shape(document("vllm-responses"))
    ours = shape(assembled(ROUTE, recorded("llamacpp-responses")))
    assert ours | {"completed_at": "int"} == shape(document("llamacpp-responses"))


def test_items_stand_in_for_an_output_that_the_last_event_lacks() -> None:
    """Those that were done, in order."""
    item = {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}
    whole = assembled(ROUTE, CREATED + TEXT + event("output_item.done", item=item) + ended())
    assert whole["output"] == [item]
    assert whole["status"] == "completed"


@pytest.mark.parametrize("name", ["vllm-responses", "llamacpp-responses"])
def test_a_document_as_a_stream_says_the_same(name: str) -> None:
    """For a client that has a stream's head already; assembled again, it is the document."""
    whole = document(name)
    stream = ROUTE.as_stream(whole, wants_usage=True)
    answer, got = passed(ROUTE, stream)
    assert (got, answer.finished) == (stream, True)
    assert assembled(ROUTE, stream) == whole


# --- heartbeats and errors -------------------------------------------------------------------------------


def test_a_heartbeat_is_a_comment() -> None:
    """Its clients refuse events that are out of sequence."""
    for mode in ("auto", "chunk", "comment"):
        assert ROUTE.heartbeat(mode, "m", "r", include_usage=True) == b": waiting\n\n"
    assert ROUTE.heartbeat("off", "m", "r", include_usage=True) == b""


def test_errors_have_openais_shape() -> None:
    """By status as on chat, in a stream as an event with a name."""
    error = errors.QueueFull(1.0)
    assert ROUTE.error_body(error) == error.body()
    assert ROUTE.error_event(b"{}") == b"event: error\ndata: {}\n\n"
