"""What one gateway sends, the others believe: in one order, within bounds, without harm where it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.accounting import Record, TokenSource, Usage
from gateway.cli.check import _unshared
from gateway.ledger.notes import Kind, Note
from gateway.ledger.shadows import PAUSE_SECONDS_MAX, TELL_MAX, TELL_SECONDS, SharedShadows
from gateway.ledger.step import Unavailable
from gateway.ledger.stream import NOTES_MAX, READ_MAX, RECENT_SECONDS, RedisStream
from gateway.options import RedisSettings
from gateway.settings import Settings
from policies.prefix import NOTHING, Booking, Chain, Link, PrefixShadow
from policies.types import State, StateChanged
from tests.debian import needs
from tests.ledger.server import redis_server
from tests.simulation import virtual
from tests.unit.fleet import a_backend, a_call, a_chain, an_admission

URL = "http://engine"


class Double:
    """A stream in memory."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, bytes]] = []
        self.up = True
        self.refuses = False
        self.asked = 0

    async def recent(self) -> str:
        """The place before all."""
        return "0"

    async def exchange(self, notes: Sequence[bytes], since: str) -> list[tuple[str, bytes]]:
        """As Redis does it."""
        self.asked += 1
        if not self.up:
            raise Unavailable("it is down")
        if self.refuses:
            raise Unavailable("no permissions", refused=True)
        for note in notes:
            self.notes.append((str(len(self.notes) + 1), note))
        return self.notes[int(since) :][:READ_MAX]

    async def close(self) -> None:
        """Nothing is open."""


class Front:
    """A gateway's shadow of one engine of so many slots, with what keeps it up to date."""

    def __init__(self, stream: Double, slots: int = 2, *, copies: bool = False) -> None:
        self.backend = a_backend(slots=slots)
        self.backend.shadow = PrefixShadow(slots, copies=copies)
        self.admission = an_admission(self.backend)
        self.shadows = SharedShadows(self.admission.backends, lambda _: URL, stream)
        self.ids = 0
        self.becomes(State.READY)
        self._task = asyncio.get_running_loop().create_task(self.shadows.run())

    def becomes(self, state: State) -> None:
        """Its backend is in another state."""
        self.shadows.state_changed(StateChanged(self.backend.name, state, ""))

    def send(self, *digests: int, cached: int | None = None) -> None:
        """A prompt goes out, and is answered; the engine may say how much of it it had cached."""
        self.ids += 1
        id, chain = str(self.ids), a_chain(*digests)
        self.admission.submit(a_call(id, chain=chain, prompt_tokens=250 * len(digests)), 0.0)
        lease = self.admission.lease(id)
        assert lease is not None
        self.shadows.sent(lease)
        self.admission.finish(id, 0.0)
        if cached is not None:
            record = Record(id, "/v1/chat/completions", 0.0)
            record.lease = lease
            record.count(Usage(TokenSource.REPORTED, 250 * len(digests), cached))
            self.shadows.observe(record)

    def believes(self, *digests: int) -> int:
        """How many messages of this prompt are believed to be cached."""
        return self.backend.shadow.matched_bytes(a_chain(*digests)) // 1000

    async def close(self) -> None:
        """It is gone."""
        assert not self._task.done()
        self._task.cancel()
        await asyncio.wait([self._task])


def run(main: Coroutine[Any, Any, None]) -> None:
    """In virtual time."""
    virtual.run(main)


async def followed() -> None:
    """Until all have told, and read what others told."""
    await asyncio.sleep(2 * TELL_SECONDS + 0.01)


def test_what_one_sends_the_other_believes() -> None:
    """And counts on the answer to it, too; what is free to be given up there is known as well."""

    async def main() -> None:
        stream = Double()
        one, other = Front(stream), Front(stream)
        one.send(1, 2, 3)
        await followed()
        assert other.believes(1, 2, 3) == 3
        assert other.believes(1, 2, 3, 4, 5) == 4
        other.send(1, 2, 3, 4, 5)
        one.send(7)
        changes = other.backend.changes
        await followed()
        assert one.believes(1, 2, 3, 4, 5) == 5
        assert other.backend.changes > changes  # prices are worked out anew
        assert (len(one.backend.shadow), len(other.backend.shadow)) == (2, 2)
        assert not one.backend.leases

    run(main())


def test_all_go_by_one_order() -> None:
    """One slot, and two gateways that send within the same quarter of a second: both believe in the same
    prompt at the end, and in the one that came last where that can be told."""

    async def main() -> None:
        stream = Double()
        one, other = Front(stream, 1), Front(stream, 1)
        await asyncio.sleep(TELL_SECONDS / 2)
        for turn in range(0, 40, 2):
            one.send(turn)
            await asyncio.sleep(TELL_SECONDS * (turn % 8) / 4)
            other.send(turn + 1)
            await followed()
            assert one.believes(turn) == other.believes(turn)
            assert one.believes(turn) + one.believes(turn + 1) == 1
            if turn % 8 >= 4:
                assert one.believes(turn + 1) == 1

    run(main())


def test_what_came_from_elsewhere_is_older_than_what_is_not_told_yet() -> None:
    """It is booked first, however late it is read."""

    async def main() -> None:
        stream = Double()
        one = Front(stream, 1)
        await followed()
        note = Note(Kind.SENT, URL, a_chain(5), (), 250).encoded(b"somebody")
        stream.notes.append((str(len(stream.notes) + 1), note))
        one.send(6)
        one.shadows._notes, waiting = [], one.shadows._notes

        class Late(Double):
            """While it is asked, a request goes out."""

            async def exchange(self, notes: Sequence[bytes], since: str) -> list[tuple[str, bytes]]:
                came = await Double.exchange(stream, notes, since)
                one.shadows._notes += waiting
                waiting.clear()
                return came

        one.shadows._stream = Late()
        await asyncio.sleep(TELL_SECONDS)
        assert (one.believes(5), one.believes(6)) == (0, 1)

    run(main())


def test_what_an_engine_did_not_find_is_given_up_everywhere() -> None:
    """It told one gateway; what it found, or said nothing of, is believed on."""

    async def main() -> None:
        for cached, believed in ((0, 0), (1000, 4), (None, 4)):
            stream = Double()
            one, other = Front(stream, 4), Front(stream, 4)
            for front in (one, other):
                front.send(9, 8, 7, 6)
                await followed()
            one.send(1, 2, 3, 4)
            await followed()
            one.send(1, 2, 3, 4, 5, cached=cached)
            await followed()
            assert other.believes(1, 2, 3, 4, 5) == 5  # it is there now
            assert other.believes(9, 8, 7, 6) == believed

    run(main())


def test_who_starts_is_told_of_the_last_minutes() -> None:
    """Of more than is read at once, its own earlier prompts included."""

    async def main() -> None:
        stream = Double()
        one = Front(stream, 200)
        for number in range(3 * READ_MAX):
            one.send(number, number + 1000)
            if number % (TELL_MAX // 2) == 0:
                await followed()
        await followed()
        await one.close()
        again = Front(stream, 200)
        await followed()
        assert all(again.believes(number, number + 1000) == 2 for number in range(3 * READ_MAX))
        again.send(1, 1001, 5, 6)  # and it follows from there on
        last = Front(stream, 200)
        await followed()
        assert last.believes(1, 1001, 5, 6) == 4

    run(main())


def test_a_restarted_engine_has_nothing_cached() -> None:
    """What was sent before is not booked behind the restart, and not by a gateway that starts later; what is
    sent after it is."""

    async def main() -> None:
        stream = Double()
        one = Front(stream)
        await asyncio.sleep(TELL_SECONDS / 2)
        other = Front(stream)
        await followed()
        other.send(1, 2)
        await asyncio.sleep(TELL_SECONDS)
        assert stream.notes
        assert not one.believes(1, 2)  # it is told, and not read yet
        one.backend.restarted()
        one.becomes(State.WARMING)
        one.becomes(State.READY)
        await followed()
        late = Front(stream)
        await followed()
        assert (one.believes(1, 2), late.believes(1, 2)) == (0, 0)
        other.send(3, 4)
        await followed()
        assert (one.believes(3, 4), late.believes(3, 4)) == (2, 2)
        after = Front(stream)
        await followed()
        assert after.believes(3, 4) == 2

    run(main())


@pytest.mark.parametrize("from_the_start", [False, True])
def test_a_failure_costs_what_was_to_be_told_and_nothing_else(
    from_the_start: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is logged, it is asked again ever more rarely, and once it answers all is as before. What is
    old by then is not told."""

    async def main() -> None:
        stream = Double()
        stream.up = not from_the_start
        one, other = Front(stream, 4), Front(stream, 4)
        await followed()
        stream.up, stream.asked = False, 0
        for number in range(100):
            one.send(number)
            await asyncio.sleep(1.0)
        assert stream.asked < 2 * (100 / PAUSE_SECONDS_MAX + 4)
        assert len(one.shadows._notes) <= 2 * PAUSE_SECONDS_MAX
        stream.up = True
        await asyncio.sleep(PAUSE_SECONDS_MAX)
        one.send(1, 2)
        await followed()
        assert other.believes(1, 2) == 2
        assert other.believes(50) == 0

    with caplog.at_level("INFO"):
        run(main())
    assert not [record for record in caplog.records if record.name.startswith("slotgate")]


def test_no_more_is_told_than_a_bound() -> None:
    """What is beyond is not told, and prompts without a chain never are. All that is told is read at once,
    however much it is."""

    async def main() -> None:
        stream = Double()
        one, other, third = (Front(stream, 4 * TELL_MAX) for _ in range(3))
        await followed()
        for number in range(2 * TELL_MAX):
            one.send(number)
            other.send(1000 + number)
        one.send()
        await followed()
        assert len(stream.notes) == 2 * TELL_MAX
        assert all(third.believes(number) and third.believes(1000 + number) for number in range(TELL_MAX))

    run(main())


def test_what_is_no_note_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Rubbish, another version's, of an engine that is not here: what stands behind it is followed."""

    async def main() -> None:
        stream = Double()
        elsewhere = Note(Kind.SENT, "http://other", a_chain(1, 2), (), 10).encoded(b"somebody")
        found = Note(Kind.FOUND, URL, a_chain(77), (), 9, 0).encoded(b"somebody")
        bad = [b"", b"rubbish", b"\x02" + elsewhere[1:], elsewhere, elsewhere[:-1], found]
        stream.notes = [(str(place), note) for place, note in enumerate(bad, 1)]
        one, other = Front(stream), Front(stream)
        await followed()
        stream.notes += [(str(len(stream.notes) + place), note) for place, note in enumerate(bad, 1)]
        one.send(1, 2)
        await followed()
        assert other.believes(1, 2) == 2

    with caplog.at_level("INFO"):
        run(main())
    assert not [record for record in caplog.records if record.name.startswith("slotgate")]


@needs("redis-server")
async def test_a_stream_in_redis() -> None:
    """In the order in which notes were left; short, and gone some minutes after the last one. One that cannot
    be asked is Unavailable, and can be asked when it is back."""
    async with redis_server() as server:
        stream = RedisStream(server.url, "default")
        place = await stream.recent()
        assert await stream.exchange((), place) == []
        notes = [Note(Kind.SENT, URL, a_chain(number)).encoded(b"somebody") for number in range(READ_MAX + 5)]
        first = await stream.exchange(notes, place)
        assert [note for _, note in first] == notes[:READ_MAX]
        rest = await stream.exchange((), first[-1][0])
        assert [note for _, note in rest] == notes[READ_MAX:]
        for _ in range(NOTES_MAX // READ_MAX):
            await stream.exchange(notes[:READ_MAX], rest[-1][0])
        async with server.client() as client:
            (key,) = await client.keys("*")
            assert key == b"{slotgate:default}:prefixes"
            assert NOTES_MAX <= await client.xlen(key) <= NOTES_MAX + 200
            assert 0 < await client.pttl(key) <= 1000 * RECENT_SECONDS
        await server.process.kill()
        with pytest.raises(Unavailable):
            await stream.exchange((), place)
        await server.restart(empty=True)
        assert await stream.exchange((), place) == []
        await stream.close()


@needs("redis-server")
async def test_a_redis_that_refuses_notes_says_why() -> None:
    """Without what was to be noted. `slotgate check` asks for it beforehand, and leaves nothing there."""
    async with redis_server() as server, server.client() as client:
        stream = RedisStream(server.url, "default")
        await stream.usable()
        assert await client.keys("*") == []
        await client.set("{slotgate:default}:prefixes", "x")
        for asked in (stream.exchange([b"note"], "0"), stream.usable()):
            with pytest.raises(Unavailable, match=r"^WRONGTYPE [^{]*$") as refused:
                await asked
            assert refused.value.refused
        await client.execute_command("ACL", "SETUSER", "default", "-xadd")
        told = await _unshared(Settings(redis=RedisSettings(url=SecretStr(server.url))))
        assert told.startswith("Redis refuses what gateways tell each other")
        assert "'xadd'" in told
        await stream.close()


def test_what_redis_refuses_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """And again if it worked meanwhile; of an outage nothing is said here."""

    async def main() -> None:
        stream = Double()
        front = Front(stream)
        await followed()
        for refuses, up in ((True, True), (False, True), (False, False), (True, True), (True, True)):
            stream.refuses, stream.up = refuses, up
            await asyncio.sleep(4 * PAUSE_SECONDS_MAX)
        await front.close()

    run(main())
    told = "what other gateways send and eject is not known, as Redis refuses it: no permissions"
    assert caplog.messages == [told] * 2


FORGED = (  # they agree with no hashes, and not with each other
    (a_chain(2, 3), ()),
    ((Link(0, 10),), (Link(2, 50), Link(3, 50))),
    ((Link(1, 1), Link(3, 1)), (Link(2, 1),)),
)


def forged(stream: Double) -> None:
    """Somebody else leaves such notes."""
    for chain, inside in FORGED:
        stream.notes.append(
            (str(len(stream.notes) + 1), Note(Kind.SENT, URL, chain, inside, 10).encoded(b"forged00"))
        )


@pytest.mark.parametrize("copies", [True, False])
def test_notes_that_contradict_each_other_fail_nothing(
    copies: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the requests that come then, nor the notes behind them, nor a gateway that starts."""

    async def main() -> None:
        stream = Double()
        fronts = [Front(stream, 3, copies=copies)]
        await followed()
        forged(stream)
        await followed()
        for number in range(10, 40, 2):
            fronts[0].send(number, number + 1)
        await followed()
        fronts.append(Front(stream, 3, copies=copies))
        await followed()
        fronts[0].send(50, 51)
        await followed()
        assert [one.believes(50, 51) for one in fronts] == [2, 2]
        for front in fronts:
            await front.close()

    run(main())
    assert not caplog.records


class Broken:
    """A shadow that cannot book a prompt of one message."""

    def __init__(self) -> None:
        self.booked = self.cleared = 0

    def book(self, chain: Chain, prompt_tokens: int, inside: Chain = ()) -> Booking:
        """It fails in the middle."""
        self.booked += 1
        if len(chain) == 1:
            raise KeyError(1)
        return NOTHING

    def ended(self, chain: Chain) -> None:
        """Nothing is kept."""

    def clear(self) -> None:
        """It can go on."""
        self.cleared += 1


def test_a_note_that_cannot_be_booked_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """What is half booked is forgotten; that is told once."""

    async def main() -> None:
        stream = Double()
        one, other = Front(stream), Front(stream)
        await followed()
        broken = Broken()
        other.backend.shadow = broken  # type: ignore[assignment]
        asked = stream.asked
        for digests in ((1,), (2, 3), (4,), (5, 6)):
            one.send(*digests)
        await followed()
        assert (broken.booked, broken.cleared) == (4, 2)
        await followed()
        assert broken.booked == 4
        assert stream.asked - asked >= 6  # nobody pauses
        await one.close()
        await other.close()

    run(main())
    assert [record.levelname for record in caplog.records] == ["ERROR"]
