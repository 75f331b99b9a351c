"""Messages, responses and counting behind the gateway in front of a real llama.cpp server: what its clients
get is what it says when it is asked directly, and its counters are the witness of the tokens."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.routes import COUNT_TOKENS, MESSAGES, RESPONSES, TOKENIZE
from tests.processes.asking import ask, metric, quiet
from tests.processes.fleet import becomes
from tests.processes.harness import Gateway, gateway
from tests.real.llamacpp_server import LlamaCppServer, llamacpp_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS_MAX = 12
# llama.cpp closes after each stream, whatever it promised: a connection used again may be gone by then.
EACH_ITS_OWN = httpx.Limits(max_keepalive_connections=0)
ROUTES = pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
# What differs between two runs of one request: the names of the run and its times.
OF_ONE_RUN = re.compile(r'"(id|item_id|created_at|completed_at|\w+_ms|\w+_per_second)":("[^"]*"|[\d.e+-]+),?')


@dataclass(frozen=True)
class Stage:
    """A real engine, and the gateway in front of it."""

    engine: httpx.AsyncClient
    model: str
    gateway: Gateway

    async def direct(self, path: str, body: dict[str, Any]) -> bytes:
        """Its own answer, the second time: then as much of the prompt is cached as ever will be."""
        await self.engine.post(path, json=body)
        return (await self.engine.post(path, json=body)).content

    async def counts(self) -> dict[str, float]:
        """Tokens that the engine counted."""
        families = text_string_to_metric_families((await self.engine.get("/metrics")).text)
        told = {sample.name: sample.value for family in families for sample in family.samples}
        cached = told["llamacpp:prompt_tokens_cached_total"]
        return {
            "prompt": told["llamacpp:prompt_tokens_total"] + cached,
            "cached": cached,
            "completion": told["llamacpp:tokens_predicted_total"],
        }

    async def reported(self) -> dict[str, float]:
        """Tokens that the gateway counted, as the engine reported them."""
        await quiet(self.gateway)
        return {
            kind: await metric(self.gateway, "slotgate_tokens_total", kind=kind, source="reported")
            for kind in ("prompt", "cached", "completion")
        }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One engine for all tests of this module."""
    folder: Path = tmp_path_factory.mktemp("llamacpp")
    with llamacpp_server(folder) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(server: LlamaCppServer) -> AsyncIterator[Stage]:
    """The gateway in front of it."""
    queue = {"heartbeat_seconds": 300}
    async with (
        httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60, limits=EACH_ITS_OWN) as engine,
        gateway({"backends": [{"name": "llama", "url": server.url}], "queue": queue}) as front,
    ):
        await becomes(front, "llama", "ready", 60.0)
        yield Stage(engine, server.model, front)


def request(path: str, model: str, text: str, **more: Any) -> dict[str, Any]:
    """A request whose answer is always the same."""
    given: dict[str, Any] = {"model": model, "temperature": 0, "seed": 7}
    if path == MESSAGES:
        given |= {"max_tokens": TOKENS_MAX, "messages": [{"role": "user", "content": text}]}
    else:
        given |= {"max_output_tokens": TOKENS_MAX, "input": text}
    return given | more


def told(body: bytes) -> str:
    """What an answer says, whatever run said it."""
    return OF_ONE_RUN.sub("", body.decode())


def members(body: bytes) -> Any:
    """The members of a document, in no order."""
    return json.loads(told(body).replace(",}", "}"))


@ROUTES
async def test_a_stream_passes_as_the_engine_sends_it(stage: Stage, path: str) -> None:
    """Byte for byte, but for what names the run; and its tokens are counted as the engine counts them."""
    body = request(path, stage.model, "Name three colours.", stream=True)
    direct = await stage.direct(path, body)
    engine, ours = await stage.counts(), await stage.reported()
    reply = await ask(stage.gateway, body, path=path)
    assert told(reply.body) == told(direct)
    engine_after, ours_after = await stage.counts(), await stage.reported()
    counted = {kind: ours_after[kind] - ours[kind] for kind in ours}
    assert counted == {kind: engine_after[kind] - engine[kind] for kind in engine}
    assert counted["completion"] == TOKENS_MAX


@ROUTES
async def test_a_document_says_what_the_engine_says(stage: Stage, path: str) -> None:
    """It is put together from a stream, as a closed connection cancels only that."""
    body = request(path, stage.model, "Name three colours.")
    direct = await stage.direct(path, body)
    engine, ours = await stage.counts(), await stage.reported()
    reply = await ask(stage.gateway, body, path=path)
    assert members(reply.body) == members(direct)
    engine_after, ours_after = await stage.counts(), await stage.reported()
    counted = {kind: ours_after[kind] - ours[kind] for kind in ours}
    assert counted == {kind: engine_after[kind] - engine[kind] for kind in engine}


async def test_tokens_are_counted_as_the_engine_counts_them(stage: Stage) -> None:
    """The count of a message is that of its prompt; a text has the engine's own tokens."""
    body = request(MESSAGES, stage.model, "Name three colours.", system="Be brief.")
    count = json.loads((await ask(stage.gateway, body, path=COUNT_TOKENS)).body)
    usage = json.loads((await ask(stage.gateway, body, path=MESSAGES)).body)["usage"]
    assert count["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    text = {"content": "Name three colours."}
    ours = await ask(stage.gateway, text, path=TOKENIZE)
    assert ours.body == (await stage.engine.post(TOKENIZE, json=text)).content


@ROUTES
async def test_a_prompt_that_is_too_long_is_told_with_its_length(stage: Stage, path: str) -> None:
    """The engine counts it beforehand, and the client reads the figures."""
    reply = await ask(stage.gateway, request(path, stage.model, "word " * 2000), path=path)
    error = json.loads(reply.body)["error"]
    assert (reply.head.status, error["code"]) == (400, "context_length_exceeded")
    assert error["n_prompt_tokens"] > error["n_ctx"]
