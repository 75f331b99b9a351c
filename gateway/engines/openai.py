"""Any engine that speaks OpenAI's protocol and tells no more of itself than its list of models."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.engines import refusals
from gateway.engines.base import CHAT, COMPLETIONS, EMBEDDINGS, Answer, Count, Refusal, Report
from gateway.engines.fields import member, positive
from gateway.engines.listing import MODELS, context_tokens, listed, names
from policies.capacity import Memory
from policies.service_model import ServiceModel


class OpenAI:
    """A plain OpenAI-compatible engine, and what all others have in common."""

    name: str = "openai"
    paths: tuple[str, ...] = (MODELS,)
    routes: frozenset[str] = frozenset({CHAT, COMPLETIONS, EMBEDDINGS})
    streams_always: bool = False
    reuses_connections: bool = True
    cancel_seconds: float = 5.0
    close_is_stop: bool = True
    prefix_kind: str = "block"
    memory: Memory = Memory()
    service: ServiceModel = ServiceModel()
    # Client route -> where the same body is answered with the number of its prompt's tokens.
    counting: Mapping[str, str] = MappingProxyType({})

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """A list of models is all that such engines share; so this one is asked last."""
        return listed(answers) is not None

    def read(self, answers: Mapping[str, Answer]) -> Report:
        """The models and, where the list gives it, the smallest context of them."""
        models = listed(answers)
        return Report(
            loading=MODELS in answers and answers[MODELS].status == 503,
            context_tokens=context_tokens(models or []),
            models=None if models is None else names(models),
        )

    def refusal(self, answer: Answer) -> Refusal:
        """By its shape: a plain engine may be any of them."""
        return refusals.refusal(answer)

    def max_tokens(
        self,
        asked: int | None,
        default: int | None,
        prompt_tokens: int,
        context_tokens: int | None,
        *,
        counted: bool,
    ) -> int | None:
        """The client's own limit, or its lack of one, is left alone."""
        return None

    def count(self, route: str, body: bytes) -> Count | None:
        """By the route's own body: what does not belong to a prompt is ignored there."""
        return Count(self.counting[route], body) if route in self.counting else None

    def counted(self, answer: Answer) -> int | None:
        """The figure that counting routes give: `input_tokens` or, in a tokenizer's answer, `count`."""
        value = answer.json() if answer.status == 200 else None
        return positive(member(value, "input_tokens")) or positive(member(value, "count"))
