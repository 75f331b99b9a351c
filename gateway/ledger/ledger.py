"""Who holds which slot, as one gateway knows it: what it holds and wants itself, and what the others do.
One task talks to the ledger, step by step; requests only wait for what it hears.

shared ..... each slot is taken in the ledger before a request is sent, and held there as long as it runs
degraded ... the ledger cannot be asked: what runs goes on, and each gateway gives its share of the slots
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
import random
import secrets
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.ledger.step import Entry, Reply, Standing, Step, Store, Unavailable, Want, Word

log = logging.getLogger("slotgate.ledger")

# Between steps while somebody waits here; a fifth more or less, so that gateways take turns.
POLL_SECONDS = 0.25
LOOK_SECONDS = 0.01  # between steps after hints
IDLE_SECONDS = 1.0  # between steps else
CLAIM_SECONDS = 1.0  # a gateway that is silent for so long holds back no others
RENEW_SHARE = 1 / 3  # of a lease, after which it is renewed
FREEZE_SECONDS = 0.5  # beyond that, until everybody has told a new epoch what runs
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 5.0  # until a ledger that failed is asked again


class Mode(enum.StrEnum):
    """Where slots are counted."""

    SHARED = "shared"
    DEGRADED = "degraded"


class Held(NamedTuple):
    """A slot that a call of this gateway has."""

    number: str
    url: str


class Speaker(Protocol):
    """The one whose account it is."""

    def words(self) -> Sequence[Word]:
        """What it says of its engines at a step."""

    def told(self) -> None:
        """It was told something new."""

    def waits(self) -> bool:
        """Whether calls wait here for slots."""


@dataclass(slots=True, eq=False)
class Wanting:
    """A slot that a call of this gateway waits for."""

    id: str
    url: str
    number: str
    came: float
    slots: int
    given: asyncio.Future[bool | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Ledger:
    """This gateway's account with it."""

    def __init__(
        self,
        speaker: Speaker,
        store: Store,
        lease_seconds: float,
        clock: Callable[[], float],
        dice: random.Random | None = None,
    ) -> None:
        self.mode = Mode.SHARED
        self.standings: dict[str, Standing] = {}  # by engine, as last told
        self.gateways = 2  # that share, as last told; at first there may be another one
        self._among = 0, 0  # gateways that share for certain, and the rank of this one
        self.elsewhere: Counter[str] = Counter()  # slots that other gateways hold, by engine
        # By engine, slots of this gateway's that the ledger had lost, and was told of again.
        self.lost: Counter[str] = Counter()
        self.drains: dict[str, str] = {}  # why operators drained engines, here or elsewhere, by engine
        self._drained: dict[str, str | None] = {}  # what they said here and is not told yet
        self._speaker = speaker
        self._store = store
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._dice = dice or random.Random()
        self._owner = f"{self._dice.getrandbits(64):016x}" if dice else secrets.token_hex(8)
        self._numbers = itertools.count(1)  # of slots
        self._steps = itertools.count(1)
        self._heard = 0
        self._epoch = ""
        self._held: dict[str, Held] = {}  # by call
        self._wanted: list[Wanting] = []
        self._freed: dict[str, str] = {}  # numbers that are to be given back, and their engines
        self._entered: dict[str, str] = {}  # numbers that may stand in the ledger, and their engines
        self._granted: set[str] = set()  # those that surely stood there once
        self._kicked = asyncio.Event()
        self._looks = False
        self._claims = False  # it said last that calls wait here
        self._stepped = self._renewal = self._thaws = self._retries = float("-inf")
        self._alone: float | None = None  # since when nobody could be asked
        self._untold = False  # slots were given meanwhile that are not entered yet
        self._pause = 0.0
        self._poll = POLL_SECONDS
        self._why = ""
        self._doubted = False  # the last answer did not come in time

    @property
    def frozen(self) -> bool:
        """Whether nobody gets a slot for now, as it is not known yet what runs."""
        return not self._heard or self._clock() < self._thaws

    @property
    def fault(self) -> str:
        """Why nobody can be asked; "" if somebody can."""
        return self._why and f"slots are not shared, as Redis cannot be asked: {self._why}"

    def among(self, gateways: int, rank: int) -> None:
        """So many share, for certain, and this one is of this rank, whatever the ledger has told by now."""
        self._among, self.gateways = (gateways, rank), max(2, gateways)

    def share(self, url: str, slots: int) -> int:
        """Of an engine's slots, those that are this gateway's while nobody can be asked: at least one, as its
        clients have nobody else. Who has never heard of others, and is no worker, takes half."""
        standing, (gateways, rank) = self.standings.get(url), self._among
        if standing is not None and standing.gateways >= gateways:
            gateways, rank = standing.gateways, standing.rank
        if not gateways:
            return -(-slots // 2)
        place = (rank + zlib.crc32(url.encode())) % gateways
        return max(1, slots // gateways + (place < slots % gateways))

    def holds(self, url: str) -> int:
        """Slots that this gateway's calls have there."""
        return sum(held.url == url for held in self._held.values())

    # -- calls ------------------------------------------------------------------------------------

    async def take(self, id: str, url: str, came: float, slots: int) -> bool | None:
        """Whether the call may have a slot of this engine, which has so many; None: nobody can be asked.

        `came`: when it came to wait, as in `Word`.
        """
        if self.mode is Mode.DEGRADED:
            return None
        want = Wanting(id, url, str(next(self._numbers)), came, slots)
        self._wanted.append(want)
        self._kicked.set()
        try:
            return await want.given
        except asyncio.CancelledError:
            if want in self._wanted:
                self._wanted.remove(want)
            else:  # it was asked for, and perhaps it is given
                self._held.pop(id, None)
                self._free(Held(want.number, url))
            raise

    def keep(self, id: str, url: str) -> None:
        """The call has a slot although nobody could be asked; it is entered as soon as somebody can."""
        self._held[id] = Held(str(next(self._numbers)), url)
        self._untold = True
        self._kicked.set()

    def release(self, id: str) -> None:
        """The call has no slot any more, if it had one."""
        held = self._held.pop(id, None)
        if held is not None:
            self._free(held)

    def drain(self, url: str, why: str | None) -> None:
        """Let all gateways drain an engine, or resume it."""
        self._drained[url] = why
        self._kicked.set()

    def resync(self) -> None:
        """Tell the ledger again what is held here, and hear what the others do."""
        self._untold = True
        self._kicked.set()

    def look(self) -> None:
        """Something may have changed: ask soon, if somebody waits here."""
        if not self._looks and self._speaker.waits():
            self._looks = True
            self._kicked.set()

    def _free(self, held: Held) -> None:
        if held.number in self._entered:
            self._freed[held.number] = held.url
            self._kicked.set()

    # -- steps ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Talk to the ledger until cancelled."""
        while True:
            while (seconds := self._due() - self._clock()) > 0:
                self._kicked.clear()
                try:
                    async with asyncio.timeout(seconds):
                        await self._kicked.wait()
                except TimeoutError:
                    break
            await self._step()

    async def bye(self) -> None:
        """Give everything back, if anybody can be asked."""
        if self.mode is Mode.SHARED and self._heard:
            self._freed = dict(self._entered)
            try:
                await self._store.step(self._composed([], full=False, bye=True))
            except Unavailable as fault:
                log.info("the ledger cannot be told that this gateway ends: %s", fault)

    def _due(self) -> float:
        """When the next step is due."""
        if self.mode is Mode.DEGRADED:
            return self._retries
        if not self._epoch or self._wanted or self._freed or self._drained or self._untold:
            return float("-inf")
        if self.frozen:  # perhaps for less, once the others are back
            return min(self._renewal, self._thaws, self._stepped + self._poll)
        if self._looks:
            return self._stepped + LOOK_SECONDS
        waits = self._speaker.waits() or self._claims  # whose call has left must tell so, too
        return min(self._renewal, self._stepped + (self._poll if waits else IDLE_SECONDS))

    async def _step(self) -> None:
        now = self._clock()
        full = self._untold or not self._epoch or now >= self._renewal
        wanted, self._wanted, self._looks = self._wanted, [], False
        step = self._composed(wanted, full=full)
        try:
            reply = await self._store.step(step)
        except Unavailable as fault:
            if fault.late and not self._doubted and self.mode is Mode.SHARED:
                self._doubt(wanted)
            else:
                self._lost(wanted, str(fault))
            return
        except asyncio.CancelledError:
            self._wanted = wanted + self._wanted
            raise
        except Exception as fault:  # a defect of ours must not end this task: nobody would get a slot
            log.exception("a step of the ledger failed inside the gateway")
            self._lost(wanted, type(fault).__name__)
            return
        if reply.stale:
            self._lost(wanted, "another gateway has this one's name")
        elif reply.again:
            self._epoch, self._wanted = "", wanted + self._wanted
        else:
            self._told(step, reply, wanted, now)

    def _composed(self, wanted: Sequence[Wanting], *, full: bool, bye: bool = False) -> Step:
        words = list(self._speaker.words())
        known = {word.url for word in words}
        # Keys of clients, and engines that were removed while calls run there: only what is held counts.
        also = {one.url for one in self._held.values()} | {want.url for want in wanted}
        also |= {*self._freed.values(), *self._drained}
        words += [Word(url, 0, False, None) for url in sorted(also - known)]
        places = {word.url: place for place, word in enumerate(words)}
        held = list(self._held.values()) if full else []
        self._untold = self._untold and not full
        self._entered.update((one.number, one.url) for one in held)
        self._entered.update((want.number, want.url) for want in wanted)
        return Step(
            owner=self._owner,
            number=next(self._steps),
            heard=self._heard,
            epoch=self._epoch,
            nonce=f"{self._dice.getrandbits(64):016x}",
            clock_ms=round(1000 * self._clock()),
            lease_ms=round(1000 * self._lease_seconds),
            freeze_ms=round(1000 * (RENEW_SHARE * self._lease_seconds + FREEZE_SECONDS)),
            claim_ms=round(1000 * CLAIM_SECONDS),
            lost_ms=None if self._alone is None else round(1000 * self._alone),
            channel=self._store.channel,
            words=words,
            freed=[Entry(places[url], number) for number, url in self._freed.items()],
            held=[Entry(places[one.url], one.number) for one in held],
            wanted=[
                Want(places[want.url], want.number, round(1000 * want.came), want.slots) for want in wanted
            ],
            drains=[(places[url], why) for url, why in self._drained.items()],
            known=[(places[url], why) for url, why in self.drains.items() if url in places],
            full=full,
            bye=bye,
        )

    def _told(self, step: Step, reply: Reply, wanted: Sequence[Wanting], asked_at: float) -> None:
        if self.mode is Mode.DEGRADED:
            log.info("slots are shared through Redis%s", " again" if self._heard else "")
        now = self._clock()
        self.mode, self._alone, self._pause = Mode.SHARED, None, 0.0
        self._why, self._doubted = "", False
        self._heard, self._epoch, self._stepped = step.number, reply.epoch, now
        self._claims = any(word.came_ms is not None for word in step.words)
        self._thaws = now + reply.frozen_ms / 1000 if reply.frozen_ms else float("-inf")
        self._poll = POLL_SECONDS * self._dice.uniform(0.8, 1.2)
        if step.full:  # nothing else of this gateway's stands there now
            self._renewal = asked_at + RENEW_SHARE * self._lease_seconds
            told = {one.number for one in (*step.held, *step.freed)} | {one.number for one in step.wanted}
            self._entered = {number: url for number, url in self._entered.items() if number in told}
            for one, had in zip(step.held, reply.had, strict=True):
                self.lost[step.words[one.engine].url] += not had and one.number in self._granted
            self._granted = {one.number for one in step.held}
        for one in step.freed:
            self._freed.pop(one.number, None)
            self._entered.pop(one.number, None)
        for want, given in zip(wanted, reply.given, strict=True):
            if not given:
                self._entered.pop(want.number, None)
                self._freed.pop(want.number, None)
            elif not want.given.done():
                self._held[want.id] = Held(want.number, want.url)
                self._granted.add(want.number)
        own = Counter(self._entered.values())
        self.standings = {word.url: one for word, one in zip(step.words, reply.standings, strict=True)}
        self.gateways = max((one.gateways for one in reply.standings), default=self.gateways)
        self.elsewhere = Counter({url: max(0, one.held - own[url]) for url, one in self.standings.items()})
        self._followed(step)
        self._speaker.told()
        self._answer((want, given) for want, given in zip(wanted, reply.given, strict=True))

    def _followed(self, step: Step) -> None:
        """Take over what the ledger says of drains; what it has lost is told to it while it is frozen."""
        for place, why in step.drains:
            if self._drained.get(step.words[place].url, ...) == why:
                del self._drained[step.words[place].url]
        told = {url: one.drain for url, one in self.standings.items() if one.drain is not None}
        self.drains = self.drains | told if self.frozen else told

    def _doubt(self, wanted: Sequence[Wanting]) -> None:
        """No answer in time: a busy machine, or the end of Redis. It is asked again at once, on another
        connection and for everything, as to fall back on shares for nothing would cost more."""
        self._doubted, self._epoch = True, ""
        self._freed.update((want.number, want.url) for want in wanted)
        for want in wanted:
            want.number = str(next(self._numbers))
        self._wanted = [want for want in (*wanted, *self._wanted) if not want.given.done()]

    def _lost(self, wanted: Sequence[Wanting], why: str) -> None:
        """Nobody can be asked. What was wanted may have been given: it is given back when somebody can."""
        if self.mode is Mode.SHARED:
            log.warning(
                "Redis cannot be asked (%s): this gateway gives its share of the slots until it can", why
            )
            self._alone = self._clock()
        self.mode, self._epoch, self._why = Mode.DEGRADED, "", why
        most = min(PAUSE_SECONDS_MAX, RENEW_SHARE * self._lease_seconds)
        self._pause = min(most, 2 * self._pause or PAUSE_SECONDS)
        self._retries = self._clock() + self._pause * self._dice.uniform(0.8, 1.0)
        waiting, self._wanted = [*wanted, *self._wanted], []
        self._freed.update((want.number, want.url) for want in wanted)
        self._speaker.told()
        self._answer((want, None) for want in waiting)

    def _answer(self, answers: Iterable[tuple[Wanting, bool | None]]) -> None:
        for want, given in answers:
            if not want.given.done():
                want.given.set_result(given)
