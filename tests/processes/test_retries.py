"""What an engine's refusal or failure becomes: another try that nobody sees, or one plain error.

The engine's own count tells whether a request was generated twice. Engines that die, hang or are not
there: see `test_engine_failures`.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from gateway import errors
from tests.processes.asking import MISREAD, Reply, ask, backend, checked, counted, fault, metric, of, quiet
from tests.processes.fleet import becomes
from tests.processes.harness import Engine, Gateway, chat, engine, gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ("a", "b", "llama")
STREAMS = pytest.mark.parametrize("streams", [True, False])
LABEL = "invalid_request_error"


@dataclass(frozen=True)
class Stage:
    """A gateway with two plain engines and a llama.cpp.

    Each serves a model of its own name, which nobody else can serve; `a` and `b` also share one.
    """

    gateway: Gateway
    engines: dict[str, Engine]

    async def ask(self, model: str, content: str, *, streams: bool = True, **more: Any) -> Reply:
        """Ask for that model."""
        return await ask(self.gateway, chat(content, stream=streams, **more) | {"model": model})

    async def served(self, model: str, content: str = "well again") -> Reply:
        """The same, and it must succeed."""
        answer = await self.ask(model, content)
        assert answer.head.status == 200, answer
        assert answer.events[-1].done
        return answer

    async def retries(self, reason: str) -> float:
        """How often a request started over for that reason."""
        return await metric(self.gateway, "slotgate_retries_total", reason=reason)

    async def ejections(self) -> float:
        """How often a backend was left alone."""
        return await metric(self.gateway, "slotgate_ejections_total")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Stage]:
    """The processes, for all tests of this module."""
    plain = {"slots": 2, "tokens": 4, "decode_tps": 500.0}
    async with (
        engine("openai", model=["a", "shared"], **plain) as a,
        engine("openai", model=["b", "shared"], **plain) as b,
        engine("llamacpp", model=["llama"], **plain) as llama,
    ):
        engines = dict(zip(NAMES, (a, b, llama), strict=True))
        backends = [{"name": name, "url": one.url, "slots": 2} for name, one in engines.items()]
        async with gateway({"backends": backends}) as one:
            for name in NAMES:
                await becomes(one, name, "ready", 30.0)
            yield Stage(one, engines)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: Stage) -> AsyncIterator[Stage]:
    """Engines that behave, with a clean record, and count from here; none may have been ejected."""
    for name, one in running.engines.items():
        await one.idle()
        await one.reset()
        await running.served(name)
        await one.reset()
    await quiet(running.gateway)
    ejections = await running.ejections()
    yield running
    assert await running.ejections() == ejections


def connections(records: list[dict[str, Any]]) -> set[int]:
    """The engine's connections that requests came on."""
    return {record["connection"] for record in records}


# -- busy is not failed


@STREAMS
@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_engine_is_left_alone_for_a_while(stage: Stage, status: int, streams: bool) -> None:
    """The call waits in its place and is served by the same engine, when its Retry-After is over."""
    one, before = stage.engines["a"], await stage.retries("overload")
    await one.script(status=status, headers=[["Retry-After", "1"]], body='{"error":{"message":"full"}}')
    answer = await stage.ask("a", "comes back", streams=streams)
    assert answer.head.status == 200
    assert answer.text
    refused, served = await of(one, "comes back")
    assert (refused["outcome"], served["outcome"]) == ("scripted", "completed")
    assert 0.9 < served["arrived"] - refused["arrived"] < 10
    assert await stage.retries("overload") == before + 1
    assert int(answer.head.headers["x-slotgate-queue-ms"]) >= 900
    assert (await backend(stage.gateway, "a"))["state"] == "ready"


async def test_another_engine_serves_meanwhile(stage: Stage) -> None:
    """At once, and the full one gets nothing while it asked to be left alone."""
    for name in ("a", "b"):
        other = {"a": "b", "b": "a"}[name]
        await stage.engines[name].script(
            match="goes on", status=503, headers=[["Retry-After", "2"]], times=None
        )
        started = time.monotonic()
        for number in range(4):
            answer = await stage.served("shared", f"{name} {number} goes on")
            assert answer.head.headers["x-slotgate-backend"] == other
        assert time.monotonic() - started < 2.0
        refused = await of(stage.engines[name], name)
        assert len(refused) <= 1
        await stage.engines[name].reset()
        await stage.served(name)  # waits until the pause is over


async def test_a_call_that_is_given_up_in_the_queue_names_no_backend(stage: Stage) -> None:
    """The one that refused it before did not answer it."""
    await stage.engines["a"].script(match="too late", status=503, headers=[["Retry-After", "1"]], times=None)
    body = chat("too late", stream=False) | {"model": "a"}
    answer = await ask(stage.gateway, body, [("X-Stainless-Read-Timeout", "2")])
    fault(answer, 429, "wait_too_long")
    assert await of(stage.engines["a"], "too late")
    assert "x-slotgate-backend" not in answer.head.headers
    await stage.engines["a"].reset()
    await stage.served("a")  # waits until the pause is over


async def test_refusals_in_a_row_are_no_failures(stage: Stage) -> None:
    """Four of them, one more than failures would eject: the fixture sees to the rest."""
    await stage.engines["a"].script(match="again", times=4, status=503, headers=[["Retry-After", "0"]])
    assert (await stage.served("a", "again and again")).head.headers["x-slotgate-backend"] == "a"
    assert len(await of(stage.engines["a"], "again")) == 5


IN_A_STREAM = pytest.mark.parametrize(("name", "streams"), [("a", True), ("llama", True), ("llama", False)])


@IN_A_STREAM
async def test_a_full_engine_may_say_so_inside_a_stream(stage: Stage, name: str, streams: bool) -> None:
    """SGLang does: a 200, and the refusal as its first event. Nothing was started."""
    one, before = stage.engines[name], await stage.retries("overload")
    error = {"message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", "code": 503}
    await one.script(match="full", error_after=0, error={"error": error}, done=1)
    answer = await stage.ask(name, "full", streams=streams)
    assert answer.head.status == 200
    assert answer.text
    assert len(await of(one, "full")) == 2
    assert await stage.retries("overload") == before + 1


@IN_A_STREAM
async def test_a_prompt_may_be_refused_inside_a_stream(stage: Stage, name: str, streams: bool) -> None:
    """The status can still be what it should have been, and the engine is not to blame."""
    message = "The input (70001 tokens) is longer than the model's context length (65536 tokens)."
    error = {"object": "error", "message": message, "type": "BadRequestError", "code": 400}
    await stage.engines[name].script(match="long", error_after=0, error={"error": error}, done=1)
    answer = await stage.ask(name, "long", streams=streams)
    told = fault(answer, 400, "context_length_exceeded")
    assert (told["n_prompt_tokens"], told["n_ctx"]) == (70001, 65536)
    assert len(await of(stage.engines[name], "long")) == 1


# -- a connection that was idle


@STREAMS
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_stale_connection_costs_nobody_anything(stage: Stage, how: str, streams: bool) -> None:
    """Closed before a byte of an answer, on a connection that had served before: asked again at once."""
    one, before = stage.engines["a"], await stage.retries("stale_connection")
    await stage.served("a", "leaves an idle connection")
    await one.script(match="stale", cut=how, prefill_seconds=0.0)
    answer = await stage.ask("a", "stale", streams=streams)
    assert answer.head.status == 200
    lost, served = await of(one, "stale")
    assert lost["nth"] > 1
    assert lost["connection"] != served["connection"]
    assert await stage.retries("stale_connection") == before + 1


async def test_requests_that_meet_the_engines_close() -> None:
    """An engine that closes idle connections after 50 ms, asked every 35 to 65 ms: nobody notices."""
    async with engine("openai", model=["impatient"], idle_seconds=0.05, instant=True) as one:
        backends = [{"name": "impatient", "url": one.url, "warmup": {"requests": 0}}]
        async with gateway({"backends": backends}) as front:
            for number in range(60):
                answer = await ask(front, chat(f"{number}") | {"model": "impatient"})
                assert answer.head.status == 200
                await asyncio.sleep(0.035 + number % 7 * 0.005)
            assert (await one.state())["outcomes"] == {"completed": 60}
            assert len(connections(await one.records())) > 1


# -- it may have begun: never twice


@STREAMS
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_new_connection_that_breaks_is_not_asked_again(stage: Stage, how: str, streams: bool) -> None:
    """The engine lives, so it may have generated: 502, and clients are told not to ask again."""
    one = stage.engines["llama"]
    await one.script(match="breaks", cut=how, prefill_seconds=0.05)
    answer = await stage.ask("llama", "breaks", streams=streams)
    fault(answer, 502, "backend_failed")
    assert answer.head.headers["x-should-retry"] == "false"
    assert len(await of(one, "breaks")) == 1


@pytest.mark.parametrize("name", ["a", "llama"])
@pytest.mark.parametrize("cut_after", [0, 1])
@pytest.mark.parametrize("how", ["fin", "rst", "clean"])
async def test_a_head_is_no_answer(stage: Stage, how: str, cut_after: int, name: str) -> None:
    """Broken behind the head or the role chunk, or ended there as if complete: the client sees a 502."""
    one = stage.engines[name]
    await one.script(match="breaks", head_first=True, cut=how, cut_after=cut_after, prefill_seconds=0.05)
    answer = await stage.ask(name, "breaks")
    fault(answer, 502, "backend_failed")
    assert answer.head.headers["x-should-retry"] == "false"
    assert len(await of(one, "breaks")) == 1


@pytest.mark.parametrize("name", ["a", "llama"])
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_document_that_breaks_is_no_answer(stage: Stage, how: str, name: str) -> None:
    """Half a document, or half the stream that it is made of."""
    one = stage.engines[name]
    await one.script(match="breaks", cut=how, cut_after=2)
    answer = await stage.ask(name, "breaks", streams=False)
    fault(answer, 502, "backend_failed")
    assert answer.head.headers["x-should-retry"] == "false"
    assert len(await of(one, "breaks")) == 1


@pytest.mark.parametrize("how", ["fin", "rst", "clean"])
async def test_a_stream_that_breaks_ends_with_one_error(stage: Stage, how: str) -> None:
    """What was sent is kept, a half-received event is dropped, nothing marks success."""
    one = stage.engines["b"]
    await one.script(match="breaks", cut=how, cut_after=3, cut_inside=True)
    answer = await stage.ask("b", "breaks")
    assert (answer.head.status, answer.ended) == (200, "clean")
    *sent, last = answer.events
    assert sum(bool(event.token) for event in sent) == 2
    checked(last.json(), "backend_failed")
    assert len(await of(one, "breaks")) == 1


# -- it says that it failed


HTML = "<html><body><h1>502 Bad Gateway</h1><p>10.0.0.11 nginx</p></body></html>"


@STREAMS
@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (
            500,
            '{"error":{"message":"CUDA error at /opt/engine/a.cu:7","type":"server_error"}}',
            "application/json",
        ),
        (502, HTML, "text/html"),
        (504, "", "text/plain"),
        (401, '{"error":{"message":"bad engine key","type":"authentication_error"}}', "application/json"),
        (403, '{"error":"forbidden"}', "application/json"),
        (307, "", "text/plain"),
    ],
)
async def test_an_engines_failure_is_ours_to_tell(
    stage: Stage, status: int, body: str, content_type: str, streams: bool
) -> None:
    """502 without the engine's words, asked once only; the cause stands on the admin port."""
    one = stage.engines["a"]
    headers = [["Content-Type", content_type], ["Location", "http://10.0.0.11/"]]
    await one.script(match="fails", status=status, body=body, headers=headers)
    answer = await stage.ask("a", "fails", streams=streams)
    fault(answer, 502, "backend_failed")
    assert "location" not in answer.head.headers
    assert not [word for word in (b"10.0.0.11", b"CUDA", b"engine key", b"html") if word in answer.body]
    # Only what has begun is not to be repeated: a redirect or a refused key has not.
    assert answer.head.headers.get("x-should-retry") == ("false" if status >= 500 else None)
    assert len(await of(one, "fails")) == 1
    assert f"HTTP {status}" in (await backend(stage.gateway, "a"))["last_error"]
    assert (await backend(stage.gateway, "a"))["state"] == "ready"


@STREAMS
@pytest.mark.parametrize(
    "body",
    [
        '{"error":{"message":"out of memory"}}',
        "",
        "ok",
        "[]",
        "null",
        HTML,
        '{"detail":"no"}',
        '{"choices":null}',
    ],
)
async def test_a_200_is_not_yet_an_answer(stage: Stage, body: str, streams: bool) -> None:
    """With an error or nothing sensible inside it is a failure, and not repeated."""
    one = stage.engines["b"]
    await one.script(match="fails", status=200, body=body)
    answer = await stage.ask("b", "fails", streams=streams)
    fault(answer, 502, "backend_failed")
    assert answer.head.headers["x-should-retry"] == "false"
    assert len(await of(one, "fails")) == 1


def given_up(text: str, streams: bool) -> dict[str, Any]:
    """A script: the answer of an engine that was told to end while it wrote."""
    choice = {"index": 0, "delta" if streams else "message": {"content": text}, "finish_reason": None}
    chunks = [{"choices": [choice]}, {"choices": [choice | {"delta": {}, "finish_reason": "abort"}]}]
    if not streams:
        return {"status": 200, "body": json.dumps({"choices": [choice | {"finish_reason": "abort"}]})}
    return {"raw": [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]}


@pytest.mark.parametrize(("name", "streams"), [("a", True), ("a", False), ("llama", True)])
@pytest.mark.parametrize("text", ["half of it", ""])
async def test_an_answer_that_the_engine_gave_up_is_no_answer(
    stage: Stage, name: str, streams: bool, text: str
) -> None:
    """vLLM ends so at SIGTERM, under 200 and with [DONE]: clients would take it for the whole answer."""
    await stage.engines[name].script(match="given up", **given_up(text, streams))
    answer = await stage.ask(name, "given up", streams=streams)
    if streams and text:
        *sent, last = answer.events
        assert (len(sent), answer.ended) == (1, "clean")
        checked(last.json(), "backend_failed")
    else:
        fault(answer, 502, "backend_failed")
    assert b"abort" not in answer.body
    assert len(await of(stage.engines[name], "given up")) == 1


ERRORS: list[dict[str, Any]] = [
    {"error": {"message": "it broke", "type": "server_error", "code": None}},
    {"error": {"message": "it broke", "code": "oops"}},
    {"error": "it broke"},
    {"object": "error", "message": "it broke", "code": 40001},
    {"detail": "it broke"},
]


@STREAMS
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("error", ERRORS, ids=json.dumps)
async def test_an_error_event_before_the_first_token_is_a_502(
    stage: Stage, error: dict[str, Any], named: bool, streams: bool
) -> None:
    """Whatever its shape; nothing of the engine has left, so the status still can."""
    one = stage.engines["llama"]
    await one.script(match="fails", error_after=1, error=error, error_name=named, done=1)
    answer = await stage.ask("llama", "fails", streams=streams)
    fault(answer, 502, "backend_failed")
    assert b"it broke" not in answer.body
    assert len(await of(one, "fails")) == 1


@pytest.mark.parametrize("done", [None, 1])
@pytest.mark.parametrize("error", ERRORS, ids=json.dumps)
async def test_an_error_event_behind_tokens_is_the_last(
    stage: Stage, error: dict[str, Any], done: int | None
) -> None:
    """It passes if it has the shape that clients know, else it is said in that; the [DONE] that would mark
    success is swallowed."""
    one = stage.engines["a"]
    before = await metric(stage.gateway, "slotgate_requests_total", outcome="backend_failed")
    await one.script(match="fails", error_after=3, error=error, done=done)
    answer = await stage.ask("a", "fails")
    *sent, last = answer.events
    assert sum(bool(event.token) for event in sent) == 2
    if isinstance(error.get("error"), dict):
        assert last.json() == error
    else:
        checked(last.json(), "backend_failed")
    assert answer.ended == "clean"
    await counted(stage.gateway, "slotgate_requests_total", before + 1, outcome="backend_failed")


async def test_an_error_event_ends_the_stream_though_the_engine_does_not(stage: Stage) -> None:
    """An engine that stays silent behind its error keeps neither the client nor the slot."""
    token = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    await stage.engines["a"].script(
        match="fails", raw=[token, 'data: {"error":{"message":"it broke"}}\n\n'], cut="stall", cut_after=2
    )
    async with asyncio.timeout(15):
        answer = await stage.ask("a", "fails")
    assert answer.events[-1].json() == {"error": {"message": "it broke"}}
    await stage.engines["a"].idle(10.0)


# -- the request is at fault


@STREAMS
@pytest.mark.parametrize("status", [400, 404, 409, 413, 418, 422])
async def test_an_engines_no_passes_word_for_word(stage: Stage, status: int, streams: bool) -> None:
    """Status, type and every byte; its other headers stay behind."""
    body = '{ "error" : {"message":"Unknown tool choice \\u65e5", "type":"x","code":null}}\n'
    await stage.engines["a"].script(status=status, body=body, headers=[["X-Engine", "build"]])
    answer = await stage.ask("a", "no", streams=streams)
    assert answer.head.status == status
    assert answer.body.decode() == body
    assert answer.head.headers["content-type"].startswith("application/json")
    assert answer.head.headers["x-slotgate-backend"] == "a"
    assert "x-engine" not in answer.head.headers


async def test_twenty_refused_requests_eject_nobody(stage: Stage) -> None:
    """They are the clients' business; each is counted as invalid."""
    before = await metric(stage.gateway, "slotgate_requests_total", outcome="invalid", backend="a")
    await stage.engines["a"].script(times=20, status=422, body='{"detail":"no"}')
    for _ in range(20):
        assert (await stage.ask("a", "no")).head.status == 422
    assert (await backend(stage.gateway, "a"))["state"] == "ready"
    await counted(stage.gateway, "slotgate_requests_total", before + 20, outcome="invalid", backend="a")


@STREAMS
@pytest.mark.parametrize("name", ["a", "llama"])
async def test_an_over_length_answer_is_mapped(stage: Stage, name: str, streams: bool) -> None:
    """All engines' ways of saying it become one; it passes as the engine counted."""
    if name == "a":
        message = "This model's maximum context length is 65536 tokens. Your prompt has 70000 tokens."
        error: dict[str, Any] = {"message": message, "type": LABEL, "code": "context_length_exceeded"}
    else:
        error = {"code": 400, "message": "exceeds", "type": "exceed_context_size_error"}
        error |= {"n_prompt_tokens": 70_000, "n_ctx": 65_536}
    await stage.engines[name].script(status=400, body=json.dumps({"error": error}))
    told = fault(await stage.ask(name, "long", streams=streams), 400, "context_length_exceeded")
    assert told["n_ctx"] == 65_536
    assert "65536" in told["message"]
    assert "estimated" not in told


async def test_an_engine_that_refuses_usage_is_asked_without() -> None:
    """The first client does not notice, and from then on the engine is not asked for it any more."""
    async with engine("openai", model=["old"], tokens=3) as one:
        backends = [{"name": "old", "url": one.url}]
        async with gateway({"backends": backends}) as front:
            no = '{"error":{"message":"Unknown field: stream_options","type":"invalid_request_error"}}'
            await one.script(times=None, match='"include_usage"', status=400, body=no)
            for number in range(3):
                answer = await ask(front, chat(f"{number} usage") | {"model": "old"})
                assert answer.head.status == 200
                assert answer.text
            records = await one.records()
            assert [len([r for r in records if r["key"].startswith(str(i))]) for i in range(3)] == [2, 1, 1]
            assert await metric(front, "slotgate_retries_total", reason="include_usage") == 1
            # Who asks for it himself gets the engine's own words.
            own = chat("own", stream_options={"include_usage": True}) | {"model": "old"}
            answer = await ask(front, own)
            assert (answer.head.status, answer.body.decode()) == (400, no)


# -- limits of time


async def test_engines_that_stop_talking() -> None:
    """Before the first token a 504, behind it an error event, be there comments or not; asked once."""
    timeouts = {"first_token_seconds": 1.0, "idle_seconds": 1.0}
    async with engine("openai", model=["slow"], slots=4) as one:
        backends = [{"name": "slow", "url": one.url, "slots": 4, "timeouts": timeouts}]
        async with gateway({"backends": backends}) as front:

            async def silent(streams: bool) -> None:
                answer = await ask(front, chat("silent", stream=streams) | {"model": "slow"})
                fault(answer, 504, "first_token_timeout")
                assert answer.head.headers["x-should-retry"] == "false"

            await one.script(match="silent", times=1, prefill_seconds=30.0, comment_seconds=0.1)
            await silent(True)
            assert len(await of(one, "silent")) == 1
            token = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
            await one.script(match="idle", raw=[token, *[": busy\n\n"] * 300], token_seconds=0.1)
            answer = await ask(front, chat("idle") | {"model": "slow"})
            assert answer.events[0].token == "a"
            checked(answer.events[-1].json(), "idle_timeout")
            assert answer.ended == "clean"
            await one.idle(10.0)
            assert {record["outcome"] for record in await one.records()} >= {"aborted"}


# -- the words


async def test_no_error_of_ours_is_misread() -> None:
    """Agents match error texts with patterns; every text that the gateway can send is looked at."""
    for error in all_errors():
        message = json.loads(error.body())["error"]["message"]
        text = message.lower()
        assert not [word for word in MISREAD if word in text], text
        assert "context" not in text or error.code == "context_length_exceeded", text
        assert message[0].isupper()
        assert message.endswith((".", "later."))


async def test_an_error_of_another_process_is_the_same_error() -> None:
    """It is pickled on its way, with all of its data."""
    for error in all_errors():
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (again.args, again.body(), again.headers()) == (error.args, error.body(), error.headers())


def all_errors() -> list[errors.GatewayError]:
    """One of each class; a new class that is missing here fails the test."""
    made: list[errors.GatewayError] = [
        errors.GatewayError(),
        errors.ContextLengthExceeded(5000, 4096, counted=True),
        errors.ContextLengthExceeded(None, 4096, counted=False),
        errors.InvalidApiKey(),
        errors.Forbidden("This API key may not use this model."),
        errors.NotFound(),
        errors.MethodNotAllowed("/v1/models", "GET"),
        errors.ModelNotFound("x", ()),
        errors.ModelNotFound("x", ("a", "b")),
        errors.RequestTimeout(60),
        errors.BodyTooLarge(10),
        errors.HeadersTooLarge(100, 65_536),
        errors.QueueFull(1.0),
        errors.KeyConcurrency(2, 1.0),
        errors.WaitTooLong(1.0),
        errors.NoBackendReady(1.0),
        errors.ShuttingDown(),
        errors.WorkersSilent(),
        errors.WorkerSilent(2),
        errors.BackendFailed("cause", started=True),
        errors.BackendFailed("cause", started=False),
        errors.FirstTokenTimeout(900),
        errors.IdleTimeout(120),
        errors.TotalTimeout(3600),
        errors.Ended(),
        errors.InvalidRequest("The body must be one JSON object that names a `model`."),
        errors.InvalidJson("The body is not JSON."),
    ]

    def leaves(kind: type[errors.GatewayError]) -> set[type[errors.GatewayError]]:
        below = kind.__subclasses__()
        return {kind}.union(*map(leaves, below)) if not below else set().union(*map(leaves, below))

    missing = leaves(errors.GatewayError) - {type(error) for error in made}
    assert not missing, missing
    return made
