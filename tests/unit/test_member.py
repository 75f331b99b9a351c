"""What the gateway knows of one engine, as answers come in."""

from __future__ import annotations

from gateway.engines.base import Report
from gateway.member import Member
from gateway.options import BackendSettings


def test_an_answer_that_overtook_another_is_no_restart() -> None:
    """A request that fails has the engine asked beside the probe; the older answer may come last, though it
    was asked for last: each asks for several pages, one after the other, over a slow network."""
    member = Member.of(BackendSettings(name="a", url="http://127.0.0.1:1"))
    member.heard(Report(uptime_seconds=103), 50.0, 53.0)
    for asked_at in (48.0, 51.0, 52.9):
        assert not member.restarted(Report(uptime_seconds=101), asked_at)
    assert not member.restarted(Report(uptime_seconds=105), 54.0)
    assert member.restarted(Report(uptime_seconds=1), 54.0)
