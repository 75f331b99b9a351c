"""The ledger in Redis: one script, one connection for it, and one more that listens for hints.

Only the ledger's own task speaks here, one command at a time, and a request never does: so nothing is
cancelled but by the time limit, and what has failed in any way loses its connection. No reply can reach
another command.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from importlib import resources

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoScriptError, RedisError

from gateway.ledger.step import Reply, Step, Unavailable

STEP_SECONDS = 0.25  # of one step, the connection included
GRACE_SECONDS = 0.05  # for an answer that is there while this process was held up
HINTS_PAUSE_SECONDS = 2.0  # before the channel is listened to again
HOPS_MAX = 3  # from node to node of a cluster
SCRIPT = resources.files("gateway.ledger").joinpath("step.lua").read_text()


class RedisStore:
    """The ledger of one pool. All its keys begin with `{slotgate:POOL}:`: one slot of a cluster has them.

    Raises ValueError for a URL that is none.
    """

    def __init__(self, url: str, pool: str, script: str = SCRIPT) -> None:
        self._prefix = f"{{slotgate:{pool}}}:"
        self._script = script
        self._sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        self._url = url
        self._client = connecting(url)
        try:
            self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # not connected yet
        except TypeError as error:
            raise ValueError(f"it has an unknown option: {error}") from None

    @property
    def channel(self) -> str:
        """Where hints are published."""
        return f"{self._prefix}freed"

    async def step(self, step: Step) -> Reply:
        """Make one step; one at a time. Raises Unavailable."""
        keys = [f"{self._prefix}{name}" for name in ("epoch", "gateways", "drains")]
        keys += [f"{self._prefix}leases:{word.url}" for word in step.words]
        asking = asyncio.get_running_loop().create_task(self._evaluated(keys, step.encoded()))
        try:
            for seconds in (STEP_SECONDS, GRACE_SECONDS):
                if not asking.done():
                    await asyncio.wait((asking,), timeout=seconds)
            if not asking.done():
                raise Unavailable(f"no answer within {STEP_SECONDS:g} s", late=True)
            return Reply.decoded(asking.result())
        except (RedisError, OSError) as fault:
            raise Unavailable(in_words(fault)) from fault
        finally:
            if not asking.done() or asking.cancelled() or asking.exception() is not None:
                asking.cancel()
                await self._forget()

    async def _evaluated(self, keys: list[str], argument: str) -> bytes:
        for _ in range(HOPS_MAX):
            try:
                try:
                    told: bytes = await self._client.evalsha(self._sha, len(keys), *keys, argument)
                except NoScriptError:  # it knows none yet, or has forgotten it
                    told = await self._client.eval(self._script, len(keys), *keys, argument)
                return told
            except MovedError as moved:  # nothing was done
                await closed(self._client)
                self._client = connecting(self._url, host=moved.host, port=moved.port)
        raise RedisError("no node of the cluster has the keys")

    async def _forget(self) -> None:
        """The connection may hold a reply that nobody reads."""
        client, self._client = self._client, connecting(self._url)
        await closed(client)

    async def hints(self, hint: Callable[[], None]) -> None:
        """Call `hint` at each message, until cancelled."""
        while True:
            client = connecting(self._url)
            channel = client.pubsub(ignore_subscribe_messages=True)
            try:
                await channel.subscribe(self.channel)
                async for _ in channel.listen():
                    hint()
            except (RedisError, OSError):
                await asyncio.sleep(HINTS_PAUSE_SECONDS * random.uniform(0.5, 1.0))  # and ask again
            finally:
                await channel.aclose()  # type: ignore[no-untyped-call]
                await closed(client)

    async def ping(self, seconds: float) -> None:
        """Whether it answers at all. Raises Unavailable."""
        try:
            async with asyncio.timeout(seconds):
                await self._client.execute_command("PING")  # type: ignore[no-untyped-call]
        except TimeoutError:
            raise Unavailable(f"no answer within {seconds:g} s", late=True) from None
        except (RedisError, OSError) as fault:
            raise Unavailable(in_words(fault)) from fault

    async def close(self) -> None:
        """Close all connections."""
        await closed(self._client)


def connecting(url: str, **where: object) -> Redis:
    """A client that connects when it is first asked; `where`: not to the host of the URL."""
    # A Unix socket keeps nothing alive; to the library it is an option that it does not know.
    tcp = {} if url.startswith("unix:") else {"socket_keepalive": True}
    client = Redis.from_url(
        url,
        socket_timeout=None,  # limits are kept here
        socket_connect_timeout=None,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,  # it would need the right to CLIENT SETINFO
        **tcp,
    )
    client.connection_pool.connection_kwargs.update(where)
    return client


async def closed(client: Redis) -> None:
    """Close its connections at once; what they complain of while they close is no news."""
    try:
        await client.connection_pool.disconnect(inuse_connections=True)
    except (RedisError, OSError):
        return


def in_words(fault: Exception) -> str:
    """Why it cannot be asked, in one line without secrets."""
    said = " ".join(str(fault).split())[:160]
    return said or type(fault).__name__
