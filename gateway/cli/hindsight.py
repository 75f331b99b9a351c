"""The requests of a journal, for commands that play them again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.failure import CommandFailed
from gateway.cli.windows import Given, planned
from gateway.engines import ENGINES
from gateway.journal import JournalError
from gateway.traffic import journalled
from policies.advice import Advice, Deployment, advise
from policies.capacity import Pool, Room
from policies.hindsight import hindsight
from policies.replay import Outcome, profile
from policies.simulation.profile import CacheKind, Profile
from policies.traffic import Asked

if TYPE_CHECKING:
    from rich.console import RenderableType

UNSAID = "name the kind of engine and its figures, as without --fit"


def requests(path: Path) -> list[Asked]:
    """Those that a backend worked on. CommandFailed: there are none, or it is no journal."""
    try:
        asked = journalled(path)
    except JournalError as error:
        raise CommandFailed(f"--fit {error}; name a journal, such as slotgate.db.", 2) from None
    if not asked:
        raise CommandFailed(f"--fit {path} holds no request that a backend worked on.", 1)
    return asked


def fleet(asked: list[Asked], engine: str = "") -> list[Profile]:
    """Each backend as its requests show it, with as many slots as were ever in use at a time and a context
    of the longest request: a journal does not tell what nobody needed. `engine`: the kind that all of them
    are taken for, for what their requests do not tell."""
    kind = ENGINES[engine or "openai"]
    return [
        profile(
            name,
            seen.service,
            CacheKind(kind.prefix_kind),
            slots=seen.slots,
            context_tokens=seen.context_tokens,
        )
        for name, seen in hindsight(asked, kind.service).items()
    ]


def told(path: Path, backend: str, given: Given) -> Told:
    """What the requests of a journal would have met with the windows that the options name, else with
    those that are worth a look. CommandFailed: the options mean nothing, or nothing can be played."""
    found = planned(given) if given.names else None
    asked = requests(path)
    profiles = fleet(asked, given.engine)
    names = [profile.name for profile in profiles]
    if backend not in (names if len(names) > 1 else [*names, ""]):
        raise CommandFailed(f"--backend must name the one to plan for: {', '.join(names)}.", 2)
    present = next(profile for profile in profiles if backend in (profile.name, ""))
    deployments = [Deployment(profile.name, profile, None) for profile in profiles if profile is not present]
    if found is None or (found.law is None and not found.rooms):
        deployments.append(Deployment(present.name, present, None, UNSAID))
    elif isinstance(found.law, Pool):  # its windows are no slots
        present = replace(
            present, pool_tokens=found.law.tokens, context_tokens=max(present.context_tokens, *given.contexts)
        )
        deployments.append(Deployment(present.name, present, found.law))
    else:
        rooms = found.rooms if given.contexts or given.parallel else ()
        deployments.append(Deployment(present.name, present, found.law, rooms=rooms))
    advice = advise(asked, deployments)
    if advice is None:
        raise CommandFailed(f"--fit {path} holds no request that can be played.")
    return Told(present, advice)


@dataclass(frozen=True, slots=True)
class Told:
    """What the requests would have met with each window of one backend."""

    backend: Profile
    advice: Advice

    def _rows(self) -> list[tuple[str, Room, Outcome]]:
        present = Room(self.backend.context_tokens, self.backend.slots)
        return [
            ("seen, or more", present, self.advice.present),
            *(
                ("estimate" if one.room.estimate else "", one.room, one.outcome)
                for one in self.advice.alternatives
            ),
        ]

    def plain(self) -> list[dict[str, object]]:
        """As JSON holds it."""
        return [
            {"how": how} | asdict(room) | {"played": asdict(outcome)} for how, room, outcome in self._rows()
        ]

    def page(self) -> RenderableType:
        """For people."""
        from rich.console import Group

        from gateway.cli.tables import cell, table

        shown = table(
            "context", "slots", "", "played", "too long", "wait mean / p99", "first token mean / p99"
        )
        for how, room, outcome in self._rows():
            shown.add_row(
                f"{room.context_tokens:,}",
                str(room.slots),
                how,
                f"{outcome.requests:,}",
                f"{outcome.too_long:,}",
                f"{outcome.wait_mean:.1f} / {outcome.wait.p99:.1f} s",
                f"{outcome.ttft_mean:.1f} / {outcome.ttft.p99:.1f} s",
            )
        return Group(shown, *(cell(sentence) for sentence in self.advice.sentences))
