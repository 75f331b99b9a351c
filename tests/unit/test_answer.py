"""Which bytes of an engine's stream a client gets, and what is learnt on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer import StreamedAnswer
from gateway.routes.chat import Chat
from gateway.routes.choices import DONE
from gateway.sse import EventTooLarge
from tests.fuzzing import examples

CHAT = Chat()


def event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    """One chat chunk."""
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    chunk = {"id": "c", "object": "chat.completion.chunk", "choices": choices} | more
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": None})
HELLO, WORLD = event({"content": "Hello"}), event({"content": " world"})
FINISH = event(finish="stop")
USAGE = event(usage={"prompt_tokens": 5, "completion_tokens": 2}, choices=[])
STREAM = ROLE + HELLO + WORLD + FINISH + USAGE + DONE


def answered(*blocks: bytes, wants_usage: bool = False) -> tuple[StreamedAnswer, bytes]:
    answer = StreamedAnswer(CHAT, wants_usage=wants_usage)
    return answer, b"".join(map(answer.take, blocks))


def test_bytes_pass_but_for_the_usage_chunk() -> None:
    """A client that did not ask for usage gets every byte except the usage chunk."""
    answer, got = answered(STREAM)
    assert got == ROLE + HELLO + WORLD + FINISH + DONE
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


def test_a_client_that_asked_gets_the_usage_chunk() -> None:
    """With include_usage of its own, a client gets every byte."""
    assert answered(STREAM, wants_usage=True)[1] == STREAM


def test_nothing_passes_before_the_first_token() -> None:
    """The role chunk is held back until a token comes, comments are dropped."""
    answer = StreamedAnswer(CHAT, wants_usage=False)
    assert answer.take(b": prefill\n\n" + ROLE) == b""
    assert not answer.committed
    assert answer.take(HELLO) == ROLE + HELLO
    assert answer.first_token
    assert answer.take(b": still there\n\n") == b": still there\n\n"


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"tool_calls": [{"index": 0, "id": "x"}]},
    ],
)
def test_any_kind_of_token_is_the_first(delta: dict[str, Any]) -> None:
    """Reasoning and tool calls are tokens like text; a role or an empty string is not."""
    answer, got = answered(event({"content": ""}), event(delta))
    assert answer.first_token
    assert got == event({"content": ""}) + event(delta)


def test_an_answer_without_a_token_is_an_answer() -> None:
    """A finish_reason without any token commits, and is passed on."""
    answer, got = answered(ROLE + FINISH)
    assert got == ROLE + FINISH
    assert answer.committed
    assert not answer.first_token
    assert answer.end() == DONE


def test_an_end_behind_nothing_is_no_answer() -> None:
    """An empty success would be taken for one."""
    for stream in (DONE, ROLE + DONE):
        answer, got = answered(stream)
        assert (got, answer.done, answer.end()) == (b"", False, b"")
        assert answer.error is not None


def test_nothing_passes_after_done() -> None:
    """A second [DONE], comments and text behind the first are dropped."""
    assert answered(HELLO + FINISH + DONE + DONE, b": late\n\n")[1] == HELLO + FINISH + DONE


def test_a_missing_done_is_added_only_after_a_finish() -> None:
    """An engine that forgets [DONE] has finished if it gave a reason, else it broke off."""
    assert answered(HELLO + FINISH)[0].end() == DONE
    assert answered(HELLO)[0].end() == b""
    assert answered(HELLO + FINISH + DONE)[0].end() == b""


ERRORS = [{"error": {"message": "m"}}, {"error": "m"}, {"object": "error"}, {"detail": "d"}]


@pytest.mark.parametrize("error", ERRORS, ids=json.dumps)
def test_an_error_event_ends_the_answer_without_done(error: dict[str, Any]) -> None:
    """Each shape of error event is found, and passes if clients know it for one; the [DONE] that vLLM sends
    behind it is swallowed."""
    failing = b"data: " + json.dumps(error).encode() + b"\n\n"
    known = error is ERRORS[0]
    answer, got = answered(HELLO + failing + DONE)
    assert got == (HELLO + failing if known else HELLO)
    assert answer.error is not None
    assert answer.told is known
    assert answer.end() == b""
    assert answered(failing)[1] == b""


def test_an_answer_that_the_engine_gave_up_is_no_answer() -> None:
    """vLLM that is told to end says "abort" under 200, with usage and `[DONE]`: the client gets neither,
    nor an end that reads like a good one."""
    answer, got = answered(ROLE + HELLO, event(finish="abort") + USAGE + DONE, wants_usage=True)
    assert (got, answer.end()) == (ROLE + HELLO, b"")
    assert answer.error is not None
    assert not answer.told
    assert answered(ROLE + event(finish="abort") + DONE)[1] == b""
    assert not CHAT.is_answer({"choices": [{"message": {"content": "Hel"}, "finish_reason": "abort"}]})
    assert CHAT.is_answer({"choices": [{"message": {"content": "Hello"}, "finish_reason": "length"}]})
    assert answered(event({"content": "abort"}) + FINISH + DONE)[1].endswith(FINISH + DONE)


def test_words_of_the_model_do_not_steer_the_stream() -> None:
    """Text that looks like a marker is text."""
    text = event({"content": 'say "error" and [DONE] and "usage" and "finish_reason":"stop"'})
    answer, got = answered(HELLO + text + WORLD)
    assert got == HELLO + text + WORLD
    assert not answer.done
    assert not answer.finished
    assert answer.error is None


def test_events_with_tokens_are_counted_on_both_paths() -> None:
    """Only data events with tokens count, parsed or not."""
    assert answered(STREAM)[0].events == 2
    assert answered(ROLE + HELLO, WORLD + WORLD, FINISH)[0].events == 3


def test_cumulative_usage_is_not_added_up() -> None:
    """The last usage stands, and chunks that carry one beside a token pass."""
    chunks = b"".join(
        event({"content": "x"}, usage={"prompt_tokens": 5, "completion_tokens": n}) for n in range(1, 50)
    )
    answer, got = answered(chunks + FINISH)
    assert got == chunks + FINISH
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 49


def test_an_assembled_answer_reads_every_chunk() -> None:
    """For a client that does not stream, the same chunks become one document."""
    assembly = CHAT.assembly()
    answer = StreamedAnswer(CHAT, wants_usage=True, assembly=assembly)
    answer.take(STREAM)
    document = json.loads(assembly.answer())
    assert document["choices"][0]["message"]["content"] == "Hello world"
    assert document["usage"]["completion_tokens"] == 2


FRAMES = st.lists(
    st.sampled_from([ROLE, HELLO, WORLD, USAGE, b": c\n\n", b"data: text\n\n", event({"content": "[DONE]"})])
)


@examples(100)
@given(FRAMES, st.data())
def test_splitting_changes_nothing(frames: list[bytes], data: st.DataObject) -> None:
    """However whole events are grouped into blocks, the client gets the same bytes."""
    whole = b"".join(frames)
    cuts = data.draw(st.sets(st.integers(0, len(frames))))
    blocks, start = [], 0
    for cut in [*sorted(cuts), len(frames)]:
        blocks.append(b"".join(frames[start:cut]))
        start = cut
    one, got_one = answered(whole)
    many, got_many = answered(*blocks)
    assert got_one == got_many
    assert (one.first_token, one.usage) == (many.first_token, many.usage)


@examples(100)
@given(st.binary())
def test_no_bytes_break_it(data: bytes) -> None:
    """Whatever an engine sends is read without an exception."""
    answered(data + b"\n\n", HELLO, data + b"\n\n")


def test_what_is_held_back_is_bounded() -> None:
    """An engine that never comes to a token does not fill our memory."""
    answer = StreamedAnswer(CHAT, wants_usage=False)
    assert answer.take(ROLE * 1000) == b""
    with pytest.raises(EventTooLarge):
        answer.take(ROLE * 30_000)
