"""Slots shared by several gateways: leases in Redis, each with an owner and an expiry, never a counter.

step ......... what a gateway tells and is told; step.lua is what happens in between
redis ........ where it happens
ledger ....... this gateway's account: what it holds, wants and gives back
dispatcher ... Admission's face for a gateway that is not alone
notes ........ what gateways tell each other of prompts that they sent: hashes and lengths
stream ....... where those stand, in Redis
shadows ...... what others sent, booked here; a convenience, which nothing waits for
ejections .... backends that failed others
differences .. where engines say otherwise
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.dispatcher import Dispatcher
from gateway.options import RedisSettings
from policies.admission import Admission


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
