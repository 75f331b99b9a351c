"""How many tokens a prompt has, from its bytes, with a ratio learnt from what engines report."""

from __future__ import annotations

BYTES_PER_TOKEN = 4.0  # English and JSON on current vocabularies, until a model's own ratio is learnt
WEIGHT = 0.2  # of the newest sample
# Below this the chat template's own tokens hide the ratio: learnt from short prompts, it took long ones
# for more than twice their length and refused what fits.
SAMPLE_BYTES_MIN = 4096
MODELS_MAX = 256


class PromptLength:
    """Bytes per token of each model, as a moving average over reported prompts."""

    def __init__(self) -> None:
        self._bytes_per_token: dict[str, float] = {}

    def estimate(self, model: str, prompt_bytes: int) -> int:
        """Tokens of a prompt, at least 1."""
        return max(1, round(prompt_bytes / self._bytes_per_token.get(model, BYTES_PER_TOKEN)))

    def learn(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """An engine reported this many tokens for a prompt of this many bytes."""
        if prompt_bytes < SAMPLE_BYTES_MIN or prompt_tokens < 1:
            return
        ratio = prompt_bytes / prompt_tokens
        known = self._bytes_per_token.get(model)
        if known is None and len(self._bytes_per_token) >= MODELS_MAX:
            return
        self._bytes_per_token[model] = ratio if known is None else known + WEIGHT * (ratio - known)
