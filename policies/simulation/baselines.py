"""Published policies that bind a request to an engine when it arrives; what has no slot waits in the engine.

Each sees the engines' true caches and loads, which is more than any of them sees in life. Ties rotate.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

from policies.simulation.engine import Engine, Job
from policies.simulation.router import Decision, Knowledge, Request, Start

CACHE_TOKENS = 16  # a block, in which Dynamo counts


class AtArrival:
    """Chooses an engine for each request as it comes."""

    waiting = 0

    def __init__(self, knowledge: Knowledge) -> None:
        self.engines = knowledge.engines
        self._sent: Counter[str] = Counter()  # by engine

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        """One of those that live and whose slots hold it."""
        raise NotImplementedError

    def arrive(self, request: Request, now: float) -> list[Decision]:
        engine = self.choose(request, fitting(request, self.engines))
        self._sent[engine.name] += 1
        return [Start(request.id, engine.name)]

    def again(self, request: Request, now: float) -> list[Decision]:
        return self.arrive(request, now)

    def first_token(self, job: Job, now: float) -> list[Decision]:
        return []

    def ended(self, job: Job, now: float) -> list[Decision]:
        return []

    def speed(self, engine: Engine, now: float) -> list[Decision]:
        return []

    def tick(self, now: float) -> list[Decision]:
        return []

    def least(self, engines: Sequence[Engine], load: Callable[[Engine], float]) -> Engine:
        """The one with the least of it; of equals the one that was sent least."""
        return min(engines, key=lambda engine: (load(engine), self._sent[engine.name]))


def fitting(request: Request, engines: Sequence[Engine]) -> list[Engine]:
    """Those that live and whose slots hold the request with its answer."""
    turn = request.turn
    alive = [engine for engine in engines if engine.alive]
    return [e for e in alive if e.profile.fits(turn.prompt_tokens, turn.output_tokens)] or alive


def in_flight(engine: Engine) -> int:
    """Requests at the engine, queued ones included."""
    return len(engine.jobs)


def matched(request: Request, engine: Engine) -> int:
    """Tokens of the prompt that are cached there now."""
    return min(request.turn.prompt_tokens - 1, engine.cache.matched(request.turn.prompt))


class RoundRobin(AtArrival):
    """One after the other."""

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        return self.least(engines, lambda engine: 0)


class LeastRequests(AtArrival):
    """The fewest requests in flight, slots not regarded."""

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        return self.least(engines, in_flight)


class Sticky(LeastRequests):
    """A session stays where its first request went."""

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self._home: dict[str, Engine] = {}  # by program

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        home = self._home.get(request.program.name)
        if home is None or home not in engines:
            home = self._home[request.program.name] = super().choose(request, engines)
        return home


class BoundedHash(AtArrival):
    """Consistent hashing of the session with bounded loads (CHWBL, KubeAI's): the next engine of the ring
    whose load stays within 1.25 of the mean."""

    bound = 1.25
    replicas = 256

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self._ring = sorted(
            (zlib.crc32(f"{engine.name}/{number}".encode()), engine.name)
            for engine in knowledge.engines
            for number in range(self.replicas)
        )

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        limit = self.bound * (sum(map(in_flight, engines)) + 1) / len(engines)
        by_name = {engine.name: engine for engine in engines}
        start = bisect_left(self._ring, (zlib.crc32(request.program.name.encode()), ""))
        for _, name in self._ring[start:] + self._ring[:start]:
            if name in by_name and in_flight(by_name[name]) + 1 <= max(1.0, limit):
                return by_name[name]
        return self.least(engines, in_flight)


class CacheAware(AtArrival):
    """SGLang's router: the best match if it is good enough, else the smallest tree; while loads are far
    apart, the shortest queue."""

    match_ratio = 0.3
    relative = 1.5

    def __init__(self, knowledge: Knowledge, absolute: int) -> None:
        super().__init__(knowledge)
        self._absolute = absolute
        self._trees: dict[str, set[int]] = {engine.name: set() for engine in knowledge.engines}
        self._sizes: Counter[str] = Counter()  # tokens, by engine

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        engine = self._choose(request, engines)
        tree, start = self._trees[engine.name], 0
        for segment in request.turn.prompt:
            if segment.digest not in tree:
                tree.add(segment.digest)
                self._sizes[engine.name] += segment.end_tokens - start
            start = segment.end_tokens
        return engine

    def _choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        loads = [in_flight(engine) for engine in engines]
        if max(loads) - min(loads) > self._absolute and max(loads) > self.relative * min(loads):
            return self.least(engines, in_flight)
        best = max(engines, key=lambda engine: matched(request, engine))
        if matched(request, best) > self.match_ratio * request.turn.prompt_tokens:
            return best
        return self.least(engines, lambda engine: self._sizes[engine.name])


class LMetric(AtArrival):
    """New prefill tokens there, this request's included, times the batch it makes."""

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        return self.least(
            engines,
            lambda engine: (
                (prefill_tokens(engine) + request.turn.prompt_tokens - matched(request, engine))
                * (in_flight(engine) + 1)
            ),
        )


class Dynamo(AtArrival):
    """NVIDIA Dynamo's router at temperature 0: prefill blocks that no overlap saves, and decode blocks."""

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        def blocks(engine: Engine) -> float:
            prefill = prefill_tokens(engine) + request.turn.prompt_tokens - matched(request, engine)
            decode = sum(job.turn.prompt_tokens for job in engine.jobs.values()) + request.turn.prompt_tokens
            return (prefill + decode) / CACHE_TOKENS

        return self.least(engines, blocks)


def prefill_tokens(engine: Engine) -> int:
    """Tokens at the engine that are still to be computed, by what is cached now."""
    unread = [job for job in engine.jobs.values() if job.first is None]
    return sum(job.turn.prompt_tokens - engine.cached_tokens(job) for job in unread)


class CentralQueue:
    """One queue, first come first served: who is first takes, of the engines with a free slot, the one that
    has most of its prompt."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._engines = knowledge.engines
        self._queue: list[Request] = []
        self._taken: Counter[str] = Counter()  # slots, by engine
        self._where: dict[str, str] = {}  # engine by request id
        self._sent: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def arrive(self, request: Request, now: float) -> list[Decision]:
        self._queue.append(request)
        return self._dispatch()

    def again(self, request: Request, now: float) -> list[Decision]:
        self._taken[self._where.pop(request.id)] -= 1
        self._queue.insert(0, request)
        return self._dispatch()

    def first_token(self, job: Job, now: float) -> list[Decision]:
        return []

    def ended(self, job: Job, now: float) -> list[Decision]:
        self._taken[self._where.pop(job.id)] -= 1
        return self._dispatch()

    def speed(self, engine: Engine, now: float) -> list[Decision]:
        return self._dispatch()

    def tick(self, now: float) -> list[Decision]:
        return []

    def _dispatch(self) -> list[Decision]:
        started: list[Decision] = []
        for request in tuple(self._queue):
            free = [
                engine
                for engine in fitting(request, self._engines)
                if self._taken[engine.name] < engine.profile.slots
            ]
            if not free:
                continue
            engine = min(free, key=lambda e: (-matched(request, e), self._sent[e.name]))
            self._queue.remove(request)
            self._taken[engine.name] += 1
            self._sent[engine.name] += 1
            self._where[request.id] = engine.name
            started.append(Start(request.id, engine.name))
        return started
