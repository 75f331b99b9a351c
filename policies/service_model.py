"""How fast a backend is: seconds of prefill and of decode, from priors until they are learnt.

A backend is one serial prefill server plus S decode slots. A prompt costs
`setup + uncached / prefill_rate`; a token costs `base + step * batch`, which is linear in the
batch on every engine whose sweeps were published.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """Rates of one backend."""

    setup_seconds: float = 0.1
    prefill_tokens_per_second: float = 1000.0
    decode_base_seconds: float = 0.03
    decode_step_seconds: float = 0.008

    def prefill_seconds(self, uncached_tokens: int) -> float:
        """Seconds until the first token of a prompt of which this many tokens must be computed."""
        return self.setup_seconds + uncached_tokens / self.prefill_tokens_per_second

    def decode_seconds(self, output_tokens: float, batch: int) -> float:
        """Seconds to generate this many tokens while `batch` sequences decode, this one included."""
        return output_tokens * (self.decode_base_seconds + self.decode_step_seconds * batch)
