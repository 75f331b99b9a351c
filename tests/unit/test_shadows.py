"""The kinds of prefix caches."""

from __future__ import annotations

import random

import pytest

from gateway.engines import ENGINES
from policies.prefix import Chain, Link
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


@pytest.mark.parametrize("kind", SHADOWS)
def test_prompts_that_contradict_each_other_are_booked(kind: str) -> None:
    """As others may tell them: digests that stand for two things, twice in one prompt, or inside one message.
    Nothing of it is worth much, and nothing fails."""
    for seed in range(100):
        dice = random.Random(seed)
        running: list[Chain] = []
        shadow = SHADOWS[kind]()
        shadow.resize(dice.randint(1, 4), dice.choice((None, 1000)))
        for _ in range(60):
            chain = tuple(Link(dice.randint(0, 6), end) for end in sorted(dice.sample(range(9), 3)))
            inside = tuple(
                Link(dice.randint(0, 6), end) for end in sorted(dice.sample(range(9), dice.randint(0, 2)))
            )
            shadow.displaced(chain, inside)
            assert 0 <= shadow.matched_bytes(chain, inside) <= 8
            booking = shadow.book(chain, dice.choice((0, 10, 1000)), inside)
            running.append(chain)
            while running and dice.random() < 0.6:
                shadow.ended(running.pop(dice.randrange(len(running))))
            if dice.random() < 0.3:
                shadow.missed(booking)
