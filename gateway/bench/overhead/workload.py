"""The requests that are sent: answers of one piece, bursts, and streams paced as an engine paces them."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """A closed loop: so many connections, each with one request in flight, for so many seconds."""

    name: str
    connections: int
    seconds: float
    events: int = 0  # of a stream; 0: an answer of one piece
    pause_us: int = 0  # between events; 0: all in one write
    first_us: int = 0  # until the first event, of those that pause; 0: it goes with the head, at once

    def body(self) -> bytes:
        """The request; the fake engine reads the number of events from max_tokens, the pause from seed,
        and from top_k when it begins."""
        request: dict[str, object] = {
            "model": "mock-model",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant. Answer briefly and precisely."},
                {
                    "role": "user",
                    "content": "Tell me a short story about a fox and a dog, in three sentences.",
                },
            ],
            "temperature": 0.7,
            "max_tokens": self.events or 64,
        }
        if self.pause_us:
            request["seed"] = self.pause_us
        if self.first_us:
            request["top_k"] = self.first_us
        if self.events:
            request["stream"] = True
        return json.dumps(request).encode()


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("plain1", connections=1, seconds=1.5),
        Workload("plain32", connections=32, seconds=2),
        Workload("plain128", connections=128, seconds=2),
        Workload("burst32", connections=32, seconds=2, events=64),
        Workload("ttft1", connections=1, seconds=2, events=8, pause_us=1_000),
        Workload("late1", connections=1, seconds=2, events=8, pause_us=1_000, first_us=1_000),
        Workload("paced128", connections=128, seconds=3.3, events=64, pause_us=20_000),
        Workload("paced512", connections=512, seconds=3.3, events=64, pause_us=20_000),
    )
}
