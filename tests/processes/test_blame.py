"""What is a client's fault is not held against an engine, and what cannot be seen holds nobody up."""

from __future__ import annotations

import asyncio
import json
import socket
from urllib.parse import urlsplit

from tests.processes.asking import CHAT, ask, backend, metric
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import RawClient, chat, engine, gateway, until

EVENT = 'data: {"choices":[{"index":0,"delta":{"content":"' + "x" * 1_000_000 + '"}}]}\n\n'


async def test_clients_that_read_nothing_do_not_eject_their_engine() -> None:
    """Their buffers fill, nothing moves for `idle_seconds`, and they are ended as gone; the engine, which
    has sent more than they took, stays ready, and their sockets do not stay open."""
    body = json.dumps(chat("deaf")).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    limits = {"timeouts": {"idle_seconds": 1.0}}
    async with engine(slots=4) as one, gateway(configured(one, backend=limits), clean=False) as front:
        await becomes(front, "b0", "ready")
        await one.script(raw=[EVENT] * 40, times=4)
        port = urlsplit(front.url).port
        deaf = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        try:
            for client in deaf:
                client.sendall(head + body)

            async def gone() -> bool:
                return await metric(front, "slotgate_requests_total", outcome="client_gone") == 4

            await until(gone, "four clients that are given up", 30.0)
            assert (await backend(front, "b0"))["state"] == "ready"
            await settled(front, "b0")
            assert await metric(front, "slotgate_ejections_total") == 0
        finally:
            for client in deaf:
                client.close()


async def test_an_answer_that_does_not_stream_does_not_hold_the_gate_to_its_end() -> None:
    """Nothing tells its first token: the gate opens when its prefill must be over, so that long prompts
    run side by side."""
    prompt = "word " * 8000  # 10,000 tokens by the estimate: seconds of prefill by the prior rates
    async with engine(slots=3, tokens=400, decode_tps=20.0) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        asked = [
            asyncio.create_task(ask(front, chat(f"{i} {prompt}", stream=False, max_tokens=400)))
            for i in range(2)
        ]

        async def both() -> bool:
            return bool((await one.state())["running"] == 2)

        await until(both, "both long prompts at the engine", 20.0)  # each takes 20 s to answer
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await settled(front, "b0")


async def test_a_client_with_a_large_body_is_noticed_when_it_leaves() -> None:
    """Agents' prompts are over 64 KiB, where uvicorn pauses reading; a paused socket shows no end."""
    async with (
        engine(slots=1, tokens=400, decode_tps=20.0) as one,
        gateway(configured(one)) as front,
    ):
        await becomes(front, "b0", "ready")
        for leave in ("close", "reset", "half_close"):
            async with await RawClient.connect(front.url) as client:
                await client.post(CHAT, chat("x" * 200_000, stream=False))
                await one.busy()
                getattr(client, leave)()
                await one.idle()
        assert (await one.state())["outcomes"].get("aborted") == 3
        await settled(front, "b0")


async def test_a_200_without_an_answer_is_a_failure() -> None:
    """Three in a row eject the backend, though each began with a good head."""
    async with engine(slots=1) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        await one.script(status=200, body='{"error": {"message": "no"}}', times=3)
        for _ in range(3):
            assert (await ask(front, chat("x", stream=False))).head.status == 502
        await becomes(front, "b0", "ejected")


async def test_engines_that_refuse_usage_do_so_to_many_at_once() -> None:
    """What the gateway added is the gateway's to take back, for each of those under way."""
    refusal = {"error": {"message": "unknown field stream_options", "param": "stream_options"}}
    async with engine(slots=4) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        await one.script(
            match='"include_usage"', status=400, body=json.dumps(refusal), prefill_seconds=0.3, times=None
        )
        answers = await asyncio.gather(*(ask(front, chat(f"{i}")) for i in range(4)))
        assert [answer.head.status for answer in answers] == [200] * 4


async def test_words_of_a_prompt_do_not_turn_usage_off() -> None:
    """Some engines echo the input that they refuse."""
    echo = {"detail": [{"loc": ["body", "top_k"], "msg": "wrong", "input": "what are stream_options?"}]}
    async with engine(slots=1) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        await one.script(status=422, body=json.dumps(echo))
        assert (await ask(front, chat("what are stream_options?"))).head.status == 422
        assert len([r for r in await one.requests(9) if b"what are" in r["body"]]) == 1
        await ask(front, chat("next"))
        [last] = await one.requests()
        assert b"include_usage" in last["body"]


async def test_a_break_behind_the_finish_reason_is_an_end() -> None:
    """The answer is whole, so nobody need ask again."""
    finish = 'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    async with engine("llamacpp", slots=1) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        for streams in (True, False):
            await one.script(raw=[finish], cut="rst", cut_after=1)
            answer = await ask(front, chat("x", stream=streams))
            assert (answer.head.status, answer.text) == (200, "a")
            assert not streams or answer.body.endswith(b"data: [DONE]\n\n")


async def test_a_drain_ends_a_warm_up() -> None:
    """Drained is safe to stop: no request of ours runs there either."""
    async with (
        engine(slots=1) as one,
        gateway(configured(one, backend={"warmup": {"requests": 1}}), wait_for="/health") as front,
    ):
        await one.script(prefill_seconds=30.0, times=None)
        await becomes(front, "b0", "warming")
        await one.busy()
        answer = await front.operator.post("/admin/backends/b0/drain", json={})
        assert answer.json()["state"] == "drained"
        await one.idle()
