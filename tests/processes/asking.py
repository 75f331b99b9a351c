"""One request to the gateway and its whole answer; what every error must be; what the gateway counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.processes.harness import Engine, Event, Gateway, Head, RawClient, until

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
Headers = Iterable[tuple[str, str]]

# Agents match error texts with patterns: these words make them compress, give up or never come back.
MISREAD = ("capacity", "overloaded", "quota", "token limit")


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    head: Head
    body: bytes
    ended: str | None  # see `RawClient.ended`

    @property
    def events(self) -> list[Event]:
        """The body as events; each ends with a blank line of any framing."""
        raw = re.findall(rb".+?(?:\r\n\r\n|\n\n|\r\r(?!\n))", self.body, re.DOTALL)
        assert b"".join(raw) == self.body, self.body[-200:]
        return [Event(event, self.head.at) for event in raw]

    @property
    def text(self) -> str:
        """All tokens of a stream, or the text of a document."""
        if self.head.headers["content-type"].startswith("text/event-stream"):
            return "".join(event.token for event in self.events)
        choice = json.loads(self.body)["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])


async def reply(client: RawClient) -> Reply:
    """Read a whole answer."""
    head = await client.head()
    body = await client.body()
    return Reply(head, body, client.ended)


async def ask(
    gateway: Gateway, value: Any, headers: Headers = (), path: str = CHAT, method: str = "POST"
) -> Reply:
    """Ask on a connection of its own and read the whole answer."""
    async with await RawClient.connect(gateway.url) as client:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await client.send(method, path, body, [("Content-Type", "application/json"), *headers])
        return await reply(client)


def fault(reply: Reply, status: int, code: str) -> dict[str, Any]:
    """The error object of an answer, held to what is promised of each of them."""
    assert reply.head.status == status, reply
    assert reply.head.headers["content-type"] == "application/json"
    assert reply.head.headers.get("content-length") == str(len(reply.body))
    assert reply.ended == "clean"
    return checked(json.loads(reply.body), code)


def checked(body: dict[str, Any], code: str) -> dict[str, Any]:
    """An error object, as a document or an event, held to the same."""
    error: dict[str, Any] = body["error"]
    assert error["code"] == code, error
    assert {"message", "type", "param", "code"} <= set(error)
    message = error["message"].lower()
    assert message.endswith((".", "retry later.")), message
    assert "traceback" not in message
    assert not [word for word in MISREAD if word in message], message
    assert "context" not in message or code == "context_length_exceeded", message
    return error


async def metric(gateway: Gateway, name: str, **labels: str) -> float:
    """The sum of a metric's series that have these labels."""
    families = text_string_to_metric_families((await gateway.operator.get("/metrics")).text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def counted(gateway: Gateway, name: str, expected: float, **labels: str) -> None:
    """Wait until the sum is so much: a request is counted when the engine, too, has ended it."""

    async def so() -> bool:
        return await metric(gateway, name, **labels) == expected

    await until(so, f"{name} {labels} of {expected:g}")


async def backend(gateway: Gateway, name: str) -> dict[str, Any]:
    """What the admin port says of a backend."""
    response = await gateway.operator.get(f"/admin/backends/{name}")
    assert response.status_code == 200, response.text
    value: dict[str, Any] = response.json()
    return value


async def queued(gateway: Gateway) -> int:
    """How many requests wait."""
    return len((await gateway.operator.get("/admin/queue")).json())


async def waits(gateway: Gateway, requests: int = 1) -> None:
    """Wait until so many requests wait."""

    async def enough() -> bool:
        return await queued(gateway) == requests

    await until(enough, f"{requests} waiting requests")


async def quiet(gateway: Gateway) -> None:
    """Wait until nothing runs or waits: then everything is counted."""

    async def nothing() -> bool:
        return not (await gateway.operator.get("/admin/requests")).json() and not await queued(gateway)

    await until(nothing, "a quiet gateway")


async def of(engine: Engine, key: str) -> list[dict[str, Any]]:
    """The engine's records of the requests whose last message begins so."""
    return [record for record in await engine.records() if record["key"].startswith(key)]


async def arrival(engine: Engine, key: str) -> None:
    """Wait until the engine has such a request."""

    async def there() -> bool:
        return bool(await of(engine, key))

    await until(there, f"the arrival of {key!r}")


async def ending(engine: Engine, key: str) -> dict[str, Any]:
    """Wait until the engine is done with such a request; its record."""

    async def ended() -> bool:
        records = await of(engine, key)
        return bool(records) and all(record["end"] for record in records)

    await until(ended, f"the end of {key!r}")
    return (await of(engine, key))[-1]
