"""What is particular to each engine: what to ask it, and how to read its answers. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.engines.base import Answer, Engine
from gateway.engines.ds4 import DS4
from gateway.engines.llamacpp import LlamaCpp
from gateway.engines.openai import OpenAI
from gateway.engines.sglang import SGLang
from gateway.engines.vllm import VLLM

# In the order of detection: the plain one recognises them all.
ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (DS4(), LlamaCpp(), VLLM(), SGLang(), OpenAI())
}

# What a probe asks while it does not know the engine.
DETECTION_PATHS: tuple[str, ...] = tuple(
    dict.fromkeys(path for engine in ENGINES.values() for path in engine.paths)
)


def detect(answers: Mapping[str, Answer]) -> Engine | None:
    """The engine that gave these answers to `DETECTION_PATHS`; None while nothing tells, as in loading."""
    return next((engine for engine in ENGINES.values() if engine.recognises(answers)), None)
