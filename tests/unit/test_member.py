"""What the gateway knows of one engine, as answers come in."""

from __future__ import annotations

from gateway.engines.base import Report
from gateway.member import Member
from gateway.options import BackendSettings


def test_an_answer_that_overtook_another_is_no_restart() -> None:
    """A request that fails has the engine asked beside the probe; the older answer may come last."""
    member = Member.of(BackendSettings(name="a", url="http://127.0.0.1:1"))
    member.heard(Report(uptime_seconds=100), 50.0)
    assert not member.restarted(Report(uptime_seconds=98), 48.0)
    assert not member.restarted(Report(uptime_seconds=102), 52.0)
    assert member.restarted(Report(uptime_seconds=1), 52.0)
