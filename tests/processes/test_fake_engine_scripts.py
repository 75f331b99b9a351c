"""A fake engine misbehaves exactly as told, and behaves again afterwards."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.processes.harness import RawClient, chat, engine
from tests.processes.test_fake_engine import CHAT, http, stream


@pytest.mark.parametrize(("cut", "ended"), [("fin", "cut"), ("rst", "reset"), ("clean", "clean")])
async def test_a_stream_ends_after_the_scripted_events(cut: str, ended: str) -> None:
    """The client gets exactly that many events, and then the scripted end."""
    async with engine(instant=True) as one:
        await one.script(cut=cut, cut_after=3, split_seconds=0.01)
        client, events = await stream(one, chat("x"))
        assert (len(events), client.ended) == (3, ended)
        _, events = await stream(one, chat("x"))
        assert events[-1].done
        assert (await one.state())["outcomes"] == {"scripted": 1, "completed": 1}


async def test_a_cut_may_fall_before_any_byte_after_the_head_and_inside_an_event() -> None:
    """Nothing at all, a head alone, and half an event are possible."""
    async with engine(instant=True) as one, await RawClient.connect(one.url) as client:
        await one.script(cut="fin")
        await one.script(cut="fin", cut_after=0)
        await one.script(cut="fin", cut_after=1, cut_inside=True)
        await client.post(CHAT, chat("x"))
        with pytest.raises(ConnectionError):
            await client.head()
        cut, events = await stream(one, chat("x"))
        assert (events, cut.ended) == ([], "cut")
        _, events = await stream(one, chat("x"))
        assert events[0].raw.endswith(b"\n\n")
        assert events[1].raw.startswith(b'data: {"id"')
        assert not events[1].raw.endswith(b"\n")


async def test_a_stalled_stream_holds_its_slot() -> None:
    """After a stall nothing more comes until the client leaves."""
    async with engine() as one, await RawClient.connect(one.url) as client:
        await one.script(cut="stall", cut_after=2, prefill_seconds=0)
        await client.post(CHAT, chat("x"))
        await client.head()
        assert await client.first_token()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.event()
        assert (await one.state())["running"] == 1
        client.close()
        await one.idle()


async def test_error_events() -> None:
    """An error comes before or after tokens, without [DONE] unless scripted."""
    async with engine(instant=True) as one:
        await one.script(error_after=0)
        await one.script(error_after=3, error_name=True, done=1)
        client, events = await stream(one, chat("x"))
        assert [event.json()["error"]["message"] for event in events] == ["it broke"]
        assert client.ended == "clean"
        _, events = await stream(one, chat("x"))
        assert events[3].field("event") == "error"
        assert events[4].done
        assert len(events) == 5


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
async def test_framings(newline: str) -> None:
    """Line ends, a missing space and pieces of a few bytes change the bytes, not the events."""
    async with engine(instant=True, tokens=4) as one:
        _, plain = await stream(one, chat("x"))
        await one.script(newline=newline, space=False, split_bytes=7)
        _, events = await stream(one, chat("x"))
        assert [event.token for event in events] == [event.token for event in plain]
        assert events[-1].raw == f"data:[DONE]{newline * 2}".encode()


async def test_the_marker_may_be_missing_or_doubled() -> None:
    """No [DONE], two of them, and text behind it."""
    async with engine(instant=True) as one:
        for done, behind in ((0, ""), (2, ""), (1, ": bye\n\n")):
            await one.script(done=done, after_done=behind)
            client, events = await stream(one, chat("x"))
            assert sum(event.done for event in events) == done
            assert (events[-1].raw == b": bye\n\n") == bool(behind)
            assert client.ended == "clean"


async def test_usage_variants() -> None:
    """Usage on the finish chunk, cumulative on each, several tokens per event, never."""
    async with engine(instant=True, tokens=6) as one:
        for usage, on in (("finish", 1), ("never", 0), ("cumulative", 4), ("always", 1)):
            await one.script(usage=usage, tokens_per_event=2)
            _, events = await stream(one, chat("x"))
            found = [event.json()["usage"] for event in events[:-1] if "usage" in event.json()]
            assert len(found) == on
            assert all(value["completion_tokens"] == 6 for value in found[-1:])
            assert sum(bool(event.token) for event in events) == 3


async def test_other_answers() -> None:
    """Any status with headers and body, for completions, for one prompt only, or for a probe."""
    async with engine("llamacpp", instant=True) as one, http(one) as client:
        await one.script(status=429, headers=[("Retry-After", "2")], body="{}", match="busy")
        await one.script(status=502, headers=[("Content-Type", "text/html")], body="<html>")
        await one.script(path="/health", status=503, times=2)
        html = await client.post(CHAT, json=chat("x"))
        assert (html.status_code, html.headers["content-type"], html.text) == (502, "text/html", "<html>")
        busy = await client.post(CHAT, json=chat("busy"))
        assert (busy.status_code, busy.headers["retry-after"]) == (429, "2")
        assert [(await client.get("/health")).status_code for _ in range(3)] == [503, 503, 200]
        await one.script(plain=True)
        plain = await client.post(CHAT, json=chat("x"))
        assert plain.json()["object"] == "chat.completion"
        await one.script(raw=["data: 1\n\n", ": two\n\n"], framing="close")
        raw = await client.post(CHAT, json=chat("x"))
        assert raw.content == b"data: 1\n\n: two\n\n"


async def test_slow_beginnings() -> None:
    """Comments while it prefills, then the role chunk, then a slow first token."""
    async with engine(instant=True) as one, await RawClient.connect(one.url) as client:
        await one.script(prefill_seconds=0.35, comment_seconds=0.1, first_token_seconds=0.2)
        sent = time.monotonic()
        await client.post(CHAT, chat("x"))
        await client.head()
        events = await client.events()
        comments = [event for event in events if event.data is None]
        first = next(event for event in events if event.token)
        assert [event.raw for event in events[:3]] == [b": prefill\n\n"] * 3
        assert len(comments) == 3
        assert first.at - sent >= 0.55
        await one.script(prefill_seconds=0.2)
        await client.post(CHAT, chat("x"))
        assert (await client.head()).at - first.at >= 0.2


async def test_whole_answers_are_cut_too() -> None:
    """A response that does not stream ends inside its body."""
    async with engine(instant=True) as one:
        for after, some in ((0, False), (1, True)):
            async with await RawClient.connect(one.url) as client:
                await one.script(cut="fin", cut_after=after)
                await client.post(CHAT, chat("x", stream=False))
                assert (await client.head()).status == 200
                assert bool(await client.body()) == some
                assert client.ended == "cut"


async def test_unknown_script_members_are_refused() -> None:
    """A misspelt behaviour is an error, not good behaviour."""
    async with engine() as one, http(one) as client:
        with pytest.raises(TypeError):
            await one.script(stats=500)
        assert (await client.post("/_fake/script", json={"stats": 500})).status_code == 400
