"""What a backend's prefix cache probably holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.prefix import Chain, PrefixShadow
from tests.unit.fleet import a_chain


def served(shadow: PrefixShadow, *prompts: Chain) -> None:
    """One after the other, each to its end."""
    for chain in prompts:
        shadow.book(chain)
        shadow.ended(chain)


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
    served(shadow, a_chain(9), *(a_chain(*range(1, turn + 1)) for turn in range(1, 6)))
    assert len(shadow) == 2
    assert shadow.matched_bytes(a_chain(9)) == 1000
    assert shadow.matched_bytes(a_chain(1, 2, 3, 4, 5)) == 5000


def test_the_answer_is_there_too() -> None:
    """What follows an answered prompt in the next turn is what the engine itself has said; what follows a
    part of a prompt, or a prompt still at work, is not."""
    shadow = PrefixShadow(sequences_max=2)
    shadow.book(a_chain(1, 2))
    assert shadow.matched_bytes(a_chain(1, 2, 3, 4)) == 2000
    shadow.ended(a_chain(1, 2))
    assert shadow.matched_bytes(a_chain(1, 2, 3, 4)) == 3000
    assert shadow.matched_bytes(a_chain(1, 2)) == 2000
    assert shadow.matched_bytes(a_chain(1, 2, 9)) == 2000  # nobody asks with an answer at the end
    assert shadow.matched_bytes(a_chain(1, 5, 6)) == 1000
    assert shadow.book(a_chain(1, 2, 3, 4)).matched_bytes == 3000


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


# -- what has been said, and what was believed -------------------------------------------------------


def test_a_booking_tells_what_was_believed() -> None:
    """How much was expected from the cache, and how long ago that was used."""
    shadow = PrefixShadow(sequences_max=3)
    first, second, third = shadow.book(a_chain(1)), shadow.book(a_chain(2)), shadow.book(a_chain(1, 3))
    assert (first.matched_bytes, second.matched_bytes, third) == (0, 0, (1000, 1))


def test_what_is_evicted_takes_all_older_ones_with_it() -> None:
    """An engine that forgot one conversation has forgotten those that were idle for longer."""
    shadow = PrefixShadow(sequences_max=5)
    served(shadow, a_chain(1), a_chain(2), a_chain(3))
    booking = shadow.book(a_chain(2, 4))
    shadow.missed(booking)
    assert [shadow.matched_bytes(a_chain(n)) for n in (1, 3)] == [0, 1000]
    assert shadow.matched_bytes(a_chain(2, 4)) == 2000  # it has just been read


def test_a_running_request_keeps_its_slot() -> None:
    """The slot of a request at work is not given away, however old it is."""
    shadow = PrefixShadow(sequences_max=2)
    shadow.book(a_chain(1))
    served(shadow, a_chain(2), a_chain(3))
    assert [shadow.matched_bytes(a_chain(n)) for n in (1, 2, 3)] == [1000, 0, 1000]


def test_two_live_requests_of_one_conversation_have_two_slots() -> None:
    """Hermes reviews a conversation in the background while its user goes on."""
    shadow = PrefixShadow(sequences_max=2)
    shadow.book(a_chain(1, 2))
    shadow.book(a_chain(1, 2, 3))
    assert len(shadow) == 2
    shadow.ended(a_chain(1, 2))
    shadow.ended(a_chain(1, 2, 3))
    served(shadow, a_chain(1, 2, 3, 4))
    assert shadow.matched_bytes(a_chain(1, 2, 3, 4)) == 4000


# -- an engine that does not copy between slots ------------------------------------------------------


def test_a_slot_at_work_lends_nothing() -> None:
    """llama.cpp: a second agent reads the head they share itself; once the first has ended, it is there."""
    shadow = PrefixShadow(sequences_max=3, copies=False)
    shadow.book(a_chain(1, 2))
    assert shadow.matched_bytes(a_chain(1, 3)) == 0
    shadow.ended(a_chain(1, 2))
    assert shadow.matched_bytes(a_chain(1, 3)) == 1000


def test_whoever_shares_enough_takes_the_slot_over() -> None:
    """A tenth of the prompt in common, and the other conversation's slot is cut back to that."""
    shadow = PrefixShadow(sequences_max=3, copies=False)
    served(shadow, a_chain(1, 2, 3), a_chain(1, 4))
    assert (len(shadow), shadow.matched_bytes(a_chain(1, 2, 3))) == (1, 1000)
    served(shadow, a_chain(*[1, *range(10, 30)]))  # a twentieth
    assert len(shadow) == 2


def test_banks_are_copied() -> None:
    """ds4 forks: both conversations stay."""
    shadow = PrefixShadow(sequences_max=3)
    served(shadow, a_chain(1, 2, 3), a_chain(1, 4))
    assert (len(shadow), shadow.matched_bytes(a_chain(1, 2, 3))) == (2, 3000)


# -- whatever happens --------------------------------------------------------------------------------

PROMPTS = [a_chain(*path) for path in [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (1, 5), (6,), (6, 7), (8, 9, 10)]]
STEPS = st.lists(st.tuples(st.sampled_from(["book", "end", "miss", "clear"]), st.sampled_from(PROMPTS)))


@given(st.integers(0, 4), st.booleans(), STEPS)
def test_holds_no_more_than_slots_and_only_what_was_booked(
    slots: int, copies: bool, steps: list[tuple[str, Chain]]
) -> None:
    """Requests that overlap, end twice or never: the count stays within the slots, and a match is a prefix
    of something that was booked since the last restart."""
    shadow = PrefixShadow(slots, copies=copies)
    booked: set[int] = set()
    for what, chain in steps:
        if what == "book":
            booking = shadow.book(chain)
            assert booking.matched_bytes <= chain[-1].end_bytes
            booked.update(link.digest for link in chain)
        elif what == "end":
            shadow.ended(chain)
        elif what == "miss":
            shadow.missed(shadow.book(chain))
            booked.update(link.digest for link in chain)
        else:
            shadow.clear()
            booked.clear()
        assert len(shadow) <= slots
        for prompt in PROMPTS:
            known = sum(link.digest in booked for link in prompt) + 1  # and an answer
            assert shadow.matched_bytes(prompt) <= 1000 * known


def test_knows_what_would_give_way() -> None:
    """Nothing while there is room, or where the prompt goes on from an idle sequence; else the one used
    longest ago."""
    for copies in (True, False):
        shadow = PrefixShadow(2, copies=copies)
        for chain, tokens in ((a_chain(1, 2), 2000), (a_chain(3), 500)):
            assert shadow.displaced_tokens(chain) == 0
            shadow.book(chain, tokens)
            shadow.ended(chain)
        assert shadow.displaced_tokens(a_chain(9)) == 2000
        assert shadow.displaced_tokens(a_chain(1, 2, 4)) == shadow.displaced_tokens(()) == 0
        # A prompt that shares only the head: a bank is copied, so another gives way; a slot is taken over.
        assert shadow.displaced_tokens(a_chain(3, 9)) == 0
        assert shadow.displaced_tokens(a_chain(1, 9)) == 2000
        shadow.book(a_chain(1, 2), 2000)
        assert shadow.displaced_tokens(a_chain(9)) == 500
        shadow.book(a_chain(3), 500)
        assert shadow.displaced_tokens(a_chain(9)) == 0


def test_a_conversation_grows_in_place() -> None:
    """Turn by turn one sequence, on offer with all its links and forgotten with all of them."""
    shadow = PrefixShadow(1)
    served(shadow, a_chain(1), a_chain(1, 2, 3), a_chain(1, 2, 3, 4, 5))
    assert (len(shadow), shadow.matched_bytes(a_chain(1, 2, 3, 4, 9))) == (1, 4000)
    shadow.book(a_chain(9))
    assert (len(shadow), shadow.matched_bytes(a_chain(1, 2))) == (1, 0)
