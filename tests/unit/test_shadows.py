"""The kinds of prefix caches."""

from __future__ import annotations

import pytest

from gateway.engines import ENGINES
from policies.shadows import SHADOWS
from tests.unit.fleet import a_chain


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_has_one(name: str) -> None:
    """Its kind is known, and what is booked and ended there is found again."""
    shadow = SHADOWS[ENGINES[name].prefix_kind]()
    shadow.resize(2, 10_000)
    shadow.book(a_chain(1, 2), 100)
    shadow.ended(a_chain(1, 2))
    assert shadow.matched_bytes(a_chain(1, 2)) == 2000


def test_they_differ_in_what_a_running_request_lends() -> None:
    """Blocks and banks are there for all at once, a slot is not."""
    lent = {}
    for kind, make in SHADOWS.items():
        shadow = make()
        shadow.resize(2, 10_000)
        shadow.book(a_chain(1, 2), 100)
        lent[kind] = shadow.matched_bytes(a_chain(1, 3))
    assert lent == {"slot": 0, "bank": 1000, "block": 1000}
