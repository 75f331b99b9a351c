"""Context window against slots, by each law."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity import BootLine, Budget, Contradiction, Law, Pool, Room, Seen, Split, banks

GIB = 2**30
FREE, HEADROOM, BANK = int(13.74 * GIB), 8 * GIB, int(508.3 * 2**20)
BOOT = BootLine(65_536, FREE, HEADROOM, BANK, slots_min=2)

windows = st.integers(min_value=256, max_value=2**21)


def test_banks_are_those_of_the_published_boot_lines() -> None:
    """11 at 65,536 tokens; at 262,144 less is free than must be, and the floor of 2 holds."""
    assert banks(FREE, HEADROOM, BANK, 2) == 11
    assert banks(int(7.45 * GIB), HEADROOM, None, 2) == 2
    assert banks(int(7.45 * GIB), HEADROOM, BANK, 2) == 2
    assert banks(FREE, HEADROOM, None, 2) is None


def test_a_bank_is_never_a_part_of_one() -> None:
    """11.99 banks are 11."""
    assert banks(12 * BANK - 1, 0, BANK, 1) == 11
    assert banks(12 * BANK, 0, BANK, 1) == 12


def test_a_boot_line_is_exact_for_its_own_window_only() -> None:
    """Half the window: banks of half the size, and an estimate."""
    assert BOOT.room(65_536) == Room(65_536, 11)
    assert BOOT.room(32_768) == Room(32_768, 23, estimate=True)
    assert BOOT.room(2**21) == Room(2**21, 2, estimate=True)


def test_a_split_context_is_divided() -> None:
    """Both ways, and never into nothing."""
    split = Split(524_288)
    assert split.among(4) == Room(131_072, 4)
    assert split.room(131_072) == Room(131_072, 4)
    assert split.room(100_000) == Room(104_857, 5)
    assert split.room(2**20) == Room(524_288, 1)


def test_a_pool_holds_parts_of_windows() -> None:
    """1.81 sequences of the full length, as the published start of an engine says."""
    room = Pool(1_894_867).room(1_048_576)
    assert room.slots == 1
    assert room.sequences == pytest.approx(1.81, abs=0.005)


def test_sizes_alone_are_an_estimate() -> None:
    """What weights leave, over the bytes of a window; nothing is left: the floor."""
    budget = Budget(128 * 10**9, 81 * 10**9, 8 * GIB, 9728)
    room = budget.room(65_536)
    assert room.estimate
    assert room.slots == 60
    assert room.sequences == pytest.approx(60.247, abs=0.001)
    assert Budget(10, 20, 0, 1, slots_min=2).room(4096) == Room(4096, 2, 0.0, estimate=True)


def test_two_starts_tell_the_law() -> None:
    """Exact where it was seen, between and beyond them an estimate."""
    seen = Seen({262_144: 2, 65_536: 11}, slots_min=2)
    assert seen.room(65_536) == Room(65_536, 11)
    assert seen.room(262_144) == Room(262_144, 2)
    assert seen.room(131_072) == Room(131_072, 5, estimate=True)
    assert seen.room(32_768) == Room(32_768, 23, estimate=True)
    assert seen.room(2**20) == Room(2**20, 2, estimate=True)


@pytest.mark.parametrize("sizes", [{}, {4096: 4}, {4096: 2, 8192: 3}])
def test_sizes_that_no_law_gives_are_refused(sizes: dict[int, int]) -> None:
    """One start tells nothing of others; more slots at a larger window are another machine's."""
    with pytest.raises(Contradiction):
        Seen(sizes)


@given(
    sizes=st.dictionaries(windows, st.integers(1, 64), min_size=2, max_size=4),
    one=windows,
    other=windows,
)
def test_a_larger_window_never_gives_more_slots(sizes: dict[int, int], one: int, other: int) -> None:
    """By no law; and what was seen is given back exactly."""
    counts = sorted(sizes.values(), reverse=True)
    seen = dict(zip(sorted(sizes), counts, strict=True))
    laws: list[Law] = [
        Seen(seen), BOOT, Split(524_288), Pool(1_894_867), Budget(128 * GIB, 81 * GIB, 0, 9728)
    ]  # fmt: skip
    small, large = sorted((one, other))
    for law in laws:
        assert law.room(small).slots >= law.room(large).slots >= (not isinstance(law, Budget))
    for window, slots in seen.items():
        assert laws[0].room(window) == Room(window, slots)
