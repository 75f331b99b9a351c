"""The slots of a fake engine, and the count of what a gateway sent beyond them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from tests.fakes.warmth import Warmth


@dataclass(slots=True, eq=False)
class Record:
    """One completion request as the engine saw it; times on the monotonic clock."""

    id: str  # its X-Request-Id
    key: str  # the beginning of its last message, so that tests find it again
    path: str  # its route
    stream: bool
    connection: int
    nth: int  # on its connection
    arrived: float
    prompt_tokens: int
    budget: int = 0  # prompt and the most it may answer
    started: float | None = None  # got a slot
    first_byte: float | None = None
    first_token: float | None = None
    left: float | None = None  # the client's close was noticed
    end: float | None = None  # the slot was free again
    outcome: str = "running"  # completed, aborted (by the client), refused, scripted (the script's failure)
    slot: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    events: int = 0


@dataclass(slots=True)
class Records:
    """The last requests and the sums over all of them."""

    last: deque[Record] = field(default_factory=lambda: deque(maxlen=20_000))
    outcomes: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    received: int = 0
    overlength: int = 0  # prompts that its context does not hold

    def open(self, record: Record) -> Record:
        """Begin one."""
        self.received += 1
        self.routes[record.path] += 1
        self.last.append(record)
        return record

    def close(self, record: Record) -> None:
        """End one: its outcome is known."""
        self.outcomes[record.outcome] += 1
        if record.started is None:
            return
        self.tokens["prompt"] += record.prompt_tokens - record.cached_tokens
        self.tokens["cached"] += record.cached_tokens
        self.tokens["completion"] += record.completion_tokens

    def reset(self) -> None:
        """Count from here; those that run stay."""
        running = [record for record in self.last if record.end is None]
        self.last.clear()
        self.last.extend(running)
        self.received = len(running)
        self.overlength = 0
        self.outcomes.clear()
        self.routes.clear()
        self.tokens.clear()


class Slots:
    """Room for `total` sequences and, as in real engines, an endless silent queue in front of it.

    A request that must wait here is a violation: the gateway sent more than the engine has.
    Past sequences are kept warm only if `caches`.
    """

    def __init__(self, total: int, warmth: Warmth, *, caches: bool = False, kv_tokens: int = 0) -> None:
        self.total = total
        self.warmth = warmth
        self.caches = caches
        self.kv_tokens = kv_tokens  # of all that run; 0: as many as there are
        self.preemptions = 0  # times that they held more
        self.max_held = 0
        self.running: dict[Record, int] = {}
        self.waiting: dict[Record, tuple[str, asyncio.Future[None]]] = {}
        self.max_concurrent = 0
        self.over_slots = 0
        self._busy = 0.0
        self._since = time.monotonic()

    @property
    def concurrent(self) -> int:
        """Requests accepted and not finished; one that is still stopping after its client left counts."""
        return len(self.running) + len(self.waiting)

    @property
    def held(self) -> int:
        """Tokens of prompts and answers that all running requests hold."""
        return sum(record.prompt_tokens + record.completion_tokens for record in self.running)

    def weigh(self) -> None:
        """Notice what is held now."""
        held = self.held
        if self.kv_tokens and held > self.kv_tokens >= self.max_held:
            self.preemptions += 1
        self.max_held = max(self.max_held, held)

    def busy_slot_seconds(self) -> float:
        """The integral of min(running, slots) over time."""
        now = time.monotonic()
        self._busy += min(len(self.running), self.total) * (now - self._since)
        self._since = now
        return self._busy

    async def take(self, record: Record, prompt: str) -> None:
        """Wait for a slot. Whatever becomes of the request, `finish` must follow."""
        if self.concurrent >= self.total:
            self.over_slots += 1
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[record] = prompt, granted
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        self._dispatch()
        await granted

    def finish(self, record: Record, sequence: str | None = None) -> None:
        """Forget the request, wherever it is, and let the next one start; `sequence` stays in its slot."""
        self.busy_slot_seconds()
        self.weigh()
        record.end = record.end or self._since
        self.waiting.pop(record, None)
        slot = self.running.pop(record, None)
        if slot is not None and sequence is not None and self.caches:
            self.warmth.keep(slot, sequence)
        self._dispatch()

    def resize(self, total: int) -> None:
        """Change the number of slots; what runs goes on, what was cached is gone."""
        self.busy_slot_seconds()
        self.total = total
        self.warmth.clear()
        self._dispatch()

    def reset(self) -> None:
        """Count from here."""
        self.max_concurrent = self.concurrent
        self.over_slots = 0
        self.max_held = self.held
        self._busy = 0.0
        self._since = time.monotonic()

    def _dispatch(self) -> None:
        while self.waiting and len(self.running) < self.total:
            self.busy_slot_seconds()
            record = next(iter(self.waiting))
            prompt, granted = self.waiting.pop(record)
            record.started = time.monotonic()
            free = set(range(self.total)) - set(self.running.values())
            record.slot, record.cached_tokens = self.warmth.choose(prompt, free)
            self.running[record] = record.slot
            self.weigh()
            if not granted.done():
                granted.set_result(None)
