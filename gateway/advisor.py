"""What `GET /admin/advice` answers: the traffic that was seen, on the fleet as it is and as it might be."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from gateway.advising import Answer, Task
from gateway.capacity import Figure
from gateway.fleet import Fleet
from gateway.member import Member
from gateway.traffic import Window, remembered
from policies.admission import Admission
from policies.advice import Deployment
from policies.capacity import Contradiction, Division, Law, Pool, Seen, Split
from policies.replay import profile
from policies.simulation.profile import CacheKind
from policies.types import Backend, Source, State, StateChanged

log = logging.getLogger("slotgate.advice")

# By import, so that both sides name classes alike.
PLAYER = (sys.executable, "-c", "from gateway.advising import main; main()")
PLAY_SECONDS_MAX = 60.0
SINCE_SECONDS = 7 * 86_400.0


class Advisor:
    """Knows with which windows engines started, and has the traffic played when it is asked."""

    def __init__(
        self,
        fleet: Fleet,
        admission: Admission,
        journal: str,
        window: Window | None,
        *,
        player: Sequence[str] = PLAYER,
        seconds_max: float = PLAY_SECONDS_MAX,
    ) -> None:
        self._fleet = fleet
        self._admission = admission
        self._journal = journal
        self._window = window
        self._player = player
        self._seconds_max = seconds_max
        self._sizes: dict[str, dict[int, int]] = {}  # of each backend: slots by window
        self._playing: asyncio.Task[Answer] | None = None

    def look(self, change: StateChanged) -> None:
        """A backend came into another state. One that is ready has told its size."""
        if change.state is not State.READY:
            return
        capacity = self._fleet.members[change.backend].capacity
        slots = capacity.told.by_source.get(Source.REPORTED)
        window = capacity.context_tokens.by_source.get(Source.REPORTED)
        if slots is not None and window is not None:
            self._sizes.setdefault(change.backend, {})[window] = slots

    async def advice(self) -> Answer:
        """Played now; who asks meanwhile gets the same answer."""
        if self._playing is None or self._playing.done():
            self._playing = asyncio.create_task(self._play())
        return await asyncio.shield(self._playing)

    async def close(self) -> None:
        """End what is being played."""
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.wait([self._playing])

    async def _play(self) -> Answer:
        records = [] if self._window is None else self._window.records()
        task = Task(
            groups=tuple(self._groups()),
            limits=self._admission.limits,
            journal=self._journal,
            since=time.time() - SINCE_SECONDS,
            remembered=tuple(await asyncio.to_thread(remembered, records)),
        )
        source: Literal["journal", "memory"] = "journal" if self._journal else "memory"
        player = await asyncio.create_subprocess_exec(
            *self._player,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(self._seconds_max):
                out, err = await player.communicate(pickle.dumps(task))
        except TimeoutError:
            return Answer(
                source, (), f"The traffic could not be played within {self._seconds_max:g} seconds."
            )
        finally:
            if player.returncode is None:
                player.kill()
                await player.wait()
        if player.returncode:
            log.error("playing the traffic failed: %s", err.decode(errors="replace")[-2000:])
            return Answer(source, (), "The traffic could not be played; the log says why.")
        answer: Answer = pickle.loads(out)
        return answer

    def _groups(self) -> list[tuple[Deployment, ...]]:
        """Backends with a model in common serve one another's requests. One that is down does not count."""
        groups: list[list[Backend]] = []
        for backend in self._admission.backends.values():
            if backend.state is State.DOWN:
                continue
            related = [group for group in groups if any(akin(backend, other) for other in group)]
            groups = [group for group in groups if group not in related]
            groups.append([*(one for group in related for one in group), backend])
        return [tuple(map(self._deployment, group)) for group in groups]

    def _deployment(self, backend: Backend) -> Deployment:
        member = self._fleet.members[backend.name]
        law, unknown = law_of(member, self._sizes.get(backend.name, {}))
        shape = profile(
            backend.name,
            backend.service,
            CacheKind(member.engine.prefix_kind),
            slots=backend.slots,
            context_tokens=backend.context_tokens,
            kv_tokens=backend.kv_tokens,
        )
        return Deployment(backend.name, shape, law, unknown)


def akin(one: Backend, other: Backend) -> bool:
    """Whether they have a model in common, as far as is known."""
    return one.models is None or other.models is None or not one.models.isdisjoint(other.models)


def law_of(member: Member, sizes: Mapping[int, int]) -> tuple[Law | None, str]:
    """How many slots other windows of this engine give; else why nobody knows. `sizes`: the windows with
    which it was seen to start, and their slots."""
    capacity, memory = member.capacity, member.engine.memory
    slots, context = own(capacity.told), own(capacity.context_tokens)
    kv_tokens = capacity.kv_tokens.value
    match memory.division:
        case Division.BANKS:
            try:
                return Seen(sizes, memory.slots_min), ""
            except Contradiction:
                return None, "it was not seen with two; give its boot line to `slotgate plan`"
        case Division.SPLIT | Division.POOL if kv_tokens is not None:
            return Pool(kv_tokens), ""
        case Division.SPLIT if context is not None and slots is not None:
            # Nothing tells whether each slot shows the context that all of them share.
            return Split(context * slots, estimate=True), ""
        case Division.UNKNOWN:
            return None, "nobody knows how this kind of engine divides its memory"
        case _:
            return None, "it does not tell how much it holds"


def own(figure: Figure) -> int | None:
    """The engine's own word rather than the operator's, who may have set less than there is."""
    return figure.by_source.get(Source.REPORTED, figure.value)
