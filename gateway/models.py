"""The merged model list, as agents read it."""

from __future__ import annotations

from typing import Any

from gateway.auth import Key
from policies.admission import Admission


def model_list(admission: Admission, key: Key) -> dict[str, Any]:
    """All models that this key may use, in OpenAI's shape."""
    models = [listed(model, admission) for model in admission.models() if key.allows(model)]
    return {"object": "list", "data": models}


def listed(model: str, admission: Admission) -> dict[str, Any]:
    """One model. Its context is the smallest slot of the backends that serve it: Hermes plans its
    compression by it, and a larger promise would fail on some backend."""
    contexts = [
        b.context_tokens
        for b in admission.backends.values()
        if model in (b.models or ()) and b.context_tokens is not None
    ]
    context = {"context_length": min(contexts), "max_model_len": min(contexts)} if contexts else {}
    return {"id": model, "object": "model", "created": 0, "owned_by": "slotgate"} | context
