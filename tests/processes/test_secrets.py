"""Where credentials go, and what clients cannot steer: each engine sees its own key and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.processes.asking import CHAT, COMPLETIONS, ask, fault, reply
from tests.processes.fleet import becomes
from tests.processes.harness import Gateway, RawClient, chat, engine, gateway
from tests.processes.test_auth import bearer, key

CLIENT, COOKIE, OTHER = "sk-client-canary", "cookie-canary", "other-canary"
WARM = {"warmup": {"requests": 0}}
TRICKS = [
    "/v1/../slots",
    "/v1/%2e%2e/slots",
    "/v1/..%2fslots",
    "/v1/%252e%252e/slots",
    "/v1//../slots",
    "//evil.example/v1/chat/completions",
    "/v1/chat/completions/../../slots",
    "/v1/chat/completions/",
    "/v1/chat/completions%00",
    "/v1/chat/completions;/slots",
    "/V1/chat/completions",
    "/props",
    "/metrics/../slots",
    "/admin/backends",
    "/admin/shutdown",
    "/console",
]


async def test_each_engine_sees_its_own_key_alone() -> None:
    """On the way that was refused and on the one that was taken then; never the client's, in any header."""
    async with engine(slots=1) as a, engine(slots=1) as b:
        backends = [
            {
                "name": name,
                "url": one.url,
                "slots": 1,
                "warmup": {"requests": 0},
                "api_key": f"key-{name}-canary",
            }
            for name, one in (("a", a), ("b", b))
        ]
        async with gateway({"backends": backends, "keys": [key(CLIENT, name="client")]}) as front:
            for name in "ab":
                await becomes(front, name, "ready")
            headers = [
                *bearer(CLIENT),
                ("X-Api-Key", OTHER),
                ("Cookie", f"session={COOKIE}"),
                ("Proxy-Authorization", f"Basic {OTHER}"),
                ("Connection", "X-Secret, keep-alive"),
                ("X-Secret", OTHER),
                ("X-Backend-Url", "http://127.0.0.1:1"),
            ]
            seen = []
            for busy, other in ((a, b), (b, a)):
                for one in (a, b):
                    await one.reset()
                await busy.script(status=503, body="{}", times=None)
                for i in range(4):
                    answer = await ask(front, chat(f"{i}", stream=i % 2 == 0), headers)
                    assert answer.head.status == 200
                    seen += [answer.body.decode(), str(answer.head.headers)]
                assert (await other.state())["outcomes"] == {"completed": 4}
                assert (await busy.state())["received"] >= 1
                for one, name in ((a, "a"), (b, "b")):
                    for request in await one.requests(100):
                        text = str(request["headers"]) + request["body"].decode()
                        assert dict(request["headers"])["Authorization"] == f"Bearer key-{name}-canary"
                        assert text.count("canary") == 1, text
            for path in ("/admin/backends", "/admin/requests", "/metrics", "/openapi.json"):
                seen.append((await front.operator.get(path)).text)
            seen.append(front.process.errors)
            assert not [text for text in seen if "canary" in text]


async def test_a_body_steers_no_transport() -> None:
    """Addresses, keys and headers in it are data: they reach the engine as they came, and nobody else."""
    async with (
        engine(slots=1) as one,
        engine(slots=1) as trap,
        gateway({"backends": [{"url": one.url, "slots": 1} | WARM]}) as front,
    ):
        steering: dict[str, Any] = {
            "api_base": trap.url,
            "base_url": trap.url + "/v1",
            "api_key": "sk-theirs",
            "extra_headers": {"Authorization": "Bearer x"},
            "custom_llm_provider": "openai",
            "extra_body": {"api_base": trap.url},
            "metadata": {"base_url": trap.url},
            "proxy": trap.url,
            "fallbacks": [{"api_base": trap.url}],
        }
        body = chat("x") | steering
        assert (await ask(front, body, [("X-Backend-Url", trap.url)])).head.status == 200
        (request,) = await one.requests()
        assert {name: json.loads(request["body"])[name] for name in steering} == steering
        assert "sk-theirs" not in str(request["headers"])
        assert not (await trap.state())["received"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_path_leads_past_the_list_of_routes(method: str) -> None:
    """404 at once, without a redirect, and the engine hears nothing."""
    async with engine("llamacpp", slots=1) as one, gateway({"backends": [{"url": one.url}]}) as front:
        before = (await one.state())["received"]
        for path in TRICKS:
            answer = await ask(front, chat("x"), path=path, method=method)
            fault(answer, 404, "not_found")
            assert "location" not in answer.head.headers
        assert (await one.state())["received"] == before
        absolute = await ask(front, chat("x"), path=f"http://evil.example{CHAT}")
        assert absolute.head.status == 200  # a proxy's way to ask; it is asked of us all the same


async def test_no_page_of_another_site_is_let_in() -> None:
    """No CORS header on any answer, to preflights least of all."""
    async with engine(slots=1) as one, gateway({"backends": [{"url": one.url, "slots": 1}]}) as front:
        origin = [("Origin", "http://evil.example"), ("Access-Control-Request-Method", "POST")]
        for method, path in (("OPTIONS", CHAT), ("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health")):
            answer = await ask(front, chat("x") if method == "POST" else b"", origin, path, method)
            assert not [name for name in answer.head.headers if name.startswith("access-control")]


BETRAYING = ("Traceback", "gateway/", "gateway.", ".py", "127.0.0.1", "uvicorn", "fastapi")


async def forced(front: Gateway) -> list[tuple[int, str, dict[str, str], str]]:
    """Errors of every kind that a client can cause: status, code, headers, body."""
    found = []
    bodies: list[tuple[str, str, Any]] = [
        ("POST", CHAT, b""),
        ("POST", CHAT, b"{"),
        ("POST", CHAT, b"\xff\xfe"),
        ("POST", CHAT, b"[]"),
        ("POST", CHAT, b"null"),
        ("POST", CHAT, b"[" * 100_000),
        ("POST", CHAT, {}),
        ("POST", CHAT, {"model": 1, "messages": []}),
        ("POST", CHAT, {"model": "m" * 10_000, "messages": []}),
        ("POST", CHAT, {"model": "nobody-has-it", "messages": []}),
        ("POST", CHAT, chat("x", stream="yes")),
        ("POST", CHAT, chat("word " * 20_000)),
        ("POST", CHAT, b"x" * 2_000_000),
        ("POST", COMPLETIONS, {"model": "fake-model"}),
        ("POST", "/v1/messages", {"model": "fake-model"}),
        ("POST", "/v1/responses", {"model": "fake-model"}),
        ("POST", "/v1/embeddings", {"model": "fake-model"}),
        ("POST", "/tokenize", b"{"),
        ("POST", "/v1/models", b"{}"),
        ("GET", "/v1/models/nobody-has-it", b""),
        ("GET", CHAT, b""),
        ("PUT", CHAT, b"{}"),
        ("DELETE", "/v1/models", b""),
        ("GET", "/nothing", b""),
        ("GET", "/" + "x" * 5_000, b""),
    ]
    for method, path, value in bodies:
        answer = await ask(front, value, path=path, method=method)
        found.append((answer.head.status, path, answer.head.headers, answer.body.decode()))
    raws = [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ]
    for raw in raws:
        async with await RawClient.connect(front.url) as client:
            await client.write(raw)
            told = await reply(client)
            found.append(
                (told.head.status, raw[:20].decode("latin-1"), told.head.headers, told.body.decode())
            )
    return found


async def test_every_error_has_a_form_and_an_id_and_gives_nothing_away() -> None:
    """Over thirty that clients cause, and those of an engine that fails: no traces, modules or addresses."""
    async with engine(slots=1) as one:
        backend = {"url": one.url, "slots": 1, "name": "b", "context_tokens": 4096} | WARM
        async with gateway({"server": {"body_bytes_max": 1_000_000}, "backends": [backend]}) as front:
            await becomes(front, "b", "ready")
            found = await forced(front)
            for script in ({"status": 500, "body": "Traceback"}, {"status": 200, "body": "<html>Traceback"}):
                await one.script(**script)
                answer = await ask(front, chat("x", stream=False))
                found.append((answer.head.status, CHAT, answer.head.headers, answer.body.decode()))
            assert len(found) > 30
            for status, path, headers, body in found:
                assert 400 <= status < 600, (status, path)
                error = json.loads(body)["error"]
                assert error["code"] and error["type"] and error["message"], (path, body)
                assert headers["content-type"] == "application/json" and headers["x-request-id"], (
                    path,
                    headers,
                )
                port = one.url.rpartition(":")[2]
                for word in (
                    "Traceback",
                    "gateway/",
                    "gateway.",
                    ".py",
                    "127.0.0.1",
                    port,
                    "uvicorn",
                    "fastapi",
                ):
                    assert word not in body and word not in str(headers), (path, word, body)


@pytest.mark.parametrize("requests", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
async def test_what_clients_invent_makes_no_series(requests: int) -> None:
    """Models, paths, keys, user agents, agents, methods: all under `other`, or under nothing."""
    async with engine(slots=1) as one, gateway({"backends": [{"url": one.url, "slots": 1}]}) as front:

        async def series() -> int:
            text = (await front.operator.get("/metrics")).text
            return sum(not line.startswith("#") for line in text.splitlines())

        await ask(front, chat("x"))
        before = await series()
        async with await RawClient.connect(front.url) as client:
            for i in range(requests):
                path = CHAT if i % 2 else f"/path-{i}"
                method = "POST" if i % 2 else ("GET", "POST", "PUT", "PATCH", "PURGE")[i % 5]
                headers = [
                    ("User-Agent", f"agent-{i}"),
                    ("X-Slotgate-Agent", f"agent-{i}"),
                    ("X-Slotgate-Priority", f"class-{i}"),
                    *bearer(f"sk-{i}"),
                ]
                body = json.dumps(chat("x") | {"model": f"model-{i}", "user": f"user-{i}"}).encode()
                await client.send(method, path, body, headers)
                assert (await client.head()).status == 404
                await client.body()
                client.ended = None
        assert await series() - before <= 50
