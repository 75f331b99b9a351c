"""What is let in, by size and time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway import edge, errors, server
from gateway.intake import Intake
from gateway.outbox import Outbox
from gateway.transport import LingeringTransport


def receiver(*messages: dict[str, Any]) -> edge.Receive:
    remaining = list(messages)

    async def receive() -> dict[str, Any]:
        return remaining.pop(0)

    return receive


def arrival(receive: edge.Receive, headers: Any = (), **more: Any) -> edge.AsgiArrival:
    """A request whose answer nobody wants."""

    async def send(message: object) -> None:
        raise AssertionError("nothing is answered here")

    return edge.AsgiArrival({"path": "/", "headers": list(headers)}, receive, send, **more)


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_parts_is_whole() -> None:
    """However it is cut, the body is what was sent."""
    assert await arrival(receiver(part(b"ab"))).body(Intake(10)) == b"ab"
    assert await arrival(receiver(part(b"a", True), part(b"", True), part(b"b"))).body(Intake(10)) == b"ab"


@pytest.mark.parametrize(
    ("headers", "messages"),
    [
        ({b"content-length": b"11"}, ()),
        ({}, (part(b"x" * 11),)),
        ({}, (part(b"x" * 6, True), part(b"x" * 6, True))),
        ({b"content-length": b"2"}, (part(b"x" * 11),)),
    ],
)
async def test_a_body_over_the_limit_is_refused(headers: dict[bytes, bytes], messages: Any) -> None:
    """Declared or not, in one piece or many; what is declared is not even read."""
    with pytest.raises(errors.BodyTooLarge):
        await arrival(receiver(*messages), headers.items()).body(Intake(10))


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """Neither for its first byte nor for the next one."""

    async def never() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    for began in (False, True):
        messages = [part(b"x", True)] * began

        async def receive(messages: list[dict[str, Any]] = messages) -> dict[str, Any]:
            return messages.pop() if messages else await never()

        with pytest.raises(errors.RequestTimeout):
            await arrival(receive, body_seconds_max=0.01).body(Intake(10))


class Quick(server.EdgeProtocol):
    """Has no patience with slow heads."""

    head_seconds_max = 0.05


async def test_a_head_that_does_not_end_is_not_waited_for() -> None:
    """408, then the close; one that ends in time in several pieces is served."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, http=Quick, lifespan="off", log_config=None)
    config.load()
    loop, state = asyncio.get_running_loop(), ServerState()
    server = await loop.create_server(lambda: Quick(config, state, {}, loop), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for pieces, status in (
            ([b"GET / HTTP/1.1\r\nHost:"], b"408"),
            ([b"GET / HT", b"TP/1.1\r\n", b"\r\n"], b"204"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.001)
            async with asyncio.timeout(10):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert (b"request_timeout" in answer) == (status == b"408")
            writer.close()
            await writer.wait_closed()


async def test_a_client_that_leaves_in_the_middle_is_gone() -> None:
    """A disconnect before the end of the body is no error to answer."""
    with pytest.raises(errors.ClientGone):
        await arrival(receiver(part(b"x", True), {"type": "http.disconnect"})).body(Intake(10))


def test_headers_have_limits() -> None:
    """Too many fields or bytes are refused; the parser below has no limit of its own."""
    assert edge.headers_of([(b"a", b"1"), (b"b", b"2")]) == {b"a": b"1", b"b": b"2"}
    with pytest.raises(errors.HeadersTooLarge):
        edge.headers_of([(b"a", b"1")] * 101)
    with pytest.raises(errors.HeadersTooLarge):
        edge.headers_of([(b"a", b"x" * 65_536)])


class Recorder(asyncio.Transport):
    """A transport that remembers its writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False
        self.aborted = False
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_a_close_waits_for_a_client_that_still_sends() -> None:
    """Our side is half-closed, what comes is read; a second close is final."""

    class Below(Recorder):
        eof = reading = False

        def write_eof(self) -> None:
            self.eof = True

        def resume_reading(self) -> None:
            self.reading = True

        def is_closing(self) -> bool:
            return self.closed

        def abort(self) -> None:
            self.closed = True

    below = Below()
    transport = LingeringTransport(below, asyncio.get_running_loop(), lambda: True, Outbox())
    transport.write(b"HTTP/1.1 413 ")
    transport.close()
    assert below.writes == [b"HTTP/1.1 413 "]
    assert (below.eof, below.reading, below.closed) == (True, True, False)
    assert transport.is_closing()
    transport.close()
    assert below.closed


async def test_a_closed_connection_that_takes_nothing_is_given_up() -> None:
    """A client that has stopped reading does not keep its socket for ever; one that reads slowly keeps it
    while it reads."""
    below = Recorder()
    transport = LingeringTransport(below, asyncio.get_running_loop(), lambda: False, Outbox())
    below.unsent = 2
    transport.close()
    transport._look(60.0, 3)
    assert not below.aborted
    transport._look(60.0, 2)
    assert below.aborted
