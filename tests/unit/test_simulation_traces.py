"""Recorded workloads as programs."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from policies.simulation.hits import ideal_hits
from policies.simulation.traces import Step, UnreadableTrace, mooncake, replayed, sessions
from policies.simulation.workload import Digests, Program, Segment
from policies.types import Priority

TRACES = Path(__file__).parents[1] / "fixtures" / "traces"
CONTEXT_TOKENS = 131_072


def session(*requests: tuple[int, int, float | None, list[list[int]]]) -> str:
    """A recorded line, of (input tokens, output tokens, pause, blocks)."""
    rows = [
        [0.0, tokens, output, 1.0, pause, "tool_use", 0, blocks] for tokens, output, pause, blocks in requests
    ]
    return json.dumps({"id": "one", "block": 64, "tool_tokens": 64, "system_tokens": 64, "requests": rows})


# -- sessions ---------------------------------------------------------------------------------------


def test_a_session_tells_what_each_request_keeps() -> None:
    """Of the prompt before: all if only the end of a block is missing, else the blocks in common."""
    line = session(
        (1000, 50, 0.0, [[1, 15]]),
        (1500, 60, 3.0, [[1, 23]]),
        (900, 70, None, [[1, 8], [50, 6]]),
    )
    assert sessions([line, ""]) == [
        [Step(0, 1000, 50, 0.0), Step(1000, 500, 60, 3.0), Step(512, 388, 70, 0.0)]
    ]


def test_the_shipped_sessions_can_be_read() -> None:
    """68 of them; with an endless cache nine tenths of their prompts need not be computed."""
    text = files("gateway").joinpath("traces", "coding_agents.jsonl").read_text("utf-8")
    recorded = sessions(text.splitlines())
    assert (len(recorded), sum(map(len, recorded))) == (68, 1121)
    digests = Digests()
    programs = [
        Program(
            f"{number}",
            "agents",
            Priority.AGENT,
            float(number),
            tuple(replayed(steps, (), digests, scale=1.0, think_seconds_max=60.0)),
        )
        for number, steps in enumerate(recorded)
    ]
    hits = [hit for hits in ideal_hits(programs) for hit in hits]
    ratio = sum(hit.cached_tokens for hit in hits) / sum(hit.turn.prompt_tokens for hit in hits)
    assert ratio == pytest.approx(0.92, abs=0.02)
    assert max(hit.turn.prompt_tokens for hit in hits) <= 65_536


def test_a_replayed_session_keeps_its_shape() -> None:
    """Sizes scaled, pauses capped, the shared head in front, each prompt going on from the answer before."""
    steps = [Step(0, 10_000, 200, 0.0), Step(10_000, 1000, 100, 90.0), Step(4000, 2000, 10, 1.0)]
    head = (Segment(999, 3000),)
    first, second, third = replayed(steps, head, Digests(), scale=0.5, think_seconds_max=20.0)
    assert [turn.prompt_tokens for turn in (first, second, third)] == [5000, 5500, 3000 + 1]
    assert [turn.output_tokens for turn in (first, second, third)] == [100, 50, 5]
    assert second.think_seconds == 20.0
    assert all(turn.prompt[0] == head[0] for turn in (first, second, third))
    assert second.prompt[: len(first.sequence)] == first.sequence
    assert third.prompt[:-1] == head


@pytest.mark.parametrize("line", ["{", "[]", '{"block": 64}', '{"block": 64, "requests": [[1, 2]]}'])
def test_a_line_that_is_no_session_is_named(line: str) -> None:
    """By its number."""
    with pytest.raises(UnreadableTrace, match="line 2 "):
        sessions([session((1000, 50, 0.0, [[1, 15]])), line])


# -- Mooncake ---------------------------------------------------------------------------------------


def test_a_mooncake_trace_is_a_request_per_line() -> None:
    """At its time, with its lengths; equal blocks are equal prefixes."""
    lines = (TRACES / "mooncake_conversation.jsonl").read_text().splitlines()
    programs = mooncake(lines, CONTEXT_TOKENS)
    assert len(programs) == 120
    first, second = programs[0].turns[0], programs[1].turns[0]
    assert (first.prompt_tokens, first.output_tokens) == (6758, 500)
    assert first.prompt[0] == second.prompt[0] == Segment(0, 512)
    assert first.prompt[1].digest != second.prompt[1].digest
    assert programs[-1].starts == json.loads(lines[-1])["timestamp"] / 1000
    assert {program.priority for program in programs} == {Priority.INTERACTIVE, Priority.AGENT}


def test_answers_are_no_blocks() -> None:
    """Ids of answers are none that a prompt has."""
    programs = mooncake((TRACES / "mooncake_conversation.jsonl").read_text().splitlines(), CONTEXT_TOKENS)
    turns = [turn for program in programs for turn in program.turns]
    assert not {turn.answer for turn in turns} & {part.digest for turn in turns for part in turn.prompt}


def test_what_no_engine_holds_is_left_out() -> None:
    """A prompt with its answer."""
    line = json.dumps({"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [1, 2]})
    assert len(mooncake([line], 650)) == 1
    assert mooncake([line], 649) == []


@pytest.mark.parametrize(
    "row",
    [
        {"timestamp": 0, "input_length": 600, "output_length": 5},
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": []},
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": "x", "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
    ],
)
def test_a_line_of_another_format_is_named(row: dict[str, object]) -> None:
    """By its number."""
    with pytest.raises(UnreadableTrace, match="line 1 "):
        mooncake([json.dumps(row)], CONTEXT_TOKENS)
