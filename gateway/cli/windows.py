"""What `slotgate plan` was asked: which law the options mean, and what it says of each window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gateway.cli.failure import CommandFailed
from gateway.cli.sizes import bytes_of
from gateway.engines import ENGINES
from policies.capacity import (
    BootLine,
    Budget,
    Contradiction,
    Division,
    Law,
    Memory,
    Pool,
    Room,
    Seen,
    Split,
    banks,
)


@dataclass(frozen=True, slots=True)
class Window:
    """A window and its slots."""

    context_tokens: int | None  # None: it was not said
    slots: int
    sequences: float | None  # of full length that memory holds, where slots are not just these
    estimate: bool
    how: str


@dataclass(frozen=True, slots=True)
class Given:
    """The options; empty: not given. Sizes as they were typed."""

    engine: str
    contexts: list[int]
    free: str
    headroom: str
    per_slot: str
    seen: list[str]
    parallel: list[int]
    kv_tokens: int
    memory: str
    weights: str
    kv_bytes_per_token: str

    @property
    def names(self) -> set[str]:
        """Options that were given, but for the engine's."""
        values: Mapping[str, object] = {
            "--context": self.contexts,
            "--free": self.free,
            "--headroom": self.headroom,
            "--per-slot": self.per_slot,
            "--seen": self.seen,
            "--parallel": self.parallel,
            "--kv-tokens": self.kv_tokens,
            "--memory": self.memory,
            "--weights": self.weights,
            "--kv-bytes-per-token": self.kv_bytes_per_token,
        }
        return {name for name, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class Planned:
    """The answer."""

    windows: list[Window]
    rooms: tuple[Room, ...]  # those of them that can be played
    law: Law | None


def planned(given: Given) -> Planned:
    """What the options say. CommandFailed: too little, too much, or nonsense."""
    memory = _memory(given)
    form = next((form for form in FORMS if form.needs <= given.names and form.answers(memory)), None)
    if form is None:
        raise CommandFailed(_missing(given, memory), 2)
    if foreign := given.names - form.needs - form.takes:
        raise CommandFailed(f"{_listed(foreign)} cannot be used with {_listed(form.needs)}.", 2)
    return form.answer(given, memory)


def _memory(given: Given) -> Memory:
    """Of the engine that is named, else of one that these options are about."""
    if given.engine:
        if given.engine not in ENGINES:
            raise CommandFailed(f"--engine {given.engine} is not known; there are: {', '.join(ENGINES)}.", 2)
        return ENGINES[given.engine].memory
    for form in FORMS:
        if form.division is not None and form.needs <= given.names:
            return next(one.memory for one in ENGINES.values() if one.memory.division is form.division)
    return Memory()


def _banks(given: Given, memory: Memory) -> Planned:
    """As ds4's start does it. The first window is that of the start."""
    free = bytes_of("--free", given.free)
    headroom = bytes_of("--headroom", given.headroom) if given.headroom else memory.headroom_bytes
    slot = bytes_of("--per-slot", given.per_slot) if given.per_slot else None
    slots = banks(free, headroom, slot, memory.slots_min)
    if slots is None:
        raise CommandFailed(
            "--per-slot is needed where more is free than is kept so: the boot line has it as per_bank.", 2
        )
    how = f"(free {_gib(free)} - headroom {_gib(headroom)})" + (f" / {_mib(slot)}" if slot else "")
    if slots * (slot or headroom) > free - headroom:
        how += ": the engine's floor"
    if not given.contexts:
        return Planned([Window(None, slots, None, False, how)], (), None)
    start = Room(given.contexts[0], slots)
    if slot is None:
        if given.contexts[1:]:
            raise CommandFailed("--per-slot is needed to tell of another --context.", 2)
        return Planned([_window(start, how)], (start,), None)
    law = BootLine(start.context_tokens, free, headroom, slot, memory.slots_min)
    rooms = tuple(map(law.room, given.contexts))
    return Planned([_window(room, how) for room in rooms], rooms, law)


def _seen(given: Given, memory: Memory) -> Planned:
    """Through what two starts gave."""
    sizes: dict[int, int] = {}
    for pair in given.seen:
        window, _, slots = pair.partition(":")
        if not (window.isdecimal() and slots.isdecimal() and int(window) and int(slots)):
            raise CommandFailed(f"--seen must be a window and its slots, such as 65536:11, not {pair!r}.", 2)
        sizes[int(window)] = int(slots)
    try:
        law = Seen(sizes, memory.slots_min)
    except Contradiction:
        raise CommandFailed(
            "--seen is needed twice, for two windows, and the larger one cannot have more slots.", 2
        ) from None
    rooms = tuple(map(law.room, given.contexts or sorted(sizes)))
    how = "through " + " and ".join(f"{slots} at {window:,}" for window, slots in sorted(sizes.items()))
    return Planned([_window(room, how) for room in rooms], rooms, law)


def _split(given: Given, memory: Memory) -> Planned:
    """One context, cut."""
    if len(given.contexts) > 1:
        raise CommandFailed("--context is one figure with --parallel: the context that is split.", 2)
    law, whole = Split(given.contexts[0]), given.contexts[0]
    if max(given.parallel) > whole:
        raise CommandFailed("--parallel is more than --context has tokens.", 2)
    rooms = tuple(map(law.among, given.parallel))
    return Planned([_window(room, f"{whole:,} / {room.slots}") for room in rooms], rooms, law)


def _pool(given: Given, memory: Memory) -> Planned:
    """Whole windows in a pool; shorter requests share it among more."""
    law = Pool(given.kv_tokens)
    rooms = tuple(map(law.room, given.contexts))
    how = "{:,} / {:,}: so many of full length at a time; shorter ones share the rest"
    windows = [_window(room, how.format(given.kv_tokens, room.context_tokens)) for room in rooms]
    return Planned(windows, rooms, law)


def _budget(given: Given, memory: Memory) -> Planned:
    """Sizes alone."""
    law = Budget(
        bytes_of("--memory", given.memory),
        bytes_of("--weights", given.weights),
        bytes_of("--headroom", given.headroom) if given.headroom else memory.headroom_bytes,
        bytes_of("--kv-bytes-per-token", given.kv_bytes_per_token, plain=True),
        memory.slots_min,
    )
    if law.memory_bytes <= law.weights_bytes + law.headroom_bytes:
        raise CommandFailed("--weights and --headroom leave nothing of --memory.", 2)
    rooms = tuple(map(law.room, given.contexts))
    how = "what weights and headroom leave, by the bytes of a token; engines need more"
    return Planned([_window(room, how) for room in rooms], rooms, law)


@dataclass(frozen=True, slots=True)
class Form:
    """A way to ask."""

    division: Division | None  # of the engine's memory; None: of any
    needs: frozenset[str]
    takes: frozenset[str]
    answer: Callable[[Given, Memory], Planned]

    def answers(self, memory: Memory) -> bool:
        """Whether it is about engines of this kind."""
        return self.division in (None, memory.division)


FORMS = (
    Form(
        None,
        frozenset({"--memory", "--weights", "--kv-bytes-per-token", "--context"}),
        frozenset({"--headroom"}),
        _budget,
    ),
    Form(None, frozenset({"--seen"}), frozenset({"--context"}), _seen),
    Form(
        Division.BANKS,
        frozenset({"--free"}),
        frozenset({"--headroom", "--per-slot", "--context"}),
        _banks,
    ),
    Form(Division.SPLIT, frozenset({"--context", "--parallel"}), frozenset(), _split),
    Form(Division.POOL, frozenset({"--kv-tokens", "--context"}), frozenset(), _pool),
)


def _missing(given: Given, memory: Memory) -> str:
    """What to add, so that the options mean something."""
    begun = [form for form in FORMS if form.answers(memory) and form.needs & given.names - {"--context"}]
    own = [form for form in FORMS if given.engine and form.division is memory.division]
    if wanted := min(begun or own, key=lambda form: len(form.needs - given.names), default=None):
        asked = [f"--engine {given.engine}"] if given.engine and not begun else wanted.needs & given.names
        missing = _listed(wanted.needs - given.names)
        return f"With {_listed(asked)}, {missing} must be given, too; the examples of --help have all forms."
    return (
        f"Name the engine with --engine ({', '.join(ENGINES)}) and its figures, or for an estimate "
        f"give {_listed(FORMS[0].needs)}; the examples of --help have all forms."
    )


def _window(room: Room, how: str) -> Window:
    whole = None if room.sequences is None else round(room.sequences, 2)
    return Window(room.context_tokens, room.slots, whole, room.estimate, how)


def _listed(names: Iterable[str]) -> str:
    *others, last = sorted(names)
    return f"{', '.join(others)} and {last}" if others else last


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
