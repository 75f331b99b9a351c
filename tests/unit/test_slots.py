"""How many slots an engine has that keeps their number to itself."""

from __future__ import annotations

import pytest

from policies.slots import SlotSearch


def given(slots: int, wanted: int) -> SlotSearch:
    """An engine with so many slots, asked for so many requests at a time as it may be given, for a while."""
    search = SlotSearch()
    for _ in range(4 * slots):
        sent = min(wanted, search.found or search.tried)
        search.look(min(sent, slots), max(0, sent - slots))
    return search


@pytest.mark.parametrize("slots", [1, 2, 6, 11])
def test_is_given_one_more_until_one_has_to_wait(slots: int) -> None:
    """From one on."""
    assert given(slots, wanted=99).found == slots


def test_is_given_no_more_than_is_wanted() -> None:
    """Nobody looks for slots that nobody needs, beyond the next one."""
    search = given(6, wanted=3)
    assert (search.found, search.tried) == (None, 4)


def test_one_look_proves_nothing() -> None:
    """Requests that run may end, or wait at the next look."""
    search = SlotSearch()
    for running, waiting in ((5, 0), (0, 0), (5, 0), (4, 1), (5, 0)):
        search.look(running, waiting)
    assert (search.found, search.tried) == (None, 1)


def test_what_others_run_proves_room_too() -> None:
    """Requests that are not the gateway's."""
    search = SlotSearch()
    for running in (5, 6, 5):
        search.look(running, 0)
    assert search.tried == 6
