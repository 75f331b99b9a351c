"""What one gateway learnt of engines, prompts and answers, for those that start later: they begin with it
instead of the figures of an engine's kind. Written now and then, read when a backend first becomes ready.

What others wrote is a hint. It is checked, never waited for, and gives way to what is learnt here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Protocol

from gateway.ledger.step import Unavailable
from policies.output_length import OutputLength, OutputTokens
from policies.prompt_length import PromptLength
from policies.types import Backend, Priority, State, StateChanged

log = logging.getLogger("slotgate.ledger")

VERSION = 1
SAVE_SECONDS = 30.0
PAUSE_SECONDS = 5.0  # after a failure
MODELS_MAX = 64  # of which lessons are shared
NAME_MAX = 256  # characters of a model's name
LESSON_BYTES_MAX = 2048
TOKENS_MAX = 10_000_000  # of an answer

Lesson = dict[str, Any]


class Shelf(Protocol):
    """Where lessons are kept, by what they are of."""

    async def put(self, lessons: Mapping[str, bytes]) -> None:
        """Keep these. Raises Unavailable."""

    async def get(self, names: Sequence[str]) -> list[bytes | None]:
        """What is kept under each name. Raises Unavailable."""

    async def close(self) -> None:
        """Close the connection."""


class SharedLessons:
    """Of one gateway. `url_of`: of a backend by its name, the same in all gateways; `aliases`: names that
    clients may give models, beside those that engines serve."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        prompts: PromptLength,
        outputs: OutputLength,
        url_of: Callable[[str], str],
        aliases: Callable[[], Iterable[str]],
        shelf: Shelf,
    ) -> None:
        self._backends = backends
        self._prompts = prompts
        self._outputs = outputs
        self._url_of = url_of
        self._aliases = aliases
        self._shelf = shelf
        self._known: set[str] = set()  # what was read, or learnt before it could be
        self._put: dict[str, bytes] = {}  # as it was written last
        self._ready = asyncio.Event()  # a backend is, that may be new

    def state_changed(self, change: StateChanged) -> None:
        """A backend is in another state here."""
        if change.state is State.READY:
            self._ready.set()

    async def run(self) -> None:
        """Read and write until cancelled."""
        loop = asyncio.get_running_loop()
        save_at = loop.time() + SAVE_SECONDS
        try:
            while True:
                try:
                    async with asyncio.timeout_at(save_at):
                        await self._ready.wait()
                except TimeoutError:
                    save_at = loop.time() + SAVE_SECONDS
                    await self._tried(self._write)
                else:
                    self._ready.clear()
                    if not await self._tried(self._read):
                        await asyncio.sleep(PAUSE_SECONDS)
                        self._ready.set()
        finally:
            await self._tried(self._write)
            await self._shelf.close()

    async def _tried(self, do: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        try:
            await do()
        except Unavailable:  # the ledger says so already
            return False
        except Exception:  # a defect of ours must not end this task
            log.exception("what gateways learnt cannot be shared")
        return True

    # -- what others learnt -----------------------------------------------------------------------

    async def _read(self) -> None:
        engines = {
            _engine(self._url_of(name)): backend
            for name, backend in self._backends.items()
            if backend.state is State.READY
        }
        models = {_model(name): name for name in self._names()}
        wanted = [name for name in (*engines, *models) if name not in self._known]
        if not wanted:
            return
        for name, told in zip(wanted, await self._shelf.get(wanted), strict=True):
            self._known.add(name)
            try:
                if told is None:
                    continue
                if name in engines:
                    self._begin_engine(engines[name], _decoded(told))
                else:
                    self._begin_model(models[name], _decoded(told))
            except ValueError as fault:
                log.warning("what another gateway learnt is not followed: %s", fault)

    def _begin_engine(self, backend: Backend, lesson: Lesson) -> None:
        prefill, decode = (_numbers(lesson.get(kind)) for kind in ("prefill", "decode"))
        backend.calibration.begin(prefill, decode)
        backend.service = backend.calibration.model

    def _begin_model(self, model: str, lesson: Lesson) -> None:
        prompt, answers, lengths = _numbers(lesson.get("prompt")), lesson.get("answers", {}), []
        if not isinstance(answers, dict):
            raise ValueError("it has no answers")
        for priority in Priority:
            if (told := _numbers(answers.get(str(int(priority))))) is None:
                continue
            if len(told) != 2 or not 1 <= min(told) <= max(told) <= TOKENS_MAX:
                raise ValueError("no answer has such a length")
            lengths.append((priority, OutputTokens(round(told[0]), round(told[1]))))
        if prompt is not None:
            self._prompts.begin(model, prompt)
        for priority, tokens in lengths:
            self._outputs.begin(model, priority, tokens)

    def _names(self) -> list[str]:
        served = {model for backend in self._backends.values() for model in backend.models or ()}
        names = sorted(name for name in {*served, *self._aliases()} if len(name) <= NAME_MAX)
        return names[:MODELS_MAX]

    # -- what was learnt here ---------------------------------------------------------------------

    async def _write(self) -> None:
        lessons = {name: told for name, told in self._learnt() if self._put.get(name) != told}
        if lessons:
            await self._shelf.put(lessons)
            self._put.update(lessons)

    def _learnt(self) -> Iterable[tuple[str, bytes]]:
        for name, backend in self._backends.items():
            prefill, decode = backend.calibration.lesson()
            if prefill or decode:
                yield _engine(self._url_of(name)), _encoded({"prefill": prefill, "decode": decode})
        for model in self._names():
            prompt = self._prompts.lesson(model)
            lengths = [(priority, self._outputs.lesson(model, priority)) for priority in Priority]
            answers = {str(int(priority)): tokens for priority, tokens in lengths if tokens is not None}
            if prompt or answers:
                yield _model(model), _encoded({"prompt": prompt, "answers": answers})


def _engine(url: str) -> str:
    return f"engine:{url}"


def _model(name: str) -> str:
    return f"model:{name}"


def _encoded(lesson: Lesson) -> bytes:
    return json.dumps({"version": VERSION} | lesson, separators=(",", ":")).encode()


def _decoded(told: bytes) -> Lesson:
    """Raises ValueError for what is no lesson."""
    try:
        lesson = json.loads(told) if len(told) <= LESSON_BYTES_MAX else None
    except RecursionError:
        lesson = None
    if not isinstance(lesson, dict) or lesson.get("version") != VERSION:
        raise ValueError("it is no lesson, or of another version")
    return lesson


def _numbers(told: object) -> list[float] | None:
    """Raises ValueError for what is neither numbers nor nothing."""
    if told is None:
        return None
    if not isinstance(told, list) or not all(type(one) in (int, float) for one in told):
        raise ValueError("it has no numbers")
    try:
        numbers = [float(one) for one in told]
    except OverflowError:
        numbers = [float("inf")]
    if not all(map(isfinite, numbers)):
        raise ValueError("it has numbers without end")
    return numbers
