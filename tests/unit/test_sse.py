"""Finding the events of a stream without changing a byte of it."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.sse import EventSplitter, EventTooLarge, data_of, events
from tests.fuzzing import examples

STREAMS = sorted((Path(__file__).parents[1] / "fixtures/streams").glob("*.sse"))


def split(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    """The events of a stream that came in these pieces, and what was left."""
    splitter = EventSplitter()
    found = [event for piece in pieces for event in events(splitter.feed(piece))]
    return found, splitter.rest()


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream in pieces."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


lines = st.sampled_from(
    ["data: x", "data:y", "data", "data: ä€😀", ": comment", "event: error", "id: 1", "data: {}", "x" * 40]
)
blocks = st.lists(st.lists(lines, max_size=3), max_size=6)
places = st.lists(st.integers(0, 1000), max_size=12)


@examples(100)
@given(blocks, st.sampled_from(["\n", "\r\n", "\r"]), places, st.booleans())
def test_splits_do_not_matter(blocks: list[list[str]], end: str, places: list[int], mark: bool) -> None:
    """In each framing, however the reads fall: the events that were sent, byte for byte."""
    sent = [("".join(line + end for line in block) + end).encode() for block in blocks]
    if mark:
        sent = [b"\xef\xbb\xbfdata: first" + 2 * end.encode(), *sent]
    found, rest = split(cut(b"".join(sent), places))
    if sent == [b"\r"]:  # a stream of nothing else: this may be half of a CRLF
        assert rest == b"\r"
        found.append(rest)
    assert found == sent


@examples(500)
@given(st.lists(st.sampled_from([b"data: x", b":", b"\n", b"\r\n", b"\r", b"\n\n"]), max_size=14), places)
@example([b"data: x", b"\n", b"\r"], [])
@example([b"data: x", b"\r", b"\r\n", b"data: x", b"\n\n"], [9])
def test_mixed_line_ends_lose_nothing(parts: list[bytes], places: list[int]) -> None:
    """Whatever the mixture, all bytes come out, and the same data in the same events."""
    stream = b"".join(parts)
    found, rest = split(cut(stream, places))
    assert b"".join(found) + rest == stream
    whole, _ = split([stream])
    assert [data for event in found if (data := data_of(event)) is not None] == [
        data for event in whole if (data := data_of(event)) is not None
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_whole_as_soon_as_its_blank_line_came(end: bytes) -> None:
    """No event waits for the next one, in any framing, after the first of its kind too."""
    splitter = EventSplitter()
    for number in range(3):
        event = b"data: %d" % number + end + end
        assert splitter.feed(event) == event
        assert splitter.rest() == b""


def test_half_a_crlf_makes_no_blank_line() -> None:
    """CR and LF in separate reads are one line end (praxis-proxy/praxis#739)."""
    splitter = EventSplitter()
    for piece in (b"data: x\r", b"\ndata: y\r", b"\n\r"):
        assert splitter.feed(piece) == b""
    assert splitter.feed(b"\n") == b"data: x\r\ndata: y\r\n\r\n"


def test_half_a_crlf_after_whole_reads_waits() -> None:
    """What counts is the line end just before, also where a read was handed on as it came."""
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\r\r") == b"data: 1\r\r"
    assert splitter.feed(b"data: 2\n\n") == b"data: 2\n\n"
    assert splitter.feed(b"\r") == b""
    assert splitter.feed(b"\n") == b"\r\n"


def test_several_events_and_the_beginning_of_one() -> None:
    """A read that ends within an event gives the whole ones before it."""
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: 2\n\ndata") == b"data: 1\n\ndata: 2\n\n"
    assert splitter.rest() == b"data"
    assert splitter.feed(b": 3\n\n: 4\n\n") == b"data: 3\n\n: 4\n\n"
    assert splitter.rest() == b""


def test_whole_reads_are_not_copied() -> None:
    """The hot case: a read that is whole events is handed on itself."""
    data = b"data: 1\n\n" * 64
    splitter = EventSplitter()
    assert splitter.feed(data) is data
    assert len(events(data)) == 64


def test_a_large_event_in_small_pieces_is_found_in_linear_time() -> None:
    """3 MB in reads of 64 bytes: seconds if the pending bytes were searched again each time."""
    event = b"data: " + b"x" * 3_000_000 + b"\r\n\r\n"
    splitter = EventSplitter()
    started = time.perf_counter()
    blocks = [splitter.feed(event[start : start + 64]) for start in range(0, len(event), 64)]
    assert time.perf_counter() - started < 2
    assert b"".join(blocks) == event
    assert not any(blocks[:-1])


def test_an_event_without_end_is_bounded() -> None:
    """An engine that never ends an event cannot fill the memory."""
    splitter = EventSplitter(event_bytes_max=100)
    assert splitter.feed(b"x" * 100) == b""
    with pytest.raises(EventTooLarge) as caught:
        splitter.feed(b"x")
    assert caught.value.size == 100


def test_the_bound_is_for_one_event() -> None:
    """Many events in one read may be more than one event may be."""
    splitter = EventSplitter(event_bytes_max=10)
    assert splitter.feed(b"data: 1\n\n" * 50 + b"data") == b"data: 1\n\n" * 50


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\r\n\r\n", b"x"),
        (b"data:  x \r\r", b" x "),
        (b"data: x\ndata:y\n\n", b"x\ny"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b"event: error\ndata: {}\n\n", b"{}"),
        (b"data: {}\nevent:ping\n\n", b"{}"),
        (b": prefill\n\n", None),
        (b"database: x\n\n", None),
        (b"\n", None),
        (b"", None),
        (b"\ndata: x\x0cy\x85z\n\n", b"x\x0cy\x85z"),
    ],
)
def test_the_data_of_an_event(event: bytes, data: bytes | None) -> None:
    """Data lines are joined, one space behind the colon is no data, comments have none."""
    assert data_of(event) == data


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams(path: Path) -> None:
    """Every event of an engine is one of its route's, but for a last `[DONE]`, fed byte by byte too."""
    stream = path.read_bytes()
    found, rest = split([stream])
    assert split([bytes([byte]) for byte in stream]) == (found, b"")
    assert b"".join(found) == stream
    assert rest == b""
    *told, last = [data_of(event) or b"" for event in found]
    if last != b"[DONE]":
        told.append(last)
        assert json.loads(last)["type"] in ("message_stop", "response.completed")
    assert all(json.loads(data).keys() & {"choices", "type"} for data in told)
