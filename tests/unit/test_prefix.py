"""What a backend's prefix cache probably holds."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.prefix import Booking, Chain, Link, PrefixShadow, inside
from policies.shadows import SHADOWS
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
    assert (first.matched_bytes, second.matched_bytes) == (0, 0)
    assert third == Booking(matched_bytes=1000, used=1, depth=2)


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


# -- inside the last message -----------------------------------------------------------------------

DOCUMENT = b"a word of a long document " * 2500
HEAD = Link(7, 500)


def asking(what: bytes, document: bytes = DOCUMENT) -> tuple[Chain, Chain]:
    """A prompt that asks something of the document, and the places inside its last message."""
    text = document + what
    last = Link(xxhash.xxh3_64_intdigest(text, HEAD.digest), HEAD.end_bytes + len(text))
    return (HEAD, last), inside(xxhash.xxh3_64_intdigest, text, HEAD)


def test_places_inside_a_message_do_not_depend_on_its_end() -> None:
    """Two of them share all places before their first difference, of which the last is near it."""
    (_, one), (_, other) = asking(b"Who wrote it?"), asking(b"What is the third sentence?" * 200)
    assert set(one) == set(one) & set(other)
    assert one[0].end_bytes == HEAD.end_bytes + 256
    assert 0.88 * len(DOCUMENT) < one[-1].end_bytes <= HEAD.end_bytes + len(DOCUMENT)
    _, changed = asking(b"", DOCUMENT[:5000] + b"!" + DOCUMENT[5000:])
    shared = [link for link in changed if link in one]
    assert 4500 < shared[-1].end_bytes - HEAD.end_bytes <= 5000
    assert len(one) < 60


def test_a_short_message_has_no_places() -> None:
    """Reading it again costs nothing that anybody could measure."""
    assert inside(xxhash.xxh3_64_intdigest, b"x" * 1023, HEAD) == ()


@pytest.mark.parametrize("kind", SHADOWS)
def test_a_document_is_there_for_another_question(kind: str) -> None:
    """For the other conversation, and for the same one asked again; while the first one has grown, too."""
    shadow = SHADOWS[kind]()
    shadow.resize(4, None)
    (chain, places), (again, others) = asking(b"Who wrote it?"), asking(b"When?")
    shadow.book(chain, 16_000, places)
    shadow.ended(chain)
    assert shadow.matched_bytes(again) == HEAD.end_bytes
    assert shadow.matched_bytes(again, others) == others[-1].end_bytes > 50_000
    grown = (*chain, Link(8, chain[-1].end_bytes + 100), Link(9, chain[-1].end_bytes + 200))
    shadow.book(grown, 16_100)
    shadow.ended(grown)
    assert shadow.matched_bytes(again, others) == others[-1].end_bytes
    assert shadow.book(again, 16_000, others).matched_bytes == others[-1].end_bytes
    shadow.clear()
    assert shadow.matched_bytes(again, others) == 0


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
DEEDS = ["book", "end", "miss", "surpass", "clear"]
STEPS = st.lists(st.tuples(st.sampled_from(DEEDS), st.sampled_from(PROMPTS)))


@settings(deadline=None)
@given(st.integers(0, 4), st.booleans(), STEPS)
def test_holds_no_more_than_its_room_and_only_what_was_booked(
    slots: int, copies: bool, steps: list[tuple[str, Chain]]
) -> None:
    """Requests that overlap, end twice or never: the count stays within the room, and a match is a prefix
    of something that was booked since the last restart."""
    shadow = PrefixShadow(slots, copies=copies)
    booked: set[int] = set()
    bound = slots
    for what, chain in steps:
        if what in ("book", "miss", "surpass"):
            bound = shadow.room  # less of it takes effect with the next prompt
        if what == "book":
            booking = shadow.book(chain)
            assert booking.matched_bytes <= chain[-1].end_bytes
            booked.update(link.digest for link in chain)
        elif what == "end":
            shadow.ended(chain)
        elif what == "miss":
            shadow.missed(shadow.book(chain))
            booked.update(link.digest for link in chain)
        elif what == "surpass":
            shadow.surpassed(shadow.book(chain))
            booked.update(link.digest for link in chain)
        else:
            shadow.clear()
            booked.clear()
        assert len(shadow) <= bound
        assert {id(one) for one in shadow._past.values()}.isdisjoint(map(id, shadow._sequences.values()))
        for prompt in PROMPTS:
            known = sum(link.digest in booked for link in prompt) + 1  # and an answer
            assert shadow.matched_bytes(prompt) <= 1000 * known


def test_knows_what_would_give_way() -> None:
    """Nothing while there is room, or where the prompt goes on from an idle sequence; else the one used
    longest ago."""

    def displaced(*digests: int) -> int:
        sequence = shadow.displaced(a_chain(*digests))
        return 0 if sequence is None else sequence.tokens

    for copies in (True, False):
        shadow = PrefixShadow(2, copies=copies)
        for digests, tokens in (((1, 2), 2000), ((3,), 500)):
            assert displaced(*digests) == 0
            shadow.book(a_chain(*digests), tokens)
            shadow.ended(a_chain(*digests))
        assert displaced(9) == 2000
        assert displaced(1, 2, 4) == displaced() == 0
        # A prompt that shares only the head: a bank is copied, so another gives way; a slot is taken over.
        assert displaced(3, 9) == 0
        assert displaced(1, 9) == 2000
        shadow.book(a_chain(1, 2), 2000)
        assert displaced(9) == 500
        shadow.book(a_chain(3), 500)
        assert displaced(9) == 0


def test_a_conversation_grows_in_place() -> None:
    """Turn by turn one sequence, on offer with all its links and forgotten with all of them."""
    shadow = PrefixShadow(1)
    served(shadow, a_chain(1), a_chain(1, 2, 3), a_chain(1, 2, 3, 4, 5))
    assert (len(shadow), shadow.matched_bytes(a_chain(1, 2, 3, 4, 9))) == (1, 4000)
    shadow.book(a_chain(9))
    assert (len(shadow), shadow.matched_bytes(a_chain(1, 2))) == (1, 0)
