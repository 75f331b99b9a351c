"""An answer put together from the chunks of a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.engines.base import CHAT, COMPLETIONS
from gateway.routes import ROUTES
from gateway.sse import data_of, events

STREAMS = Path(__file__).parents[1] / "fixtures/streams"


def assembled(*chunks: dict[str, Any], route: str = CHAT) -> dict[str, Any]:
    """The answer to these chunks."""
    assembly = ROUTES[route].assembly()
    for chunk in chunks:
        assembly.add(chunk)
    answer: dict[str, Any] = json.loads(assembly.answer())
    return answer


def recorded(name: str, route: str) -> dict[str, Any]:
    """The answer to a recorded stream."""
    data = [data_of(event) for event in events((STREAMS / f"{name}.sse").read_bytes())]
    return assembled(*(json.loads(chunk) for chunk in data if chunk and chunk != b"[DONE]"), route=route)


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk with one delta."""
    return {"id": "c", "choices": [{"index": index, "delta": fields, "finish_reason": finish}]}


def message(*chunks: dict[str, Any]) -> dict[str, Any]:
    """The one message of the answer to these chunks."""
    (choice,) = assembled(*chunks)["choices"]
    found: dict[str, Any] = choice["message"]
    return found


def call(
    index: int | None, id: object = None, name: str | None = None, arguments: str = ""
) -> dict[str, Any]:
    """A chunk with one piece of a tool call."""
    piece: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if id is not None:
        piece |= {"id": id, "type": "function"}
        piece["function"]["name"] = name
    return delta(tool_calls=[piece])


def told(value: Any) -> Any:
    """What an answer says: engines write nulls in one form and leave them out in the other."""
    if isinstance(value, dict):
        return {key: told(inner) for key, inner in value.items() if inner is not None}
    return [told(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("stream", "whole", "route"),
    [
        ("vllm-reasoning-usage", "vllm-reasoning", CHAT),
        ("vllm-completions-usage", "vllm-completions", COMPLETIONS),
    ],
)
def test_a_recorded_stream_gives_the_recorded_answer(stream: str, whole: str, route: str) -> None:
    """The same request, streamed and not, says the same but for its id and the time."""
    expected = told(json.loads((STREAMS / f"{whole}.json").read_text()))
    answer = told(recorded(stream, route))
    own = {"id", "created"}
    assert {k: v for k, v in answer.items() if k not in own} == {
        k: v for k, v in expected.items() if k not in own
    }
    assert answer.keys() == expected.keys()


@pytest.mark.parametrize(
    ("stream", "whole"),
    [
        ("llamacpp-chat-usage", "llamacpp-chat"),
        ("vllm-chat-usage", "vllm-chat"),
        ("vllm-chat-continuous-usage", "vllm-chat"),
    ],
)
def test_recorded_streams_have_the_shape_of_the_recorded_answer(stream: str, whole: str) -> None:
    """Another length of the same answer: the same members everywhere, the text a beginning of the text."""
    expected = told(json.loads((STREAMS / f"{whole}.json").read_text()))
    answer = told(recorded(stream, CHAT))
    assert answer.keys() == expected.keys()
    assert answer["usage"].keys() == expected["usage"].keys()
    (choice,), (expected_choice,) = answer["choices"], expected["choices"]
    assert choice.keys() == expected_choice.keys()
    assert choice["message"].keys() == expected_choice["message"].keys()
    assert expected_choice["message"]["content"].startswith(choice["message"]["content"])
    assert len(choice["message"]["content"]) >= 4


def test_timings_survive_without_usage() -> None:
    """llama.cpp without include_usage: no usage, but the finish chunk's timings."""
    answer = recorded("llamacpp-chat", CHAT)
    assert "usage" not in answer
    assert answer["timings"]["predicted_n"] == 8


def test_running_totals_of_usage_are_not_added_up() -> None:
    """Usage on every chunk, or null on most, counts once, and the last one counts."""
    chunks = [delta(content="x") | {"usage": {"completion_tokens": n}} for n in range(1, 51)]
    assert assembled(*chunks, delta(finish="stop") | {"usage": None})["usage"] == {"completion_tokens": 50}
    assert recorded("vllm-chat-continuous-usage", CHAT)["usage"]["completion_tokens"] == 4


def test_a_completion_is_text() -> None:
    """/v1/completions has its own object and its text in the choice."""
    answer = recorded("llamacpp-completions-usage", COMPLETIONS)
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "text": " a time, there was a little girl",
            "logprobs": None,
            "finish_reason": "length",
        }
    ]


def test_several_choices_come_in_order() -> None:
    """n = 2: pieces of both in any order, each with its own end."""
    answer = assembled(
        delta(1, role="assistant", content="b"),
        delta(0, role="assistant", content="a"),
        delta(1, content="B", finish="length"),
        delta(0, content="A"),
        delta(0, finish="stop"),
    )
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, "aA", "stop"),
        (1, "bB", "length"),
    ]


def test_the_role_comes_once_though_it_is_sent_often() -> None:
    """Engines that repeat the role in each delta do not make it longer; without any it is assistant."""
    assert message(*[delta(role="assistant", content="x")] * 3)["role"] == "assistant"
    assert message(delta(role=None, content="x"))["role"] == "assistant"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_keeps_the_engines_name(field: str) -> None:
    """Reasoning is joined under the name it came with, beside the content."""
    found = message(delta(**{field: "let me "}), delta(**{field: "see"}), delta(content="42"))
    assert found == {"role": "assistant", "content": "42", field: "let me see"}


def test_tool_calls_are_joined_by_index() -> None:
    """Interleaved pieces, ids only in the first: two calls, without the stream's index."""
    found = message(
        delta(role="assistant", content=None),
        call(0, "a", "read", '{"pa'),
        call(1, "b", "list", "{"),
        call(0, arguments='th":1}'),
        call(1, arguments="}"),
    )
    assert found["content"] is None
    assert found["tool_calls"] == [
        {"function": {"arguments": '{"path":1}', "name": "read"}, "id": "a", "type": "function"},
        {"function": {"arguments": "{}", "name": "list"}, "id": "b", "type": "function"},
    ]


@pytest.mark.parametrize("index", [0, None])
def test_a_new_id_is_a_new_call(index: int | None) -> None:
    """Engines that give every call the index 0, or none, still made two calls (vercel/ai#14277)."""
    found = message(
        call(index, "a", "read", "{"), call(index, arguments="}"), call(index, "b", "list", "[]"),
        call(index, arguments=" "),
    )  # fmt: skip
    assert [(c["id"], c["function"]["arguments"]) for c in found["tool_calls"]] == [("a", "{}"), ("b", "[] ")]


def test_a_piece_without_index_continues_the_latest_call() -> None:
    """Neither index nor id: it goes on where the last piece ended."""
    found = message(call(0, "a", "read", "{"), call(1, "b", "list", "["), call(None, arguments="]"))
    assert [c["function"]["arguments"] for c in found["tool_calls"]] == ["{", "[]"]


def test_an_id_that_is_repeated_or_a_number_is_the_same_call() -> None:
    """Ids may come with each piece, and may be integers, zero included."""
    found = message(call(0, 0, "read", "{"), call(0, 0, "read", "}"), call(0, "", "", " "))
    assert [(c["id"], c["function"]) for c in found["tool_calls"]] == [
        (0, {"arguments": "{} ", "name": "read"})
    ]


def test_a_legacy_function_call_is_joined() -> None:
    """function_call grows like a tool call, and leaves the content null."""
    found = message(
        delta(function_call={"name": "f", "arguments": "{"}), delta(function_call={"arguments": "}"})
    )
    assert found == {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}


def test_a_refusal_is_joined() -> None:
    """A refusal comes in pieces like content."""
    assert message(delta(refusal="I "), delta(refusal="cannot"))["refusal"] == "I cannot"


def test_logprobs_are_strung_together() -> None:
    """The entries of all chunks in order; chat and completions alike."""

    def chunk(token: str | None) -> dict[str, Any]:
        entries = token and {"content": [{"token": token}], "refusal": None}
        return {"choices": [{"index": 0, "delta": {"content": token or ""}, "logprobs": entries}]}

    (choice,) = assembled(chunk("a"), chunk("b"), chunk(None))["choices"]
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}

    texts = [
        {"choices": [{"index": 0, "text": t, "logprobs": {"tokens": [t], "text_offset": [n]}}]}
        for n, t in enumerate("ab")
    ]
    (choice,) = assembled(*texts, route=COMPLETIONS)["choices"]
    assert choice["logprobs"] == {"tokens": ["a", "b"], "text_offset": [0, 1]}


def test_an_empty_answer_has_empty_content() -> None:
    """No token at all is an empty text, which clients concatenate, not null."""
    answer = assembled(delta(role="assistant", content=None), delta(finish="stop"))
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert assembled()["choices"] == []


def test_an_escaped_pair_cut_in_two_joins_again() -> None:
    """An emoji whose two escaped halves came in two chunks is an emoji in the answer."""
    halves = [json.loads('{"choices":[{"delta":{"content":"\\ud83d"}}]}'), delta(content="\ude00 ü")]
    assert message(*halves)["content"] == "😀 ü"


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": {"index": 0}},
        {"choices": [None, 7]},
        {"choices": [{"index": None, "delta": None}]},
        {"choices": [{"index": "0", "delta": "text"}]},
        {"choices": [{"delta": {"tool_calls": [None, {}, {"function": None}], "content": ["part"]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": [], "id": {}}], "role": ""}}]},
    ],
)
def test_odd_chunks_do_no_harm(chunk: dict[str, Any]) -> None:
    """An engine's odd chunk never costs the answer that came around it."""
    answer = assembled(delta(content="before"), chunk, delta(content=" after", finish="stop"))
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"]
