"""The list of models that every OpenAI-compatible engine has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.engines.base import Answer
from gateway.engines.fields import members, positive, told

MODELS = "/v1/models"


def listed(answers: Mapping[str, Answer]) -> list[dict[str, Any]] | None:
    """The entries of the list, None where there is no such list."""
    return members(told(answers, MODELS, "data"))


def owned_by(answers: Mapping[str, Answer], owner: str) -> bool:
    """Whether a listed model says so; most engines put their own name there."""
    return any(model.get("owned_by") == owner for model in listed(answers) or ())


def names(models: list[dict[str, Any]]) -> tuple[str, ...]:
    """Every id and alias that a request may name, once each, in the engine's order."""

    def all_names() -> Iterator[object]:
        for model in models:
            yield model.get("id")
            aliases = model.get("aliases")
            yield from aliases if isinstance(aliases, list) else ()

    return tuple(dict.fromkeys(name for name in all_names() if isinstance(name, str) and name))


def context_tokens(models: list[dict[str, Any]]) -> int | None:
    """The smallest context that the list gives, whatever the engine calls it."""
    contexts = [positive(model.get(key)) for model in models for key in ("context_length", "max_model_len")]
    return min(filter(None, contexts), default=None)
