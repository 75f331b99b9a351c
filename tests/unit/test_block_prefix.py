"""What a cache of shared blocks probably holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.block_prefix import LINKS_MAX, BlockShadow
from policies.prefix import Chain
from tests.unit.fleet import a_chain


def test_everybody_shares_what_anybody_has_read() -> None:
    """A head counts for all from the moment it is booked."""
    shadow = BlockShadow(10_000)
    shadow.book(a_chain(1, 2), 500)
    assert shadow.matched_bytes(a_chain(1, 3)) == 1000
    assert shadow.matched_bytes(a_chain(1, 2, 3)) == 2000
    assert shadow.matched_bytes(a_chain(4)) == shadow.matched_bytes(()) == 0


def test_the_answer_is_there_too() -> None:
    """Behind a whole prompt that was answered, until that is forgotten."""
    shadow = BlockShadow(1000)
    shadow.book(a_chain(1, 2), 400)
    assert shadow.matched_bytes(a_chain(1, 2, 3, 4)) == 2000
    shadow.ended(a_chain(1, 2))
    assert shadow.matched_bytes(a_chain(1, 2, 3, 4)) == 3000
    assert shadow.matched_bytes(a_chain(1, 5, 6)) == 1000
    shadow.book(a_chain(7, 8), 900)
    shadow.ended(a_chain(1, 2))
    assert shadow.matched_bytes(a_chain(1, 2, 3)) == 0


def test_what_is_read_anew_has_no_answer_yet() -> None:
    """That of the first time went with its prompt."""
    shadow = BlockShadow(1000)
    shadow.book(a_chain(1, 2), 400)
    shadow.ended(a_chain(1, 2))
    shadow.book(a_chain(7, 8), 900)
    shadow.book(a_chain(1, 2), 400)
    assert shadow.matched_bytes(a_chain(1, 2, 3, 4)) == 2000


def test_forgets_the_end_of_what_was_used_longest_ago() -> None:
    """1,000 tokens: the third prompt pushes out the second message of the first, not its head."""
    shadow = BlockShadow(1000)
    shadow.book(a_chain(1, 2), 400)
    shadow.book(a_chain(3, 4), 400)
    shadow.book(a_chain(1, 5), 400)  # 200 of these are there already
    assert shadow.matched_bytes(a_chain(1, 2)) == 2000
    shadow.book(a_chain(6), 200)
    assert shadow.matched_bytes(a_chain(1, 2)) == 1000
    assert shadow.matched_bytes(a_chain(3, 4)) == 2000


def test_a_prompt_larger_than_the_cache_leaves_its_beginning() -> None:
    """Its own end goes first."""
    shadow = BlockShadow(1000)
    shadow.book(a_chain(1, 2, 3, 4), 2000)
    assert shadow.matched_bytes(a_chain(1, 2, 3, 4)) == 2000


def test_an_eviction_takes_all_older_ones_with_it() -> None:
    """The engine holds less than it said, or works for others too."""
    shadow = BlockShadow()
    for chain in (a_chain(1), a_chain(2), a_chain(3)):
        shadow.book(chain, 100)
    booking = shadow.book(a_chain(2, 4), 100)
    assert booking.matched_bytes == 1000
    shadow.missed(booking)
    assert [shadow.matched_bytes(a_chain(n)) for n in (1, 2, 3)] == [0, 1000, 1000]


def test_a_smaller_cache_takes_effect_with_the_next_prompt() -> None:
    """After a restart with less memory the same rule holds for less."""
    shadow = BlockShadow()
    shadow.book(a_chain(1, 2), 1000)
    shadow.resize(4, 600)
    shadow.book(a_chain(3), 100)
    assert shadow.matched_bytes(a_chain(1, 2)) == 1000
    shadow.clear()
    assert len(shadow) == 0


def test_has_a_bound_where_the_engine_tells_none() -> None:
    """A gateway that runs for months must not remember every message."""
    shadow = BlockShadow()
    for turn in range(LINKS_MAX // 500 + 2):
        shadow.book(a_chain(*range(turn * 1000, turn * 1000 + 500)), 1)
    assert len(shadow) == LINKS_MAX


PROMPTS = [a_chain(*path) for path in [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (1, 5), (6,), (6, 7), (8, 9, 10)]]


@given(
    st.integers(0, 2000), st.lists(st.tuples(st.booleans(), st.sampled_from(PROMPTS), st.integers(0, 900)))
)
def test_keeps_whole_beginnings_and_its_bound(tokens: int, steps: list[tuple[bool, Chain, int]]) -> None:
    """Never more tokens than there is room for; whoever is held has all before it."""
    shadow = BlockShadow(tokens)
    for missed, chain, prompt_tokens in steps:
        booking = shadow.book(chain, prompt_tokens)
        if missed:
            shadow.missed(booking)
        held = shadow._links
        assert shadow._tokens == sum(tokens for tokens, _ in held.values()) <= tokens
        for prompt in PROMPTS:
            inside = [link.digest in held for link in prompt]
            assert inside == sorted(inside, reverse=True)
