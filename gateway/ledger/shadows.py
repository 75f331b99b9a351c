"""What other gateways sent, in this one's shadows: a conversation finds its warm slot through any of them.

All tell what they send in one stream, four times a second, and each books what comes in the order of the
stream. Requests never wait for it; where Redis fails, what was to be told is dropped. A backend that becomes
ready here for the first time, as all do when a gateway starts, is booked what the last minutes brought. What
others eject comes the same way, and is passed on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gateway.accounting import Record
from gateway.ledger.notes import OWNER_BYTES, Kind, Note
from gateway.ledger.step import Unavailable
from gateway.ledger.stream import READ_MAX, Stream
from policies.prefix import Booking, Shadow
from policies.shadows import found_elsewhere, sent_elsewhere
from policies.types import Backend, Lease, State, StateChanged

log = logging.getLogger("slotgate.ledger")

TELL_SECONDS = 0.25
TELL_MAX = 64  # notes at once; what is beyond is not told
HEALTH = (Kind.EJECTED, Kind.RECOVERED)
BOOKINGS_MAX = 1024  # of others, of which it is not told yet what their engines found
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 5.0  # after a failure


class Believed(NamedTuple):
    """What was believed of a prompt that another gateway sent."""

    shadow: Shadow
    booking: Booking
    prompt_bytes: int


class SharedShadows:
    """The shadows of one gateway's backends. `url_of`: of a backend by its name, the same in all gateways."""

    def __init__(self, backends: Mapping[str, Backend], url_of: Callable[[str], str], stream: Stream) -> None:
        self._backends = backends
        self._url_of = url_of
        self._stream = stream
        self._owner = secrets.token_bytes(OWNER_BYTES)
        self.health: Callable[[Note], None] | None = None  # is told which engines others eject
        self._notes: list[Note] = []  # that are not told yet
        self._since: str | None = None  # the place in the stream up to which it is read
        self._known: set[str] = set()  # backends that were ready here once
        self._new: set[str] = set()  # those of them that know nothing of the last minutes
        self._restarted: set[str] = set()  # URLs; the stream still brings notes from before it
        self._doubted: set[str] = set()  # URLs of which it was told that a note could not be followed
        self._believed: OrderedDict[tuple[str, int], Believed] = OrderedDict()

    # -- what happens here ------------------------------------------------------------------------

    def sent(self, lease: Lease) -> None:
        """A prompt goes out."""
        call = lease.call
        if call.chain:
            self._tell(
                Note(Kind.SENT, self._url_of(lease.backend), call.chain, call.inside, call.prompt_tokens)
            )

    def observe(self, record: Record) -> None:
        """A request ended, and its engine may have said what it found."""
        lease, tokens, cached = record.lease, record.prompt_tokens, record.cached_tokens
        if lease is None or lease.backend not in self._backends or not lease.call.chain:
            return
        if record.counted and tokens is not None and cached is not None:
            url, last = self._url_of(lease.backend), lease.call.chain[-1:]
            self._tell(Note(Kind.FOUND, url, last, prompt_tokens=tokens, cached_tokens=cached))

    def state_changed(self, change: StateChanged) -> None:
        """A backend that warms up again has been away: nothing is cached there, for those who start later,
        too."""
        name = change.backend
        if change.state is State.WARMING and name in self._known:
            url = self._url_of(name)
            if url not in self._restarted:
                self._restarted.add(url)
                self._notes.append(Note(Kind.RESTARTED, url))
        elif change.state is State.READY and name not in self._known:
            self._known.add(name)
            self._new.add(name)

    def tell(self, note: Note) -> None:
        """Leave a note for the others; for what is rare."""
        self._notes.append(note)

    def _tell(self, note: Note) -> None:
        if len(self._notes) < TELL_MAX:
            self._notes.append(note)

    # -- what happens elsewhere -------------------------------------------------------------------

    async def run(self) -> None:
        """Tell and follow until cancelled."""
        pause, refused = 0.0, False
        try:
            while True:
                try:
                    await self._look()
                    pause, refused = 0.0, False
                except Unavailable as fault:  # of an outage the ledger says so already
                    if fault.refused and not refused:
                        log.warning(
                            "what other gateways send and eject is not known, as Redis refuses it: %s", fault
                        )
                    refused |= fault.refused
                    pause = min(PAUSE_SECONDS_MAX, 2 * pause or PAUSE_SECONDS)
                except Exception:  # a defect of ours must not end this task
                    log.exception("prompts of other gateways cannot be followed")
                    pause = PAUSE_SECONDS_MAX
                if pause:  # what was to be told would be old news, and does not come back
                    self._notes.clear()
                    self._restarted.clear()
                await asyncio.sleep(pause or TELL_SECONDS)
        finally:
            await self._stream.close()

    async def _look(self) -> None:
        self._known &= self._backends.keys()
        self._new &= self._backends.keys()
        if self._new:
            await self._catch_up()
        if self._since is None:  # no backend was ready yet
            return
        notes, self._notes = self._notes, []
        told, touched = [note.encoded(self._owner) for note in notes], set[str]()
        while True:
            came = await self._stream.exchange(told, self._since)
            self._follow(came, touched)
            if len(came) < READ_MAX:
                break
            told = []

    async def _catch_up(self) -> None:
        """Book what the last minutes brought to new backends, this gateway's own prompts included, which it
        may have sent before it was restarted."""
        place, new = await self._stream.recent(), set(self._new)
        ejected: dict[str, Note] = {}  # by URL; those that still are, as far as is known
        while True:
            came = await self._stream.exchange((), place)
            backends = {self._url_of(name): self._backends[name] for name in new & self._backends.keys()}
            for behind, told in came:
                place = behind
                _, note = _read(told)
                if note is None or (backend := backends.get(note.url)) is None:
                    continue
                if note.kind is Kind.EJECTED:
                    ejected[note.url] = note
                elif note.kind is Kind.RECOVERED:
                    ejected.pop(note.url, None)
                elif note.kind is Kind.RESTARTED:
                    ejected.pop(note.url, None)
                    backend.shadow.clear()
                else:
                    self._book(backend, note)
            if len(came) < READ_MAX:
                break
        self._again(backends)
        if self.health is not None:
            for note in ejected.values():
                self.health(note)
        self._new -= new
        self._since = self._since or place

    def _follow(self, came: Sequence[tuple[str, bytes]], touched: set[str]) -> None:
        """Book what others sent; and, so that all go by the same order, once more what this gateway sent
        after that. `touched`: URLs of what others sent, in this look."""
        backends = {self._url_of(name): backend for name, backend in self._backends.items()}
        for place, told in came:
            self._since = place
            owner, note = _read(told)
            if note is None or (backend := backends.get(note.url)) is None:
                continue
            own = owner == self._owner
            if note.kind in HEALTH:
                if not own and self.health is not None:
                    self.health(note)
            elif note.kind is Kind.RESTARTED:  # each gateway sees that of others for itself
                if own:
                    self._restarted.discard(note.url)
            elif note.url in self._restarted:
                continue
            elif not own:
                touched.add(note.url)
                self._book(backend, note)
            elif note.kind is Kind.SENT and note.url in touched:
                self._book(backend, note, own=True)
        self._again({url: backend for url, backend in backends.items() if url in touched})

    def _again(self, backends: Mapping[str, Backend]) -> None:
        """What this gateway sent there and has not told yet is newer than all that came."""
        for note in self._notes:
            if note.kind is Kind.SENT and note.url in backends and note.url not in self._restarted:
                self._book(backends[note.url], note, own=True)

    def _book(self, backend: Backend, note: Note, *, own: bool = False) -> None:
        """What cannot be booked costs the warm slots of its backend, and holds up no other note."""
        try:
            if own:
                sent_elsewhere(backend, note.chain, note.prompt_tokens, note.inside)
            else:
                self._apply(backend, note)
        except Exception:  # half of it may be booked
            backend.shadow.clear()
            if note.url not in self._doubted:
                self._doubted.add(note.url)
                log.exception(
                    "a note of another gateway cannot be followed; nothing is warm at %s", backend.name
                )

    def _apply(self, backend: Backend, note: Note) -> None:
        last = note.chain[-1]
        if note.kind is Kind.SENT:
            booking = sent_elsewhere(backend, note.chain, note.prompt_tokens, note.inside)
            self._believed[note.url, last.digest] = Believed(backend.shadow, booking, last.end_bytes)
            if len(self._believed) > BOOKINGS_MAX:
                self._believed.popitem(last=False)
        else:
            believed = self._believed.pop((note.url, last.digest), None)
            if believed is not None and believed.shadow is backend.shadow:
                found_elsewhere(
                    backend, believed.booking, believed.prompt_bytes, note.prompt_tokens, note.cached_tokens
                )


def _read(told: bytes) -> tuple[bytes, Note | None]:
    """A note, and whose it is; None: it is none."""
    try:
        return Note.decoded(told)
    except ValueError:
        return b"", None
