"""One request that ended, as journal and log write it down: figures and names, never prompt text."""

from __future__ import annotations

import struct
from json.encoder import encode_basestring_ascii
from operator import itemgetter
from typing import NamedTuple

from gateway.accounting import Record, TokenSource
from policies.prefix import Chain, Link

TEXT_MAX = 200
LINKS_MAX = 512  # of a chain are kept
LINK = struct.Struct("<QI")


class Row(NamedTuple):
    """One request that ended. None: not known, or it did not happen."""

    id: str
    request_id: str  # as the client and the engine saw it
    arrived: float  # seconds since 1970
    key: str
    agent: str
    conversation: str | None  # as the client named it
    priority: str | None  # its class
    route: str
    model: str  # as the client named it
    served_model: str | None  # as the backend names it
    backend: str | None
    streamed: int  # to the client: 0 or 1
    outcome: str
    error: str | None
    retries: int
    prompt_bytes: int
    prompt_tokens_estimated: int | None
    cached_tokens_predicted: int | None
    prefill_seconds_predicted: float | None
    cost_seconds_predicted: float | None
    output_tokens_max: int | None
    prompt_tokens: int | None  # cached ones included
    cached_tokens: int | None
    completion_tokens: int | None  # reasoning included
    reasoning_tokens: int | None
    spec_drafted: int | None
    spec_accepted: int | None
    source: str | None  # of the four counts
    events: int
    answer_bytes: int
    queue_seconds: float | None  # from arrival to the last dispatch
    ttft_seconds: float | None  # from arrival to the first token
    backend_ttft_seconds: float | None  # from dispatch to the first token
    tpot_seconds: float | None
    seconds: float  # from arrival to the end
    slot_seconds: float | None  # from the last dispatch to the end
    chain: bytes | None  # see `links`

    @property
    def ended(self) -> float:
        """Seconds since 1970."""
        return self.arrived + self.seconds

    def members(self) -> str:
        """What a line of the log tells machines, as the members of a JSON object, without what is not known
        or goes without saying. Put together here: by way of a dictionary it took twice as long."""
        told = [f'"request_id": {encode_basestring_ascii(self.request_id)}']
        if self.id != self.request_id:
            told.append(f'"id": {encode_basestring_ascii(self.id)}')
        for name, value in zip(NAMES, VALUES(self), strict=True):
            if type(value) is float:
                told.append(f"{name}{value:.4f}")
            elif value is not None:
                told.append(name + (encode_basestring_ascii(value) if type(value) is str else str(value)))
        if self.retries:
            told.append(f'"retries": {self.retries}')
        return ", ".join(told)

    def sentence(self) -> str:
        """What it tells people."""
        what = f"{self.outcome}{f' ({self.error})' if self.error else ''}: {self.model or self.route}"
        where = f" on {self.backend}" if self.backend else ""
        times = [f"{self.seconds:.1f} s"]
        if self.ttft_seconds is not None:
            times.append(f"first token {self.ttft_seconds:.1f} s")
        if self.queue_seconds is not None:
            times.append(f"queue {self.queue_seconds:.1f} s")
        if self.prompt_tokens is not None and self.completion_tokens is not None:
            about = "about " if self.source == TokenSource.ESTIMATED else ""
            cached = f" ({self.cached_tokens:,} cached)" if self.cached_tokens else ""
            times.append(f"{about}{self.prompt_tokens:,}{cached} + {self.completion_tokens:,} tokens")
        return f"{what}{where}, {', '.join(times)}; {self.agent or 'nobody known'}, {self.request_id}"


TOLD = (
    "outcome",
    "error",
    "route",
    "model",
    "backend",
    "key",
    "agent",
    "priority",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "source",
    "queue_seconds",
    "ttft_seconds",
    "seconds",
)
NAMES = tuple(f'"{"class" if name == "priority" else name}": ' for name in TOLD)
VALUES = itemgetter(*map(Row._fields.index, TOLD))


def row_of(record: Record, wall: float) -> Row:
    """The row of a request that ended; `wall` is the time since 1970 when the monotonic clock read 0.

    All are plain numbers and texts: for a bool or an enumeration sqlite3 looks for a converter each time.
    """
    lease, seconds = record.lease, record.seconds or 0.0
    queued = record.queue_wait
    return Row(
        record.id,
        record.request_id or record.id,
        wall + record.arrived,
        record.key,
        _text(record.agent),
        record.conversation and _text(record.conversation),
        None if record.priority is None else record.priority.label,
        record.route,
        _text(record.model),
        None if lease is None else _text(lease.model),
        record.backend or None,
        1 if record.streamed else 0,
        record.outcome or "",
        record.error,
        record.retries,
        record.prompt_bytes,
        record.prompt_tokens_estimated,
        record.cached_tokens_predicted,
        None if lease is None else lease.prefill_seconds,
        None if lease is None else lease.cost_seconds,
        None if lease is None else lease.call.output_tokens_max,
        record.prompt_tokens,
        record.cached_tokens,
        record.completion_tokens,
        record.reasoning_tokens,
        record.spec_drafted,
        record.spec_accepted,
        None if record.source is None else record.source.value,
        record.events,
        record.answer_bytes,
        queued,
        record.ttft,
        record.backend_ttft,
        record.tpot,
        seconds,
        None if lease is None or queued is None else seconds - queued,
        None if lease is None else packed(lease.call.chain),
    )


def _text(text: str) -> str:
    """What a client named, as SQLite takes it: not too long, without half characters."""
    if len(text) <= TEXT_MAX and text.isascii():
        return text
    return text[:TEXT_MAX].encode(errors="replace").decode()


def packed(chain: Chain) -> bytes | None:
    """A chain of message hashes as bytes; None: there is none.

    Of a very long one every second, fourth, ... link is kept, the same ones in each prompt that goes on
    from there, and the last.
    """
    if not chain:
        return None
    step = 1
    while len(chain) > step * LINKS_MAX:
        step *= 2
    kept = chain if step == 1 else (*chain[step - 1 : -1 : step], chain[-1])
    return b"".join([LINK.pack(link.digest, link.end_bytes) for link in kept])


def links(chain: bytes | None) -> Chain:
    """The hashes of a row's messages, each with the bytes of the prompt up to its end: what two prompts
    have in common, without a word of them."""
    return tuple(Link(digest, end_bytes) for digest, end_bytes in LINK.iter_unpack(chain or b""))
