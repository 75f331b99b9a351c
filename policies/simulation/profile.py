"""How fast an engine is, as a handful of constants, and the four published deployments.

A backend is one serial prefill server and S decode slots. Sources of the constants: public write-ups of
DeepSeek V4 Flash on DGX Spark (August 2026): vLLM with speculative decoding on two boxes, mainline
llama.cpp on one, and ds4 on one with 262,144 and with 65,536 tokens of context. `tests/unit` holds their
tables and how far the model is from them. Values marked `assumed` are in none of the tables.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace


class CacheKind(enum.StrEnum):
    """How an engine keeps prefixes."""

    SLOT = "slot"  # one sequence per slot, replaced by the next request there
    BANK = "bank"  # the same, but a prefix counts only in whole checkpoints
    BLOCK = "block"  # a pool of blocks that all sequences share, the longest unused one goes first


@dataclass(frozen=True, slots=True)
class Profile:
    """An engine's constants. Rates are tokens per second, times seconds."""

    name: str
    slots: int
    context_tokens: int
    setup_seconds: float  # of each prefill, on the prefill server
    latency_seconds: float  # before each prefill, beside the prefill server
    short_rate: float  # prefill of the first `knee_tokens`
    long_rate: float  # and of the rest
    quadratic_seconds: float  # more per squared token of prompt
    decode_base_seconds: float
    decode_step_seconds: float  # more per sequence of the batch
    decode_context_seconds: float  # more per token of context
    starved_rate: float  # of each stream while a prefill runs: one step per prefill chunk
    prefill_slowdown: float  # of a prefill, per stream that decodes
    chunk_tokens: int  # of a prompt computed in one step
    cache: CacheKind
    cache_tokens: int  # a prefix counts in multiples of this
    pool_tokens: int = 0  # of a block cache
    knee_tokens: int = 2048

    def work(self, tokens: int) -> float:
        """Seconds of prefill of the first `tokens` of a prompt, set-up not included."""
        short = min(tokens, self.knee_tokens)
        linear = short / self.short_rate + (tokens - short) / self.long_rate
        return linear + self.quadratic_seconds * tokens * tokens

    def prefill_seconds(self, prompt_tokens: int, cached_tokens: int) -> float:
        """Seconds on an otherwise idle prefill server."""
        return self.setup_seconds + self.work(prompt_tokens) - self.work(cached_tokens)

    def token_seconds(self, batch: int, context_tokens: float) -> float:
        """Seconds per token of each of `batch` streams that decode, of this mean context."""
        return (
            self.decode_base_seconds
            + self.decode_step_seconds * batch
            + self.decode_context_seconds * context_tokens
        )

    def service_seconds(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> float:
        """Seconds of a request that is alone on the engine."""
        decode = (output_tokens - 1) * self.token_seconds(1, prompt_tokens)
        return self.latency_seconds + self.prefill_seconds(prompt_tokens, cached_tokens) + decode

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether a slot holds both."""
        return prompt_tokens + output_tokens <= self.context_tokens


VLLM_2SPARK = Profile(
    name="vllm-2spark",
    slots=6,
    context_tokens=1_048_576,
    setup_seconds=0.301,
    latency_seconds=0.296,
    short_rate=8469.0,
    long_rate=1742.0,
    quadratic_seconds=0.0,
    decode_base_seconds=0.01234,
    decode_step_seconds=0.00229,
    decode_context_seconds=0.0,
    starved_rate=8.45,
    prefill_slowdown=0.021,
    chunk_tokens=1024,
    cache=CacheKind.BLOCK,
    cache_tokens=256,
    pool_tokens=1_894_867,
)
LLAMACPP_131K = Profile(
    name="llamacpp-131k",
    slots=4,
    context_tokens=131_072,
    setup_seconds=0.0845,
    latency_seconds=0.0,
    short_rate=465.0,
    long_rate=465.0,
    quadratic_seconds=1.28e-8,
    decode_base_seconds=0.0412,
    decode_step_seconds=0.0107,
    decode_context_seconds=1.67e-7,
    starved_rate=0.227,
    prefill_slowdown=0.0,
    chunk_tokens=2048,
    cache=CacheKind.SLOT,
    cache_tokens=1,
)
DS4_262K = Profile(
    name="ds4-262k",
    slots=2,
    context_tokens=262_144,
    setup_seconds=0.05,
    latency_seconds=0.05,
    short_rate=1526.0,  # from one cold prompt of 2,048 tokens
    long_rate=1435.0,  # assumed: upstream's trend
    quadratic_seconds=4e-9,  # assumed
    decode_base_seconds=0.0305,
    decode_step_seconds=0.0170,
    decode_context_seconds=0.0,  # assumed
    starved_rate=3.1,  # assumed: 4.2 tokens a step, chunks of 2,048
    prefill_slowdown=0.0,  # assumed
    chunk_tokens=2048,
    cache=CacheKind.BANK,
    cache_tokens=2048,  # assumed: it saved 21 % of a warm prompt of 2,000 tokens
)
DS4_64K = replace(
    DS4_262K,
    name="ds4-64k",
    slots=11,
    context_tokens=65_536,
    decode_base_seconds=0.0462,
    decode_step_seconds=0.0111,
)

PROFILES = {profile.name: profile for profile in (VLLM_2SPARK, LLAMACPP_131K, DS4_262K, DS4_64K)}


def fleet(names: Sequence[str]) -> list[Profile]:
    """Profiles by name, in this order; one that is named again is another engine of the kind, with a
    name of its own. KeyError: no such profile."""
    engines: list[Profile] = []
    for name in names:
        number = sum(engine.name.partition("#")[0] == name for engine in engines) + 1
        profile = PROFILES[name]
        engines.append(profile if number == 1 else replace(profile, name=f"{name}#{number}"))
    return engines
