"""How fast backends were, from requests that are long over: what is learnt in service, learnt from rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policies.calibration import Calibration
from policies.load import Load, Reading
from policies.service_model import ServiceModel
from policies.traffic import Asked

STARTS, SPEAKS, ENDS = range(3)  # the order of what happens at one time
CLOSING_SECONDS = 0.05  # before the end of a request is on record, the next one may have its slot


@dataclass(frozen=True, slots=True)
class Hindsight:
    """One backend, as its requests show it."""

    service: ServiceModel
    samples: int  # clean prefills that taught it
    learnt: bool  # else the prior stands
    slots: int  # the most requests that ran side by side: it has at least so many
    context_tokens: int  # of the longest request: a slot holds at least so many


def hindsight(asked: Iterable[Asked], prior: ServiceModel) -> dict[str, Hindsight]:
    """Each backend that served any of these."""
    rows: dict[str, list[Asked]] = {}
    for row in asked:
        rows.setdefault(row.backend, []).append(row)
    found: dict[str, Hindsight] = {}
    for backend, served in sorted(rows.items()):
        first = _seen(served, prior)
        found[backend] = _seen(served, first.service)  # learning is slow to leave a prior that is far off
    return found


def _seen(rows: Sequence[Asked], prior: ServiceModel) -> Hindsight:
    """Play one backend's requests back. Prefill is serial: a prompt was begun when the one before it was
    done, or at its dispatch."""
    calibration, load = Calibration(prior), Load()
    reading: dict[int, None] = {}  # prompts that are not answered yet, in the order of dispatch
    begun: dict[int, float] = {}
    alone: set[int] = set()  # began at their dispatch
    firsts: dict[int, Reading] = {}
    running = most = 0
    for at, kind, number in _events(rows):
        row = rows[number]
        if kind == STARTS:
            running += 1
            most = max(most, running)
            if not reading:
                begun[number] = at
                alone.add(number)
            reading[number] = None
        elif kind == SPEAKS:
            if number in begun:  # else the engine read it before one that came earlier
                # One that had to wait began while the first token of the one before was on its way.
                ahead = 0.0 if number in alone else calibration.model.first_token_seconds
                _prefilled(calibration, row, at - begun[number] + ahead)
            firsts[number] = load.read(at)
            _read(reading, begun, number, at)
        else:
            running -= 1
            if number in firsts:
                _decoded(calibration, row, firsts[number], load.read(at))
            else:
                _read(reading, begun, number, at)
        load.change(at, running - len(reading), bool(reading))
    return Hindsight(
        service=calibration.model,
        samples=calibration.samples,
        learnt=calibration.learnt,
        slots=most,
        context_tokens=max(row.tokens for row in rows),
    )


def _events(rows: Sequence[Asked]) -> list[tuple[float, int, int]]:
    """When each request was dispatched, spoke and ended, in order of time."""
    events: list[tuple[float, int, int]] = []
    for number, row in enumerate(rows):
        events.append((row.dispatched, STARTS, number))
        if row.first is not None:
            events.append((row.first, SPEAKS, number))
        began = row.dispatched if row.first is None else row.first
        events.append((max(began, row.ended - CLOSING_SECONDS), ENDS, number))
    return sorted(events)


def _read(reading: dict[int, None], begun: dict[int, float], number: int, at: float) -> None:
    """This prompt was read; the engine comes to the next."""
    reading.pop(number, None)
    for following in list(reading)[:1]:
        begun.setdefault(following, at)


def _prefilled(calibration: Calibration, row: Asked, seconds: float) -> None:
    if seconds > 0 and row.cached_tokens is not None:
        calibration.prefilled(row.prompt_tokens, min(row.cached_tokens, row.prompt_tokens - 1), seconds)


def _decoded(calibration: Calibration, row: Asked, first: Reading, end: Reading) -> None:
    seconds = end.at - first.at
    if seconds > 0:
        batch = (end.sequence_seconds - first.sequence_seconds) / seconds
        starved = end.prefill_seconds - first.prefill_seconds
        calibration.decoded(row.prompt_tokens, row.output_tokens - 1, seconds, starved, batch)
