"""Which byte breaks a prefix, and why: injected into recorded sessions of a tool-calling agent."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.engines.base import MESSAGES, RESPONSES
from policies.stability import Verdict
from policies.volatility import Kind
from tests.unit.conversations import (
    TOOLS,
    Body,
    Message,
    Watch,
    body_of,
    coding_sessions,
    of_blocks,
    sessions,
    tool,
    turns,
)

TURN = 6  # of a session: deep enough for calls and results behind it

Spoil = Callable[[Body, int], None]


def said(place: int, text: Callable[[int], str], quote: int = 0) -> Spoil:
    """Put a text of this turn into the middle of a message; 0 is the system prompt."""

    def spoil(body: Body, turn: int) -> None:
        message = body["messages"][place]
        half = len(message["content"]) // 2
        message["content"] = message["content"][:half] + text(turn) + message["content"][half:]

    return spoil


def tool_order(body: Body, turn: int) -> None:
    body["tools"] = TOOLS if turn == 0 else [TOOLS[0], TOOLS[2], TOOLS[1]]


def tool_keys(body: Body, turn: int) -> None:
    if turn:
        function = body["tools"][1]["function"]
        body["tools"][1]["function"] = {
            "name": function["name"],
            "parameters": function["parameters"],
        } | function


def more_tools(body: Body, turn: int) -> None:
    if turn:
        body["tools"].insert(1, tool("calculate"))


def model(body: Body, turn: int) -> None:
    body["model"] = f"model-{'ab'[turn]}"


def call_ids(body: Body, turn: int) -> None:
    for number, message in enumerate(body["messages"]):
        for call in message.get("tool_calls", ()):
            call["id"] = f"call_{turn}{number}"
        if "tool_call_id" in message:
            message["tool_call_id"] = f"call_{turn}{number - 1}"


def reasoning(body: Body, turn: int) -> None:
    if turn == 0:
        called(body)["reasoning_content"] = "First I need to know who it is."


def rewritten(body: Body, turn: int) -> None:
    if turn:
        body["messages"][3]["content"] = "It is Mia."


def called(body: Body) -> Message:
    """The last message that calls a tool."""
    return [message for message in body["messages"] if message.get("tool_calls")][-1]


def uuids(turn: int) -> str:
    return f" Session {uuid.uuid5(uuid.NAMESPACE_URL, str(turn))}. "


CASES: dict[str, tuple[Kind, Spoil, str]] = {
    "date": (Kind.DATE, said(0, lambda t: f" Today is 2026-11-{29 + t}. "), "messages[0].content"),
    "date in words": (
        Kind.DATE,
        said(0, lambda t: f" It is {('Monday, November 30', 'Tuesday, December 1')[t]}, 2026. "),
        "messages[0].content",
    ),
    "time": (Kind.TIME, said(0, lambda t: f" Now: 2026-11-30T09:5{t}:17Z. "), "messages[0].content"),
    "clock": (Kind.TIME, said(0, lambda t: f" At {9 + t}:15 AM. "), "messages[0].content"),
    "milliseconds": (Kind.TIME, said(0, lambda t: f" ts={1764525600123 + t * 4711} "), "messages[0].content"),
    "uuid": (Kind.UUID, said(0, uuids), "messages[0].content"),
    "counter": (Kind.COUNTER, said(0, lambda t: f" You have used {9 + t} steps. "), "messages[0].content"),
    "random id": (
        Kind.RANDOM_ID,
        said(0, lambda t: f" req_{('a81kq7zp', 'x9c2m4bd')[t]} "),
        "messages[0].content",
    ),
    "whitespace": (Kind.WHITESPACE, said(0, lambda t: "\n" * (2 - t)), "messages[0].content"),
    "time in a message": (Kind.TIME, said(1, lambda t: f" (sent 09:5{t}) "), "messages[1].content"),
    "tool order": (Kind.TOOL_ORDER, tool_order, "tools[1].function.name"),
    "tool key order": (Kind.TOOL_KEY_ORDER, tool_keys, "tools"),
    "tools": (Kind.TOOLS, more_tools, "tools[1].function.name"),
    "model": (Kind.MODEL, model, "model"),
    "system": (
        Kind.SYSTEM,
        said(0, lambda t: ("Mia likes the aisle.", "Mia likes windows.")[t]),
        "messages[0].content",
    ),
    "tool-call ids": (Kind.CALL_IDS, call_ids, "messages[6].tool_calls[0].id"),
    "reasoning": (Kind.REASONING, reasoning, "messages[8]"),
    "history": (Kind.HISTORY, rewritten, "messages[3].content"),
}


def first_difference(old: Any, new: Any) -> int | None:
    """By the simplest means: the byte of the new text at which it leaves the old one."""
    return next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)


def spoilt(spoil: Spoil) -> tuple[Body, Body]:
    """Two turns of the first session, so spoilt."""
    two = [copy.deepcopy(body) for body in list(turns(sessions()[0]))[4:6]]
    for turn, body in enumerate(two):
        spoil(body, turn)
    return two[0], two[1]


def rendered(body: Body) -> dict[str, bytes]:
    """The parts of a body in the order in which a prompt has them, as they stand there."""
    return {
        "model": json.dumps(body["model"]).encode(),
        "tools": json.dumps(body["tools"]).encode(),
    } | {f"messages[{i}]": json.dumps(message).encode() for i, message in enumerate(body["messages"])}


def expected_offset(old: Body, new: Body) -> int:
    """Where the first part that differs does so, as a place in the new body."""
    was, now = rendered(old), rendered(new)
    name = next(name for name in was if was[name] != now[name])
    raw = json.dumps(new).encode()
    inside = first_difference(was[name], now[name])
    assert inside is not None
    assert raw.count(now[name]) == 1
    return raw.index(now[name]) + inside * (name != "model")


@pytest.mark.parametrize("case", CASES)
def test_names_what_breaks_a_prefix_and_the_byte(case: str) -> None:
    """Kind, path, and offset in the body as the client sent it."""
    kind, spoil, path = CASES[case]
    old, new = spoilt(spoil)
    watch = Watch()
    assert watch.look(old) == Verdict(0, new=True)
    verdict = watch.look(new)
    assert verdict.difference is not None
    assert (verdict.difference.kind, verdict.difference.path) == (kind, path)
    assert verdict.difference.offset == expected_offset(old, new)


@pytest.mark.parametrize("case", CASES)
def test_loses_what_the_engine_knew_behind_it(case: str) -> None:
    """What is computed again is what stands between the difference and the end of the turn before."""
    _, spoil, _ = CASES[case]
    old, new = spoilt(spoil)
    watch = Watch()
    watch.look(old)
    verdict = watch.look(new)
    known = sum(map(len, list(rendered(hermes(new)).values())[1 : 2 + len(old["messages"])]))
    assert verdict.shared_bytes + verdict.lost_bytes == known
    assert verdict.lost_bytes > 0


@pytest.mark.parametrize("case", CASES)
def test_a_break_is_named_once(case: str) -> None:
    """The turn that follows as it should is compared with the broken one."""
    _, spoil, _ = CASES[case]
    old, new = spoilt(spoil)
    watch = Watch()
    watch.look(old)
    watch.look(new)
    new["messages"] += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
    assert watch.look(new).difference is None


def test_recorded_sessions_raise_no_alarm() -> None:
    """Each of their turns continues the one before, also while several run at once."""
    watch, seen = Watch(), 0
    queues: list[Iterator[Body]] = [turns(messages) for messages in sessions()]
    while queues:
        for queue in list(queues):
            body = next(queue, None)
            if body is None:
                queues.remove(queue)
                continue
            verdict = watch.look(body)
            assert verdict.difference is None
            assert (verdict.shared_bytes > 0) == (len(body["messages"]) > 2)
            seen += 1
    assert seen > 60
    assert len(watch.stability) == len(sessions())


def test_long_sessions_of_a_coding_agent_raise_no_alarm() -> None:
    """1,121 requests of 68 sessions, of which most repeat an earlier one whole and go on."""
    watch, continued = Watch(), 0
    for name, requests in coding_sessions():
        seen: list[list[int]] = []
        for blocks in requests:
            verdict = watch.look(of_blocks(blocks), agent=name)
            if any(blocks[: len(before)] == before for before in seen):
                assert verdict.difference is None
                continued += 1
            seen.append(blocks)
    assert continued > 900


def hermes(body: Body) -> Body:
    """As Hermes sends it when it resumes: tool messages have lost their name."""
    body = copy.deepcopy(body)
    for message in body["messages"]:
        if message["role"] == "tool":
            message.pop("name", None)
    return body


def test_a_resume_without_names_of_tools_is_none() -> None:
    """Chat templates do not render them; but what else differs is found, at its place in the body."""
    watch = Watch()
    bodies = list(turns(sessions()[0]))
    for body in bodies[:8]:
        assert watch.look(body).difference is None
    for body in bodies[8:]:
        assert watch.look(hermes(body)).difference is None
    broken = hermes(bodies[-1])
    tool_message = next(message for message in broken["messages"] if message["role"] == "tool")
    tool_message["content"] += " (09:30)"
    broken["messages"] += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
    verdict = watch.look(broken)
    assert verdict.difference is not None
    at = json.dumps(broken).encode().index(b" (09:30)")
    assert (verdict.difference.kind, verdict.difference.offset) == (Kind.HISTORY, at)


@pytest.mark.parametrize("kept", [0, 3], ids=["system prompt only", "system prompt and three messages"])
@pytest.mark.parametrize("volatile", [False, True])
def test_a_compaction_is_named_as_such(kept: int, volatile: bool) -> None:
    """The middle became a summary, as Hermes does it: its first one keeps three messages before it, its
    second none. The system prompt is made anew then."""
    watch = Watch()
    *_, last = turns(sessions()[0])
    watch.look(last)
    messages = copy.deepcopy(last["messages"])
    summary = {"role": "user", "content": "[CONTEXT COMPACTION] Mia wants to fly to Seattle."}
    news = [{"role": "assistant", "content": "Booked."}, {"role": "user", "content": "And back?"}]
    shorter = [*messages[: 1 + kept], summary, *messages[-6:], *news]
    if volatile:
        shorter[0]["content"] = shorter[0]["content"].replace("2024-05-15 15:00:00", "2024-05-15 16:12:00")
    verdict = watch.look(body_of(shorter))
    assert verdict.difference is not None
    assert verdict.difference.kind is Kind.COMPACTION
    assert verdict.difference.path.startswith(f"messages[{0 if volatile else 1 + kept}].")
    again = shorter[-8:-2] if not volatile else [*shorter[1 : 1 + kept], *shorter[-8:-2]]
    assert verdict.lost_bytes == sum(
        len(json.dumps(message)) for message in hermes(body_of(again))["messages"]
    )
    assert watch.look(body_of([*shorter, *news])).difference is None


def test_old_results_that_were_cleared_are_a_compaction() -> None:
    """Also where each message stays in its place."""
    watch = Watch()
    *_, last = turns(sessions()[0])
    watch.look(last)
    shorter = copy.deepcopy(last)
    for message in shorter["messages"][1:-2]:
        if message.get("content"):
            message["content"] = "[cleared]"
    verdict = watch.look(shorter)
    assert verdict.difference is not None
    assert verdict.difference.kind is Kind.COMPACTION


def opening(*more: Message, system: str = "You are a careful agent. " * 20) -> Body:
    """A conversation that begins as others do."""
    return body_of([{"role": "system", "content": system}, {"role": "user", "content": "Say hello"}, *more])


def answered(text: str, id: str) -> list[Message]:
    """A call of a tool and its result."""
    function = {"name": "search", "arguments": '{"city":"Rome"}'}
    call = {"id": id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": f"done by {id}"},
    ]


def test_conversations_that_begin_alike_are_not_one() -> None:
    """Neither side by side, nor one after the other, nor with other identifiers of the same calls."""
    watch = Watch()
    ours, theirs = answered("I look.", "call_a1"), answered("I look.", "call_b2")
    more = answered("Once more.", "call_a3")
    for body in (
        opening(),
        opening(),
        opening(*ours),
        opening(*theirs),
        opening(*ours, *more),
        opening(),
        opening(*answered("Let me see.", "call_c4")),
    ):
        assert watch.look(body).difference is None


def test_a_request_that_branches_off_is_no_break() -> None:
    """A review of the whole conversation beside its next turn: both continue what was there."""
    watch = Watch()
    history = answered("I look.", "call_a1")
    assert watch.look(opening(*history)).difference is None
    review = {"role": "user", "content": "Review the conversation. " * 20}
    assert watch.look(opening(*history, review)).difference is None
    for _ in range(2):
        history += answered("On we go.", f"call_{len(history)}")
        assert watch.look(opening(*history)).difference is None


def test_a_helper_that_quotes_a_message_is_another_caller() -> None:
    """A title is asked for with the same words and another system prompt, without tools."""
    watch = Watch()
    assert watch.look(opening(), session="s").difference is None
    title = opening(system="Give a short title for what the user says. No quotes.")
    assert watch.look(title | {"tools": []}, session="s").difference is None


def test_a_message_that_goes_on_is_no_break() -> None:
    """What was said last has more to it now; one before it would be another past."""
    watch = Watch()
    words = {"role": "assistant", "content": "I look at the files one by one"}
    watch.look(opening(words))
    more = words | {"content": words["content"] + ", and there are three."}
    assert watch.look(opening(more, *answered("On we go.", "call_x"))).difference is None
    longer = more | {"content": more["content"] + " Or four."}
    verdict = watch.look(opening(longer, *answered("On we go.", "call_x"), words))
    assert verdict.difference is not None
    assert verdict.difference.kind is Kind.HISTORY


def test_other_agents_and_sessions_are_not_compared() -> None:
    """Who asks, and a name that the client gives its conversation, hold them apart."""
    watch = Watch()
    old, new = spoilt(CASES["time"][1])
    watch.look(old, agent="a", session="1")
    assert watch.look(new, agent="b", session="1").difference is None
    assert watch.look(new, agent="a", session="2").difference is None
    old["messages"] += answered("On we go.", "call_x")
    assert watch.look(old, agent="a", session="1").difference is None


def test_spelling_is_no_difference() -> None:
    """Engines read JSON: its blanks and escapes, and the order of a message's members, are not the prompt."""
    watch = Watch()
    body = opening({"role": "assistant", "content": "Grüß Gott"}, {"role": "user", "content": "Go on"})
    watch.look(body)
    news = [{"role": "assistant", "content": "Fine"}, {"role": "user", "content": "And now?"}]
    turned = [{"content": m["content"], "role": m["role"]} for m in body["messages"]]
    spelt = json.dumps(body_of(turned + news), ensure_ascii=False, separators=(",", ":")).encode()
    assert watch.look(spelt).difference is None


def anthropic(system: str, *said: str) -> Body:
    """A request of Anthropic's kind, whose system prompt stands behind the messages."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[i % 2], "content": [{"type": "text", "text": text}]} for i, text in enumerate(said)
    ]
    return {"model": "m", "max_tokens": 9, "messages": messages, "system": system}


def test_messages_of_anthropic_are_compared_too() -> None:
    """The system prompt is the body's own member; a mark for the cache is nothing that a model reads."""
    watch = Watch()
    said = ["What is the weather in Rome, and what was it yesterday? " * 3, "Sunny.", "And in Oslo?"]
    begun = anthropic("You help. It is 9:01. " * 9, *said[:1])
    assert watch.look(begun, path=MESSAGES) == Verdict(0, new=True)
    marked = anthropic("You help. It is 9:01. " * 9, *said)
    marked["messages"][2]["content"][0]["cache_control"] = {"type": "ephemeral"}
    assert watch.look(marked, path=MESSAGES).difference is None
    verdict = watch.look(anthropic("You help. It is 9:02. " * 9, *said), path=MESSAGES)
    assert verdict.difference is not None
    assert (verdict.difference.kind, verdict.difference.path) == (Kind.TIME, "system")
    assert verdict.difference.offset == watch.raw.index(b"9:02") + 3


def test_a_dropped_item_of_reasoning_is_named() -> None:
    """On the responses route reasoning is an item of its own."""
    watch = Watch()
    items = [
        {"type": "message", "role": "user", "content": "Weather in Rome?" * 9},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "Sunny in Rome. " * 9},
    ]
    body = {"model": "m", "instructions": "You help.", "input": items}
    watch.look(body, path=RESPONSES)
    news = {"type": "message", "role": "user", "content": "And in Oslo?"}
    verdict = watch.look(body | {"input": [items[0], *items[2:], news]}, path=RESPONSES)
    assert verdict.difference is not None
    assert (verdict.difference.kind, verdict.difference.path) == (Kind.REASONING, "input[1].type")


def test_memory_is_bounded() -> None:
    """10,000 conversations, then one of the last is still known and one of the first is not."""
    watch = Watch(turns_max=500, bytes_max=1_000_000)
    for number in range(10_000):
        watch.look(
            opening({"role": "user", "content": f"Number {number}"}, system="S" * 1000), f"a{number % 7}"
        )
        assert watch.stability.memory_bytes <= 1_000_000
    held = len(watch.stability)
    assert 100 < held <= 500
    private = vars(watch.stability)
    assert {name: len(private[name]) for name in ("_held", "_ends", "_tails")} == dict.fromkeys(
        ("_held", "_ends", "_tails"), held
    )
    assert len(private["_openings"]) <= 7


def test_a_turn_of_unusual_length_is_not_held() -> None:
    """One conversation full of pictures must not push out all others."""
    watch = Watch(bytes_max=100_000_000)
    watch.look(opening({"role": "user", "content": "x" * 5_000_000}))
    assert len(watch.stability) == 0


def test_what_is_too_long_to_be_read_is_compared_as_bytes() -> None:
    """The byte and what stands there are known all the same, without the way inside the message."""
    watch = Watch()
    for minute in (1, 2):
        body = opening(*answered("I look.", "call_a1") * minute)
        body["messages"][0]["content"] += "x" * 300_000 + f" It is 9:0{minute}."
        verdict = watch.look(body)
    assert verdict.difference is not None
    assert (verdict.difference.kind, verdict.difference.path) == (Kind.TIME, "messages[0]")
    assert verdict.difference.offset == watch.raw.index(b"9:02") + 3


@pytest.mark.parametrize("content", ["[" * 400 + "]" * 400, '{"a":' * 400 + "1" + "}" * 400])
def test_nesting_without_end_breaks_nothing(content: str) -> None:
    """What cannot be read as JSON is compared as bytes."""
    watch = Watch()
    for word in ("one", "two"):
        said = [f'{{"role":"user","content":{text}}}' for text in (f'"{word}"', content, '"And then?"')]
        verdict = watch.look(f'{{"model":"m","messages":[{",".join(said)}]}}'.encode())
    assert verdict.difference is not None
    assert verdict.difference.kind is Kind.HISTORY
