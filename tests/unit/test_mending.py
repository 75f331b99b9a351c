"""A head held still: what it becomes, and what must not happen to it."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.mending import Heads, _tool, day_of, ordered_tools
from policies.volatility import Kind, Span, respanned, spans
from tests.unit.conversations import TOOLS, tool

UUIDS = [f"1f0e8c1a-58a1-4c1b-9f5e-0d0d2c9d1a{n}" for n in (11, 12, 13)]


def raw(tools: Any) -> bytes:
    return json.dumps(tools).encode()


# -- tools ----------------------------------------------------------------------------------------


def test_any_order_of_tools_becomes_one() -> None:
    """All six orders of three tools, and any order of members, are the same bytes and the same tools."""
    texts = {ordered_tools(raw(order))[0] for order in itertools.permutations(TOOLS)}
    turned = [dict(reversed(tool["function"].items())) for tool in TOOLS]
    texts.add(ordered_tools(raw([{"function": function, "type": "function"} for function in turned]))[0])
    assert len(texts) == 1
    assert json.loads(texts.pop()) == TOOLS


def test_tells_what_was_changed() -> None:
    """Order of tools, order of members, both, or nothing but spelling."""
    ordered = json.loads(ordered_tools(raw(TOOLS))[0])
    assert ordered_tools(raw(ordered))[1] == frozenset()
    assert ordered_tools(raw(ordered[::-1]))[1] == {Kind.TOOL_ORDER}
    assert ordered_tools(raw([dict(reversed(one.items())) for one in ordered]))[1] == {Kind.TOOL_KEY_ORDER}


def test_done_twice_is_done_once() -> None:
    """The form is one that stays."""
    once, _ = ordered_tools(raw(TOOLS[::-1]))
    assert ordered_tools(once) == (once, frozenset())


def test_values_stay_as_they_are_written() -> None:
    """Numbers to the digit, texts to the letter, arrays in their order."""
    text = (
        '[{"name":"a","x":[3,1,2],"n":1.0,"big":123456789012345678901,"e":1e400,"t":"é\\n\\ud800","z":null}]'
    )
    changed, _ = ordered_tools(text.encode())
    for member in (b'"x":[3,1,2]', b'"n":1.0', b'"big":123456789012345678901', b'"e":1e400', b'"z":null'):
        assert member in changed
    assert json.loads(changed) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"{}", b'[1,{"name":"a"}]', b'[{"a":1,"a":2}]', b"[" * 3000 + b"]" * 3000, b"[{]"],
)
def test_what_is_no_list_of_tools_stays(text: bytes) -> None:
    """Also an object that has a key twice: which one counts is the engine's to say."""
    assert ordered_tools(text) == (text, frozenset())


def test_tools_without_names_and_alike_names_are_ordered_too() -> None:
    """By what they are, whichever comes first."""
    tools = [tool("a", "One."), tool("a", "Two."), {"type": "web_search"}]
    assert len({ordered_tools(raw(order))[0] for order in itertools.permutations(tools)}) == 1


# -- the system prompt -------------------------------------------------------------------------------


def test_spans_are_held_at_their_first_values() -> None:
    """Each kind, through all turns of a conversation, whatever its length."""
    heads = Heads()
    turns = [
        f"It is 2026-11-30T09:0{n}:17Z. Session {UUIDS[n]}, request r{n}kq7zp1. You made {8 + n} calls."
        for n in range(3)
    ]
    assert heads.still("a", f"s{1}", [1], turns[0].encode()) == (turns[0].encode(), frozenset())
    kinds = {Kind.TIME, Kind.UUID, Kind.RANDOM_ID, Kind.COUNTER}
    for turn in turns[1:]:
        assert heads.still("a", f"s{1}", [1], turn.encode()) == (turns[0].encode(), kinds)
    assert heads.still("a", f"s{1}", [1], turns[0].encode()) == (turns[0].encode(), frozenset())


def test_what_else_has_changed_is_sent_as_it_is() -> None:
    """A prompt that was rewritten is the new one, with the values of its own turn."""
    heads = Heads()
    heads.still("a", f"s{1}", [1], b"You help. It is 9:01.")
    assert heads.still("a", f"s{1}", [1], b"You help Mia. It is 9:02.") == (
        b"You help Mia. It is 9:02.",
        frozenset(),
    )
    assert heads.still("a", f"s{1}", [1], b"You help Mia. It is 9:03.") == (
        b"You help Mia. It is 9:02.",
        {Kind.TIME},
    )


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("\u00e9tude", "\u00e9cole"),
        ("pr\u00fcfen", "pr\u00fcgeln"),
        ("\u4f60\u4e2d", "\u4f60\u4e3d"),
        ("\u00e9", "\u00e8"),
    ],
)
def test_an_escaped_letter_is_no_identifier(was: str, now: str) -> None:
    """Many clients write all letters but the plain ones as escapes, which end in digits."""
    heads = Heads()
    first, second = (
        raw(f"Tu fais {word}, 7 fois. Il est \u5929{n}:30.") for n, word in enumerate((was, now))
    )
    assert heads.still("a", "s1", [1], first) == (first, frozenset())
    assert heads.still("a", "s1", [1], second) == (second, frozenset())
    third = second.replace(b"1:30", b"2:30").replace(b"7", b"8")
    assert heads.still("a", "s1", [1], third) == (second, {Kind.TIME, Kind.COUNTER})


def test_conversations_hold_their_own_values() -> None:
    """An identifier of another one would be wrong, not only old."""
    heads = Heads()
    for number in (0, 1):
        text = f"Session {UUIDS[number]}.".encode()
        assert heads.still("a", f"s{number}", [1], text) == (text, frozenset())
        assert heads.still("a", f"s{number}", [1], f"Session {UUIDS[2]}.".encode())[0] == text


def test_conversations_that_begin_alike_are_told_apart_by_their_identifiers() -> None:
    """Neither has a name, both begin with the same words: each keeps its own identifier, and its own time."""
    heads = Heads()

    def text(session: int, minute: int) -> bytes:
        return f"Session {UUIDS[session]} at 9:0{minute}.".encode()

    assert heads.still("a", None, [7], text(0, 1))[0] == text(0, 1)
    begun, _ = heads.still("a", None, [7], text(1, 2))
    assert UUIDS[1].encode() in begun
    assert heads.still("a", None, [7, 8], text(0, 3))[0] == text(0, 1)
    assert heads.still("a", None, [7, 9], text(1, 4))[0] == begun
    assert heads.still("a", None, [7, 8, 1], text(0, 5))[0] == text(0, 1)
    assert heads.still("a", None, [7, 9, 1], text(1, 6))[0] == begun


def test_an_identifier_of_each_request_is_held_too() -> None:
    """Without a name, a conversation is known again by what was said first."""
    heads = Heads()
    first = f"Request {UUIDS[0]}.".encode()
    said = [7, 8, 9]
    for turn in range(3):
        assert heads.still("a", None, said[: turn + 1], f"Request {UUIDS[turn]}.".encode())[0] == first


def test_a_new_conversation_begins_at_midnight() -> None:
    """From the second one on all that begin on one day begin alike; the day stays, and so do times that never
    change."""
    heads = Heads()
    texts = [
        f"It is 2026-11-{day}, {hour:02}:15:09 UTC. Open from 09:00 to 17:30.".encode()
        for day, hour in ((29, 8), (29, 9), (29, 23), (30, 10))
    ]
    sent = [heads.still("a", f"s{number}", [1], text)[0] for number, text in enumerate(texts)]
    assert sent[0] == texts[0]
    assert sent[1] == sent[2] == b"It is 2026-11-29, 00:00:00 UTC. Open from 09:00 to 17:30."
    assert sent[3] == b"It is 2026-11-30, 00:00:00 UTC. Open from 09:00 to 17:30."
    assert heads.still("a", f"s{1}", [1], texts[2]) == (sent[1], {Kind.TIME})
    assert heads.still("b", "s1", [1], texts[2]) == (texts[2], frozenset())


def test_the_operators_patterns_come_first() -> None:
    """They hold what no kind knows, and what one would cut short."""
    heads = Heads(("mood: [a-z]+", "build [0-9.]+"))
    heads.still("a", f"s{1}", [1], b"mood: gay, build 1.2.3")
    assert heads.still("a", f"s{1}", [1], b"mood: sad, build 2.0") == (
        b"mood: gay, build 1.2.3",
        {Kind.PATTERN},
    )


def test_what_the_operators_patterns_find_everywhere_goes_as_it_came() -> None:
    """To look at that many spans would hold up all else; up to a thousand of them are held."""
    heads = Heads(("mood: [a-z]+",))
    for moods, held in ((1000, True), (1001, False)):
        gay, sad = (b"mood: %b, " % mood * moods for mood in (b"gay", b"sad"))
        assert heads.still("a", f"s{moods}", [1], gay)[0] == gay
        assert (heads.still("a", f"s{moods}", [1], sad)[0] == gay) is held


def test_an_operators_pattern_takes_what_it_overlaps() -> None:
    """A number that it begins in, and one that it ends in; all others are held as ever."""
    heads = Heads(("[0-9]-[a-z]+-[0-9]", "it"))
    texts = [
        f"At 9:0{n}, run 1{n}2-{mood}-4{n}4, as it is {n}.".encode() for n, mood in enumerate(("gay", "sad"))
    ]
    heads.still("a", "s", [1], texts[0])
    sent, kinds = heads.still("a", "s", [1], texts[1])
    assert (sent, kinds) == (texts[1], frozenset())  # what is left of the numbers is no span any more
    again = texts[1].replace(b"sad", b"gay").replace(b"9:01", b"9:07")
    assert heads.still("a", "s", [1], again) == (sent, {Kind.TIME, Kind.PATTERN})


@pytest.mark.parametrize(
    ("time", "day"),
    [
        (b"9:15 AM", b"12:00 AM"),
        (b"09:15 p.m", b"12:00 a.m"),
        (b"12:04:33.123Z", b"00:00:00.000Z"),
        (b"23:59:59+01:00", b"00:00:00+01:00"),
        (b"20261130T123456Z", b"20261130T000000Z"),
        (b"1764525600", b"1764460800"),
        (b"1764525600123", b"1764460800000"),
        (b"1764525600.5", b"1764460800"),
    ],
)
def test_midnight_keeps_the_form(time: bytes, day: bytes) -> None:
    """Whatever the hour, the same bytes come of it."""
    assert day_of(time) == day
    assert day_of(day) == day


def test_what_is_too_long_goes_as_it_came() -> None:
    """To read it would hold up all other requests."""
    tools = raw([tool(name, "x" * 200_000) for name in ("b", "a")])
    assert ordered_tools(tools) == (tools, frozenset())
    heads = Heads()
    for minute in (b"9:01", b"9:02"):
        text = b"It is %s. " % minute + b"x" * 70_000
        assert heads.still("a", "s", [1], text) == (text, frozenset())


def test_memory_is_bounded() -> None:
    """By number and by bytes; what was forgotten begins anew."""
    heads = Heads(heads_max=100, bytes_max=50_000)
    for number in range(10_000):
        heads.still(
            f"a{number % 3}", None, [number, 1], b"It is 9:%02d. " % (number % 60) + b"x" * (number % 2000)
        )
        assert heads.memory_bytes <= 50_000
        assert len(heads) <= 100
    heads = Heads(heads_max=3)
    for number in range(50):
        heads.still("a", None, [number % 4], b"It is 9:%02d." % number)
    assert heads.memory_bytes == sum(head.memory_bytes for head in vars(heads)["_heads"].values())


# -- only what differs is read --------------------------------------------------------------------

FRAGMENTS = [
    *(
        b"It is ",
        b"2026-11-30",
        b"T09:15:22Z ",
        b"9:15 AM",
        b"30 Nov 2026",
        b"Monday, ",
        b"May",
        b" ",
        b"\\n",
        b"\\u00e9",
        b"\\u4e2d",
    ),
    *(b"abc123def", b"x" * 300 + b"1", UUIDS[0].encode(), b"42", b"/", b":", b"-", b"1764525600", b".5"),
    *(b"A" * 1500, b"11\\/30\\/2026", b"7", b"a", b"nothing but words here. " * 12),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=30)
EDITS = st.lists(
    st.tuples(st.integers(0, 29), st.integers(0, 2), st.sampled_from([*FRAGMENTS, b""])), max_size=3
)


def edited(parts: list[bytes], edits: list[tuple[int, int, bytes]]) -> bytes:
    parts = [*parts]
    for place, removed, added in edits:
        parts[place : place + removed] = [added]
    return b"".join(parts)


@settings(deadline=None)
@given(TEXTS, EDITS)
def test_spans_are_those_of_the_whole_text(parts: list[bytes], edits: list[tuple[int, int, bytes]]) -> None:
    """However little of it is read."""
    old, new = b"".join(parts), edited(parts, edits)
    assert respanned(old, list(spans(old)), new) == list(spans(new))


@settings(deadline=None)
@given(TEXTS, EDITS)
def test_a_head_is_the_same_where_only_spans_differ(
    parts: list[bytes], edits: list[tuple[int, int, bytes]]
) -> None:
    """What goes out is the first text if all else has stayed, and what came if not."""
    old, new = b"".join(parts), edited(parts, edits)
    heads = Heads()
    heads.still("a", "s", [1], old)
    sent, kinds = heads.still("a", "s", [1], new)
    skeletons = {
        tuple(text[a.end : b.start] for a, b in itertools.pairwise(bounds(text))) for text in (old, new)
    }
    alike = len(skeletons) == 1
    times = {Kind.TIME} if kinds and not alike else set()
    assert sent == old if alike else sent == new or times
    assert bool(kinds) == (alike and old != new) or times


def bounds(text: bytes) -> list[Span]:
    """Its spans, and its two ends."""
    ends = (Span(Kind.PATTERN, 0, 0), Span(Kind.PATTERN, len(text), len(text)))
    return [ends[0], *spans(text), ends[1]]


def test_only_the_tool_that_is_new_is_read() -> None:
    """An order that was never seen is made of tools that were; blanks between them do not count."""
    tools = [tool(f"tool_{number}", "It does something." * 9) for number in range(30)]
    wanted = ordered_tools(raw(tools))[0]
    before = _tool.cache_info().misses
    chance = random.Random(1)
    for _ in range(20):
        chance.shuffle(tools)
        assert ordered_tools(raw(tools))[0] == wanted
        spaced = b" , ".join(raw(one) for one in tools)
        assert ordered_tools(b"[ %s\n]" % spaced)[0] == wanted
    assert _tool.cache_info().misses == before


@pytest.mark.parametrize("text", [b"[", b"[1", b"[{} {}]", b"[{},", b"[{}] ", b"[{}]]", b"[{},]", b"\xff[]"])
def test_what_is_no_array_stays(text: bytes) -> None:
    """Whatever it is."""
    assert ordered_tools(text) == (text, frozenset())
