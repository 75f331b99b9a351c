"""What a call costs on a backend, in seconds: the one currency that holds across unlike engines.

Its own seconds, and those that it takes from others: streams that nearly stop while its prompt is read, and
go slower while it decodes beside them; a conversation whose cached prompt gives way to this one, if it
comes back.
"""

from __future__ import annotations

from typing import NamedTuple

from policies.ejection import FAILURES_IN_A_ROW
from policies.returns import NOBODY, Returns
from policies.types import Backend, Call

# What a second until the first token counts, beside one of the answer: somebody waits at a screen, or nobody.
WEIGHTS = (6.0, 1.0, 0.3)  # by class
RETURN_SHARE = 0.2  # of the seconds to read a prompt again that gives way, if nobody is expected back for it


class Cost(NamedTuple):
    """A call's predicted seconds on one backend, were it to start now."""

    cached_tokens: int
    prefill_seconds: float
    decode_seconds: float
    harm_seconds: float = 0.0  # to others
    risk_seconds: float = 0.0  # of having to do it again
    displaced_seconds: float = 0.0  # of reading again what gives way to it

    @property
    def seconds(self) -> float:
        """Everything together, with nothing in its way."""
        own = self.prefill_seconds + self.decode_seconds + self.risk_seconds
        return own + self.harm_seconds + self.displaced_seconds


class Occupancy(NamedTuple):
    """What a backend has to do already, as far as that is the same for all that may come."""

    others: int  # sequences beside one more, once it runs
    stopped: float  # streams that stand still while a prompt is read, in whole ones
    risk_share: float  # of having to do it again


def occupancy(backend: Backend) -> Occupancy:
    """As of now."""
    service, failures, stopped = backend.service, backend.ejection.failures, 0.0
    others = min(len(backend.leases) + backend.foreign, backend.slots - 1)
    if others > 0:
        decoding = max(0, others - len(backend.prefilling))
        rate = service.starved_tokens_per_second * service.token_seconds(max(1, decoding))
        stopped = decoding * max(0.0, 1 - rate)
    return Occupancy(others, stopped, min(1.0, failures / FAILURES_IN_A_ROW) if failures else 0.0)


def cost(call: Call, backend: Backend, returns: Returns = NOBODY, beside: Occupancy | None = None) -> Cost:
    """Prefill of what is not cached there, decode at the batch that results, harm and risk. `beside`: the
    backend's occupancy, if it is known."""
    service, cached, tokens = backend.service, cached_tokens(call, backend), call.prompt_tokens
    others, stopped, risk_share = occupancy(backend) if beside is None else beside
    limit, usual = call.output_tokens_max, call.outputs.mean
    output = usual if limit is None else min(limit, usual)
    prefill = service.prefill_seconds(tokens, cached)
    decode = service.decode_seconds(output, others + 1, tokens)
    harm = again = 0.0
    if others > 0:
        harm = prefill * stopped + output * service.decode_step_seconds * others
    if (displaced := backend.shadow.displaced(call.chain, call.inside)) is not None:
        # It will be read again amid as many others, and stop them.
        share = 1 + max(0, others) if returns.expected(displaced.key) else RETURN_SHARE
        again = share * service.prefill_seconds(displaced.tokens)
    risk = risk_share * (prefill + decode) if risk_share else 0.0
    return Cost(cached, prefill, decode, harm, risk, again)


def seconds_behind(call: Call, backend: Backend, price: Cost, ahead_seconds: float) -> float:
    """What the call costs there, if its prompt is read after so long."""
    first = ahead_seconds + price.prefill_seconds + backend.service.first_token_seconds
    rest = price.decode_seconds + price.harm_seconds + price.risk_seconds + price.displaced_seconds
    return WEIGHTS[call.priority] * first + rest


def cached_tokens(call: Call, backend: Backend) -> int:
    """Tokens of the prompt that the backend's cache probably holds.

    Bytes of the shared links, taken as the same share of the tokens; the last token is always
    computed, since the engine needs its logits.
    """
    if not call.chain:
        return 0
    whole = call.chain[-1].end_bytes
    matched = backend.shadow.matched_bytes(call.chain, call.inside)
    if not whole or not matched:
        return 0
    return min(call.prompt_tokens - 1, backend.service.found(call.prompt_tokens * matched // whole))
