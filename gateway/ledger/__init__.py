"""Slots shared by several gateways: leases in Redis, each with an owner and an expiry, never a counter.

step ......... what a gateway tells and is told; step.lua is what happens in between
redis ........ where it happens
ledger ....... this gateway's account: what it holds, wants and gives back
dispatcher ... Admission's face for a gateway that is not alone
notes ........ what gateways tell each other: prompts that they sent, as hashes and lengths; engines that fail
stream ....... where notes and lessons stand, in Redis
shadows ...... what others sent, booked here; a convenience, which nothing waits for
ejections .... backends that failed others, left alone here
differences .. where engines say otherwise than the ledger
lessons ...... what gateways learnt, for those that start later
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gateway.dispatcher import Dispatcher
from gateway.lessons import Lessons
from gateway.options import RedisSettings
from policies.admission import Admission

if TYPE_CHECKING:
    from gateway.ledger.lessons import SharedLessons


def dispatcher_of(
    redis: RedisSettings, admission: Admission, clock: Callable[[], float], url_of: Callable[[str], str]
) -> Dispatcher:
    """One that shares slots where Redis is configured; else one that knows of no other gateway.

    `url_of`: which engine a backend is. Raises ValueError for a URL that is none.
    """
    url = redis.url.get_secret_value()
    if not url:
        return Dispatcher(admission, clock)
    from gateway.ledger.dispatcher import SharedDispatcher  # who is alone need not load it
    from gateway.ledger.ejections import SharedEjections
    from gateway.ledger.redis import RedisStore
    from gateway.ledger.shadows import SharedShadows
    from gateway.ledger.stream import RedisStream

    store = RedisStore(url, redis.pool)
    shadows = SharedShadows(admission.backends, url_of, RedisStream(url, redis.pool))
    dispatcher = SharedDispatcher(admission, clock, url_of, store, redis.lease_seconds, shadows)
    ejections = SharedEjections(dispatcher, url_of, shadows.tell)
    shadows.health = ejections.heard
    dispatcher.state_changed.append(ejections.state_changed)
    return dispatcher


def lessons_of(
    redis: RedisSettings,
    dispatcher: Dispatcher,
    lessons: Lessons,
    url_of: Callable[[str], str],
    aliases: Callable[[], Iterable[str]],
) -> SharedLessons | None:
    """Shares what is learnt with other gateways; None: there are none. See `SharedLessons`."""
    if not (url := redis.url.get_secret_value()):
        return None
    from gateway.ledger.lessons import SharedLessons
    from gateway.ledger.stream import RedisShelf

    backends, shelf = dispatcher.admission.backends, RedisShelf(url, redis.pool)
    shared = SharedLessons(backends, lessons.prompts, lessons.outputs, url_of, aliases, shelf)
    dispatcher.state_changed.append(shared.state_changed)
    return shared
