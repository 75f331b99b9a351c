"""What happens in one simulated run, drawn from a seed before it begins.

All times are small whole numbers of one unit. With continuous random times a planted slot leak was
found by 0 of 1,000 seeds; with whole numbers things happen at the same instant, which is where races are.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from random import Random

from policies.prefix import Link
from policies.types import Call, Limits, Priority

ROUTE = "/v1/chat/completions"
MODELS = ("small", "large")
HORIZON = 30  # units of time in which things happen
UNITS = (1.0, 1.0, 8.0)  # seconds; with 8 the minutes of ejection, reserve and overdue tiers come to pass
CONTEXTS = (None, 4096, 8192, 32768)
KV_TOKENS = (None, None, None, 3000, 9000, 40000)
ALIASES = {
    "alias-any": (MODELS, ()),
    "alias-large": (("large",), ("small",)),
    "alias-nobody": (("unknown",), ("absent", "large", "small")),
}
PROMPTS = (50, 200, 900, 900, 1500, 1500, 3500, 5000, 30000)


class Kind(enum.Enum):
    """What can happen to an engine."""

    LOSS = "loss"  # its process ends; it comes back later, perhaps with other slots
    SICKNESS = "sickness"  # it answers requests with failures for a while
    OVERLOAD = "overload"  # it refuses requests for a while
    RESIZE = "resize"
    FOREIGN = "foreign"  # somebody else uses it
    DRAIN = "drain"  # and resume
    REPLACE = "replace"  # it drains, leaves, and another backend of its name comes, as by a reload


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine at its start."""

    name: str
    joins: float
    slots: int
    context_tokens: int | None
    kv_tokens: int | None
    models: frozenset[str]
    models_known: bool  # or told only when it has started
    backup: bool


@dataclass(frozen=True, slots=True)
class Happening:
    """Something happens to an engine, and is over some time later."""

    kind: Kind
    engine: str
    at: float
    lasts: float
    turns: int  # of the loop, before it happens: the order among things of one instant
    number: int  # of slots or of foreign requests
    context_tokens: int | None
    kv_tokens: int | None
    delay: float  # until the gateway notices


@dataclass(frozen=True, slots=True)
class Leave:
    """The client leaves."""

    after: float  # its arrival
    turns: int


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One client and its request."""

    call: Call
    prefill: float
    decode: float
    refusals: int  # the engine did not begin, this many times
    repeats: bool  # is tried once more if the engine died before its first token
    leaves: tuple[Leave, ...]  # two: cancelled again while the first cancel is under way
    stops_after: float | None  # the engine works on after its client left; None: it stops at once
    lingers: bool  # its end takes a turn of the loop


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run."""

    seed: int
    unit: float
    tick_seconds: float
    closes_at: float | None
    limits: Limits
    engines: tuple[EnginePlan, ...]
    calls: tuple[CallPlan, ...]
    happenings: tuple[Happening, ...]


def draw(seed: int) -> Scenario:
    """The scenario of this seed."""
    random = Random(seed)
    unit = random.choice(UNITS)
    engines = tuple(_engine(random, unit, number) for number in range(random.randint(1, 4)))
    return Scenario(
        seed=seed,
        unit=unit,
        tick_seconds=unit * random.choice((1, 1, 2, 3)),
        closes_at=unit * random.randint(5, HORIZON) if random.random() < 0.1 else None,
        limits=_limits(random, unit),
        engines=engines,
        calls=tuple(_call(random, unit, number) for number in range(random.randint(4, 40))),
        happenings=tuple(_happening(random, unit, engines) for _ in range(random.choice((0, 1, 3, 8, 16)))),
    )


def _engine(random: Random, unit: float, number: int) -> EnginePlan:
    return EnginePlan(
        name=f"engine-{number}",
        joins=unit * random.randint(0, 5) if number and random.random() < 0.3 else 0.0,
        slots=random.randint(1, 4),
        context_tokens=random.choice(CONTEXTS),
        kv_tokens=random.choice(KV_TOKENS),
        models=frozenset(MODELS) if number == 0 or random.random() < 0.6 else frozenset(MODELS[:1]),
        models_known=random.random() < 0.7,
        backup=random.random() < 0.2,
    )


def _limits(random: Random, unit: float) -> Limits:
    return Limits(
        waiting_max=random.choice((0, 6, 1000, 1000, 1000, 1000)),
        waiting_bytes_max=random.choice((4_000, 1_000_000, 1_000_000, 1_000_000)),
        wait_seconds_max=unit * random.choice((6, 20, 1000, 1000)),
        unavailable_grace_seconds=unit * random.choice((2, 10, 1000)),
        prefill_gate_seconds=1.0,
        long_prefills_per_backend=random.choice((1, 1, 2)),
        interactive_reserve_slots=random.choice((0, 1, 1, 2)),
        hold_seconds_max=unit * random.choice((0, 2, 60)),
    )


def _call(random: Random, unit: float, number: int) -> CallPlan:
    arrived = unit * random.randint(0, random.choice((3, HORIZON)))
    waits_for = unit * random.randint(1, 12)
    leaves: tuple[Leave, ...] = ()
    if random.random() < 0.4:
        leaves = tuple(
            Leave(unit * random.randint(0, 6), random.randint(0, 4)) for _ in range(random.choice((1, 1, 2)))
        )
        if len(leaves) == 2 and random.random() < 0.5:
            leaves = (leaves[0], leaves[0])
    model = random.choice((*MODELS, *MODELS, *ALIASES)) if random.random() < 0.97 else "unknown"
    targets, fallbacks = ALIASES.get(model, ((), ()))
    return CallPlan(
        call=Call(
            id=f"call-{number:02}",
            model=model,
            targets=targets,
            fallbacks=fallbacks,
            route=ROUTE,
            priority=random.choice(tuple(Priority)),
            agent=f"agent-{number % 4}",
            arrived=arrived,
            prompt_tokens=random.choice(PROMPTS),
            prompt_counted=random.random() < 0.3,
            output_tokens_max=random.choice((None, 16, 65536)),
            accounts=_accounts(number),
            chain=_chain(random),
            body_bytes=random.choice((100, 400, 1500)),
            start_by=arrived + waits_for if random.random() < 0.15 else None,
        ),
        prefill=unit * random.randint(0, 3),
        decode=unit * random.randint(0, 4),
        refusals=random.choice((0, 0, 0, 0, 1, 3)),
        repeats=random.random() < 0.5,
        leaves=leaves,
        stops_after=random.choice((None, 0.0, unit, 3 * unit)),
        lingers=random.random() < 0.2,
    )


def _accounts(number: int) -> tuple[tuple[str, ...], ...]:
    key, agent = f"key-{number % 2}", f"agent-{number % 4}"
    return (key,), (key, agent), (key, agent, f"conversation-{number % 12}")


def _chain(random: Random) -> tuple[Link, ...]:
    agent, length = random.randint(0, 3), random.randint(0, 4)
    return tuple(Link(digest=10 * agent + place, end_bytes=1000 * (place + 1)) for place in range(length))


def _happening(random: Random, unit: float, engines: tuple[EnginePlan, ...]) -> Happening:
    return Happening(
        kind=random.choice(tuple(Kind)),
        engine=random.choice(engines).name,
        at=unit * random.randint(1, HORIZON),
        lasts=unit * random.randint(0, 15),
        turns=random.randint(0, 3),
        number=random.randint(1, 4),
        context_tokens=random.choice(CONTEXTS),
        kv_tokens=random.choice(KV_TOKENS),
        delay=unit * random.choice((0, 0, 1, 2)),
    )
