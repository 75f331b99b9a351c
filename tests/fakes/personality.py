"""How each kind of engine looks on the wire; the shapes are those of recorded answers and of sources."""

from __future__ import annotations

from tests.fakes.ds4 import Ds4, Ds4Upstream
from tests.fakes.llamacpp import LlamaCpp
from tests.fakes.openai import OpenAI
from tests.fakes.sglang import Sglang
from tests.fakes.vllm import Vllm

PERSONALITIES: dict[str, type[OpenAI]] = {
    kind.name: kind for kind in (OpenAI, LlamaCpp, Ds4, Ds4Upstream, Vllm, Sglang)
}
