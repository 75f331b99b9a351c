"""Each fake engine lies, refuses and ends as its original does; its figures are those that it counted."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.engines import DETECTION_PATHS, detect
from gateway.engines.base import Answer
from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from tests.processes.harness import Engine, Event, RawClient, chat, engine, until
from tests.processes.test_fake_engine import http, stream

JSON = {"accept": "application/json, */*;q=0.5"}
FACES = ("openai", "llamacpp", "ds4", "ds4-upstream", "vllm", "sglang")
ASKED = {"stream": True, "stream_options": {"include_usage": True}}


def body(route: str, words: str = "hello there", **more: Any) -> dict[str, Any]:
    """A request on this route."""
    turns = [{"role": "user", "content": words}]
    prompt: dict[str, dict[str, Any]] = {
        COMPLETIONS: {"prompt": words},
        RESPONSES: {"input": turns},
        EMBEDDINGS: {"input": words},
    }
    return {"model": "fake-model"} | prompt.get(route, {"messages": turns}) | more


async def events(one: Engine, route: str, value: dict[str, Any]) -> list[Event]:
    """All events of a stream."""
    async with await RawClient.connect(one.url) as client:
        await client.post(route, value)
        assert (await client.head()).status == 200
        return await client.events()


async def figures(one: Engine) -> dict[str, float]:
    """What /metrics tells: the samples of all names, summed over their labels."""
    async with http(one) as client:
        families = text_string_to_metric_families((await client.get("/metrics")).text)
    sums: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


# -- who it is


@pytest.mark.parametrize("face", FACES)
async def test_it_is_recognised_and_tells_what_its_original_tells(face: str) -> None:
    """The gateway's adapters see the engine, and its slots where that kind of engine tells them."""
    async with engine(face, slots=5, context_tokens=4096) as one, http(one) as client:
        answers = {}
        for path in DETECTION_PATHS:
            got = await client.get(path, headers=JSON)
            answers[path] = Answer(got.status_code, got.headers, got.content)
        adapter = detect(answers)
        assert adapter is not None
        assert adapter.name == face.removesuffix("-upstream")
        report = adapter.read({path: answers[path] for path in adapter.paths})
        assert report.slots == (5 if face in ("llamacpp", "ds4", "sglang") else None)
        assert report.context_tokens == (4096 if face != "openai" else None)


ROUTES = {
    "openai": {CHAT, COMPLETIONS},
    "llamacpp": {CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, TOKENIZE},
    "ds4": {CHAT, COMPLETIONS, RESPONSES, MESSAGES},
    "ds4-upstream": {CHAT, COMPLETIONS, RESPONSES, MESSAGES},
    "vllm": {CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, TOKENIZE},
    "sglang": {CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, TOKENIZE},
}


@pytest.mark.parametrize("face", FACES)
async def test_it_has_its_client_routes_and_no_others(face: str) -> None:
    """Each answers 200 or as an unknown route; embeddings only where it was started for them."""
    every = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS, TOKENIZE)
    async with engine(face, instant=True) as one, http(one) as client:
        statuses = {route: (await client.post(route, json=body(route))).status_code for route in every}
        assert {route for route, status in statuses.items() if status == 200} == ROUTES[face]
        assert set(statuses.values()) <= {200, 404, 501}
        generating = ROUTES[face] - {COUNT_TOKENS, TOKENIZE}
        assert (await one.state())["routes"] == dict.fromkeys(generating, 1)
    async with engine(face, instant=True, embeddings=True) as one, http(one) as client:
        answer = (await client.post(EMBEDDINGS, json=body(EMBEDDINGS, "x" * 40))).json()
        assert len(answer["data"][0]["embedding"]) == 8
        assert answer["usage"] == {"prompt_tokens": 10, "total_tokens": 10}


# -- every route in its own shape


@pytest.mark.parametrize("face", FACES[1:])
@pytest.mark.parametrize("streams", [False, True])
async def test_usage_is_what_it_counted_on_every_route(face: str, streams: bool) -> None:
    """Prompt and completion tokens of each answer are those of its record."""
    async with engine(face, instant=True, tokens=5) as one, http(one) as client:
        for route in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
            asked = ASKED if route in (CHAT, COMPLETIONS) else {"stream": True}
            if streams:
                found = told(await events(one, route, body(route, route, **asked)))
            else:
                found = (await client.post(route, json=body(route, route))).json()["usage"]
            (record,) = await one.records(1)
            counted = record["prompt_tokens"], record["completion_tokens"]
            prompt = found.get("prompt_tokens", found.get("input_tokens"))
            completion = found.get("completion_tokens", found.get("output_tokens"))
            assert (prompt, completion) == counted == (len(route) // 4, 5)


def told(all: list[Event]) -> dict[str, Any]:
    """The usage that a stream tells, in one or in parts."""
    found: dict[str, Any] = {}
    for event in all:
        if event.data and not event.done:
            value = event.json()
            inner = value.get("message") or value.get("response") or {}
            found |= inner.get("usage") or value.get("usage") or {}
    return found


async def test_messages_and_responses_call_tools_and_think() -> None:
    """Thoughts, words and calls are blocks and items of their own; the words are those of chat."""
    tool = {"name": "terminal", "input_schema": {"type": "object"}}
    call = [{"name": "terminal", "arguments": '{"command":"ls"}'}]
    async with engine("vllm", instant=True, tokens=4) as one, http(one) as client:
        words = (await client.post(CHAT, json=body(CHAT))).json()["choices"][0]["message"]["content"]
        message = (await client.post(MESSAGES, json=body(MESSAGES))).json()
        response = (await client.post(RESPONSES, json=body(RESPONSES))).json()
        assert message["content"] == [{"type": "text", "text": words}]
        assert response["output"][0]["content"][0]["text"] == words
        await one.script(reasoning_tokens=2, times=2)
        blocks = (await client.post(MESSAGES, json=body(MESSAGES))).json()["content"]
        assert [block["type"] for block in blocks] == ["thinking", "text"]
        items = (await client.post(RESPONSES, json=body(RESPONSES))).json()["output"]
        assert [item["type"] for item in items] == ["reasoning", "message"]
        await one.script(tool_calls=call, times=2)
        named = [
            (e.field("event"), e.json()) for e in await events(one, MESSAGES, body(MESSAGES, stream=True))
        ]
        starts = [data["content_block"] for name, data in named if name == "content_block_start"]
        parts = [data["delta"]["partial_json"] for name, data in named if name == "content_block_delta"]
        assert [(block["type"], block["name"]) for block in starts] == [("tool_use", "terminal")]
        assert json.loads("".join(parts)) == {"command": "ls"}
        assert named[-2][1]["delta"]["stop_reason"] == "tool_use"
        (item,) = (await client.post(RESPONSES, json=body(RESPONSES))).json()["output"]
        assert (item["type"], item["name"], item["arguments"]) == (
            "function_call",
            "terminal",
            '{"command":"ls"}',
        )
        first = (await client.post(MESSAGES, json=body(MESSAGES, tools=[tool]))).json()
        assert first["content"][0]["input"] == {"command": "echo hi"}
        result = {"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": "hi"}
        turns = [*body(MESSAGES)["messages"], {"role": "assistant", "content": first["content"]}]
        turns.append({"role": "user", "content": [result]})
        last = (await client.post(MESSAGES, json=body(MESSAGES, tools=[tool], messages=turns))).json()
        assert last["content"][0]["type"] == "text"


@pytest.mark.parametrize("face", FACES)
async def test_prompts_too_long_are_refused_and_counted(face: str) -> None:
    """On every generating route, with 400, without generating anything."""
    routes = sorted(ROUTES[face] - {COUNT_TOKENS, TOKENIZE})
    async with engine(face, instant=True, context_tokens=50) as one, http(one) as client:
        for route in routes:
            answer = await client.post(route, json=body(route, "x" * 400))
            assert answer.status_code == 400
            if face.startswith("ds4"):
                error = answer.json()["error"]
                assert (error["n_prompt_tokens"], error["n_ctx"]) == (100, 50)
                assert error.get("code") == (None if route == MESSAGES else "context_length_exceeded")
        state = await one.state()
        assert (state["overlength"], state["outcomes"]) == (len(routes), {"refused": len(routes)})
        assert state["tokens"].get("completion", 0) == 0


WARM = {"llamacpp": [0, 0, 100], "ds4": [0, 100, 100], "vllm": [0, 96, 96], "sglang": [0, 100, 100]}


@pytest.mark.parametrize("face", WARM)
async def test_prompts_stay_warm_as_in_its_original(face: str) -> None:
    """Beside a busy slot that holds the beginning: other slots are cold, banks copy, blocks are for all."""
    async with engine(face, slots=3, instant=True, prefix_cache=True, tokens=1) as one, http(one) as client:
        begin = "b" * 400
        await client.post(CHAT, json=body(CHAT, begin))
        warm = [(await one.records(1))[0]["cached_tokens"]]
        async with await RawClient.connect(one.url) as busy:
            await one.script(cut="stall", cut_after=1)
            await busy.post(CHAT, chat(begin + "first to come"))
            await one.busy()
            for name in ("one", "another"):
                await client.post(CHAT, json=body(CHAT, begin + name * 3))
                warm.append((await one.records(1))[0]["cached_tokens"])
        assert warm == WARM[face]


# -- ds4


async def test_ds4_sends_head_and_comments_long_before_the_first_token() -> None:
    """200 and `: prefill` prove nothing; an error may follow, named, and without [DONE]."""
    async with engine("ds4", instant=True) as one, await RawClient.connect(one.url) as client:
        await one.script(prefill_seconds=0.5, comment_seconds=0.1, error_after=0)
        await client.post(CHAT, chat("x"))
        head = await client.head()
        got = await client.events()
        assert (head.status, head.headers["connection"]) == (200, "close")
        assert [event.raw for event in got[:4]] == [b": prefill\n\n"] * 4
        assert got[-1].field("event") == "error"
        assert set(got[-1].json()["error"]) == {"message", "type"}
        assert client.ended == "clean"


async def test_ds4_keeps_each_route_alive_in_its_own_way() -> None:
    """Comments on chat, `ping` on messages, `response.in_progress` on responses; upstream comments always."""
    own = {CHAT: b": prefill", MESSAGES: b"event: ping", RESPONSES: b"event: response.in_progress"}
    for face in ("ds4", "ds4-upstream"):
        async with engine(face, instant=True) as one:
            await one.script(times=3, prefill_seconds=0.25, comment_seconds=0.1)
            for route, begin in own.items():
                got = await events(one, route, body(route, stream=True))
                expected = begin if face == "ds4" else b": prefill"
                assert all(event.raw.startswith(expected) for event in got[:2])
                assert not got[2].raw.startswith(b": ")


async def test_ds4_upstream_sees_a_client_leave_only_when_it_writes() -> None:
    """A half-closed connection is open to it; a reset one ends the request at the next comment or token."""
    async with engine("ds4-upstream", decode_tps=20, tokens=1000) as one:
        async with await RawClient.connect(one.url) as client:
            await client.post(CHAT, chat("streams"))
            await client.head()
            await client.first_token()
            client.half_close()
            before = (await one.records(1))[0]["completion_tokens"]

            async def goes_on() -> bool:
                return bool((await one.records(1))[0]["completion_tokens"] > before + 3)

            await until(goes_on, "tokens for nobody")
            assert (await one.state())["running"] == 1
            client.reset()
            await one.idle()
        assert (await one.records(1))[0]["outcome"] == "aborted"


async def test_ds4_closes_every_connection_and_reads_no_chunked_body() -> None:
    """Content-Length only, and never a second request on a connection."""

    async def pieces() -> Any:
        yield json.dumps(chat("x")).encode()

    async with engine("ds4", instant=True) as one, http(one) as client:
        for path in ("/v1/models", "/v1/stats", "/health"):
            assert (await client.get(path)).headers["connection"] == "close"
        assert (await client.post(CHAT, json=chat("x", stream=False))).headers["connection"] == "close"
        answer = await client.post(CHAT, content=pieces())
        assert answer.status_code == 400
        assert (await one.state())["outcomes"] == {"completed": 1, "unread": 1}
        assert {request["nth"] for request in await one.requests(9)} == {1}


async def test_ds4_tells_its_figures_as_json_and_as_text() -> None:
    """`/v1/stats` by what is accepted, and `/metrics`; both while it is full."""
    async with engine("ds4", slots=2, context_tokens=999, spec_accept=0.5) as one, http(one) as client:
        await one.script(times=None, cut="stall", cut_after=2)
        tasks = [asyncio.create_task(client.post(CHAT, json=chat(f"{i}"))) for i in range(3)]
        await one.busy(2)
        stats = (await client.get("/v1/stats", headers=JSON)).json()
        assert (stats["server"]["max_seq"], stats["server"]["context"]) == (2, 999)
        assert (stats["server"]["requests_inflight"], stats["backpressure"]["queue_depth"]) == (3, 1)
        text = (await client.get("/v1/stats", headers={"accept": "*/*"})).text
        assert "max_seq:2" in text
        seen = await figures(one)
        assert (seen["ds4_banks_total"], seen["ds4_banks_live"], seen["ds4_queue_depth"]) == (2, 2, 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await one.idle()


async def test_ds4_restarts_with_other_slots() -> None:
    """As another process its uptime begins again, and `max_seq` is what fits now."""
    async with engine("ds4", slots=11) as one, http(one) as client:

        async def server() -> dict[str, Any]:
            value: dict[str, Any] = (await client.get("/v1/stats", headers=JSON)).json()["server"]
            return value

        async def aged() -> bool:
            return bool((await server())["uptime_seconds"] >= 1)

        await until(aged, "a second of uptime")
        await one.resize(6)
        after = await server()
        assert (after["max_seq"], after["uptime_seconds"]) == (6, 0)


@pytest.mark.parametrize(
    ("kind", "status", "pause"),
    [
        ("clients", 503, "10"),
        ("queue_depth", 429, "5"),
        ("queue_bytes", 429, "5"),
        ("queue_age", 503, "5"),
        ("continuation_hold", 503, "5"),
        ("memory", 503, "5"),
        ("continuation", 409, None),
        ("shutdown", 503, None),
    ],
)
async def test_ds4_refuses_in_its_words(kind: str, status: int, pause: str | None) -> None:
    """By status and Retry-After, on messages in Anthropic's shape, and counts it."""
    async with engine("ds4", instant=True) as one, http(one) as client:
        await one.script(refusal=kind, times=2)
        for route in (CHAT, MESSAGES):
            answer = await client.post(route, json=body(route))
            assert (answer.status_code, answer.headers.get("retry-after")) == (status, pause)
            assert ("type" in answer.json()) == (route == MESSAGES)
        assert (await one.state())["refused"] == {kind: 2}
        assert (await client.post(CHAT, json=body(CHAT))).status_code == 200


async def test_ds4_lets_in_only_what_its_memory_funds() -> None:
    """A request that names no limit is charged 32,768 tokens; one that does not fit is turned away."""
    async with engine("ds4", slots=4, kv_tokens=40_000, decode_tps=20) as one, http(one) as client:
        running = asyncio.create_task(client.post(CHAT, json=chat("long", stream=False)))
        await one.busy()
        greedy = await client.post(CHAT, json=chat("no limit", stream=False))
        modest = await client.post(CHAT, json=chat("a limit", stream=False, max_tokens=100))
        assert [(await running).status_code, greedy.status_code, modest.status_code] == [200, 503, 200]
        assert (await one.state())["refused"] == {"memory": 1}
        assert (await figures(one))["ds4_requests_rejected_total"] == 1


async def test_ds4_tells_timings_beside_usage_only() -> None:
    """In whole answers and in the usage chunk of the fork; upstream has none."""
    for face, has in (("ds4", True), ("ds4-upstream", False)):
        async with engine(face, instant=True) as one, http(one) as client:
            whole = (await client.post(CHAT, json=chat("x", stream=False))).json()
            assert ("timings" in whole) == has
            _, got = await stream(one, chat("x", stream_options={"include_usage": True}))
            assert ["timings" in event.json() for event in got[:-1]][-2:] == [False, has]
            _, got = await stream(one, chat("x"))
            assert not any("timings" in event.json() for event in got[:-1])


async def test_ds4_upstream_has_five_routes() -> None:
    """Whatever else is asked: 404, in its words."""
    async with engine("ds4-upstream", instant=True) as one, http(one) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["owned_by"], model["context_length"]) == ("ds4.c", 65_536)
        assert (await client.get("/v1/models/fake-model")).json() == model
        for path in ("/health", "/metrics", "/v1/stats", "/props", "/version"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert answer.json()["error"]["message"] == "unknown endpoint"


# -- vLLM


async def test_vllm_counts_its_load_and_tells_no_slots() -> None:
    """Running, waiting, preempted; the size of its memory; slots only in development mode."""
    async with engine("vllm", slots=2, context_tokens=1000, kv_tokens=1500) as one, http(one) as client:
        await one.script(times=None, cut="stall", cut_after=2)
        tasks = [asyncio.create_task(client.post(CHAT, json=chat(f"{i}" * 3200))) for i in range(3)]
        await one.busy(2)
        seen = await figures(one)
        assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (2, 1)
        assert seen["vllm:num_preemptions_total"] == (await one.state())["preemptions"] == 1
        assert (await one.state())["max_held"] >= 1600
        text = (await client.get("/metrics")).text
        assert 'kv_cache_size_tokens="1500"' in text
        assert 'kv_cache_max_concurrency="1.5"' in text
        assert (await client.get("/server_info")).status_code == 404
        assert (await client.get("/load")).json() == {"server_load": 0}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await one.idle()
    async with engine("vllm", slots=2, dev_mode=True) as one, http(one) as client:
        info = (await client.get("/server_info?config_format=json")).json()
        assert info["vllm_config"]["scheduler_config"]["max_num_seqs"] == 2


async def test_vllm_sends_the_head_while_the_request_waits() -> None:
    """200 at once, then nothing until its turn comes."""
    async with engine("vllm", slots=1) as one, await RawClient.connect(one.url) as client:
        await one.script(match="first", cut="stall", cut_after=1)
        async with await RawClient.connect(one.url) as first:
            await first.post(CHAT, chat("first"))
            await one.busy()
            await client.post(CHAT, chat("second"))
            assert (await client.head()).status == 200
            assert (await one.state())["waiting"] == 1
        assert (await client.events())[-1].done


async def test_vllm_sends_several_tokens_in_an_event_and_done_after_an_error() -> None:
    """Events are not tokens; an error comes under 200, then [DONE]."""
    async with engine("vllm", instant=True, tokens=6, tokens_per_event=3) as one:
        _, got = await stream(one, chat("x"))
        assert sum(bool(event.token) for event in got) == 2
        assert (await one.records(1))[0]["completion_tokens"] == 6
        await one.script(error_after=2)
        _, got = await stream(one, chat("x"))
        assert got[-2].json()["error"]["code"] == 500
        assert got[-1].done


async def test_vllm_aborts_what_runs_at_sigterm() -> None:
    """Without a time for draining, answers end at once under 200 with `abort`, waiting ones empty."""
    async with engine("vllm", slots=1, decode_tps=20, tokens=1000) as one:
        async with await RawClient.connect(one.url) as first, await RawClient.connect(one.url) as second:
            await first.post(CHAT, chat("first"))
            await first.head()
            await first.first_token()
            await second.post(CHAT, chat("second"))
            await second.head()
            one.process.signal(signal.SIGTERM)
            for client in (first, second):
                got = await client.events()
                assert got[-2].json()["choices"][0]["finish_reason"] == "abort"
                assert got[-1].done
            assert not any(event.token for event in got)
        assert await one.process.ended() == 0


async def test_vllm_drains_at_sigterm_if_it_may() -> None:
    """What runs goes on, new requests get 500, health stays green; what is left in the end gets an error."""
    async with engine("vllm", slots=2, decode_tps=10, tokens=1000, shutdown_seconds=1.0) as one:
        async with await RawClient.connect(one.url) as long, http(one) as client:
            await long.post(CHAT, chat("long"))
            await long.head()
            await long.first_token()
            one.process.signal(signal.SIGTERM)

            async def drains() -> bool:
                return (await client.post(CHAT, json=chat("new"))).status_code == 500

            await until(drains, "a refusal")
            answer = await client.post(CHAT, json=chat("new"))
            assert answer.json()["error"]["message"] == "cannot schedule new futures after shutdown"
            assert (await client.get("/health")).status_code == 200
            got = await long.events()
            assert got[-2].json()["error"]["type"] == "InternalServerError"
            assert got[-1].done
        assert await one.process.ended() == 0


# -- SGLang


async def test_sglang_refuses_a_limit_that_does_not_fit_beside_the_prompt() -> None:
    """400, and its errors are flat."""
    async with engine("sglang", instant=True, context_tokens=100) as one, http(one) as client:
        fits = await client.post(CHAT, json=chat("x" * 200, stream=False, max_tokens=50))
        over = await client.post(CHAT, json=chat("x" * 200, stream=False, max_tokens=51))
        assert (fits.status_code, over.status_code) == (200, 400)
        assert "maximum context length of 100 tokens" in over.json()["message"]
        assert over.json()["object"] == "error"


async def test_sglang_refuses_a_stream_in_the_stream_when_its_queue_is_full() -> None:
    """503 to those who do not stream; to the others 200, an error event with 503, and [DONE]."""
    async with engine("sglang", slots=1, queue_limit=0) as one, http(one) as client:
        await one.script(match="first", cut="stall", cut_after=1)
        async with await RawClient.connect(one.url) as first:
            await first.post(CHAT, chat("first"))
            await one.busy()
            assert (await client.post(CHAT, json=chat("x", stream=False))).status_code == 503
            got = await events(one, CHAT, chat("x"))
            assert got[0].json()["error"]["message"] == "The request queue is full."
            assert got[0].json()["error"]["code"] == 503
            assert got[1].done
        assert (await one.state())["refused"] == {"queue": 2}


async def test_refusals_that_an_engine_does_not_know_are_a_mistake() -> None:
    """A test that scripts ds4's words for vLLM is told so."""
    async with engine("vllm") as one, http(one) as client:
        assert (await client.post("/_fake/script", json={"refusal": "queue_age"})).status_code == 400
