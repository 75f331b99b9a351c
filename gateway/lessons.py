"""What the gateway learns from the requests that end, and who may ask for it."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.accounting import Record
from policies.learner import Counts, Learner
from policies.output_length import OutputLength
from policies.prompt_length import PromptLength
from policies.types import Backend


class Lessons:
    """Lengths of prompts and answers; and, kept by the backends themselves, how fast each one is."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self.prompts = PromptLength()
        self.outputs = OutputLength()
        self._learner = Learner(backends, self.outputs)

    def observe(self, record: Record) -> None:
        """A request ended. Only what an engine has counted teaches."""
        lease, tokens = record.lease, record.prompt_tokens
        if lease is None or tokens is None or not record.counted:
            return
        taught = self._learner.ended(
            lease,
            Counts(tokens, record.cached_tokens, record.completion_tokens),
            streamed=record.first_token is not None,
            completed=record.outcome == "completed",
        )
        if taught and record.prompt is not None:
            self.prompts.learn(record.model, record.prompt, record.prompt_bytes, tokens)
