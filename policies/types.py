"""The nouns of admission: a call that asks for a slot, a backend that has some, a lease that holds one.

Everything is a value that nobody changes, except `Backend`, the one record that does, and only `Admission`
changes it. (`Call`, `Lease` and `Granted` are made once per request; frozen ones would take two to four times
as long.)
Times are seconds on the caller's monotonic clock, durations seconds, sizes tokens unless a name says bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, fields

from policies.calibration import Calibration
from policies.ejection import Ejection
from policies.load import Load, Work
from policies.output_length import UNKNOWN, OutputTokens
from policies.prefix import Link, Shadow
from policies.service_model import ServiceModel


class Priority(enum.IntEnum):
    """The class of a call; the lower value goes first."""

    INTERACTIVE = 0
    AGENT = 1
    BATCH = 2

    @property
    def label(self) -> str:
        """The name that clients send and metrics carry."""
        return LABELS[self]


LABELS = ("interactive", "agent", "batch")


class State(enum.StrEnum):
    """What a backend is up to. Only `READY` takes calls; `EJECTED` takes one when its pause is over."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    EJECTED = "ejected"
    DOWN = "down"


class Source(enum.StrEnum):
    """Where a backend's number of slots comes from."""

    CONFIGURED = "configured"
    REPORTED = "reported"
    LEARNT = "learnt"
    ASSUMED = "assumed"


class Reason(enum.StrEnum):
    """Why a call does not start on a backend now."""

    NOT_READY = "not_ready"
    PAUSED = "paused"
    CONTEXT = "context"
    SLOTS = "slots"
    KV_BUDGET = "kv_budget"
    GATE = "prefill_gate"
    RESERVE = "interactive_reserve"
    HOLD = "hold"  # it could start, but it is worth the wait to start elsewhere
    STANDBY = "standby"  # a backup or fallback, and a better one is ready


class Refusal(enum.StrEnum):
    """Why a call will not start at all. The values are the error codes that clients read."""

    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    QUEUE_FULL = "queue_full"
    WAIT_TOO_LONG = "wait_too_long"
    NO_BACKEND_READY = "no_backend_ready"
    SHUTTING_DOWN = "shutting_down"


@dataclass(slots=True, eq=False)
class Call:
    """A request as far as scheduling is concerned; it never holds prompt text."""

    id: str
    model: str  # what the client named
    route: str
    priority: Priority
    agent: str
    arrived: float
    prompt_tokens: int
    conversation: Hashable = None  # None: nobody can tell
    accounts: tuple[tuple[Hashable, ...], ...] = ()  # charged: the key's, the agent's, the conversation's
    prompt_counted: bool = False  # by the engine's own tokenizer; else estimated
    output_tokens_max: int | None = None
    outputs: OutputTokens = UNKNOWN  # how long answers of its class are
    chain: tuple[Link, ...] = ()  # message-hash chain of the prompt; its last link ends the prompt
    inside: tuple[Link, ...] = ()  # places inside its last message
    body_bytes: int = 0
    start_by: float | None = None  # a client that cannot wait longer than this
    targets: tuple[str, ...] = ()  # models that may serve it, an alias's; empty: `model` itself
    fallbacks: tuple[str, ...] = ()  # models tried in turn while no backend of those before is ready

    @property
    def wanted(self) -> tuple[str, ...]:
        """The models of which each will do."""
        return self.targets or (self.model,)


@dataclass(slots=True, eq=False)
class Lease:
    """A slot of one backend, held by one call, with what was predicted when it was taken."""

    call: Call
    backend: str
    model: str  # which of the call's models serves it there
    granted: float
    tokens: int  # that it may hold: prompt and a usual answer
    cached_tokens: int
    prefill_seconds: float
    decode_seconds: float
    cost_seconds: float
    long: bool  # its prefill counts for the prefill gate
    rival: str = ""  # the backend that was next best
    rival_seconds: float = 0.0  # what it would have cost there, waiting included
    held_seconds: float = 0.0  # for which it left other slots free, to start here
    trial: bool = False  # the one request that a half-open backend gets
    work: Work = field(default_factory=Work)


@dataclass(slots=True)
class Granted:
    """Decision: this call starts now, on this backend."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Rejected:
    """Decision: this call will not start."""

    call: Call
    refusal: Refusal
    retry_after_seconds: float | None = None
    limit_tokens: int | None = None  # the largest context, for CONTEXT_LENGTH_EXCEEDED
    models: tuple[str, ...] = ()  # those that exist, for MODEL_NOT_FOUND


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Decision: a backend is in another state from now on."""

    backend: str
    state: State
    why: str


Decision = Granted | Rejected | StateChanged


@dataclass(frozen=True, slots=True)
class Limits:
    """The operator's bounds on queue and routing; meaning and defaults as in the configuration."""

    waiting_max: int = 1024
    waiting_bytes_max: int = 268_435_456
    wait_seconds_max: float = 900.0
    unavailable_grace_seconds: float = 60.0
    prefill_gate_seconds: float = 1.0
    long_prefills_per_backend: int = 1
    interactive_reserve_slots: int = 1
    hold_seconds_max: float = 60.0

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled whole: compiled, it would be set member by member, which a frozen one does not allow."""
        return type(self), tuple([getattr(self, one.name) for one in fields(self)])


@dataclass(slots=True, eq=False)
class Backend:
    """One running engine at one URL, as admission sees it."""

    name: str
    service: ServiceModel
    shadow: Shadow
    ejection: Ejection = field(default_factory=Ejection)
    state: State = State.STARTING
    why: str = ""  # the state's reason, for people
    since: float = 0.0
    slots: int = 1
    slots_source: Source = Source.ASSUMED
    context_tokens: int | None = None  # per slot; None: nobody knows
    kv_tokens: int | None = None  # that all requests may hold together; None: no such budget is known
    held_tokens: int = 0  # of `kv_tokens`, by the leases
    backup: bool = False  # used only while no other backend can serve
    models: frozenset[str] | None = None  # None: not known yet
    routes: frozenset[str] = frozenset()
    foreign: int = 0  # requests at the engine that are not ours
    withheld: int = 0  # free slots that are not to be given now: others are first in line for them
    resting: int = 0  # slots that it does not get back yet after an ejection: each first token brings one
    paused_until: float = 0.0
    changes: int = 0  # of what runs there, and so of what its cache holds
    last_grant: int = 0  # serial number, so that ties rotate
    leases: dict[str, Lease] = field(default_factory=dict)  # by call id, leaving ones included
    leaving: set[str] = field(default_factory=set)  # the client left, the engine may still be at it
    prefilling: set[str] = field(default_factory=set)  # granted, no first token yet
    long_prefills: int = 0  # long ones of those
    load: Load = field(default_factory=Load)
    calibration: Calibration = field(init=False)

    def __post_init__(self) -> None:
        self.calibration = Calibration(self.service)

    def restarted(self) -> None:
        """Another process runs there: nothing is cached, and what was learnt is a guess again."""
        self.resting = 0
        self.shadow.clear()
        self.calibration.restarted()
        self.service = self.calibration.model

    def turn(self, now: float) -> None:
        """Its leases, or what it reads, have just changed."""
        self.changes += 1
        reading = len(self.prefilling)
        self.load.change(now, len(self.leases) + self.foreign - reading, reading > 0)

    def reads(self, lease: Lease) -> None:
        """It was given this prompt to read."""
        self.prefilling.add(lease.call.id)
        self.long_prefills += lease.long

    def has_read(self, lease: Lease) -> None:
        """It reads this prompt no more, if it did."""
        if lease.call.id in self.prefilling:
            self.prefilling.remove(lease.call.id)
            self.long_prefills -= lease.long

    def next_prefill(self, now: float) -> None:
        """A prompt has been read: the engine comes to the one that it was given first of the others."""
        work = next(lease.work for id, lease in self.leases.items() if id in self.prefilling)
        if work.begun is None:
            work.begun = now

    @property
    def free(self) -> int:
        """Slots that a call could take now; 0 while the engine holds more than it has."""
        return max(0, self.slots - len(self.leases) - self.foreign - self.withheld)

    @property
    def in_use(self) -> int:
        """Slots that run a request of a client who is still there."""
        return len(self.leases) - len(self.leaving)

    @property
    def half_open(self) -> bool:
        """Ejected, but a single request may try it."""
        return self.state is State.EJECTED and not any(self.leases[id].trial for id in self.prefilling)

    @property
    def window(self) -> int | None:
        """Tokens that one call may hold: the context of a slot, and no more than the kv budget."""
        if self.kv_tokens is None or self.context_tokens is None:
            return self.kv_tokens or self.context_tokens
        return min(self.kv_tokens, self.context_tokens)

    def may_serve(self, models: Iterable[str]) -> bool:
        """Whether one of these models is, or may turn out to be, served here."""
        return self.models is None or not self.models.isdisjoint(models)

    def serves(self, call: Call) -> bool:
        """Whether a model of the call is, or may turn out to be, served here."""
        if call.route not in self.routes:
            return False
        if call.targets:
            return self.model_for(call) is not None
        return self.models is None or call.model in self.models

    def model_for(self, call: Call) -> str | None:
        """The call's model that would serve it here, the first one if nobody knows; None: none of them."""
        if self.models is None:
            return call.wanted[0]
        for model in (*call.wanted, *call.fallbacks):
            if model in self.models:
                return model
        return None
