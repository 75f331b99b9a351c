"""Who may ask: client keys on the client port, the operator's token on the admin port. No I/O.

Nothing here decodes what a client sent: any bytes are either a key that is known or `InvalidApiKey`,
with the same words for an unknown and an expired key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from gateway.errors import Forbidden, Headers, InvalidApiKey, KeyConcurrency
from gateway.settings import KeySettings, is_loopback
from policies.release_rate import ReleaseRate
from policies.types import Priority

KEY_BYTES_MAX = 1024  # longer ones are refused unhashed


@dataclass(frozen=True, slots=True)
class Key:
    """A client whose key is known."""

    name: str
    priority: Priority = Priority.INTERACTIVE  # the highest class it may ask for
    models: frozenset[str] = frozenset()  # empty: all
    expires: float | None = None  # seconds since 1970
    concurrency_max: int = 0  # requests at a time; 0: as many as come

    def allows(self, model: str) -> bool:
        """Whether this key may use the model."""
        return not self.models or model in self.models


OPEN = Key("open")  # everybody, while no keys are configured


class Keys:
    """The configured client keys, by digest: only hashes are stored. `clock`: seconds since 1970."""

    def __init__(self, keys: Sequence[KeySettings], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._running: Counter[str] = Counter()  # requests of each key, by its name
        self._rates: dict[str, ReleaseRate] = {}  # how fast they end, of keys with a limit
        self.follow(keys)

    def follow(self, keys: Sequence[KeySettings]) -> None:
        """These and no others open from now on; what runs goes on, and counts."""
        self._keys = {bytes.fromhex(key.sha256): _key(key) for key in keys}

    def enter(self, headers: Headers, now: float) -> Key:
        """The key of a request that begins, to be given back to `leave`; raises InvalidApiKey, and
        KeyConcurrency if it has as many already as it may. `now`: of a clock that never turns back."""
        key = self.identify(headers)
        if key is OPEN:
            return key
        name, most = key.name, key.concurrency_max
        if most:
            rate = self._rates.get(name) or self._rates.setdefault(name, ReleaseRate())
            if self._running[name] >= most:
                raise self.full(key)
            if self._running[name] == most - 1:
                rate.waits(now)
        self._running[name] += 1
        return key

    def full(self, key: Key) -> KeyConcurrency:
        """The error for one request more than this key may have, here or in all gateways."""
        return KeyConcurrency(key.concurrency_max, self._rates[key.name].seconds or 1.0)

    def leave(self, key: Key, now: float) -> None:
        """A request of this key has ended."""
        if key is OPEN:
            return
        name, running = key.name, self._running[key.name]
        if (rate := self._rates.get(name)) is not None:
            rate.released(now, waiting=running >= key.concurrency_max)
        if running > 1:
            self._running[name] = running - 1
        else:
            del self._running[name]

    def identify(self, headers: Headers) -> Key:
        """The key that `Authorization: Bearer` or `x-api-key` presents, from ASGI headers (lower-case
        names); raises InvalidApiKey. A second one is looked at too, as some SDKs send both."""
        if not self._keys:
            return OPEN
        for presented in _presented(headers):
            # Nobody can steer a digest towards a known one, so the time of the look-up tells nothing.
            key = self._keys.get(hashlib.sha256(presented).digest())
            if key is not None and not self._expired(key):
                return key
        raise InvalidApiKey

    def _expired(self, key: Key) -> bool:
        return key.expires is not None and self._clock() >= key.expires


class AdminGuard:
    """The operator's port. Without a token only this machine may ask, and no web page that happens to
    be open in its browser: neither across sites nor by a name that was rebound to 127.0.0.1."""

    def __init__(self, token: str) -> None:
        self.follow(token)

    def follow(self, token: str) -> None:
        """This token and no other opens from now on; "": none is needed."""
        self._digest = hashlib.sha256(token.encode()).digest() if token else None

    def check(self, headers: Headers) -> None:
        """Raises InvalidApiKey without the right `Authorization: Bearer`; if there is no token,
        Forbidden for foreign Host, Origin or Sec-Fetch-Site values."""
        if self._digest is not None:
            bearers = [hashlib.sha256(token).digest() for token in _bearers(headers)]
            if not any(hmac.compare_digest(digest, self._digest) for digest in bearers):
                raise InvalidApiKey(
                    "The admin token (server.admin_token) is missing or wrong: send it as "
                    "`Authorization: Bearer TOKEN`."
                )
            return
        hosts = _values(headers, b"host")
        if not hosts or not all(map(_is_loopback_authority, hosts)):
            raise Forbidden(
                "Without server.admin_token the admin port is asked as localhost or 127.0.0.1 only."
            )
        origins = (origin.partition(b"://")[2] for origin in _values(headers, b"origin"))
        same_site = all(value in (b"same-origin", b"none") for value in _values(headers, b"sec-fetch-site"))
        if not same_site or not all(map(_is_loopback_authority, origins)):
            raise Forbidden("The admin port takes no requests from pages of other sites.")


def may_add(url: str, allowed: Iterable[str]) -> bool:
    """Whether an engine at this URL may be added while the gateway runs. A name is allowed only as it is
    written: what it resolves to, somebody else may decide."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
    return any(_covers(place, host, port) for place in allowed)


def _covers(place: str, host: str, port: int) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(place)  # one address is a network too
    except ValueError:
        named = urlsplit(f"//{place}")
        return (named.hostname, named.port or port) == (host, port)


def _key(settings: KeySettings) -> Key:
    day = settings.expires
    return Key(
        name=settings.name,
        priority=Priority[settings.priority.upper()],
        models=frozenset(settings.models),
        expires=datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() if day else None,
        concurrency_max=settings.concurrency_max,
    )


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _bearers(headers: Headers) -> Iterator[bytes]:
    for value in _values(headers, b"authorization"):
        scheme, _, token = value.partition(b" ")
        token = token.strip()
        if scheme.lower() == b"bearer" and 0 < len(token) <= KEY_BYTES_MAX:
            yield token


def _presented(headers: Headers) -> Iterator[bytes]:
    yield from _bearers(headers)
    yield from (key for key in _values(headers, b"x-api-key") if 0 < len(key) <= KEY_BYTES_MAX)


def _is_loopback_authority(authority: bytes) -> bool:
    """Whether HOST or HOST:PORT is this machine; bytes that are no host name are not."""
    match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::\d{1,5})?", authority.decode("latin-1"))
    return match is not None and is_loopback(match[1] or match[2])
