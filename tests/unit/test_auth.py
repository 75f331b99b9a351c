"""Client keys and the admin port's guard."""

from __future__ import annotations

import contextlib
import hashlib
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.auth import KEY_BYTES_MAX, OPEN, AdminGuard, Keys, may_add
from gateway.errors import Forbidden, Headers, InvalidApiKey, KeyConcurrency
from gateway.settings import KeySettings
from policies.types import Priority

NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC).timestamp()


def configured(secret: str, name: str = "team-a", **options: object) -> KeySettings:
    """The configuration of a key."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return KeySettings.model_validate({"name": name, "sha256": digest, **options})


def bearer(secret: bytes) -> Headers:
    """Headers that present a secret as clients do."""
    return [(b"host", b"gateway"), (b"authorization", b"Bearer " + secret)]


def test_without_keys_everybody_is_let_in() -> None:
    """No keys: the open key, whatever is presented."""
    assert Keys([]).identify(bearer(b"anything")) is OPEN
    assert OPEN.allows("any-model")
    assert OPEN.priority is Priority.INTERACTIVE


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer sg-1")],
        [(b"authorization", b"bearer   sg-1 ")],
        [(b"x-api-key", b"sg-1")],
        [(b"authorization", b"Basic dTpw"), (b"x-api-key", b"sg-1")],
        [(b"authorization", b"Bearer dummy"), (b"x-api-key", b"sg-1")],
        [(b"x-api-key", b"dummy"), (b"authorization", b"Bearer sg-1")],
    ],
)
def test_a_known_key_is_recognised(headers: Headers) -> None:
    """Both headers count, and a known key beside an unknown one is enough."""
    keys = Keys([configured("other", "team-b"), configured("sg-1", priority="agent", models=["m"])])
    key = keys.identify(headers)
    assert (key.name, key.priority) == ("team-a", Priority.AGENT)
    assert key.allows("m")
    assert not key.allows("n")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer(b""),
        bearer(b"sg-2"),
        bearer(b"sg-1x"),
        bearer(b"\xff\xfe\x00"),
        bearer("sg-é".encode()),
        bearer(b"x" * 1_000_000),
        [(b"authorization", b"sg-1")],
        [(b"authorization", b"Basic sg-1")],
        [(b"x-api-key", b"")],
        [(b"x-api-key", hashlib.sha256(b"sg-1").hexdigest().encode())],
    ],
)
def test_anything_else_is_an_invalid_key(headers: Headers) -> None:
    """Missing, unknown, malformed, endless: always the same failure; a digest is no key."""
    with pytest.raises(InvalidApiKey):
        Keys([configured("sg-1")]).identify(headers)


def test_a_key_longer_than_any_real_one_is_refused() -> None:
    """Beyond 1,024 bytes a key is not even hashed."""
    keys = Keys([configured("x" * KEY_BYTES_MAX), configured("x" * (KEY_BYTES_MAX + 1), "team-b")])
    assert keys.identify(bearer(b"x" * KEY_BYTES_MAX)).name == "team-a"
    with pytest.raises(InvalidApiKey):
        keys.identify(bearer(b"x" * (KEY_BYTES_MAX + 1)))


def test_a_key_ends_with_the_day_before_it_expires() -> None:
    """`expires` is the first day, in UTC, on which the key is refused, as if it were unknown."""
    now = NEW_YEAR - 1
    keys = Keys([configured("sg-1", expires="2027-01-01")], clock=lambda: now)
    assert keys.identify(bearer(b"sg-1")).name == "team-a"
    now = NEW_YEAR
    with pytest.raises(InvalidApiKey) as expired:
        keys.identify(bearer(b"sg-1"))
    with pytest.raises(InvalidApiKey) as unknown:
        keys.identify(bearer(b"sg-2"))
    assert expired.value.body() == unknown.value.body()


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"authorization", b"x-api-key", b"host", b"origin", b"sec-fetch-site"]),
        st.one_of(st.binary(max_size=80), st.binary(max_size=40).map(lambda key: b"Bearer " + key)),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(HEADERS)
def test_no_bytes_cause_another_failure(headers: Headers) -> None:
    """Whatever is sent is let in or refused by name, by the keys and by both kinds of guard."""
    with pytest.raises(InvalidApiKey):
        Keys([configured("sg-1")]).identify(headers)
    with pytest.raises(InvalidApiKey):
        AdminGuard("token").check(headers)
    with contextlib.suppress(Forbidden):
        AdminGuard("").check(headers)


def test_the_admin_token_opens_the_admin_port_from_anywhere() -> None:
    """With a token set the token decides, and only as a bearer."""
    guard = AdminGuard("secret")
    guard.check([(b"host", b"gateway.lan:8401"), (b"authorization", b"Bearer secret")])
    for headers in (
        [(b"host", b"localhost:8401")],
        [(b"host", b"localhost"), (b"authorization", b"Bearer secre")],
        [(b"host", b"localhost"), (b"authorization", b"Bearer ")],
        [(b"host", b"localhost"), (b"x-api-key", b"secret")],
    ):
        with pytest.raises(InvalidApiKey):
            guard.check(headers)


@pytest.mark.parametrize(
    "host", [b"localhost", b"LocalHost:8401", b"127.0.0.1:8401", b"127.9.9.9", b"[::1]:8401"]
)
def test_without_a_token_this_machine_may_ask(host: bytes) -> None:
    """Loopback names and addresses with any port are let in, also from the gateway's own page."""
    guard = AdminGuard("")
    guard.check([(b"host", host)])
    guard.check([(b"host", host), (b"sec-fetch-site", b"none")])
    guard.check([(b"host", host), (b"origin", b"http://localhost:8401"), (b"sec-fetch-site", b"same-origin")])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"host", b"")],
        [(b"host", b"evil.example:8401")],
        [(b"host", b"127.0.0.1.evil.example")],
        [(b"host", b"localhost.evil.example")],
        [(b"host", b"localhost:8401@evil.example")],
        [(b"host", b"localhost"), (b"host", b"evil.example")],
        [(b"host", b"10.0.0.1")],
        [(b"host", b"[::2]")],
        [(b"host", b"\xff")],
        [(b"host", b"localhost"), (b"sec-fetch-site", b"cross-site")],
        [(b"host", b"localhost"), (b"sec-fetch-site", b"same-site")],
        [(b"host", b"localhost"), (b"origin", b"https://evil.example")],
        [(b"host", b"localhost"), (b"origin", b"null")],
        [(b"host", b"localhost"), (b"origin", b"")],
    ],
)
def test_without_a_token_nobody_else_may_ask(headers: Headers) -> None:
    """Rebound names and pages of other sites are refused."""
    with pytest.raises(Forbidden):
        AdminGuard("").check(headers)


def test_a_key_has_no_more_requests_at_a_time_than_it_may() -> None:
    """Exactly so many; each that ends, however it ended, makes room for one."""
    keys = Keys([configured("sg-1", concurrency_max=2), configured("sg-2", "team-b")])
    mine, other = bearer(b"sg-1"), bearer(b"sg-2")
    first, second = keys.enter(mine, 0.0), keys.enter(mine, 0.0)
    with pytest.raises(KeyConcurrency):
        keys.enter(mine, 1.0)
    for _ in range(100):
        keys.enter(other, 1.0)
    keys.leave(first, 10.0)
    third = keys.enter(mine, 10.0)
    with pytest.raises(KeyConcurrency) as refused:
        keys.enter(mine, 11.0)
    assert refused.value.retry_after_seconds == 10.0  # as long as it took the last time
    for key in (second, third):
        keys.leave(key, 12.0)
    assert [keys.enter(mine, 13.0).name for _ in range(2)] == ["team-a"] * 2


def test_other_keys_are_followed_at_once_and_what_runs_counts() -> None:
    """One that is gone opens nothing any more; a limit that came counts the requests from before."""
    keys = Keys([configured("sg-1"), configured("sg-2", "team-b")])
    running = [keys.enter(bearer(b"sg-1"), 0.0) for _ in range(3)]
    gone = keys.enter(bearer(b"sg-2"), 0.0)
    keys.follow([configured("sg-1", concurrency_max=3)])
    with pytest.raises(InvalidApiKey):
        keys.enter(bearer(b"sg-2"), 1.0)
    with pytest.raises(KeyConcurrency):
        keys.enter(bearer(b"sg-1"), 1.0)
    for key in (gone, running[0]):
        keys.leave(key, 2.0)
    assert keys.enter(bearer(b"sg-1"), 2.0).name == "team-a"


def test_the_admin_token_can_be_another_one_from_now_on() -> None:
    """Then the one before opens nothing."""
    guard = AdminGuard("old")
    guard.follow("new")
    guard.check(bearer(b"new"))
    with pytest.raises(InvalidApiKey):
        guard.check(bearer(b"old"))


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://10.1.2.3:8000", True),
        ("http://10.1.2.3", True),
        ("http://11.1.2.3:8000", False),
        ("http://engine.lan:8000", True),
        ("http://engine.lan:8001", False),
        ("http://engine.lan", False),
        ("http://any.lan:1", True),
        ("https://any.lan", True),
        ("http://x.any.lan", False),
        ("http://any.lan.", False),
        ("http://192.168.0.7:1", True),
        ("http://192.168.0.8:1", False),
        ("http://[fd00::1]:8000", True),
        ("http://[fd00::1]:8001", False),
        ("http://[fe80::1]", False),
        ("http://[::ffff:10.1.2.3]:8000", False),
        ("http://167838211:8000", False),  # 10.1.2.3 as C libraries read it
        ("http://0x0a010203", False),
    ],
)
def test_what_may_be_added_while_it_runs(url: str, allowed: bool) -> None:
    """By network, or by name as it is written, with its port if one is named."""
    places = ("10.0.0.0/8", "engine.lan:8000", "any.lan", "192.168.0.7", "[fd00::1]:8000")
    assert may_add(url, places) is allowed
    assert not may_add(url, ())
