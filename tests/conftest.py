"""Every test ends: one that takes far too long is stopped where it hangs. And Ctrl-C reaches its children."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from tests import fuzzing

LIMIT_SECONDS = 300.0


def pytest_configure() -> None:
    """A shell that runs this in its background ignores SIGINT, and so would every process started here."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
