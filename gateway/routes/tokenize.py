"""`/tokenize`, as llama.cpp, vLLM and SGLang have it; each reads the text under a name of its own."""

from __future__ import annotations

from gateway.engines.base import TOKENIZE
from gateway.routes.base import Route


class Tokenize(Route):
    """A text in, its tokens out."""

    path = TOKENIZE
    takes_slot = False
    names_model = False  # where one engine serves one model, none need be named
