"""What a backend's prefix cache probably holds."""

from __future__ import annotations

from policies.prefix import PrefixShadow
from tests.unit.fleet import a_chain


def test_counts_the_links_in_common() -> None:
    """Two prompts share what stands before their first difference."""
    shadow = PrefixShadow()
    shadow.book(a_chain(1, 2, 3))
    assert shadow.matched_bytes(a_chain(1, 2, 9)) == 2000
    assert shadow.matched_bytes(a_chain(9)) == 0
    assert shadow.matched_bytes(()) == 0


def test_a_longer_prompt_was_cached_for_a_shorter_one() -> None:
    """A prompt that ends inside a known one is known whole."""
    shadow = PrefixShadow()
    shadow.book(a_chain(1, 2, 3))
    assert shadow.matched_bytes(a_chain(1, 2)) == 2000


def test_the_next_turn_takes_the_place_of_the_last() -> None:
    """A conversation stays in its slot: turns do not fill the others."""
    shadow = PrefixShadow(sequences_max=2)
    shadow.book(a_chain(9))
    for turn in range(1, 6):
        shadow.book(a_chain(*range(1, turn + 1)))
    assert len(shadow) == 2
    assert shadow.matched_bytes(a_chain(9)) == 1000
    assert shadow.matched_bytes(a_chain(*range(1, 9))) == 5000


def test_the_same_prompt_again_is_one_sequence() -> None:
    """A repeat neither counts twice nor pushes another out."""
    shadow = PrefixShadow(sequences_max=2)
    shadow.book(a_chain(9))
    shadow.book(a_chain(1))
    shadow.book(a_chain(1))
    assert len(shadow) == 2 and shadow.matched_bytes(a_chain(9)) == 1000


def test_forgets_the_sequence_used_longest_ago() -> None:
    """As many sequences as slots; what a forgotten one shared with another stays."""
    shadow = PrefixShadow(sequences_max=2)
    shadow.book(a_chain(1, 2))
    shadow.book(a_chain(1, 3))
    shadow.book(a_chain(4))
    assert shadow.matched_bytes(a_chain(1, 2)) == 1000
    assert shadow.matched_bytes(a_chain(1, 3)) == 2000
    assert shadow.matched_bytes(a_chain(4)) == 1000


def test_no_slots_hold_nothing() -> None:
    """Fewer slots at the next booking mean fewer sequences, down to none."""
    shadow = PrefixShadow(sequences_max=2)
    shadow.book(a_chain(1))
    shadow.sequences_max = 0
    shadow.book(a_chain(2))
    assert (len(shadow), shadow.matched_bytes(a_chain(1))) == (0, 0)


def test_a_restart_empties_it() -> None:
    """Nothing survives the engine's process, and it can be filled again."""
    shadow = PrefixShadow()
    shadow.book(a_chain(1, 2))
    shadow.clear()
    assert (len(shadow), shadow.matched_bytes(a_chain(1, 2))) == (0, 0)
    shadow.book(a_chain(1, 2))
    assert shadow.matched_bytes(a_chain(1, 2)) == 2000


def test_a_prompt_without_links_is_not_booked() -> None:
    """There is nothing to find again."""
    shadow = PrefixShadow()
    shadow.book(())
    assert len(shadow) == 0
