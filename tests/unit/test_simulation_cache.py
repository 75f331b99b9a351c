"""What an engine keeps of prompts, by kind."""

from __future__ import annotations

from policies.simulation.cache import BlockCache, Cache, SlotCache, cache
from policies.simulation.profile import DS4_64K, LLAMACPP_131K, VLLM_2SPARK
from policies.simulation.workload import Segment

Sequence = tuple[Segment, ...]


def started(cache: Cache, id: str, prompt: Sequence) -> int:
    """Tokens that a request finds which takes a slot now."""
    cache.start(id, prompt)
    return cache.found(id, prompt)


def answered(cache: Cache, id: str, prompt: Sequence) -> int:
    """The same, and the request is over."""
    found = started(cache, id, prompt)
    cache.computed(id, prompt)
    cache.end(id, prompt)
    return found


def sequence(*parts: tuple[int, int]) -> Sequence:
    """Segments from (digest, tokens)."""
    ends, end = [], 0
    for digest, tokens in parts:
        end += tokens
        ends.append(Segment(digest, end))
    return tuple(ends)


HEAD = (1, 3000)


def test_each_profile_has_its_kind() -> None:
    """Slots and banks are a sequence each, blocks a pool."""
    assert [type(cache(profile)) for profile in (DS4_64K, LLAMACPP_131K, VLLM_2SPARK)] == [
        SlotCache,
        SlotCache,
        BlockCache,
    ]


def test_a_slot_holds_one_sequence() -> None:
    """The next request there replaces it; a request goes to the slot that has most of it."""
    slots = SlotCache(slots=2, granularity=1)
    one, other, third = sequence(HEAD, (2, 1000)), sequence((3, 800)), sequence((4, 900))
    assert [started(slots, "a", one), started(slots, "b", other)] == [0, 0]
    for id, prompt in (("a", one), ("b", other)):
        slots.computed(id, prompt)
        slots.end(id, prompt)
    assert (slots.matched(one), slots.matched(other)) == (4000, 800)
    assert answered(slots, "c", third) == 0  # in the slot unused for longest
    assert (slots.matched(one), slots.matched(other)) == (0, 800)


def test_a_busy_slot_is_out_of_reach() -> None:
    """Its sequence belongs to who runs there."""
    slots = SlotCache(slots=2, granularity=1)
    slots.start("a", sequence(HEAD, (2, 1000)))
    slots.computed("a", sequence(HEAD, (2, 1000)))
    assert started(slots, "b", sequence(HEAD, (3, 1000))) == 0


def test_a_slot_that_has_little_in_common_is_left_to_its_owner() -> None:
    """Under a tenth of the prompt, age decides."""
    slots = SlotCache(slots=2, granularity=1)
    answered(slots, "a", sequence((5, 4000)))
    answered(slots, "b", sequence((1, 100), (2, 4000)))
    assert started(slots, "c", sequence((1, 100), (3, 4000))) == 0  # in the other, used before
    assert started(slots, "d", sequence((1, 100), (2, 4000))) == 4100


def test_a_bank_is_copied_while_it_works() -> None:
    """What another one has computed counts, from when it is computed; the other one keeps it."""
    banks = SlotCache(slots=3, granularity=1, copies=True)
    one, other = sequence(HEAD, (2, 1000)), sequence(HEAD, (3, 1000))
    assert [started(banks, "a", one), started(banks, "b", other)] == [0, 0]
    banks.computed("a", one)
    assert banks.found("b", other) == 3000
    banks.end("a", one)
    assert started(banks, "c", sequence(HEAD, (4, 10))) == 3000
    assert banks.matched(one) == 4000


def test_a_bank_is_continued_in_place() -> None:
    """The next turn of a conversation does not take a second one."""
    banks = SlotCache(slots=2, granularity=1, copies=True)
    other = sequence((8, 500))
    answered(banks, "other", other)
    for turns in range(1, 4):
        assert answered(banks, "one", sequence(*((number, 100) for number in range(turns)))) == 100 * (
            turns - 1
        )
    assert banks.matched(other) == 500


def test_a_prefix_counts_in_whole_checkpoints() -> None:
    """Of 5,000 shared tokens 4,096."""
    banks = SlotCache(slots=1, granularity=2048, copies=True)
    answered(banks, "a", sequence((1, 5000)))
    assert started(banks, "b", sequence((1, 5000), (2, 10))) == 4096


def test_blocks_are_shared_by_all() -> None:
    """A head that one has computed counts for every other, as soon as it is computed."""
    blocks = BlockCache(pool_tokens=100_000, granularity=256)
    one, other = sequence(HEAD, (2, 1000)), sequence(HEAD, (3, 1000))
    assert (started(blocks, "a", one), started(blocks, "b", other)) == (0, 0)
    blocks.computed("a", one)
    assert blocks.found("b", other) == 3000 // 256 * 256
    blocks.end("a", one)
    assert blocks.matched(one) == 4000 // 256 * 256


def test_blocks_go_from_the_end_of_what_was_unused_for_longest() -> None:
    """What is held is always a prefix; a use keeps it."""
    blocks = BlockCache(pool_tokens=8000, granularity=1)
    one, other = sequence(HEAD, (2, 1000), (3, 1000)), sequence((4, 2000))
    answered(blocks, "a", one)
    answered(blocks, "b", other)
    blocks.start("c", sequence(HEAD, (9, 1)))  # uses the head
    blocks.end("d", sequence((5, 2500)))  # 1,500 too many
    assert blocks.matched(one) == 3000
    assert blocks.matched(other) == 2000
