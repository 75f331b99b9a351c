"""Requests that were spoilt by chance, at the client port: each connection gets whole answers of documented
kinds, or is closed; the engine gets only whole requests, framed once."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from contextlib import suppress

from tests.fuzzing import TIMES
from tests.processes.asking import CHAT, ask, quiet
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import Engine, RawClient, chat, engine, gateway
from tests.processes.raw_client import Head

CONNECTIONS = 400 * TIMES
AT_ONCE = 16
PATIENCE_SECONDS = 0.3
CODES = {
    400: {"invalid_json", "invalid_request", "context_length_exceeded"},
    404: {"not_found", "model_not_found"},
    405: {"method_not_allowed"},
    408: {"request_timeout"},
    413: {"body_too_large"},
    431: {"headers_too_large"},
}
FIELDS = [
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding : chunked",
    b"Content-Length: 5",
    b"Content-Length: +5",
    b"Content-Length: 99999999999999999999",
    b"Connection: close",
    b"Connection: keep-alive, X-Secret",
    b"Expect: 100-continue",
    b"Upgrade: h2c",
    b"Host: other",
    b"X-Slotgate-Priority: \xff\xfe",
    b"Authorization: Bearer \x00",
    b" folded: field",
    b"X-Long: " + b"x" * 70_000,
    b"\r",
]
PARTS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b" ",
    b":",
    b"0\r\n\r\n",
    b"POST / HTTP/1.1\r\n",
    b'"',
    b"{",
    b"[" * 2000,
]


def good(dice: random.Random) -> tuple[bytes, bytes]:
    """Head and body of a request that is right."""
    body = json.dumps(chat("fuzz", stream=dice.random() < 0.5, max_tokens=2)).encode()
    head = b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" % CHAT.encode()
    if dice.random() < 0.2:
        middle = dice.randrange(len(body))
        pieces = [piece for piece in (body[:middle], body[middle:]) if piece]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        return head + b"Transfer-Encoding: chunked\r\n\r\n", chunks + b"0\r\n\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body), body


def spoilt(dice: random.Random) -> bytes:
    """One or two requests, one behind the other, with some mistakes in them."""
    raw = bytearray()
    for _ in range(dice.choice((1, 1, 2))):
        head, body = good(dice)
        if dice.random() < 0.5:
            lines = head.split(b"\r\n")
            lines.insert(dice.randrange(1, len(lines) - 1), dice.choice(FIELDS))
            head = b"\r\n".join(lines)
        raw += head + body
    for _ in range(dice.choice((0, 0, 1, 1, 2, 5))):
        at = dice.randrange(len(raw))
        match dice.randrange(4):
            case 0:
                raw[at:at] = dice.choice(PARTS)
            case 1:
                del raw[at : at + dice.choice((1, 2, 20))]
            case 2:
                raw[at] = dice.randrange(256)
            case _:
                del raw[at:]
        if not raw:
            break
    return bytes(raw)


class Hearing:
    """What comes back on one connection."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.answers: list[str] = []
        self.left = False  # we closed our side: who leaves in the middle of an answer gets no end of it

    async def read(self) -> None:
        """Note all answers that come until the gateway closes."""
        while True:
            try:
                head = await self.client.head()
            except ConnectionError as closed:
                if re.match("closed after [1-9]", str(closed)) and not self.left:
                    raise AssertionError(str(closed)) from None
                return
            if head.status != 100:
                await self._answer(head)

    async def _answer(self, head: Head) -> None:
        body = await self.client.body()
        if self.client.ended != "clean":  # garbage behind a request, or our end, ends its answer too
            self.answers.append("cut")
        elif head.status == 200:
            self.answers.append("200")
        else:
            code = json.loads(body)["error"]["code"]
            assert code in CODES.get(head.status, ()), (head, body)
            self.answers.append(f"{head.status} {code}")


async def heard(url: str, raw: bytes, dice: random.Random) -> list[str]:
    """Send it in pieces, and our end after a while; all answers until the gateway closes."""
    async with await RawClient.connect(url) as client:
        hearing = Hearing(client)
        reading = asyncio.create_task(hearing.read())
        size = dice.choice((7, 100, 1 << 20))
        with suppress(ConnectionError):
            for start in range(0, len(raw), size):
                await client.write(raw[start : start + size])
        await asyncio.wait([reading], timeout=PATIENCE_SECONDS)
        hearing.left = True
        with suppress(OSError):
            client.half_close()
        await reading
        return hearing.answers


async def framed(one: Engine) -> None:
    """What the engine got is whole requests of ours."""
    for request in await one.requests(8000):
        fields = [(name.lower(), value) for name, value in request["headers"]]
        framing = [field for field in fields if field[0] in ("content-length", "transfer-encoding")]
        assert framing == [("content-length", str(len(request["body"])))], request
        assert json.loads(request["body"])["messages"]


async def test_spoilt_requests() -> None:
    """Nothing is answered by a 5xx or by half, and the gateway serves as before; a failure tells its seed."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    dice = random.Random(seed)
    outcomes: Counter[str] = Counter()
    async with engine(slots=4, tokens=2, decode_tps=1000.0) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        numbers = iter(range(CONNECTIONS))

        async def client() -> None:
            for number in numbers:
                raw = spoilt(dice)
                try:
                    outcomes.update(await heard(front.url, raw, dice) or ["closed"])
                except BaseException as error:
                    error.add_note(f"connection {number}: {raw[:3000]!r}")
                    raise

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client())
        await quiet(front)
        await settled(front, "b0")
        await framed(one)
        assert (await ask(front, chat("well"))).events[-1].done
    print(dict(outcomes))  # noqa: T201
    assert outcomes["200"] > 0
    assert len(outcomes) > 4, outcomes
