"""The openai SDK, sync and async, behind the gateway: what its users see of answers, streams and errors."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from tests.processes import harness
from tests.processes.process import WAIT_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "fake-model"
CONTEXT_TOKENS = 4096
KEY = "a-key-of-this-test"
HELLO: Any = [{"role": "user", "content": "Say hello"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "terminal",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]

Create = Callable[..., Awaitable[Any]]


def options(url: str, key: str) -> dict[str, Any]:
    """Of a client that tells every failure at once."""
    return {"base_url": f"{url}/v1", "api_key": key, "max_retries": 0, "timeout": WAIT_SECONDS}


async def create_sync(url: str, key: str = KEY, **request: Any) -> Any:
    """A chat completion by the synchronous client; of a stream all chunks."""

    def create() -> Any:
        with openai.OpenAI(**options(url, key)) as client:
            answer = client.chat.completions.create(**({"model": MODEL, "messages": HELLO} | request))
            return list(answer) if request.get("stream") else answer

    return await asyncio.to_thread(create)


async def create_async(url: str, key: str = KEY, **request: Any) -> Any:
    """The same by the asynchronous client."""
    async with openai.AsyncOpenAI(**options(url, key)) as client:
        answer: Any = await client.chat.completions.create(**({"model": MODEL, "messages": HELLO} | request))
        return [chunk async for chunk in answer] if request.get("stream") else answer


both = pytest.mark.parametrize("create", [create_sync, create_async])
streaming_or_not = pytest.mark.parametrize("stream", [False, True])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[harness.Engine]:
    """An engine with one slot."""
    async with harness.engine(
        "llamacpp", slots=1, context_tokens=CONTEXT_TOKENS, model=MODEL, instant=True, embeddings=True
    ) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(engine: harness.Engine) -> AsyncIterator[str]:
    """The gateway in front of it, which knows one key and lets nobody wait for more than a second."""
    config = {
        "keys": [{"name": "tests", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
        "queue": {"wait_seconds_max": 1},
        "backends": [
            {"name": "one", "url": engine.url, "engine": "llamacpp", "warmup": {"requests": 0}},
        ],
    }
    async with harness.gateway(config) as gateway:
        yield gateway.url


def text(chunks: list[ChatCompletionChunk]) -> str:
    """What a stream said."""
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


@both
async def test_an_answer_carries_the_engines_usage(create: Create, engine: harness.Engine, url: str) -> None:
    """A whole answer has its text, finish reason and the tokens that the engine counted."""
    answer: ChatCompletion = await create(url)

    [record] = await engine.records(last=1)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == record["prompt_tokens"]
    assert answer.usage.completion_tokens == record["completion_tokens"] == 8


@both
async def test_a_stream_says_what_the_whole_answer_says(create: Create, url: str) -> None:
    """A stream's pieces are the words of the whole answer, and end with its finish reason."""
    whole: ChatCompletion = await create(url)
    chunks: list[ChatCompletionChunk] = await create(url, stream=True)

    assert text(chunks) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in chunks[-1].choices] == ["stop"]


@both
@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": False}}])
async def test_no_usage_unless_asked(create: Create, more: dict[str, Any], url: str) -> None:
    """A client that did not ask for usage sees no usage chunk, nor any other without a choice."""
    chunks: list[ChatCompletionChunk] = await create(url, stream=True, **more)

    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


@both
async def test_usage_when_asked(create: Create, engine: harness.Engine, url: str) -> None:
    """A client that asked gets one last chunk, without choices, with the tokens that the engine counted."""
    *chunks, last = await create(url, stream=True, stream_options={"include_usage": True})

    [record] = await engine.records(last=1)
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (record["prompt_tokens"], 8)


def assert_called_terminal(message: Any) -> None:
    """One whole call of the tool."""
    [call] = message.tool_calls
    assert call.id
    assert (call.function.name, call.function.arguments) == ("terminal", '{"command":"echo hi"}')


@both
async def test_a_tool_call_of_a_whole_answer(create: Create, url: str) -> None:
    """A tool call arrives with id, name and arguments."""
    answer: ChatCompletion = await create(url, tools=TOOLS)

    assert answer.choices[0].finish_reason == "tool_calls"
    assert_called_terminal(answer.choices[0].message)


async def test_a_streamed_tool_call_accumulates_in_the_sync_client(url: str) -> None:
    """The synchronous SDK's own accumulation puts the pieces of a streamed tool call together."""

    def accumulate() -> Any:
        with (
            openai.OpenAI(**options(url, KEY)) as client,
            client.chat.completions.stream(model=MODEL, messages=HELLO, tools=TOOLS) as stream,
        ):
            return stream.get_final_completion()

    answer = await asyncio.to_thread(accumulate)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert_called_terminal(answer.choices[0].message)


async def test_a_streamed_tool_call_accumulates_in_the_async_client(url: str) -> None:
    """The asynchronous SDK's own accumulation puts the pieces of a streamed tool call together."""
    async with (
        openai.AsyncOpenAI(**options(url, KEY)) as client,
        client.chat.completions.stream(model=MODEL, messages=HELLO, tools=TOOLS) as stream,
    ):
        answer = await stream.get_final_completion()
    assert answer.choices[0].finish_reason == "tool_calls"
    assert_called_terminal(answer.choices[0].message)


@both
@streaming_or_not
async def test_a_tool_loop_ends_with_words(create: Create, stream: bool, url: str) -> None:
    """The tool's result, sent back as the SDK's users do, is answered in words."""
    answer: ChatCompletion = await create(url, tools=TOOLS)
    message = answer.choices[0].message
    assert message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "hi"}
    messages = [*HELLO, message.model_dump(exclude_none=True), result]

    last = await create(url, tools=TOOLS, messages=messages, stream=stream)
    assert text(last) if stream else last.choices[0].message.content


async def test_a_plain_completion(url: str) -> None:
    """The older route answers whole and as a stream, in the same words."""
    async with openai.AsyncOpenAI(**options(url, KEY)) as client:
        whole = await client.completions.create(model=MODEL, prompt="Once upon a time")
        stream = await client.completions.create(model=MODEL, prompt="Once upon a time", stream=True)
        streamed = "".join([choice.text async for chunk in stream for choice in chunk.choices])
    assert whole.choices[0].text == streamed != ""


async def respond(url: str, **request: Any) -> Any:
    """A response; of a stream all events."""
    async with openai.AsyncOpenAI(**options(url, KEY)) as client:
        answer: Any = await client.responses.create(**({"model": MODEL, "input": "Say hello"} | request))
        return [event async for event in answer] if request.get("stream") else answer


async def test_a_response_carries_the_engines_usage(engine: harness.Engine, url: str) -> None:
    """Whole, and as a stream that says the same; its tokens are those that the engine counted."""
    whole: Response = await respond(url)
    events: list[Any] = await respond(url, stream=True)

    records = await engine.records(last=2)
    assert whole.status == "completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text != ""
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    for response, record in zip((whole, events[-1].response), records, strict=True):
        assert response.usage is not None
        assert response.usage.input_tokens == record["prompt_tokens"]
        assert response.usage.output_tokens == record["completion_tokens"] == 8


@streaming_or_not
async def test_a_function_call_of_a_response(stream: bool, url: str) -> None:
    """It arrives with id, name and arguments, and its result is answered in words."""
    tools = [{"type": "function", "name": "terminal", "parameters": {"type": "object", "properties": {}}}]
    answer: Any = await respond(url, tools=tools, stream=stream)
    response: Response = answer[-1].response if stream else answer
    [call] = [item for item in response.output if item.type == "function_call"]
    assert (call.name, call.arguments) == ("terminal", '{"command":"echo hi"}')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "hi"}
    turn = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
    last = await respond(url, tools=tools, input=[*HELLO, turn, result])
    assert last.output_text


@streaming_or_not
async def test_a_response_to_a_prompt_over_every_context(stream: bool, url: str) -> None:
    """The same error as on chat."""
    with pytest.raises(openai.BadRequestError, match=str(CONTEXT_TOKENS)) as caught:
        await respond(url, input="one two three four " * CONTEXT_TOKENS, stream=stream)
    assert caught.value.code == "context_length_exceeded"


async def test_a_response_that_breaks_off_is_an_error(engine: harness.Engine, url: str) -> None:
    """The SDK raises; it does not take half a response for a whole one."""
    await engine.script(cut="rst", cut_after=6)
    with pytest.raises(openai.APIError, match="The backend failed"):
        await respond(url, stream=True)


async def test_embeddings_carry_the_engines_usage(engine: harness.Engine, url: str) -> None:
    """One vector per text, in the encoding that the SDK asks for unseen, and in plain numbers."""
    texts = ["one text", "another"]
    async with openai.AsyncOpenAI(**options(url, KEY)) as client:
        packed = await client.embeddings.create(model=MODEL, input=texts)
        plain = await client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    [record] = await engine.records(last=1)
    assert [vector.embedding for vector in packed.data] == [vector.embedding for vector in plain.data]
    assert len(plain.data) == 2
    assert plain.usage.prompt_tokens == record["prompt_tokens"]


async def test_models_are_listed_and_found(url: str) -> None:
    """The engine's model is in the list, and by its name, with the context that a prompt may have."""
    async with openai.AsyncOpenAI(**options(url, KEY)) as client:
        listed = [model.id async for model in client.models.list()]
        model = await client.models.retrieve(MODEL)
    assert listed == [MODEL]
    assert model.id == MODEL
    assert (model.model_extra or {})["context_length"] == CONTEXT_TOKENS


@both
@streaming_or_not
async def test_a_wrong_key_is_an_authentication_error(create: Create, stream: bool, url: str) -> None:
    """A key that the gateway does not know."""
    with pytest.raises(openai.AuthenticationError) as caught:
        await create(url, key="another", stream=stream)
    assert caught.value.code == "invalid_api_key"


@both
@streaming_or_not
async def test_an_unknown_model_is_not_found(create: Create, stream: bool, url: str) -> None:
    """A model that no backend serves; the message names those that exist."""
    with pytest.raises(openai.NotFoundError, match=MODEL) as caught:
        await create(url, model="another-model", stream=stream)
    assert caught.value.code == "model_not_found"


@both
@streaming_or_not
async def test_a_prompt_over_every_context(
    create: Create, stream: bool, engine: harness.Engine, url: str
) -> None:
    """A prompt that no slot holds; the message states the limit, and the engine has nothing to do with it."""
    before = (await engine.state())["outcomes"].get("completed", 0)
    long: Any = [{"role": "user", "content": "one two three four " * CONTEXT_TOKENS}]
    with pytest.raises(openai.BadRequestError, match=str(CONTEXT_TOKENS)) as caught:
        await create(url, messages=long, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert (await engine.state())["outcomes"].get("completed", 0) == before


@both
@streaming_or_not
async def test_a_body_that_is_no_request(create: Create, stream: bool, url: str) -> None:
    """Messages that are no list."""
    with pytest.raises(openai.BadRequestError) as caught:
        await create(url, messages="hello", stream=stream)
    assert caught.value.code == "invalid_request"


@both
@streaming_or_not
async def test_a_wait_over_its_bound_is_a_rate_limit_error(
    create: Create, stream: bool, engine: harness.Engine, url: str
) -> None:
    """While another holds the only slot, a request is refused in time and told when to retry."""
    await engine.script(prefill_seconds=WAIT_SECONDS)
    holder = asyncio.create_task(create_async(url, stream=True))
    try:
        await engine.busy()
        with pytest.raises(openai.RateLimitError) as caught:
            await create(url, stream=stream)
    finally:
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)
    await engine.idle()
    assert caught.value.code == "wait_too_long"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
