"""Would another context window, and the slots that it gives, have served the same requests better?

Answered by playing them again: once on the fleet as it is, once on the same fleet with one backend changed,
under the admission that serves. All else stays, so what differs is due to the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from policies.capacity import Law, Pool, Room
from policies.replay import Outcome, play
from policies.simulation.profile import Profile
from policies.traffic import Asked, most, within
from policies.types import Limits

DEFAULTS = Limits()
WINDOWS = tuple(2**power for power in range(12, 21))  # that operators choose: 4,096 to 1,048,576
MOST = 0.99  # of the requests must fit, or a window is not worth a look
CHOICES_MAX = 4  # for one backend
PLAYS_MAX = 16  # of all backends' choices, but one of each is looked at
PLAYED_MAX = 6000  # requests in all plays together; one takes 1 to 10 ms
PLAYED_MIN = 300  # in one play, the latest ones
ENOUGH = 20  # requests, to say what is better
WORTH = 0.9  # of the mean wait: a better one is worth a restart
WORTH_SECONDS = 1.0  # and saves so much
UNLIKE = 0.3  # of the wait that was seen; a play of the present further off than that is worth little


@dataclass(frozen=True, slots=True)
class Deployment:
    """One backend as it is."""

    name: str
    profile: Profile
    law: Law | None  # slots by window; None: nobody knows it
    unknown: str = ""  # why not, for people
    rooms: tuple[Room, ...] = ()  # to look at; none: those that are worth it


@dataclass(frozen=True, slots=True)
class Alternative:
    """One backend with another window."""

    backend: str
    room: Room
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Advice:
    """Of one set of requests and the backends that may serve them."""

    requests: int  # that were played
    prompt_p50: int
    prompt_p99: int
    prompt_max: int
    tokens_p99: int  # of prompt and answer together
    seen_wait_mean: float  # as it was; a simulated present far from it says what the rest is worth
    present: Outcome
    alternatives: tuple[Alternative, ...]
    best: Alternative | None  # serves all that is served now, and clearly sooner
    sentences: tuple[str, ...]


def advise(asked: Iterable[Asked], fleet: Sequence[Deployment], limits: Limits = DEFAULTS) -> Advice | None:
    """What these requests say of this fleet; None: there are none that it holds."""
    rows = latest(asked, fleet)
    if not within(rows, max(one.profile.context_tokens for one in fleet)):
        return None
    present = play(rows, [one.profile for one in fleet], limits)
    alternatives: list[Alternative] = []
    for one in fleet:
        for room in choices(one, rows, _choices(fleet)):
            profiles = [changed(other, one, room) for other in fleet]
            if room.slots and within(rows, max(profile.context_tokens for profile in profiles)):
                alternatives.append(Alternative(one.name, room, play(rows, profiles, limits)))
    best = _best(present, alternatives) if len(rows) >= ENOUGH else None
    prompts = [row.prompt_tokens for row in rows]
    advice = Advice(
        requests=len(rows),
        prompt_p50=most(prompts, 0.5),
        prompt_p99=most(prompts, 0.99),
        prompt_max=max(prompts),
        tokens_p99=most((row.tokens for row in rows), MOST),
        seen_wait_mean=sum(row.dispatched - row.arrived for row in rows) / len(rows),
        present=present,
        alternatives=tuple(alternatives),
        best=best,
        sentences=(),
    )
    return replace(advice, sentences=tuple(_sentences(advice, fleet)))


def latest(asked: Iterable[Asked], fleet: Sequence[Deployment]) -> list[Asked]:
    """As many of them as can be played in every way within a bounded time."""
    plays = 1 + _choices(fleet) * len(fleet)
    return sorted(asked, key=lambda row: row.arrived)[-max(PLAYED_MIN, PLAYED_MAX // plays) :]


def _choices(fleet: Sequence[Deployment]) -> int:
    """How many windows of each backend can be looked at."""
    laws = sum(one.law is not None for one in fleet)
    return min(CHOICES_MAX, max(1, PLAYS_MAX // max(1, laws)))


def choices(one: Deployment, asked: Sequence[Asked], limit: int = CHOICES_MAX) -> list[Room]:
    """The windows of this backend that are worth a play: those that hold nearly all requests and give
    another number of slots. Of too many, those that hold all and give most."""
    if one.rooms or one.law is None:
        return [*one.rooms]
    sizes, slots = [row.tokens for row in asked], one.profile.slots
    need, largest = most(sizes, MOST), max(sizes)
    if isinstance(one.law, Pool):  # the window costs nothing, and what is learnt does not reach far
        more = min(2 * slots, one.law.tokens // need)
        room = replace(one.law.room(one.profile.context_tokens), slots=more, estimate=True)
        return [room] if more > slots else []
    by_slots: dict[int, Room] = {}  # of equal slots the largest window
    for room in map(one.law.room, WINDOWS):
        if room.context_tokens >= need and room.slots != slots:
            by_slots[room.slots] = room
    best = sorted(by_slots.values(), key=lambda room: (room.context_tokens < largest, -room.slots))
    return sorted(best[:limit], key=lambda room: room.slots, reverse=True)


def changed(other: Deployment, one: Deployment, room: Room) -> Profile:
    """The profile of `other`, in a fleet where `one` has this room."""
    if other is not one:
        return other.profile
    return replace(one.profile, slots=room.slots, context_tokens=room.context_tokens)


def _best(present: Outcome, alternatives: Iterable[Alternative]) -> Alternative | None:
    """By the mean wait; of those that clearly shorten it, and leave out nothing more."""
    worth = [
        one
        for one in alternatives
        if one.outcome.too_long <= present.too_long
        and one.outcome.wait_mean <= WORTH * present.wait_mean
        and one.outcome.wait_mean <= present.wait_mean - WORTH_SECONDS
    ]
    return min(worth, key=lambda one: one.outcome.wait_mean, default=None)


def _sentences(advice: Advice, fleet: Sequence[Deployment]) -> Iterator[str]:
    """The same for people."""
    yield (
        f"99 % of {advice.requests:,} prompts are under {advice.prompt_p99 + 1:,} tokens; "
        f"the longest has {advice.prompt_max:,}."
    )
    seen, played = advice.seen_wait_mean, advice.present.wait_mean
    if abs(seen - played) > max(UNLIKE * seen, WORTH_SECONDS):
        yield (
            f"{seen:.0f} s were waited on average, but a play of the present gives {played:.0f} s: "
            "take what follows with care."
        )
    if advice.best is not None:
        one = next(one for one in fleet if one.name == advice.best.backend)
        yield _better(one, advice.best, advice.present)
    elif advice.alternatives:
        yield "No other context window of one backend would have shortened the queue enough for a restart."
    for one in fleet:
        if one.law is None and not one.rooms:
            yield f"{one.name}: how many slots another context window gives is not known: {one.unknown}."


def _better(one: Deployment, other: Alternative, present: Outcome) -> str:
    """One alternative in words."""
    about = "about " if other.room.estimate else ""
    slots = f"{about}{other.room.slots} slots instead of {one.profile.slots}"
    before, after = present.wait_mean, other.outcome.wait_mean
    if other.room.context_tokens == one.profile.context_tokens:
        what = f"With {slots} and its context as it is, {one.name} would have served sooner"
    else:
        what = f"At {other.room.context_tokens:,} tokens {one.name} would have {slots}"
    return f"{what}; expected queue wait {before:.0f} s -> {after:.0f} s."
