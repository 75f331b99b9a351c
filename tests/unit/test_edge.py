"""What is let in, by size and time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway import edge, errors


def receiver(*messages: dict[str, Any]) -> edge.Receive:
    remaining = list(messages)

    async def receive() -> dict[str, Any]:
        return remaining.pop(0)

    return receive


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_parts_is_whole() -> None:
    """However it is cut, the body is what was sent."""
    assert await edge.read_body(receiver(part(b"ab")), {}, 10) == b"ab"
    assert await edge.read_body(receiver(part(b"a", True), part(b"", True), part(b"b")), {}, 10) == b"ab"


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
        await edge.read_body(receiver(*messages), headers, 10)


async def test_a_client_that_leaves_in_the_middle_is_gone() -> None:
    """A disconnect before the end of the body is no error to answer."""
    with pytest.raises(errors.ClientGone):
        await edge.read_body(receiver(part(b"x", True), {"type": "http.disconnect"}), {}, 10)


def test_headers_have_limits() -> None:
    """Too many fields or bytes are refused; the parser below has no limit of its own."""
    assert edge.headers_of({"headers": [(b"a", b"1"), (b"b", b"2")]}) == {b"a": b"1", b"b": b"2"}
    with pytest.raises(errors.HeadersTooLarge):
        edge.headers_of({"headers": [(b"a", b"1")] * 101})
    with pytest.raises(errors.HeadersTooLarge):
        edge.headers_of({"headers": [(b"a", b"x" * 65_536)]})


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Recorder(asyncio.Transport):
    """A transport that remembers its writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_a_head_goes_out_with_what_follows() -> None:
    """Head and first events are one write below; everything later passes as it is written."""
    below = Recorder()
    transport = edge.JoiningTransport(below, asyncio.get_running_loop())
    transport.write(HEAD)
    transport.write(b"b")
    transport.write(b"c")
    await asyncio.sleep(0)
    assert below.writes == [HEAD + b"b", b"c"]


async def test_a_head_alone_waits_one_turn() -> None:
    """A head that nothing follows in the same turn of the loop is sent then."""
    below = Recorder()
    transport = edge.JoiningTransport(below, asyncio.get_running_loop())
    transport.write(HEAD)
    assert below.writes == []
    await asyncio.sleep(0)
    assert below.writes == [HEAD]


async def test_nothing_pending_is_lost_by_close() -> None:
    """What was written before a close goes out first."""
    below = Recorder()
    transport = edge.JoiningTransport(below, asyncio.get_running_loop())
    transport.write(HEAD)
    transport.close()
    assert below.writes == [HEAD]
    assert below.closed


async def test_nothing_is_written_to_a_connection_that_was_lost() -> None:
    """A client that resets between a write and the turn of the loop costs no exception."""
    below = Recorder()
    transport = edge.JoiningTransport(below, asyncio.get_running_loop())
    transport.write(HEAD)
    below.closed = True
    await asyncio.sleep(0)
    assert below.writes == []
