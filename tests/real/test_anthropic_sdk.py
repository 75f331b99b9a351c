"""The anthropic SDK, sync and async, behind the gateway: messages, streams, tools, counts and errors."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic.types import Message, RawMessageStreamEvent

from tests.processes import harness
from tests.processes.fleet import becomes
from tests.processes.process import WAIT_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "fake-model"
CONTEXT_TOKENS = 4096
KEY = "a-key-of-this-test"
HELLO: Any = [{"role": "user", "content": "Say hello"}]
TOOLS: Any = [
    {
        "name": "terminal",
        "description": "Runs a command",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
]

Create = Callable[..., Awaitable[Any]]


def options(url: str, key: str) -> dict[str, Any]:
    """Of a client that tells every failure at once."""
    return {"base_url": url, "api_key": key, "max_retries": 0, "timeout": WAIT_SECONDS}


async def create_sync(url: str, key: str = KEY, **request: Any) -> Any:
    """A message by the synchronous client; of a stream all events."""
    request = {"model": MODEL, "messages": HELLO, "max_tokens": 64} | request

    def create() -> Any:
        with anthropic.Anthropic(**options(url, key)) as client:
            answer = client.messages.create(**request)
            return list(answer) if request.get("stream") else answer

    return await asyncio.to_thread(create)


async def create_async(url: str, key: str = KEY, **request: Any) -> Any:
    """The same by the asynchronous client."""
    request = {"model": MODEL, "messages": HELLO, "max_tokens": 64} | request
    async with anthropic.AsyncAnthropic(**options(url, key)) as client:
        answer: Any = await client.messages.create(**request)
        return [event async for event in answer] if request.get("stream") else answer


both = pytest.mark.parametrize("create", [create_sync, create_async])
streaming_or_not = pytest.mark.parametrize("stream", [False, True])


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["llamacpp", "vllm"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[harness.Engine]:
    """An engine with one slot: one that must stream, and one that need not."""
    async with harness.engine(
        request.param, slots=1, context_tokens=CONTEXT_TOKENS, model=MODEL, instant=True
    ) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(engine: harness.Engine) -> AsyncIterator[str]:
    """The gateway in front of it, which knows one key and lets nobody wait for more than a second."""
    kind = engine.options["personality"]
    config = {
        "keys": [{"name": "tests", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
        "queue": {"wait_seconds_max": 1, "heartbeat_seconds": 0.25},
        "backends": [
            {"name": "one", "url": engine.url, "engine": kind, "slots": 1, "warmup": {"requests": 0}},
        ],
    }
    async with harness.gateway(config) as gateway:
        await becomes(gateway, "one", "ready")
        yield gateway.url


def text(events: list[RawMessageStreamEvent]) -> str:
    """What a stream said."""
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    return "".join(delta.text for delta in deltas if delta.type == "text_delta")


@both
async def test_a_message_carries_the_engines_usage(create: Create, engine: harness.Engine, url: str) -> None:
    """A whole message has its text, stop reason and the tokens that the engine counted."""
    message: Message = await create(url)

    [record] = await engine.records(last=1)
    assert message.content[0].type == "text"
    assert message.content[0].text
    assert message.stop_reason == "end_turn"
    cached = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + cached == record["prompt_tokens"]
    assert message.usage.output_tokens == record["completion_tokens"] == 8


@both
async def test_a_stream_says_what_the_message_says(create: Create, engine: harness.Engine, url: str) -> None:
    """A stream's pieces are the words of the whole message; its usage is the engine's."""
    whole: Message = await create(url)
    events: list[RawMessageStreamEvent] = await create(url, stream=True)

    [record] = await engine.records(last=1)
    assert whole.content[0].type == "text"
    assert text(events) == whole.content[0].text
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    [delta] = [event for event in events if event.type == "message_delta"]
    assert delta.usage.output_tokens == record["completion_tokens"]


async def test_the_sdks_own_accumulation_gives_the_message(url: str, engine: harness.Engine) -> None:
    """Thoughts, words and usage, put together by the SDK's stream; heartbeats do not disturb it."""
    await engine.script(reasoning_tokens=4, prefill_seconds=1.2)
    async with (
        anthropic.AsyncAnthropic(**options(url, KEY)) as client,
        client.messages.stream(model=MODEL, messages=HELLO, max_tokens=64) as stream,
    ):
        message = await stream.get_final_message()
    [record] = await engine.records(last=1)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.usage.output_tokens == record["completion_tokens"]


@both
async def test_a_tool_call_of_a_message(create: Create, url: str) -> None:
    """A tool call arrives with id, name and input."""
    message: Message = await create(url, tools=TOOLS)

    assert message.stop_reason == "tool_use"
    assert_called_terminal(message)


def assert_called_terminal(message: Message) -> None:
    """One whole call of the tool."""
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert call.id
    assert (call.name, call.input) == ("terminal", {"command": "echo hi"})


async def test_a_streamed_tool_call_accumulates(url: str) -> None:
    """The SDK puts the pieces of a streamed tool call together."""

    def accumulate() -> Message:
        with (
            anthropic.Anthropic(**options(url, KEY)) as client,
            client.messages.stream(model=MODEL, messages=HELLO, max_tokens=64, tools=TOOLS) as stream,
        ):
            return stream.get_final_message()

    assert_called_terminal(await asyncio.to_thread(accumulate))


@both
@streaming_or_not
async def test_a_tool_loop_ends_with_words(create: Create, stream: bool, url: str) -> None:
    """The tool's result, sent back as the SDK's users do, is answered in words."""
    message: Message = await create(url, tools=TOOLS)
    [call] = [block for block in message.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "hi"}
    turn = {
        "role": "assistant",
        "content": [block.model_dump(exclude_none=True) for block in message.content],
    }
    messages = [*HELLO, turn, {"role": "user", "content": [result]}]

    last = await create(url, tools=TOOLS, messages=messages, stream=stream)
    assert text(last) if stream else last.content[0].text


async def test_tokens_are_counted_by_the_engine(engine: harness.Engine, url: str) -> None:
    """The count of a prompt is what the engine then counts of it."""
    async with anthropic.AsyncAnthropic(**options(url, KEY)) as client:
        count = await client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.")
        await client.messages.create(model=MODEL, messages=HELLO, system="Be brief.", max_tokens=8)
    [record] = await engine.records(last=1)
    assert count.input_tokens == record["prompt_tokens"]


@both
@streaming_or_not
async def test_a_wrong_key_is_an_authentication_error(create: Create, stream: bool, url: str) -> None:
    """A key that the gateway does not know, sent as `x-api-key`."""
    with pytest.raises(anthropic.AuthenticationError) as caught:
        await create(url, key="another", stream=stream)
    assert told(caught.value)["code"] == "invalid_api_key"


def told(error: anthropic.APIStatusError) -> dict[str, Any]:
    """The error object, in Anthropic's shape."""
    body: Any = error.body
    assert body["type"] == "error"
    found: dict[str, Any] = body["error"]
    return found


@both
@streaming_or_not
async def test_an_unknown_model_is_not_found(create: Create, stream: bool, url: str) -> None:
    """A model that no backend serves; the message names those that exist."""
    with pytest.raises(anthropic.NotFoundError, match=MODEL) as caught:
        await create(url, model="another-model", stream=stream)
    assert told(caught.value)["type"] == "not_found_error"


@both
@streaming_or_not
async def test_a_prompt_over_every_context(create: Create, stream: bool, url: str) -> None:
    """A prompt that no slot holds; the message says so in the words that Anthropic's clients know."""
    long: Any = [{"role": "user", "content": "one two three four " * CONTEXT_TOKENS}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as caught:
        await create(url, messages=long, stream=stream)
    assert told(caught.value)["code"] == "context_length_exceeded"
    assert str(CONTEXT_TOKENS) in told(caught.value)["message"]


@both
@streaming_or_not
async def test_a_wait_over_its_bound_is_a_rate_limit_error(
    create: Create, stream: bool, engine: harness.Engine, url: str
) -> None:
    """While another holds the only slot: by status, or after a heartbeat by an event."""
    await engine.script(prefill_seconds=WAIT_SECONDS)
    holder = asyncio.create_task(create_async(url, stream=True))
    try:
        await engine.busy()
        with pytest.raises(anthropic.APIStatusError) as caught:
            await create(url, stream=stream)
    finally:
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)
    await engine.idle()
    assert told(caught.value)["type"] == "rate_limit_error"
    assert told(caught.value)["code"] == "wait_too_long"
    if not stream:
        assert isinstance(caught.value, anthropic.RateLimitError)
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60


async def test_an_engine_that_dies_in_mid_stream_is_an_error(engine: harness.Engine, url: str) -> None:
    """The SDK raises; it does not take half a message for a whole one."""
    await engine.script(cut="rst", cut_after=6)
    with pytest.raises(anthropic.APIStatusError) as caught:
        await create_async(url, stream=True)
    assert told(caught.value)["code"] == "backend_failed"
