"""When the garbage collector looks, and at what."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from gateway.collector import WHOLE_SECONDS, WHOLE_SECONDS_MAX, Collector


class Ring:
    """Knows itself: only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def now() -> Iterator[list[float]]:
    """A clock. Nothing is looked at but by the collector under test, and all as before afterwards."""
    gc.disable()
    yield [0.0]
    gc.unfreeze()
    gc.enable()


def found(ring: weakref.ref[Ring]) -> bool:
    """Whether it is gone."""
    return ring() is None


def test_what_is_new_is_looked_at_once(now: list[float]) -> None:
    """What has lived through a look is not looked at again, and freed as ever once nobody knows it."""
    collector = Collector(lambda: True, lambda: now[0])
    new, old, plain = Ring(), Ring(), type("Plain", (), {})()
    rings = weakref.ref(new), weakref.ref(old), weakref.ref(plain)
    del new
    collector.look()
    assert [found(ring) for ring in rings] == [True, False, False]
    assert gc.get_count()[1:] == (0, 0)
    del old, plain
    collector.look()
    assert [found(ring) for ring in rings] == [True, False, True]
    collector.look_at_all()
    assert [found(ring) for ring in rings] == [True, True, True]


@pytest.mark.parametrize("idle", [True, False])
def test_all_is_looked_at_in_an_idle_hour_or_after_a_day(now: list[float], *, idle: bool) -> None:
    """Nobody's stream stands still for it, unless there was one all day long."""
    collector = Collector(lambda: idle, lambda: now[0])
    for at, then in ((WHOLE_SECONDS, False), (WHOLE_SECONDS + 1, idle), (WHOLE_SECONDS_MAX + 2, True)):
        one = Ring()
        ring = weakref.ref(one)
        collector.look()
        del one
        now[0] = at
        collector.look()
        assert found(ring) is then, at
        if idle and then:
            now[0] = 0.0
            collector.look_at_all()
