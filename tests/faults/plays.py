"""All the ways in which an engine's bytes can be wrong, each with what its client must hear.

`first_token_timeout` and `idle_timeout` are limits that passed, `backend_failed` is everything else that an
engine does wrong, and `completed` stands where an answer is whole in spite of it.
"""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass

from tests.faults.raw_engine import (
    CHUNKED,
    EVENTS,
    FINISH,
    UNTIL_CLOSE,
    Peer,
    Play,
    answer,
    chunk,
    completion,
    document,
    event,
    token,
)
from tests.faults.verdict import COMPLETED, PASSED

FAILED = "backend_failed"
NO_TOKEN = "first_token_timeout"
IDLE = "idle_timeout"
HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them."""

    play: Play
    stream: str  # what a client that streams hears
    whole: str  # and one that does not


def says(data: bytes, *, hold: bool = False, reset: bool = False) -> Play:
    """These bytes, then the end: closed in order, by a reset, or only when the gateway has enough."""

    async def play(peer: Peer) -> None:
        await peer.send(data)
        if hold:
            await peer.hold()
        elif reset:
            await asyncio.sleep(0.05)  # a reset discards what was not read yet
            peer.reset()

    return play


def either(streamed: bytes, whole: bytes, *, hold: bool = False) -> Play:
    """One or the other, as it was asked for."""

    async def play(peer: Peer) -> None:
        await says(streamed if peer.stream else whole, hold=hold)(peer)

    return play


def html(status: bytes) -> bytes:
    """What a proxy before the engine says."""
    head = b"HTTP/1.1 %b\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(HTML)) + HTML


def sized(length: bytes, body: bytes, kind: bytes = b"application/json") -> bytes:
    """An answer that says this of its length."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %b\r\n\r\n%b" % (kind, length, body)


async def endless_head(peer: Peer) -> None:
    """Header fields without end, as fast as they are taken."""
    await peer.send(EVENTS)
    while True:
        await peer.send(b"X-More: %b\r\n" % (b"x" * 100) * 100)


async def dripping_head(peer: Peer) -> None:
    """A head that never ends, but always goes on."""
    await peer.send(EVENTS)
    while True:
        await peer.send(b"X-More: x\r\n")
        await asyncio.sleep(0.05)


async def endless_continue(peer: Peer) -> None:
    """Interim answers only."""
    while True:
        await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await asyncio.sleep(0.01)


async def comments_only(peer: Peer) -> None:
    """A stream that lives and never says anything."""
    await peer.send(CHUNKED)
    while True:
        await peer.send(chunk(b": keep-alive\n\n"))
        await asyncio.sleep(0.05)


async def comments_after_a_token(peer: Peer) -> None:
    """The same, once it has begun to answer."""
    await peer.send(CHUNKED + chunk(event(token())))
    while True:
        await peer.send(chunk(b": keep-alive\n\n"))
        await asyncio.sleep(0.05)


async def byte_by_byte(peer: Peer) -> None:
    """A good answer in packets of one byte."""
    for byte in answer(stream=peer.stream):
        await peer.send(bytes([byte]))
        await asyncio.sleep(0)


def plain(play: Play, outcome: str) -> Fault:
    """Both clients hear the same."""
    return Fault(play, outcome, outcome)


BEGUN = CHUNKED + chunk(event(token()))
UTF16 = event(token()).decode().encode("utf-16")
PACKED = gzip.compress(completion())
GZIP = b"Content-Encoding: gzip\r\n"

FAULTS = {
    # nothing, or not HTTP
    "closes at once": plain(says(b""), FAILED),
    "resets at once": plain(says(b"", reset=True), FAILED),
    "garbage": plain(says(b"\x00\xff\x16\x03\x01garbage" * 9), FAILED),
    "SSH": plain(says(b"SSH-2.0-OpenSSH_9.2\r\n"), FAILED),
    "HTTP/2": plain(says(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18), FAILED),
    "HTTP/0.9": plain(says(completion()), FAILED),
    "an unknown status": plain(says(b"HTTP/1.1 999 What\r\n\r\n"), FAILED),
    "switches protocols": plain(says(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"), FAILED),
    # a head that does not come
    "silence": plain(says(b"", hold=True), NO_TOKEN),
    "a status line without its end": plain(says(b"HTTP/1.1 200 O", hold=True), NO_TOKEN),
    "stalls inside its head": plain(says(EVENTS, hold=True), NO_TOKEN),
    "closes inside its head": plain(says(EVENTS), FAILED),
    "resets inside its head": plain(says(EVENTS, reset=True), FAILED),
    "an endless head": plain(endless_head, FAILED),
    "a head that drips": plain(dripping_head, NO_TOKEN),
    "interim answers only": plain(endless_continue, NO_TOKEN),
    "a NUL in its head": plain(says(b"HTTP/1.1 200 OK\r\nX-\0: x\r\n\r\n{}"), FAILED),
    # a body that does not come
    "stalls behind its head": plain(says(CHUNKED, hold=True), NO_TOKEN),
    "comments only": plain(comments_only, NO_TOKEN),
    "a stream without events": plain(says(CHUNKED + END), FAILED),
    "a stream of comments that ends": plain(says(CHUNKED + chunk(b": hello\n\n") + END), FAILED),
    "an end without an answer": plain(says(CHUNKED + chunk(event(b"[DONE]")) + END), FAILED),
    "no content": plain(says(b"HTTP/1.1 204 No Content\r\n\r\n"), FAILED),
    "an empty document": plain(says(document(b"")), FAILED),
    "a document that stalls": plain(says(sized(b"999", b'{"choices":'), hold=True), "total_timeout"),
    # a body that breaks off
    "closes in mid-stream": plain(says(BEGUN), FAILED),
    "resets in mid-stream": plain(says(BEGUN, reset=True), FAILED),
    "stalls in mid-stream": plain(says(BEGUN, hold=True), IDLE),
    "stalls inside an event": plain(says(BEGUN + b'14\r\ndata: {"choices":[{"', hold=True), IDLE),
    "stalls inside a size": plain(says(BEGUN + b"1", hold=True), IDLE),
    "comments after a token": plain(comments_after_a_token, IDLE),
    "half an event, then a clean end": plain(says(BEGUN + chunk(b'data: {"choi') + END), FAILED),
    "a clean end without a reason": plain(says(BEGUN + END), FAILED),
    "a reason, but no end": plain(says(BEGUN + chunk(event(FINISH))), COMPLETED),
    "a reason, and then it stalls": plain(says(BEGUN + chunk(event(FINISH)), hold=True), COMPLETED),
    # lies about its length
    "less than it says": plain(either(sized(b"9999", event(token()), b"text/event-stream"),
                                      sized(b"9999", completion())), FAILED),
    "more than it says": plain(says(answer(stream=True) + b"and more"), COMPLETED),
    "a document longer than it says": plain(says(sized(b"20", completion())), FAILED),
    "a negative length": plain(says(sized(b"-1", completion())), FAILED),
    "a length that is no number": plain(says(sized(b"many", completion())), FAILED),
    "two lengths": plain(says(sized(b"5\r\nContent-Length: 7", b"hello"), ), FAILED),
    "a length and chunks": plain(says(sized(b"5\r\nTransfer-Encoding: chunked", END)), FAILED),
    "a size that is no number": plain(says(CHUNKED + b"zz\r\n" + event(token())), FAILED),
    "a size that is too large": plain(says(CHUNKED + b"f" * 17 + b"\r\n" + event(token())), FAILED),
    "a chunk longer than its size": plain(says(BEGUN + b"2\r\n" + event(token()) + b"\r\n"), FAILED),
    # an error, or something else, inside a 200
    "an error inside a document": plain(says(document(b'{"error":{"message":"no","type":"x"}}')), FAILED),
    "an error as a text": plain(says(document(b'{"error":"CUDA out of memory"}')), FAILED),
    "an error as the first event": plain(says(CHUNKED + chunk(event(b'{"error":{"code":null}}')) + END),
                                         FAILED),
    "an error after a token": Fault(says(BEGUN + chunk(event(b'{"error":{"message":"x"}}')) + END),
                                    PASSED, FAILED),
    "a detail after a token": plain(says(BEGUN + chunk(event(b'{"detail":"x"}')) + END), FAILED),
    "HTML and 200": plain(says(html(b"200 OK")), FAILED),
    "HTML as a stream": plain(says(UNTIL_CLOSE + HTML), FAILED),
    "a text": plain(says(document(b"ok")), FAILED),
    "an array": plain(says(document(b"[]")), FAILED),
    "no choices": plain(says(document(b'{"choices":[]}')), FAILED),
    "nested too deep": plain(says(document(b'{"choices":' + b"[" * 100_000)), FAILED),
    "a model list": plain(says(document(b'{"object":"list","data":[]}')), FAILED),
    "UTF-16": plain(says(UNTIL_CLOSE + UTF16), FAILED),
    "bytes that are no UTF-8": plain(says(CHUNKED + chunk(event(b'{"choices":[{"\xff')) + END), FAILED),
    # of others on the way
    "HTML and 502": plain(says(html(b"502 Bad Gateway")), FAILED),
    "HTML and 504": plain(says(html(b"504 Gateway Timeout")), FAILED),
    "a redirection": plain(says(document(b"", b"307 Moved", b"Location: http://x/\r\n")), FAILED),
    "a wrong key": plain(says(document(b"{}", b"401 Unauthorized")), FAILED),
    # codings nobody asked for
    "a document in gzip": plain(says(document(PACKED, fields=GZIP)), FAILED),
    "a stream in gzip": plain(says(UNTIL_CLOSE.replace(b"\r\n\r\n", b"\r\n" + GZIP + b"\r\n")
                                   + gzip.compress(event(token()))), FAILED),
    # slow, but right
    "byte by byte": plain(byte_by_byte, COMPLETED),
    "a document where a stream was asked for": plain(says(answer(stream=False)), COMPLETED),
}  # fmt: skip
