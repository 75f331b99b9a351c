"""The configuration read again: valid as a whole, or nothing changes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.app import Gateway
from gateway.member import Member
from gateway.options import BackendSettings
from gateway.settings import ConfigError, Settings, load
from policies.types import Source, State
from tests.unit.fleet import MODEL, a_call
from tests.unit.stage import LATER, PLAIN, Stage, over

GOOD = """
[server]
port = 8400
admin_token = "token"

[[keys]]
name = "team-a"
sha256 = "aa0000000000000000000000000000000000000000000000000000000000000a"

[[backends]]
name = "a"
url = "http://127.0.0.1:9"
slots = 2
"""
# What is put in the place of GOOD, and what the error names.
BROKEN: list[tuple[str, str]] = [
    ("", "backends: there is none any more"),
    ("\x00", "is not TOML"),
    ("[", "is not TOML"),
    ("x", "is not TOML"),
    (GOOD + "[server]\nport = 1", "is not TOML"),
    (GOOD[:40], "is not TOML"),
    (GOOD[: GOOD.index("[[backends]]")], "backends: there is none any more"),
    (GOOD + "[nonsense]\nx = 1", "nonsense"),
    (GOOD + "[queue]\nwait_seconds_maximum = 1", "queue.wait_seconds_maximum"),
    (GOOD + "[queue]\nwait_seconds_max = 0", "queue.wait_seconds_max"),
    (GOOD + "[queue]\nwait_seconds_max = 'long'", "queue.wait_seconds_max"),
    (GOOD + "[queue]\nwaiting_max = 1.5", "queue.waiting_max"),
    (GOOD + "[queue]\nheartbeat = 'sometimes'", "queue.heartbeat"),
    (GOOD + "[routing]\nlong_prefills_per_backend = 0", "routing.long_prefills_per_backend"),
    (GOOD + "[routing]\nhold_seconds_max = -1", "routing.hold_seconds_max"),
    (GOOD + "[prefix]\nstabilise = 'all of it'", "prefix.stabilise"),
    (GOOD + "[prefix]\npatterns = ['(']", "prefix.patterns[0]"),
    (GOOD + "[accounting]\njournal_days = 0", "accounting.journal_days"),
    (GOOD + "[models.x]\ntargets = []", "models.x.targets"),
    (GOOD + "[models.x]\nfallbacks = ['y']", "models.x.targets"),
    (GOOD + "[models.x]\ntargets = ['y']\n[models.y]\ntargets = ['z']", "models.x.targets[0]"),
    (GOOD + "[[backends]]\nname = 'b'", "backends[1].url"),
    (GOOD + "[[backends]]\nurl = 'ftp://h'", "backends[1].url"),
    (GOOD + "[[backends]]\nurl = 'http://u:p@h'", "backends[1].url"),
    (GOOD + "[[backends]]\nurl = 'http://localhost:9'", "backends[1].url"),
    (GOOD + "[[backends]]\nname = 'a'\nurl = 'http://h'", "backends[1].name"),
    (GOOD + "[[backends]]\nurl = 'http://127.0.0.1:8400'", "backends[1].url"),
    (GOOD + "[[backends]]\nurl = 'http://h'\nslots = 0", "backends[1].slots"),
    (GOOD + "[[backends]]\nurl = 'http://h'\nengine = 'ollama'", "backends[1].engine"),
    (GOOD + "[[backends]]\nurl = 'http://h'\ntimeouts = {connect = 1}", "backends[1].timeouts.connect"),
    (GOOD + "[[backends]]\nurl = 'http://h'\napi_key = 'two words'", "backends[1].api_key"),
    (GOOD + "[[backends]]\nurl = 'http://h'\napi_key_file = '/no/file'", "backends[1].api_key_file"),
    (GOOD + "[[backends]]\nurl = 'http://h'\napi_key_env = 'NOT_SET'", "backends[1].api_key_env"),
    (GOOD + "[[backends]]\nurl = 'https://h'\ntls_ca_file = '/no/file'", "backends[1].tls_ca_file"),
    (GOOD + "[[keys]]\nname = 'b'", "keys[1].sha256"),
    (GOOD + "[[keys]]\nname = 'b'\nsha256 = 'ab'", "keys[1].sha256"),
    (GOOD + "[[keys]]\nname = 'b'\nsha256 = 'AA" + "0" * 61 + "a'", "keys[1].sha256"),
    (GOOD + "[[keys]]\nname = 'team-a'\nsha256 = '" + "b" * 64 + "'", "keys[1].name"),
    (GOOD + "[[keys]]\nname = 'b'\nsha256 = '" + "b" * 64 + "'\nexpires = 'soon'", "keys[1].expires"),
    (GOOD + "[redis]\nlease_seconds = -1", "redis.lease_seconds"),
    (GOOD.replace('admin_token = "token"', "admin_host = '0.0.0.0'"), "server.admin_host"),
    (GOOD.replace("8400", "'8400'"), "server.port"),
]


def prepared(**settings: Any) -> Member:
    """A backend as it is configured now."""
    return Member.of(BackendSettings(**({"warmup": {"requests": 0}} | settings)))


class File:
    """The configuration's file."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def write(self, text: str) -> None:
        """From now on this stands in it."""
        self._path.write_text(text)

    def read(self) -> Settings:
        """As the gateway does it."""
        return load(self.name, {})


@pytest.fixture
def file(tmp_path: Path) -> File:
    """A good one."""
    file = File(tmp_path / "slotgate.toml")
    file.write(GOOD)
    return file


@pytest.fixture
async def gateway(file: File) -> AsyncIterator[Gateway]:
    """A gateway that was started with it; nothing is probed."""
    gateway = Gateway(file.read(), read=file.read, where=file.name)
    yield gateway
    await gateway.fleet.close()


def invalid(gateway: Gateway) -> float:
    """What the metric says."""
    found = re.search(r"^slotgate_config_invalid (.*)$", gateway.metrics.render().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize(("text", "named"), BROKEN)
async def test_a_broken_file_changes_nothing(gateway: Gateway, file: File, text: str, named: str) -> None:
    """The error names file and key, the metric is 1; the next good file is followed, and it is 0."""
    before, member = gateway.settings, gateway.fleet.members["a"]
    file.write(text)
    with pytest.raises(ConfigError) as refused:
        await gateway.reload()
    assert file.name in str(refused.value) and named in str(refused.value)
    assert "token" not in str(refused.value).replace("admin_token", "")
    assert gateway.settings is before and gateway.fleet.members == {"a": member}
    assert member.removal is None
    assert invalid(gateway) == 1
    file.write(GOOD)
    assert (await gateway.reload()).changed == ()
    assert invalid(gateway) == 0


async def test_what_is_followed_at_once(gateway: Gateway, file: File) -> None:
    """Keys, limits, aliases, heartbeats, sizes of requests, the token."""
    more = GOOD.replace("[server]", "[server]\nbody_bytes_max = 10").replace('"token"', '"other"')
    tables = "[queue]\nwaiting_max = 3\nheartbeat = 'off'\n[models.x]\ntargets = ['m']\n"
    file.write(more.replace("aa00", "bb00") + tables + "[prefix]\nstabilise = 'all'\n")
    done = await gateway.reload()
    assert done.changed == (
        "server.admin_token",
        "server.body_bytes_max",
        "keys",
        "queue.waiting_max",
        "queue.heartbeat",
        "models",
        "prefix.stabilise",
    )
    assert done.standing == ()
    assert gateway.settings.server.admin_token == SecretStr("other")
    assert gateway.admission.limits.waiting_max == 3
    assert gateway.models.alias("x") is not None
    assert gateway.mender.mode("anybody") == "all"
    gateway.guard.check([(b"authorization", b"Bearer other")])


async def test_what_stands_until_the_next_start(gateway: Gateway, file: File) -> None:
    """It is told, and does not count; the rest is followed."""
    file.write(GOOD.replace("8400", "8500").replace("slots = 2", "slots = 3") + "[accounting]\njournal = ''")
    done = await gateway.reload()
    assert done.standing == ("server.port", "accounting.journal")
    assert done.changed == ("backends",)
    assert gateway.settings.server.port == 8400
    assert gateway.admission.backends["a"].slots == 3
    assert (await gateway.reload()).standing == ("server.port", "accounting.journal")


async def test_a_port_for_everybody_keeps_its_token(file: File) -> None:
    """A file that is right by itself may be wrong for what listens by now."""
    file.write(GOOD.replace("[server]", "[server]\nadmin_host = '0.0.0.0'"))
    gateway = Gateway(file.read(), read=file.read, where=file.name)
    file.write(GOOD.replace('admin_token = "token"', ""))
    with pytest.raises(ConfigError, match=r"server\.admin_host: is not a loopback address"):
        await gateway.reload()
    assert gateway.settings.server.admin_token == SecretStr("token")


# -- backends ----------------------------------------------------------------------------------------


@over(PLAIN, slots=2, api_key="old")
async def test_a_backend_takes_other_settings_as_it_runs(stage: Stage) -> None:
    """Requests that run keep what they have; the state stays, the engine is not warmed up again."""
    async with stage.dispatcher.slot(a_call("1")), stage.dispatcher.slot(a_call("2")):
        before = stage.member.upstream
        stage.fleet.follow(
            [prepared(name="a", url="http://127.0.0.1:1", slots=1, api_key="new", models=("m", "n"))]
        )
        assert stage.fleet.members["a"] is stage.member
        assert (stage.backend.slots, stage.backend.slots_source, stage.backend.free) == (
            1,
            Source.CONFIGURED,
            0,
        )
        assert stage.backend.models == {"m", "n"}
        assert stage.member.upstream is not before
        assert not before.reuse
    assert stage.backend.free == 1
    stage.fleet.follow([prepared(name="a", url="http://localhost:1", backup=True)])
    assert stage.backend.backup and stage.backend.models == {MODEL}
    assert stage.states == ["warming", "ready"]


@over(PLAIN)
async def test_a_backend_that_is_gone_drains_and_leaves(stage: Stage) -> None:
    """What runs there finishes, nothing new starts; then nothing is left of it."""
    slot = stage.dispatcher.slot(a_call())
    await slot.__aenter__()
    stage.fleet.follow([prepared(name="b", url="http://127.0.0.1:2")])
    await asyncio.sleep(LATER)
    assert stage.backend.state is State.DRAINING
    assert stage.dispatcher.admission.backends["b"].state is State.READY
    stage.fleet.resume("a")
    assert stage.backend.state is State.DRAINING
    await slot.__aexit__(None, None, None)
    await asyncio.sleep(0.01)
    assert list(stage.fleet.members) == list(stage.dispatcher.admission.backends) == ["b"]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "renamed", "url": "http://127.0.0.1:1"},
        {"name": "a", "url": "http://127.0.0.1:2"},
        {"name": "a", "url": "http://127.0.0.1:1", "engine": "openai"},
    ],
)
def test_a_slot_never_counts_twice(settings: dict[str, Any]) -> None:
    """Another name, URL or engine: the new one comes when the old one has gone; who waits starts there."""

    @over(PLAIN)
    async def play(stage: Stage) -> None:
        slot = stage.dispatcher.slot(a_call("1"))
        await slot.__aenter__()
        waiting = asyncio.create_task(stage.dispatcher.slot(a_call("2")).__aenter__())
        stage.fleet.follow([prepared(**settings)])
        await asyncio.sleep(LATER)
        assert list(stage.fleet.members) == ["a"] and not waiting.done()
        stage.fleet.follow([prepared(**settings)])  # once more changes nothing
        await slot.__aexit__(None, None, None)
        await asyncio.sleep(LATER)
        assert list(stage.fleet.members) == [settings["name"]]
        assert (await waiting).lease.backend == settings["name"]
        stage.dispatcher.finish("2")

    play()


@over(PLAIN)
async def test_what_was_drained_or_added_stays_so(stage: Stage) -> None:
    """Also where another engine takes the name; what is added in the file, too, is the file's then."""
    stage.fleet.drain("a", "new driver")
    added = prepared(name="added", url="http://127.0.0.1:7")
    added.configured = False
    stage.fleet.join(added)
    stage.fleet.follow([prepared(name="a", url="http://127.0.0.1:2")])
    await asyncio.sleep(LATER)
    assert (stage.backend.state, stage.backend.why) == (State.DRAINED, "new driver")
    assert set(stage.fleet.members) == {"a", "added"}
    stage.fleet.follow(
        [prepared(name="a", url="http://127.0.0.1:2"), prepared(name="added", url="http://127.0.0.1:7")]
    )
    assert stage.fleet.members["added"] is added
    for _ in range(2):
        stage.fleet.follow([prepared(name="renamed", url="http://127.0.0.1:2")])
    await asyncio.sleep(LATER)
    renamed = stage.dispatcher.admission.backends["renamed"]
    assert (renamed.state, renamed.why) == (State.DRAINED, "new driver")
    stage.fleet.follow([prepared(name="a", url="http://127.0.0.1:2")])
    await asyncio.sleep(0.01)
    assert set(stage.fleet.members) == {"a"}


@over(PLAIN)
async def test_back_before_it_has_gone(stage: Stage) -> None:
    """Removed and named again while it drains: it comes back when it has."""
    slot = stage.dispatcher.slot(a_call())
    await slot.__aenter__()
    other = prepared(name="b", url="http://127.0.0.1:2")
    stage.fleet.follow([other])
    stage.fleet.follow(
        [prepared(name="b", url="http://127.0.0.1:2"), prepared(name="a", url="http://127.0.0.1:1")]
    )
    assert stage.backend.state is State.DRAINING
    await slot.__aexit__(None, None, None)
    await asyncio.sleep(LATER)
    assert stage.backend.state is State.READY and stage.fleet.members["b"] is other


@over(PLAIN)
async def test_nobody_takes_the_name_of_one_that_waits(stage: Stage) -> None:
    """What is configured waits for its engine; who is added meanwhile under its name waits behind it."""
    slot = stage.dispatcher.slot(a_call())
    await slot.__aenter__()
    renamed = prepared(name="renamed", url="http://127.0.0.1:1")
    stage.fleet.follow([renamed])
    added = prepared(name="renamed", url="http://127.0.0.1:7")
    assert stage.fleet.rival(added.settings) is renamed
    stage.fleet.join(added)
    await slot.__aexit__(None, None, None)
    await asyncio.sleep(LATER)
    assert stage.fleet.members == {"renamed": renamed}
