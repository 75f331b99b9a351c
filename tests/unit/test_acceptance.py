"""How many drafted tokens an engine accepts of late, from its totals since the start."""

from __future__ import annotations

import pytest

from gateway.acceptance import Acceptance
from gateway.engines.base import Drafts, Report


def heard(*told: tuple[int, int] | None) -> Acceptance:
    """What is known after an engine told these totals, drafted and accepted, one after the other."""
    acceptance = Acceptance()
    for totals in told:
        acceptance.hear(Report(drafts=None if totals is None else Drafts(*totals)))
    return acceptance


def test_nothing_drafted_is_no_share() -> None:
    """It would read as a drafter that is always wrong."""
    assert heard().share is None
    assert heard(None, None).share is None


def test_totals_stand_until_they_grow() -> None:
    """Then only what they have grown by counts."""
    assert heard((1000, 700)).share == 0.7
    assert heard((1000, 700), (1000, 700)).share == 0.7
    assert heard((1000, 700), (1100, 710)).share == 0.1


def test_a_loss_shows_although_the_engine_is_old() -> None:
    """After a month of good drafts, ten probes of bad ones: the whole life's share would still be 0.7."""
    month = (100_000_000, 70_000_000)
    bad = [(month[0] + 200 * turn, month[1]) for turn in range(1, 11)]
    assert heard(month, *bad).share == 0
    good = (month[0] + 2200, month[1] + 140)
    assert heard(month, *bad, good).share == pytest.approx(0.085, abs=0.01)


def test_a_page_that_is_missing_once_changes_nothing() -> None:
    """Nor do totals that shrink: the engine was restarted, and its life begins anew."""
    assert heard((1000, 700), (1100, 710), None).share == 0.1
    assert heard((1000, 700), (1100, 710), (10, 9)).share == 0.1
    assert heard((1000, 700), (10, 9), (110, 59)).share == 0.5


def test_an_engine_that_tells_a_share_is_believed() -> None:
    """SGLang's is of late already."""
    acceptance = Acceptance()
    acceptance.hear(Report(spec_accept_ratio=0.6))
    assert acceptance.share == 0.6
