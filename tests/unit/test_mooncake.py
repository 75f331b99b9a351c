"""The journal as a trace: prompts that begin alike share blocks, and no others."""

from __future__ import annotations

import json
import random

import pytest

from gateway.mooncake import Blocks, trace
from gateway.row import packed
from policies.prefix import Chain, Link
from policies.simulation.traces import MOONCAKE_BLOCK_TOKENS, mooncake
from tests.unit.test_journal import NOW, a_row


def shared(one: list[int], other: list[int]) -> int:
    """Blocks in common from the start."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def chain(*messages: tuple[int, int]) -> Chain:
    """A prompt of messages, each with a digest of the chain up to it and its own bytes."""
    ends, total = [], 0
    for digest, size in messages:
        total += size
        ends.append(Link(digest, total))
    return tuple(ends)


def test_lines_are_what_the_simulator_reads() -> None:
    """Times from the first arrival in milliseconds, the engine's own counts; what nobody answered is no
    workload."""
    prompt = packed(chain((1, 3000), (2, 3000)))
    rows = [
        a_row("1", arrived=NOW, chain=prompt, prompt_tokens=1500, completion_tokens=20),
        a_row("2", arrived=NOW + 1, chain=None),
        a_row("3", arrived=NOW + 2, chain=prompt, prompt_tokens=1500, completion_tokens=None),
        a_row("4", arrived=NOW + 2.5, chain=prompt, prompt_tokens=1500, completion_tokens=0),
    ]
    lines = list(trace(rows))
    assert [json.loads(line) for line in lines] == [
        {"timestamp": 0, "input_length": 1500, "output_length": 20, "hash_ids": [0, 1, 2]},
        {"timestamp": 2500, "input_length": 1500, "output_length": 0, "hash_ids": [0, 1, 2]},
    ]
    programs = mooncake(lines, 65_536)
    assert [program.starts for program in programs] == [0.0, 2.5]
    assert programs[0].turns[0].prompt == programs[1].turns[0].prompt


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.4])
def test_the_next_turn_shares_all_full_blocks_of_the_one_before(ratio: float) -> None:
    """Although its tokens per byte are a little different, as they are in life."""
    blocks, dice = Blocks(), random.Random(1)
    messages = [(digest, dice.randrange(100, 30_000)) for digest in range(1, 30)]
    before, before_tokens = [0], 0
    for turn in range(1, len(messages)):
        prompt = chain(*messages[:turn])
        tokens = max(before_tokens + 1, round(prompt[-1].end_bytes * ratio * dice.uniform(0.97, 1.03)))
        ids = blocks.of(prompt, tokens)
        assert len(ids) == -(-tokens // MOONCAKE_BLOCK_TOKENS)
        assert shared(before, ids) >= before_tokens // MOONCAKE_BLOCK_TOKENS
        before, before_tokens = ids, tokens


def test_prompts_share_no_more_than_their_messages() -> None:
    """Another last message of the same length, or another first one, is another prompt from there on."""
    blocks = Blocks()
    one = blocks.of(chain((1, 40_000), (2, 40_000)), 20_000)
    other = blocks.of(chain((1, 40_000), (3, 40_000)), 20_000)
    foreign = blocks.of(chain((4, 40_000), (5, 40_000)), 20_000)
    assert shared(one, other) == 10_000 // MOONCAKE_BLOCK_TOKENS
    assert not set(one[20:]) & set(other[20:])
    assert not set(one) & set(foreign)


def test_a_prompt_that_was_estimated_too_long_spoils_nothing() -> None:
    """Its messages lie beyond the end of the next turn, which has its own length and its own last block."""
    blocks = Blocks()
    blocks.of(chain((1, 40_000), (2, 40_000)), 30_000)
    shorter = blocks.of(chain((1, 40_000), (2, 40_000), (3, 400)), 20_000)
    another = blocks.of(chain((1, 40_000), (2, 40_000), (4, 400)), 20_000)
    assert len(shorter) == len(another) == 40
    assert shared(shorter, another) == 39
