"""A gateway that is alone pays nothing for what several would share."""

from __future__ import annotations

import subprocess
import sys

from gateway.dispatcher import Dispatcher, Slot
from gateway.ledger import dispatcher_of
from gateway.options import RedisSettings
from tests.unit.fleet import a_backend, a_call, an_admission


def test_without_redis_slots_are_counted_here() -> None:
    """By the dispatcher itself: nothing stands between Admission's decision and the request."""
    dispatcher = dispatcher_of(RedisSettings(), an_admission(a_backend()), lambda: 0.0, str)
    assert type(dispatcher) is Dispatcher
    assert type(dispatcher.slot(a_call())) is Slot
    assert (dispatcher.sharing, dispatcher.fault) == ("local", "")


def test_without_redis_its_library_is_not_loaded() -> None:
    """Nor is anything else of the shared ledger."""
    loaded = "import sys, gateway.app; print('redis' in sys.modules, 'gateway.ledger.ledger' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "False False\n"
