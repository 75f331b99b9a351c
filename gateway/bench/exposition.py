"""`python -m gateway.bench.exposition`: for how long a scrape of many backends keeps a stream from its turn.

A stream is an event loop's timer of 1 ms here; a scrape is what `GET /metrics` does, as in the served
process: its figures read on the loop, its text made in a thread.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Sequence
from itertools import product

import uvloop

from gateway.accounting import Record, TokenSource
from gateway.api import exposition
from gateway.collector import GC_THRESHOLDS
from gateway.lifecycle import SWITCH_SECONDS
from gateway.metrics import Metrics
from policies.admission import Admission
from policies.prefix import PrefixShadow
from policies.service_model import ServiceModel
from policies.types import Backend, Limits, Priority, State

MODELS = ("small", "large")
OUTCOMES = ("completed", "client_gone", "rejected", "timeout", "backend_failed")
TURN_SECONDS = 0.001
SCRAPES = 20
PAUSE_SECONDS = 0.1  # between two scrapes


def filled(backends: int) -> Metrics:
    """Metrics in which every backend has served every model, class and outcome."""
    admission = Admission(Limits())
    for number in range(backends):
        admission.add(
            Backend(
                name=f"backend-{number}",
                service=ServiceModel(),
                shadow=PrefixShadow(4),
                state=State.READY,
                slots=4,
                context_tokens=65_536,
                models=frozenset(MODELS),
            ),
            0.0,
        )
    metrics = Metrics(admission, "0")
    now = time.monotonic()
    for backend, model, priority, outcome in product(admission.backends, MODELS, Priority, OUTCOMES):
        record = Record(id="", route="", arrived=now - 9)
        record.backend, record.model, record.priority, record.outcome = backend, model, priority, outcome
        record.dispatched, record.first_token, record.last_token, record.ended = now - 8, now - 5, now, now
        record.streamed, record.source, record.events = True, TokenSource.REPORTED, 100
        record.prompt_tokens, record.cached_tokens = 1000, 500
        record.completion_tokens, record.reasoning_tokens = 100, 50
        metrics.observe(record)
    return metrics


async def stalls(metrics: Metrics, scrapes: int) -> list[float]:
    """By how many seconds each turn of a stream came late, during so many scrapes."""
    late: list[float] = []

    async def stream() -> None:
        while True:
            due = time.perf_counter() + TURN_SECONDS
            await asyncio.sleep(TURN_SECONDS)
            late.append(time.perf_counter() - due)

    turning = asyncio.create_task(stream())
    for _ in range(scrapes):
        await exposition(metrics)
        await asyncio.sleep(PAUSE_SECONDS)
    turning.cancel()
    return sorted(late)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.exposition", description=__doc__)
    parser.add_argument("--backends", type=int, default=16)
    options = parser.parse_args(words)
    metrics = filled(options.backends)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    started = time.thread_time()
    read = metrics.snapshot()
    on_loop = time.thread_time() - started
    text = read()
    whole = time.thread_time() - started
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    print(f"{options.backends} backends, {series:,} series, {len(text):,} bytes")
    print(f"processor: {on_loop * 1e3:.2f} ms on the loop, {(whole - on_loop) * 1e3:.0f} ms in the thread")
    for interval in (sys.getswitchinterval(), SWITCH_SECONDS):
        sys.setswitchinterval(interval)
        late = uvloop.run(stalls(metrics, SCRAPES))
        median, nearly, worst = (late[min(len(late) * part // 100, len(late) - 1)] for part in (50, 99, 100))
        print(
            f"threads switch after {interval * 1e3:g} ms: a turn comes late by {median * 1e3:.2f} ms in the "
            f"median, {nearly * 1e3:.2f} ms p99, {worst * 1e3:.2f} ms at most"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
