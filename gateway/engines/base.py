"""What the gateway must know of an engine, as one protocol; nothing here does I/O.

Outside this package no engine is known by name: probes ask `paths` and hand the answers to `read`,
the relay hands refusals to `refusal`. Facts are those of the engines' sources and of recorded answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from policies.capacity import Memory
from policies.service_model import ServiceModel

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"

UPTIME_JITTER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer of an engine to a probe or a request."""

    status: int
    headers: Mapping[str, str]  # lower-case names
    body: bytes

    def json(self) -> Any:
        """The body as JSON, or None: engines behind a proxy also answer HTML."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Drafts(NamedTuple):
    """Tokens that were drafted ahead since the engine's start, and those of them that it accepted."""

    drafted: int
    accepted: int

    @property
    def share(self) -> float:
        """Accepted ones of all."""
        return self.accepted / self.drafted


@dataclass(frozen=True, slots=True)
class Report:
    """What a probe learnt. None: the engine does not say."""

    loading: bool = False  # it answers, but cannot serve yet
    slots: int | None = None
    context_tokens: int | None = None  # per slot
    models: tuple[str, ...] | None = None
    kv_tokens: int | None = None  # that all running requests may hold together
    busy: int | None = None  # requests it works on or holds back, ours included
    running: int | None = None  # of `busy`, those in slots
    waiting: int | None = None  # of `busy`, those that it holds back in a queue of its own
    refused: int | None = None  # requests refused or preempted for want of memory since its start; only grows
    drafts: Drafts | None = None  # None also while there are none
    spec_accept_ratio: float | None = None  # of drafted tokens, where an engine tells the share itself
    started: str | None = None  # changes when the engine restarts
    uptime_seconds: int | None = None  # what an engine tells that does not tell `started`

    @property
    def shows_slots(self) -> bool:
        """Whether it is seen when all slots are taken, though nobody tells their number."""
        return self.running is not None and self.waiting is not None

    def is_younger(self, earlier: Report, seconds: float) -> bool:
        """Whether the engine has restarted since `earlier`, this many seconds before, by its uptime.

        One that went down proves it. One that lags proves it too, but only by more than a probe may take:
        whole seconds, and answers that wait, are no restart.
        """
        if self.uptime_seconds is None or earlier.uptime_seconds is None:
            return False
        lost = earlier.uptime_seconds + seconds - self.uptime_seconds
        return self.uptime_seconds < earlier.uptime_seconds or lost > UPTIME_JITTER_SECONDS


@dataclass(frozen=True, slots=True)
class Overlength:
    """The engine refused a prompt as longer than its context."""

    prompt_tokens: int | None
    limit_tokens: int | None


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The engine refused a prompt that it holds, because the answer's limit does not fit behind it."""

    prompt_tokens: int  # by its own count


@dataclass(frozen=True, slots=True)
class Overload:
    """The engine refused for now; nothing was started."""

    pause_seconds: float | None  # its Retry-After


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine failed; it may have begun."""

    cause: str
    overfilled: bool = False  # by what it was given: the memory that all requests share was full


@dataclass(frozen=True, slots=True)
class Passed:
    """An answer about the request itself, which the client gets as it is."""


Refusal = Overlength | NoRoom | Overload | Failed | Passed


@dataclass(frozen=True, slots=True)
class Count:
    """A request that counts a prompt's tokens with the engine's own tokenizer."""

    path: str
    body: bytes


class Engine(Protocol):
    """One kind of engine."""

    name: str
    paths: tuple[str, ...]  # what a probe asks, in this order
    routes: frozenset[str]  # client routes it serves natively
    streams_always: bool  # a non-streaming request can only be cancelled if it streams upstream
    reuses_connections: bool
    cancel_seconds: float  # after our close it has surely stopped by then
    close_is_stop: bool  # once it has closed its side, it has stopped; else its load must tell
    prefix_kind: str  # what keeps prompts warm: "slot" (one per slot), "bank" (copied between), "block"
    memory: Memory  # how it becomes slots
    service: ServiceModel  # priors until its rates are learnt

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Whether these answers to `paths` can only be this engine's."""
        ...

    def read(self, answers: Mapping[str, Answer]) -> Report:
        """What the answers say; paths without an answer are missing."""
        ...

    def refusal(self, answer: Answer) -> Refusal:
        """What an answer that is not 2xx means."""
        ...

    def max_tokens(
        self,
        asked: int | None,
        default: int | None,
        prompt_tokens: int,
        context_tokens: int | None,
        *,
        counted: bool,
    ) -> int | None:
        """The limit of output that this engine must find in the body instead of `asked`; None: leave it.

        `default`: the operator's, for clients that give none; `context_tokens`: of one slot; `counted`: by
        a tokenizer, else `prompt_tokens` is an estimate.
        """
        ...

    def count(self, route: str, body: bytes) -> Count | None:
        """How to count the tokens of this request's prompt; None: the engine cannot."""
        ...

    def counted(self, answer: Answer) -> int | None:
        """The count in the answer to `count`."""
        ...
