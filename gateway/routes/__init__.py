"""The routes of the client port that go to engines, by path."""

from __future__ import annotations

from gateway.routes.base import Route
from gateway.routes.chat import Chat
from gateway.routes.completions import Completions
from gateway.routes.embeddings import Embeddings
from gateway.routes.messages import CountTokens, Messages
from gateway.routes.responses import Responses
from gateway.routes.tokenize import Tokenize

ROUTES: dict[str, Route] = {
    route.path: route
    for route in (
        Chat(),
        Completions(),
        Responses(),
        Messages(),
        CountTokens(),
        Embeddings(),
        Tokenize(),
    )
}
