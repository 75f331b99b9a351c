"""What a backend was busy with between two moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.load import Load


def test_two_readings_tell_what_was_between_them() -> None:
    """Two sequences for 3 s, then three for 1 s while a prompt is read."""
    load = Load()
    load.change(10.0, 2, False)
    first = load.read(11.0)
    load.change(14.0, 3, True)
    second = load.read(15.0)
    assert second.at - first.at == 4.0
    assert second.prefill_seconds - first.prefill_seconds == 1.0
    assert second.sequence_seconds - first.sequence_seconds == 9.0


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9), st.booleans())), st.randoms())
def test_reading_changes_nothing(changes: list[tuple[float, int, bool]], chance: object) -> None:
    """However often it is read in between, the sums are the same."""
    often, seldom, now = Load(), Load(), 0.0
    for passed, decoding, prefilling in changes:
        often.read(now + passed / 2)
        now += passed
        often.change(now, decoding, prefilling)
        seldom.change(now, decoding, prefilling)
    assert often.read(now + 1) == pytest.approx(seldom.read(now + 1))
