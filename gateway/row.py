"""One request that ended, as journal and log write it down: figures and names, never prompt text."""

from __future__ import annotations

import struct
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from gateway.accounting import Record, TokenSource
from gateway.logs import quoted
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
        or goes without saying. Put together here: by way of a dictionary it took four times as long."""
        prompt, cached, completion, reasoning, queued, ttft, seconds = FIGURES(self)
        told = f'"request_id": {quoted(self.request_id)}, {_names(*CALLED(self))}'
        if self.id != self.request_id:
            told = f'"id": {quoted(self.id)}, {told}'
        if self.retries:
            told += f', "retries": {self.retries}'
        if prompt is not None:
            told += f', "prompt_tokens": {prompt}'
        if cached is not None:
            told += f', "cached_tokens": {cached}'
        if completion is not None:
            told += f', "completion_tokens": {completion}'
        if reasoning is not None:
            told += f', "reasoning_tokens": {reasoning}'
        if queued is not None:
            told += f', "queue_seconds": {queued:.4f}'
        if ttft is not None:
            told += f', "ttft_seconds": {ttft:.4f}'
        return f'{told}, "seconds": {seconds:.4f}'

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


NAMES = ("outcome", "error", "route", "model", "backend", "key", "agent", "priority", "source")
FIGURED = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "queue_seconds",
    "ttft_seconds",
    "seconds",
)
CALLED = itemgetter(*map(Row._fields.index, NAMES))
FIGURES = itemgetter(*map(Row._fields.index, FIGURED))


@lru_cache(maxsize=1024)
def _names(*names: str | None) -> str:
    """Those that many requests have in common."""
    return ", ".join(
        f'"{"class" if name == "priority" else name}": {quoted(value)}'
        for name, value in zip(NAMES, names, strict=True)
        if value is not None
    )


SOURCES = {source: source.value for source in TokenSource}
_row = tuple.__new__  # a named tuple's own takes its fields one by one, which is as long as all the rest


def row_of(record: Record, wall: float) -> Row:
    """The row of a request that ended; `wall` is the time since 1970 when the monotonic clock read 0.

    All are plain numbers and texts: for a bool or an enumeration sqlite3 looks for a converter each time.
    """
    lease, seconds, queued = record.lease, record.seconds or 0.0, record.queue_wait
    ttft = backend_ttft = tpot = slot_seconds = None
    model = _text(record.model)
    if record.first_token is not None:
        ttft, backend_ttft, tpot = record.ttft, record.backend_ttft, record.tpot
    if lease is None:
        served_model = prefill_seconds = cost_seconds = output_tokens_max = chain = None
    else:
        call = lease.call
        served_model = model if lease.model == record.model else _text(lease.model)
        prefill_seconds, cost_seconds = lease.prefill_seconds, lease.cost_seconds
        output_tokens_max, chain = call.output_tokens_max, packed(call.chain)
        if queued is not None:
            slot_seconds = seconds - queued
    return _row(
        Row,
        (
            record.id,
            record.request_id or record.id,
            wall + record.arrived,
            record.key,
            _text(record.agent),
            record.conversation and _text(record.conversation),
            None if record.priority is None else record.priority.label,
            record.route,
            model,
            served_model,
            record.backend or None,
            1 if record.streamed else 0,
            record.outcome or "",
            record.error,
            record.retries,
            record.prompt_bytes,
            record.prompt_tokens_estimated,
            record.cached_tokens_predicted,
            prefill_seconds,
            cost_seconds,
            output_tokens_max,
            record.prompt_tokens,
            record.cached_tokens,
            record.completion_tokens,
            record.reasoning_tokens,
            record.spec_drafted,
            record.spec_accepted,
            None if record.source is None else SOURCES[record.source],
            record.events,
            record.answer_bytes,
            queued,
            ttft,
            backend_ttft,
            tpot,
            seconds,
            slot_seconds,
            chain,
        ),
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
