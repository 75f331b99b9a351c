"""Recorded workloads: lines of text in, programs out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from policies.simulation.workload import Digests, Program, Segment, Turn
from policies.types import Priority

MOONCAKE_BLOCK_TOKENS = 512
SHORT_TOKENS = 4096  # a prompt below this, with an answer below the next, is interactive
SHORT_OUTPUT_TOKENS = 1024


class UnreadableTrace(Exception):
    """A line is not of the format; says which and why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a recorded session."""

    kept_tokens: int  # of the prompt before and its answer, from the start
    new_tokens: int
    output_tokens: int
    think_seconds: float


def sessions(lines: Iterable[str]) -> list[list[Step]]:
    """Sessions of coding agents, one a line: `requests` holds [time, input tokens, output tokens, seconds
    at the vendor, think time, stop, depth, blocks], blocks as runs [first id, count] of `block` tokens."""
    return [_session(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _session(number: int, line: str) -> list[Step]:
    try:
        session = json.loads(line)
        block = int(session["block"])
        steps: list[Step] = []
        before: Sequence[tuple[int, int]] = ()
        whole = 0  # tokens of the prompt before
        for _, input_tokens, output_tokens, _, think, _, _, runs in session["requests"]:
            kept = min(_common(before, runs) * block, input_tokens - 1)
            # The part of a block at the end of a prompt is not in its ids, but the next one goes on from it.
            if whole - kept < block:
                kept = min(whole, input_tokens - 1)
            steps.append(Step(kept, input_tokens - kept, output_tokens, think or 0.0))
            before, whole = runs, input_tokens
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableTrace(f"line {number} is no recorded session ({error!r})") from None
    return steps


def _common(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> int:
    """Blocks that two prompts share from their start."""
    shared = 0
    for (first, count), (other_first, other_count) in zip(one, other, strict=False):
        if first != other_first:
            break
        shared += min(count, other_count)
        if count != other_count:
            break
    return shared


def replayed(
    steps: Sequence[Step],
    head: tuple[Segment, ...],
    digests: Digests,
    *,
    scale: float,
    think_seconds_max: float,
) -> list[Turn]:
    """A session with its sizes scaled, its pauses capped, and the first tokens of every prompt replaced by
    `head`, which other sessions share."""
    turns: list[Turn] = []
    sequence = head
    for step in steps:
        kept = [s for s in sequence if s.end_tokens <= max(round(step.kept_tokens * scale), _length(head))]
        continues = turns and kept == [*turns[-1].prompt]
        total = max(_length(kept) + 1, round((step.kept_tokens + step.new_tokens) * scale))
        if continues and _length(turns[-1].sequence) < total:
            kept = [*turns[-1].sequence]
        prompt = (*kept, Segment(digests.new(), total))
        output = max(1, round(step.output_tokens * scale))
        turns.append(Turn(prompt, output, digests.new(), min(step.think_seconds, think_seconds_max)))
        sequence = prompt
    return turns


def _length(sequence: Sequence[Segment]) -> int:
    return sequence[-1].end_tokens if sequence else 0


def mooncake(lines: Iterable[str], context_tokens: int) -> list[Program]:
    """Mooncake's JSONL: each line a request of its own, at its time, with ids of blocks that are equal
    wherever the prompt up to there is. Those that no context of this many tokens holds are left out."""
    asked = [_asked(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    digests = Digests(max((block for *_, blocks in asked for block in blocks), default=0))
    programs: list[Program] = []
    for number, (at, input_tokens, output_tokens, blocks) in enumerate(asked):
        if input_tokens + output_tokens > context_tokens:
            continue
        ends = [min(input_tokens, (i + 1) * MOONCAKE_BLOCK_TOKENS) for i in range(len(blocks))]
        prompt = tuple(Segment(block, end) for block, end in zip(blocks, ends, strict=True))
        short = input_tokens < SHORT_TOKENS and output_tokens <= SHORT_OUTPUT_TOKENS
        programs.append(
            Program(
                name=f"request-{number}",
                tenant="trace",
                priority=Priority.INTERACTIVE if short else Priority.AGENT,
                starts=at,
                turns=(Turn(prompt, output_tokens, digests.new()),),
            )
        )
    return programs


def _asked(number: int, line: str) -> tuple[float, int, int, list[int]]:
    try:
        row = json.loads(line)
        at, input_tokens, output_tokens = row["timestamp"] / 1000, row["input_length"], row["output_length"]
        blocks = [int(block) for block in row["hash_ids"]]
        ends = [*range(0, len(blocks) * MOONCAKE_BLOCK_TOKENS, MOONCAKE_BLOCK_TOKENS), input_tokens]
        if not blocks or not all(start < end for start, end in pairwise(ends)):
            raise ValueError(f"{len(blocks)} blocks for {input_tokens} tokens")
        return at, int(input_tokens), max(1, int(output_tokens)), blocks
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableTrace(f"line {number} is not in Mooncake's format ({error!r})") from None
