"""Every test ends: one that takes far too long is stopped where it hangs. And Ctrl-C reaches its children.

`make test` shares the tests out to two workers, since most of its time is spent waiting. Those that start
processes go folder by folder, so that no more than two of them run side by side.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests import fuzzing

LIMIT_SECONDS = 300.0
HERE = Path(__file__).parent
TOGETHER = {"faults", "ledger", "processes", "real"}


def pytest_configure() -> None:
    """A shell that runs this in its background ignores SIGINT, and so would every process started here."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep those of a folder that start processes together."""
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(folder))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Raise inside a test that hangs, so that its `finally` blocks end the processes it started."""

    def hangs(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{item.nodeid} took more than {LIMIT_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, hangs)
    long = item.get_closest_marker("long") or fuzzing.TIMES > 1
    signal.setitimer(signal.ITIMER_REAL, 0 if long else LIMIT_SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
