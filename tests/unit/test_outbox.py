"""Writes of one turn of the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from gateway.outbox import TOGETHER_MAX, Outbox


def posting(outbox: Outbox, done: list[int], numbers: range) -> Callable[[], None]:
    def post() -> None:
        for number in numbers:
            outbox.post(lambda number=number: done.append(number))  # type: ignore[misc]

    return post


async def test_the_first_of_a_turn_goes_at_once_and_the_others_at_its_end() -> None:
    """Whoever is alone waits for nobody; the next turn is a turn of its own."""
    outbox, done = Outbox(), list[int]()
    posting(outbox, done, range(3))()
    assert done == [0]
    await asyncio.sleep(0)
    assert done == [0, 1, 2]
    await asyncio.sleep(0)
    posting(outbox, done, range(3, 4))()
    assert done == [0, 1, 2, 3]


async def test_nobody_waits_for_more_than_a_few() -> None:
    """In the middle of a turn those go that have come together."""
    outbox, done = Outbox(), list[int]()
    posting(outbox, done, range(TOGETHER_MAX + 3))()
    assert done == list(range(TOGETHER_MAX + 1))
    await asyncio.sleep(0)
    assert done == list(range(TOGETHER_MAX + 3))


async def test_a_write_that_fails_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """It is a defect of ours, and told."""
    outbox, done = Outbox(), list[int]()

    def fail() -> None:
        raise RuntimeError

    posting(outbox, done, range(1))()
    outbox.post(fail)
    posting(outbox, done, range(1, 2))()
    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(0)
    assert done == [0, 1]
    assert "a write failed" in caplog.text
