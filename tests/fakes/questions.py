"""What fake and real engines are asked alike, so that their answers can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from tests.fakes.shape import Answered

TOO_LONG = " ".join(f"word{number}" for number in range(3000))  # for 2,048 tokens in any tokenizer
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True)
class Question:
    """One request to an engine, and the differences of the fake's answer that are meant."""

    name: str
    method: str
    path: str
    body: dict[str, Any] | bytes | None = None
    but: frozenset[str] = frozenset()

    async def ask(self, client: httpx.AsyncClient) -> Answered:
        """The whole answer."""
        if isinstance(self.body, bytes):
            headers = {"content-type": "application/json"}
            answer = await client.request(self.method, self.path, content=self.body, headers=headers)
        else:
            answer = await client.request(self.method, self.path, json=self.body)
        return Answered(answer.status_code, answer.headers, answer.content)


def chat(words: str = "Name three colours.", **more: Any) -> dict[str, Any]:
    """A chat of a few tokens."""
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 8,
        "temperature": 0,
    } | more


def text(words: str | list[int] = "Once upon", **more: Any) -> dict[str, Any]:
    """A text to go on with."""
    return {"model": "tiny", "prompt": words, "max_tokens": 8, "temperature": 0} | more


def respond(words: str = "Name three colours.", **more: Any) -> dict[str, Any]:
    """The same chat on the Responses route."""
    return {"model": "tiny", "input": words, "max_output_tokens": 8, "temperature": 0} | more


def get(name: str, path: str, *but: str) -> Question:
    """A GET."""
    return Question(name, "GET", path, None, frozenset(but))


def post(name: str, path: str, body: dict[str, Any] | bytes, *but: str) -> Question:
    """A POST."""
    return Question(name, "POST", path, body, frozenset(but))


# What nobody needs of llama.cpp's properties.
UNSAID = ("chat_template", "modalities", "media_marker", "ui", "cors_", "model_ftype", "endpoint_props")
UNSAID += ("bos_token", "eos_token")

VLLM = (
    get("models", "/v1/models", "data.0.permission"),
    get("version", "/version"),
    get("load", "/load"),
    get("health", "/health"),
    get("server-info", "/server_info"),
    get("wrong-method", CHAT),
    get("metrics", "/metrics", "vllm:cache_config_info"),
    post("unknown", "/v1/nonsense", {}),
    post("embeddings", EMBEDDINGS, {"model": "tiny", "input": "hi"}),
    post("chat", CHAT, chat()),
    post("chat-stream", CHAT, chat(stream=True)),
    post("chat-stream-usage", CHAT, chat(**USAGE)),
    post("completions", COMPLETIONS, text()),
    post("completions-stream-usage", COMPLETIONS, text(**USAGE)),
    post("messages", MESSAGES, chat()),
    post("messages-stream", MESSAGES, chat(stream=True)),
    post("responses", RESPONSES, respond()),
    post("responses-stream", RESPONSES, respond(stream=True)),
    post("count-tokens", COUNT_TOKENS, chat()),
    post("tokenize", TOKENIZE, {"model": "tiny", "prompt": "Name three colours."}),
    post("tokenize-messages", TOKENIZE, chat(return_token_strs=True)),
    post("no-model", CHAT, {name: value for name, value in chat().items() if name != "model"}),
    post("wrong-model", CHAT, chat(model="other")),
    post("messages-wrong-model", MESSAGES, chat(model="other")),
    post("malformed", CHAT, b'{"model": "tiny", "messages": ['),
    post("overlength", CHAT, chat(TOO_LONG)),
    post("overlength-stream", CHAT, chat(TOO_LONG, stream=True)),
    post("messages-overlength", MESSAGES, chat(TOO_LONG)),
    post("responses-overlength", RESPONSES, respond(TOO_LONG)),
    post("max-tokens-over", CHAT, chat(max_tokens=5000)),
    post("max-tokens-0", CHAT, chat(max_tokens=0)),
    post("stream-options-without-stream", CHAT, chat(stream_options={"include_usage": True})),
)

LLAMACPP = (
    get("health", "/health"),
    get("models", "/v1/models", "models.0", "data.0"),
    get("props", "/props", "default_generation_settings.params", *UNSAID),
    get("slots", "/slots"),
    get("metrics", "/metrics"),
    post("unknown", "/v1/nonsense", {}),
    post("embeddings", EMBEDDINGS, {"model": "tiny", "input": "hi"}),
    post("chat", CHAT, chat()),
    post("chat-stream", CHAT, chat(stream=True)),
    post("chat-stream-usage", CHAT, chat(**USAGE)),
    post("completions-stream-usage", COMPLETIONS, text(**USAGE)),
    post("messages", MESSAGES, chat()),
    post("messages-stream", MESSAGES, chat(stream=True)),
    post("responses", RESPONSES, respond()),
    post("responses-stream", RESPONSES, respond(stream=True)),
    post("count-tokens", COUNT_TOKENS, chat()),
    post("chat-input-tokens", f"{CHAT}/input_tokens", chat()),
    post("responses-input-tokens", f"{RESPONSES}/input_tokens", respond()),
    post("tokenize", TOKENIZE, {"content": "Hello world", "with_pieces": True}),
    post("overlength", CHAT, chat(TOO_LONG)),
    post("overlength-stream", CHAT, chat(TOO_LONG, stream=True)),
)
