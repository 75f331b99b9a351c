"""How fast a backend is: seconds of prefill and of decode, from priors until they are learnt.

A backend is one serial prefill server plus S decode slots. A prompt of `n` tokens of which `c` are cached
costs `setup + W(n) - W(c)`, where `W` is a line of two pieces (the first 2,048 tokens ride in fewer, fuller
steps on some engines: 8,469 tokens a second against 1,742 in one published sweep) and a small square
(attention over what is there already). A token of an answer costs `base + step * batch + depth * tokens`,
which is linear in the batch on every engine whose sweeps were published. While another prompt is read, a
stream gets only `starved_tokens_per_second`: one decode step rides along with each chunk of prefill.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

HEAD_TOKENS = 2048  # where the second piece of the prefill curve begins


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """Rates of one backend. The defaults are those of an engine of which nothing is known."""

    setup_seconds: float = 0.1  # before a prefill; holds up the next one too
    first_token_seconds: float = 0.0  # after a prefill, beside the next one
    prefill_tokens_per_second: float = 1000.0  # beyond the first HEAD_TOKENS
    prefill_head_tokens_per_second: float | None = None  # of the first HEAD_TOKENS; None: the same
    prefill_square_seconds: float = 0.0  # per square of the prompt's tokens
    decode_base_seconds: float = 0.03
    decode_step_seconds: float = 0.008  # per sequence in the batch
    decode_depth_seconds: float = 0.0  # per token of the sequence
    starved_tokens_per_second: float = 0.0  # of each stream while a prompt is read
    cache_efficiency: float = 1.0  # of what should be cached, the share that an engine does find
    cache_block_tokens: int = 1  # it finds whole blocks of this many tokens

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled whole: compiled, it would be set member by member, which a frozen one does not allow."""
        return type(self), tuple([getattr(self, one.name) for one in fields(self)])

    def prefill_seconds(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Seconds of the prefill server for a prompt of which this many tokens are cached."""
        seconds = self.setup_seconds + self._curve(prompt_tokens)
        return seconds - self._curve(cached_tokens) if cached_tokens else seconds

    def first_token(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Seconds from dispatch to the first token on an engine that reads nothing else."""
        return self.prefill_seconds(prompt_tokens, cached_tokens) + self.first_token_seconds

    def token_seconds(self, batch: float, tokens: float = 0.0) -> float:
        """Seconds per token while `batch` sequences decode, of a sequence `tokens` long."""
        return (
            self.decode_base_seconds + self.decode_step_seconds * batch + self.decode_depth_seconds * tokens
        )

    def decode_seconds(self, output_tokens: float, batch: float, prompt_tokens: int = 0) -> float:
        """Seconds to generate this many tokens while `batch` sequences decode, this one included."""
        return output_tokens * self.token_seconds(batch, prompt_tokens + output_tokens / 2)

    def found(self, matched_tokens: int) -> int:
        """Tokens that the engine will find cached where this many should be."""
        blocks = matched_tokens // self.cache_block_tokens
        return int(self.cache_efficiency * blocks * self.cache_block_tokens)

    def _curve(self, tokens: int) -> float:
        head = min(tokens, HEAD_TOKENS)
        head_rate = self.prefill_head_tokens_per_second or self.prefill_tokens_per_second
        return (
            head / head_rate
            + (tokens - head) / self.prefill_tokens_per_second
            + self.prefill_square_seconds * tokens * tokens
        )
