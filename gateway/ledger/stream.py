"""Where gateways leave notes and lessons for each other in Redis: of each pool one short stream, and a key
for each lesson; on connections of their own.

They are a convenience: what is lost here makes a prompt's backend or an engine's speed a guess again, and
fails nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from redis.asyncio.client import Pipeline
from redis.exceptions import MovedError, RedisError, ResponseError

from gateway.ledger.redis import closed, connecting, in_words
from gateway.ledger.step import Unavailable

NOTES_MAX = 2048  # in the stream; a hundred more at times, as Redis gives them up by the block
READ_MAX = 16  # at once: one of 300 messages takes half a millisecond to follow, and nothing else runs then
RECENT_SECONDS = 600.0  # for which notes are of use, and kept
LESSON_SECONDS = 7 * 86_400.0  # for which a lesson is kept
ANSWER_SECONDS = 1.0
FIELD = b"n"


class Stream(Protocol):
    """Notes in one order, the same for all who read them."""

    async def recent(self) -> str:
        """The place before the notes that are still of use. Raises Unavailable."""

    async def exchange(self, notes: Sequence[bytes], since: str) -> list[tuple[str, bytes]]:
        """Leave these, and read what stands behind a place, these included: the place behind each, and the
        note; `READ_MAX` at most. Raises Unavailable."""

    async def close(self) -> None:
        """Close the connection."""


class Aside:
    """A connection for what is of use and nothing waits for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = connecting(url)

    async def close(self) -> None:
        """Close the connection."""
        await closed(self._client)

    async def _answer(self, asked: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asked
        except MovedError as moved:  # another node of the cluster has it
            await self._connect_again(host=moved.host, port=moved.port)
            raise Unavailable("it is elsewhere") from None
        except ResponseError as fault:
            raise Unavailable(in_words(fault), refused=True) from None
        except (RedisError, OSError) as fault:
            await self._connect_again()
            raise Unavailable(type(fault).__name__) from None

    async def _connect_again(self, **where: object) -> None:
        """The connection may hold an answer that nobody reads."""
        client, self._client = self._client, connecting(self._url, **where)
        await closed(client)


class RedisShelf(Aside):
    """The lessons of one pool: each on its own, so that one that nobody learns any more goes by itself; as a
    hash of one field, since the rights that the ledger needs suffice for that."""

    def __init__(self, url: str, pool: str) -> None:
        super().__init__(url)
        self._prefix = f"{{slotgate:{pool}}}:learnt:"

    async def put(self, lessons: Mapping[str, bytes]) -> None:
        """Keep these for a week. Raises Unavailable."""
        asked = self._client.pipeline(transaction=False)
        for name, lesson in lessons.items():
            asked.hset(self._prefix + name, mapping={FIELD: lesson})
            asked.pexpire(self._prefix + name, round(1000 * LESSON_SECONDS))
        await self._answer(_all(asked))

    async def get(self, names: Sequence[str]) -> list[bytes | None]:
        """What is kept under each name. Raises Unavailable."""
        asked = self._client.pipeline(transaction=False)
        for name in names:
            asked.hget(self._prefix + name, FIELD.decode())
        told: list[bytes | None] = await self._answer(_all(asked))
        return told


class RedisStream(Aside):
    """The notes of one pool."""

    def __init__(self, url: str, pool: str) -> None:
        super().__init__(url)
        self._key = f"{{slotgate:{pool}}}:prefixes"

    async def recent(self) -> str:
        """The place before the notes that are still of use. Raises Unavailable."""
        seconds, _ = await self._answer(self._client.time())
        return f"{1000 * (int(seconds) - round(RECENT_SECONDS))}-0"

    async def exchange(self, notes: Sequence[bytes], since: str) -> list[tuple[str, bytes]]:
        """Leave these, and read what stands behind a place. Raises Unavailable."""
        asked = self._client.pipeline(transaction=False)
        for note in notes:
            asked.xadd(self._key, {FIELD: note}, maxlen=NOTES_MAX)
        if notes:
            asked.pexpire(self._key, round(1000 * RECENT_SECONDS))
        asked.xread({self._key: since}, count=READ_MAX)
        *_, told = await self._answer(_all(asked))
        came = [entry for _, entries in told for entry in entries] if told else []
        return [(id.decode(), fields.get(FIELD, b"")) for id, fields in came]

    async def usable(self) -> None:
        """Whether notes could be left and read; none is where there are none yet. Raises Unavailable."""
        await self.recent()
        asked = self._client.pipeline(transaction=False)
        asked.xadd(self._key, {FIELD: b""}, maxlen=NOTES_MAX, nomkstream=True)
        asked.xread({self._key: "$"})
        await self._answer(_all(asked))


async def _all(asked: Pipeline) -> list[Any]:
    """The answers to all of it; raises the error of the first that is one, without what was asked."""
    told: list[Any] = await asked.execute(raise_on_error=False)
    for one in told:
        if isinstance(one, Exception):
            raise one
    return told
