"""`/v1/messages`: Anthropic's prompts, streams, answers and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.accounting import TokenSource
from gateway.auth import OPEN
from gateway.errors import InvalidRequest
from gateway.identify import priority_of
from gateway.request import Request, parse
from gateway.routes.messages import PING, STOP, CountTokens, Messages
from gateway.sse import events, named_event
from policies.prompt_length import MEDIA_BYTES
from policies.types import Priority
from tests.unit.streams import assembled, assert_any_split_is_the_same, document, passed, recorded, shape

ROUTE = Messages()
USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100}}


def event(type: str, **fields: Any) -> bytes:
    return named_event(type, {"type": type} | fields)


def start(**usage: int) -> bytes:
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "x"}
    return event("message_start", message=message | {"stop_reason": None, "usage": usage})


def opened(index: int, **block: Any) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, type: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": type} | fields)


def ended(reason: str = "end_turn", **usage: int) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


START, TEXT = start(input_tokens=9, output_tokens=1), delta(0, "text_delta", text="Hello")
EMPTY = opened(0, type="text", text="")
TOOL_LOOP = b"".join(
    (
        start(input_tokens=7, cache_read_input_tokens=90, cache_creation_input_tokens=3, output_tokens=1),
        opened(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="I should "),
        PING,
        delta(0, "thinking_delta", thinking="look."),
        delta(0, "signature_delta", signature="abc"),
        event("content_block_stop", index=0),
        opened(1, type="text", text=""),
        delta(1, "text_delta", text="Let me "),
        delta(1, "text_delta", text='look: "usage" says [DONE]'),
        event("content_block_stop", index=1),
        opened(2, type="tool_use", id="toolu_1", name="terminal", input={}),
        delta(2, "input_json_delta", partial_json=""),
        delta(2, "input_json_delta", partial_json='{"command": "l'),
        delta(2, "input_json_delta", partial_json='s"}'),
        event("content_block_stop", index=2),
        opened(3, type="tool_use", id="toolu_2", name="now", input={}),
        event("content_block_stop", index=3),
        ended("tool_use", output_tokens=42),
        STOP,
    )
)


def request(**fields: Any) -> Request:
    """A parsed request with these fields beside model and messages."""
    return parse(json.dumps({"model": "m", "max_tokens": 64, "messages": [USER]} | fields).encode(), ROUTE)


def digests(*messages: Any, **fields: Any) -> list[int]:
    return [link.digest for link in request(messages=list(messages), **fields).chain()]


# --- the body --------------------------------------------------------------------------------------------


def test_the_body_is_read() -> None:
    """Limit, tools and stream are found as on chat, and usage is never to be asked for."""
    one = request(stream=True, tools=[{"name": "terminal", "input_schema": {}}])
    assert (one.model, one.stream, one.output_tokens_max, one.has_tools) == ("m", True, 64, True)
    assert one.include_usage
    assert one.edited(max_tokens=5) == one.body.replace(b'"max_tokens": 64', b'"max_tokens": 5')
    assert request(max_completion_tokens=7).output_tokens_max == 64


@pytest.mark.parametrize("messages", [None, [], "hi", {}])
def test_messages_must_be_some(messages: Any) -> None:
    """Without messages it is no request; the parameter is named."""
    with pytest.raises(InvalidRequest) as caught:
        request(messages=messages)
    assert caught.value.param == "messages"


def test_the_system_prompt_stands_before_all_messages() -> None:
    """Wherever it is in the body: another one is another conversation, and each turn continues the last."""
    turns = [USER, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]
    short, long = digests(*turns[:1], system="be brief"), digests(*turns, system="be brief")
    assert long[: len(short)] == short
    assert len(long) == 5  # tools, system and three messages
    assert not set(digests(*turns, system="be long")[1:]) & set(long)
    late = parse(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"system":"s"}', ROUTE)
    early = parse(b'{"system":"s","model":"m","messages":[{"role":"user","content":"hi"}]}', ROUTE)
    assert late.chain() == early.chain()


@pytest.mark.parametrize("mark", [{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}, None])
@pytest.mark.parametrize("first", [True, False])
def test_a_mark_for_the_cache_that_moves_on_breaks_no_conversation(mark: Any, first: bool) -> None:
    """Claude Code marks the newest message of each turn, and takes the mark off the one before."""
    for result in ("ok", [{"type": "text", "text": "ok"}], [IMAGE]):
        block = {"type": "tool_result", "tool_use_id": "t", "content": result}
        marked = {"cache_control": mark} | block if first else block | {"cache_control": mark}
        turn = [USER, {"role": "user", "content": [marked, marked]}]
        later = [USER, {"role": "user", "content": [block, block]}, USER]
        assert digests(*later)[: len(turn) + 1] == digests(*turn)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("text", ["hi", "", 'say "cache_control": {} \\', "é😀\n"])
def test_a_text_is_the_same_as_a_string_and_as_a_block(text: str, separators: tuple[str, str]) -> None:
    """Claude Code sends it as a block while it is the newest, to mark it, and as a string afterwards."""
    block = {"type": "text", "text": text}
    forms = (text, [block], [block | {"cache_control": {"type": "ephemeral"}}])
    bodies = (
        json.dumps({"model": "m", "messages": [{"role": "user", "content": form}]}, separators=separators)
        for form in forms
    )
    chains = {parse(body.encode(), ROUTE).chain() for body in bodies}
    assert len(chains) == 1
    assert digests({"role": "user", "content": [block, block]}) != digests({"role": "user", "content": text})


def test_text_that_names_the_mark_is_text() -> None:
    """What a message says of `cache_control` is part of the conversation."""
    one, two = (f'see ,"cache_control": {{"type": "{kind}"}}' for kind in "ab")
    assert digests({"role": "user", "content": one}) != digests({"role": "user", "content": two})


def test_an_image_counts_for_a_page_of_text_and_a_tools_input_for_itself() -> None:
    """Also one that a tool returned; the arguments of a call are text, however long."""
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 10**6}
    image = {"type": "image", "source": source}
    returned = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    one = request(messages=[{"role": "user", "content": [image, returned]}])
    assert 2 * MEDIA_BYTES < one.prompt_bytes < 2 * MEDIA_BYTES + 500
    call = {"type": "tool_use", "id": "t", "name": "write", "input": {"text": "A" * 10**5}}
    assert request(messages=[{"role": "assistant", "content": [call]}]).prompt_bytes > 10**5


def test_the_class_is_seen_as_on_chat() -> None:
    """A short question is interactive; tools or a long answer make it an agent's."""
    assert priority_of({}, request(), OPEN, 9) is Priority.INTERACTIVE
    assert priority_of({}, request(max_tokens=32000), OPEN, 9) is Priority.AGENT
    assert priority_of({}, request(tools=[{"name": "t"}]), OPEN, 9) is Priority.AGENT


# --- the stream ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vllm-messages", "llamacpp-messages"])
def test_a_recorded_stream_passes_as_it_came(name: str) -> None:
    """Every byte, its end found, its tokens counted."""
    answer, got = passed(ROUTE, recorded(name))
    assert got == recorded(name)
    assert (answer.first_token, answer.finished, answer.done, answer.error) == (True, True, True, None)
    assert answer.end() == b""
    assert answer.events == 4
    assert answer.usage is not None
    assert (answer.usage.source, answer.usage.completion_tokens) == (TokenSource.REPORTED, 4)


@pytest.mark.parametrize("stream", [recorded("vllm-messages"), recorded("llamacpp-messages"), TOOL_LOOP])
def test_a_stream_may_be_split_anywhere(stream: bytes) -> None:
    """However its bytes arrive, the client gets the same, and the same is learnt."""
    assert_any_split_is_the_same(ROUTE, stream)


@pytest.mark.parametrize(
    "first",
    [
        TEXT,
        delta(0, "thinking_delta", thinking="x"),
        delta(0, "input_json_delta", partial_json="{"),
        opened(0, type="tool_use", id="t", name="n", input={}),
        opened(0, type="text", text="Hello"),
    ],
)
def test_nothing_passes_before_the_first_token(first: bytes) -> None:
    """The start of the message, an empty block, an empty delta and pings are held back; text, thinking,
    arguments and the name of a tool are tokens."""
    before = START + PING + EMPTY + delta(0, "text_delta", text="")
    answer, got = passed(ROUTE, before, b": prefill\n\n")
    assert (got, answer.committed) == (b"", False)
    assert passed(ROUTE, before, first)[1] == before + first
    assert passed(ROUTE, before + first)[0].first_token


def test_pings_are_no_sign_of_tokens() -> None:
    """An engine that only pings has stopped generating."""
    answer, got = passed(ROUTE, START + EMPTY + TEXT, PING * 5, TEXT)
    assert got.count(PING) == 5
    assert answer.events == 2


def test_a_missing_end_is_added_behind_a_reason_only() -> None:
    """`message_stop`, never `[DONE]`; a message that broke off gets none."""
    assert passed(ROUTE, START + TEXT + ended())[0].end() == STOP
    assert passed(ROUTE, START + TEXT)[0].end() == b""


def test_an_end_without_a_reason_is_none() -> None:
    """vLLM that is told to end breaks answers off so, under 200: the client must not take it for whole."""
    answer, got = passed(ROUTE, START + TEXT + event("message_delta", delta={"stop_reason": None}) + STOP)
    assert answer.error is not None
    assert (answer.told, answer.done, STOP in got) == (False, False, False)
    assert not ROUTE.is_answer(document("vllm-messages") | {"stop_reason": None})


def test_nothing_passes_behind_the_end() -> None:
    """A `[DONE]` means nothing to clients of this route."""
    whole = START + TEXT + ended(output_tokens=1) + STOP
    assert passed(ROUTE, whole + b"data: [DONE]\n\n" + TEXT, PING)[1] == whole


@pytest.mark.parametrize(
    "failure",
    [
        event("error", error={"type": "overloaded_error", "message": "m"}),
        b'event: error\ndata: {"error":{"message":"m","type":"server_error"}}\n\n',
        b'data: {"error":{"code":500,"message":"m","type":"server_error"}}\n\n',
    ],
)
def test_an_error_event_ends_the_message(failure: bytes) -> None:
    """In Anthropic's shape or an engine's own; before the first token the gateway has its own words."""
    answer, got = passed(ROUTE, START + TEXT + failure + STOP)
    assert got == START + TEXT + failure
    assert answer.error is not None
    assert answer.end() == b""
    assert passed(ROUTE, START + failure)[1] == b""


@given(st.lists(st.sampled_from([START, EMPTY, TEXT, PING, ended(), STOP, b": c\n\n"]), max_size=9))
def test_each_event_passes_at_most_once(frames: list[bytes]) -> None:
    """Whatever the order of events, what passes is some of them, in order."""
    left = iter(frames)
    assert all(any(frame == one for frame in left) for one in events(passed(ROUTE, *frames)[1]))


@given(st.binary())
def test_no_bytes_break_it(data: bytes) -> None:
    """Whatever an engine sends is read without an exception."""
    passed(ROUTE, data + b"\n\n", TEXT, data + b"\n\n")
    assembled(ROUTE, data + b"\n\n" + TEXT)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "usage", "delta", "index", "message", "error"]), inner)
    ),
)
KINDS = ("message_start", "content_block_start", "content_block_delta", "message_delta", "error")


@given(
    st.sampled_from(KINDS), st.dictionaries(st.sampled_from(["delta", "message", "usage", "index"]), JSONS)
)
def test_no_event_breaks_it(kind: str, fields: dict[str, Any]) -> None:
    """Members of any type are read without an exception."""
    chunk = event(kind, **fields)
    passed(ROUTE, chunk, TEXT, chunk)
    assembled(ROUTE, chunk + TEXT)


# --- usage -----------------------------------------------------------------------------------------------


def test_cached_tokens_belong_to_the_prompt() -> None:
    """Anthropic's `input_tokens` leave them out; prompt and output are told by different events."""
    usage = passed(ROUTE, TOOL_LOOP)[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (100, 90, 42)


def test_a_message_that_breaks_off_has_no_count_of_its_output() -> None:
    """What the first event counts of it is a placeholder."""
    usage = passed(ROUTE, start(input_tokens=9, output_tokens=1) + TEXT)[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (9, None)


def test_the_larger_count_of_the_prompt_stands() -> None:
    """vLLM repeats `input_tokens` at the end without the cached ones; an engine that sends its head
    before it has read the prompt counts it only there."""
    cached = start(input_tokens=54, cache_read_input_tokens=1792) + TEXT
    usage = passed(ROUTE, cached + ended(input_tokens=54, output_tokens=4))[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens) == (1846, 1792)
    late = passed(ROUTE, start(input_tokens=0) + TEXT + ended(input_tokens=80, output_tokens=4))[0].usage
    assert late is not None
    assert late.prompt_tokens == 80


@pytest.mark.parametrize(("name", "expected"), [("vllm-messages", (19, 8)), ("llamacpp-messages", (32, 4))])
def test_a_whole_answer_is_counted(name: str, expected: tuple[int, int]) -> None:
    """The same members, in one place."""
    usage = ROUTE.usage(document(name))
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == expected


# --- whole answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_an_assembled_answer_has_the_shape_of_the_recorded_one(engine: str) -> None:
    """For a client that does not stream, the events become the message that the engine would have sent."""
    whole = assembled(ROUTE, recorded(f"{engine}-messages"))
    assert ROUTE.is_answer(whole)
    assert shape(whole) == shape(document(f"{engine}-messages"))


def test_blocks_are_assembled() -> None:
    """Thinking with its signature, text, and tools with and without arguments."""
    whole = assembled(ROUTE, TOOL_LOOP)
    assert whole["content"] == [
        {"type": "thinking", "thinking": "I should look.", "signature": "abc"},
        {"type": "text", "text": 'Let me look: "usage" says [DONE]'},
        {"type": "tool_use", "id": "toolu_1", "name": "terminal", "input": {"command": "ls"}},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
    ]
    assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("tool_use", 42)


def test_a_document_as_a_stream_says_the_same() -> None:
    """For a client that has a stream's head already; assembled again, it is the document."""
    whole = assembled(ROUTE, TOOL_LOOP)
    stream = ROUTE.as_stream(whole, wants_usage=True)
    answer, got = passed(ROUTE, stream)
    assert (got, answer.done) == (stream, True)
    again = assembled(ROUTE, stream)
    assert again["content"] == whole["content"]
    assert (again["stop_reason"], again["usage"]) == (whole["stop_reason"], whole["usage"])


# --- heartbeats and errors -------------------------------------------------------------------------------


def test_heartbeats() -> None:
    """A ping, or what the operator chose."""
    beats = {mode: ROUTE.heartbeat(mode, "m", "r", include_usage=True) for mode in ("auto", "chunk", "off")}
    assert beats == {"auto": PING, "chunk": PING, "off": b""}
    assert ROUTE.heartbeat("comment", "m", "r", include_usage=True).startswith(b":")


@pytest.mark.parametrize("route", [ROUTE, CountTokens()])
@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (InvalidRequest("bad", "messages"), "invalid_request_error", "invalid_request"),
        (errors.InvalidApiKey(), "authentication_error", "invalid_api_key"),
        (errors.Forbidden("no"), "permission_error", "forbidden"),
        (errors.ModelNotFound("m", ()), "not_found_error", "model_not_found"),
        (errors.BodyTooLarge(9), "request_too_large", "body_too_large"),
        (errors.QueueFull(1.0), "rate_limit_error", "queue_full"),
        (errors.BackendFailed("x", started=True), "api_error", "backend_failed"),
        (errors.NoBackendReady(1.0), "api_error", "no_backend_ready"),
        (errors.TotalTimeout(1.0), "timeout_error", "total_timeout"),
    ],
)
def test_errors_have_anthropics_shape(
    route: Messages, error: errors.GatewayError, kind: str, code: str
) -> None:
    """Its types, by status; our code stays, and so do the words."""
    body = json.loads(route.error_body(error))
    assert body == {"type": "error", "error": {"type": kind, "message": error.message, "code": code}}
    assert route.error_event(b"{}") == b"event: error\ndata: {}\n\n"


def test_a_prompt_that_is_too_long_is_told_in_the_words_its_clients_know() -> None:
    """They look for "prompt is too long", others for the limit."""
    error = json.loads(ROUTE.error_body(errors.ContextLengthExceeded(9000, 4096, counted=True)))["error"]
    assert error["message"].startswith("prompt is too long: ")
    assert "maximum context length is 4096 tokens" in error["message"]
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (9000, 4096)
