"""How an engine says that it does not have a route."""

from __future__ import annotations

from gateway.engines.base import Answer

# FastAPI (vLLM, SGLang), llama.cpp and ds4, in lower case. A 404 in other words is about something else:
# a model, or an earlier response that the engine has forgotten.
NOT_THERE = frozenset({"not found", "file not found", "unknown endpoint"})


def lacks_route(answer: Answer) -> bool:
    """Whether this refusal says that the route does not exist there, or is switched off: llama.cpp answers
    501 to embeddings unless it was started for them."""
    if answer.status in (405, 501):
        return True
    said = answer.json() if answer.status == 404 else None
    if not isinstance(said, dict):
        return False
    error = said.get("error")
    message = error.get("message") if isinstance(error, dict) else said.get("detail")
    return isinstance(message, str) and message.lower() in NOT_THERE
