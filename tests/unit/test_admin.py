"""The admin port: who may come in, what it shows, and what it does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.routing import Route

from gateway import errors
from gateway.accounting import Record
from gateway.app import Gateway
from gateway.client import Client
from gateway.engines.base import CHAT
from gateway.inflight import Inflight, Phase
from gateway.options import BackendSettings, ServerSettings
from gateway.request import parse
from gateway.routes.chat import Chat
from gateway.settings import Settings
from policies.types import Call, Priority, Source, State
from tests.unit.wire import Wire

TOKEN = "let-me-in"
LOCAL = "http://127.0.0.1:8401"
MODEL = "m"
BODY = b'{"model":"m","messages":[{"role":"user","content":"a secret prompt"}]}'


def a_gateway(token: str = "") -> Gateway:
    """Two backends that nobody probes: `small` is ready with one slot, `large` starts."""
    settings = Settings(
        server=ServerSettings(admin_token=SecretStr(token)),
        backends=(
            BackendSettings(name="small", url="http://127.0.0.1:9", engine="llamacpp", slots=1),
            BackendSettings(name="large", url="http://127.0.0.1:10", models=("m", "big")),
        ),
    )
    gateway = Gateway(settings, read=lambda: settings, where="slotgate.toml")
    gateway.stop = partial(asyncio.Event().set)
    admission, now = gateway.admission, gateway.dispatcher.clock()
    admission.resize("small", now, slots=1, source=Source.CONFIGURED, context_tokens=8192)
    admission.serve_models("small", [MODEL], now)
    admission.set_state("small", State.READY, now)
    return gateway


def connect(gateway: Gateway, url: str = LOCAL, **headers: str) -> httpx.AsyncClient:
    """A client of the admin port, on this machine."""
    transport = httpx.ASGITransport(gateway.admin, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=url, headers=headers)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = a_gateway()
    yield gateway
    await gateway.fleet.close()


@pytest.fixture
async def operator(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(gateway) as client:
        yield client


def submit(gateway: Gateway, id: str, **fields: Any) -> None:
    """A call arrives."""
    now = gateway.dispatcher.clock()
    defaults: dict[str, Any] = {
        "model": MODEL,
        "route": CHAT,
        "priority": Priority.AGENT,
        "agent": "someone",
        "arrived": now,
        "prompt_tokens": 100,
    }
    gateway.dispatcher.apply(gateway.admission.submit(Call(id=id, **(defaults | fields)), now))


def served(gateway: Gateway, id: str, phase: Phase) -> tuple[Inflight, asyncio.Task[None]]:
    """A request that is being served, and waits for ever."""

    now = gateway.dispatcher.clock()
    record = Record(id, CHAT, now)
    record.model, record.agent, record.priority, record.backend = MODEL, "someone", Priority.AGENT, "small"
    record.prompt_tokens_estimated = 40
    live = Inflight(record, Client(Wire(), Chat(), id, now), parse(BODY, Chat()), [], 100.0)

    async def wait() -> None:
        with gateway.inflights.serve(live):
            live.enter(phase, now)
            await asyncio.sleep(60)

    return live, asyncio.create_task(wait())


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object; every answer that is not 200 has exactly this form."""
    body = response.json()
    assert list(body) == ["error"]
    assert {"message", "type", "param", "code"} <= body["error"].keys()
    error: dict[str, Any] = body["error"]
    return error


# -- who may come in ------------------------------------------------------------------------------


def every_request(gateway: Gateway) -> list[tuple[str, str]]:
    """Method and path of all routes that the application itself lists, and of some that do not exist."""
    routes = [
        (method, re.sub(r"\{\w+\}", "small", route.path))
        for route in gateway.admin.routes
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
    ]
    assert {"/metrics", "/openapi.json", "/admin/queue"} <= {path for _, path in routes}
    assert ("POST", "/admin/backends/small/drain") in routes
    return [*routes, ("GET", "/"), ("GET", "/admin"), ("PUT", "/admin/queue"), ("OPTIONS", "/metrics")]


async def test_nothing_answers_without_the_token() -> None:
    """With a token set, each path and method, existing or not, says 401 and does nothing."""
    gateway = a_gateway(TOKEN)
    wrong: tuple[dict[str, str], ...] = (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"x-api-key": TOKEN},
    )
    async with connect(gateway) as client:
        for method, path in every_request(gateway):
            for headers in wrong:
                response = await client.request(method, path, headers=headers)
                assert response.status_code == 401, (method, path, headers)
                if method != "HEAD":
                    assert error_of(response)["code"] == "invalid_api_key"
    assert gateway.admission.backends["small"].state is State.READY
    await gateway.fleet.close()


async def test_everything_answers_with_the_token() -> None:
    """The right token opens every route, from any host name."""
    gateway = a_gateway(TOKEN)
    async with connect(gateway, "http://gateway.example", authorization=f"Bearer {TOKEN}") as client:
        gateway.events.close()  # its stream would not end
        for method, path in every_request(gateway):
            expected = (503,) if path == "/admin/events" else (200, 404, 405)
            if (method, path) == ("POST", "/admin/backends"):
                expected = (400,)  # it has no body
            assert (await client.request(method, path)).status_code in expected, (method, path)
    await gateway.fleet.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "rebound.example"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
    ],
)
async def test_without_a_token_pages_of_other_sites_stay_outside(
    gateway: Gateway, operator: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    """A foreign Host, Origin or Sec-Fetch-Site is refused on each path and does nothing."""
    for method, path in every_request(gateway):
        response = await operator.request(method, path, headers=headers)
        assert response.status_code == 403, (method, path)
    assert gateway.admission.backends["small"].state is State.READY


async def test_large_requests_stay_outside(operator: httpx.AsyncClient) -> None:
    """A body or headers far beyond what any call needs are refused before they are parsed."""
    path = "/admin/backends/small/drain"
    body = await operator.post(path, content=b" " * 70_000)
    assert (body.status_code, error_of(body)["code"]) == (413, "body_too_large")
    many = await operator.get("/admin/queue", headers={f"x-{i}": "1" for i in range(200)})
    assert (many.status_code, error_of(many)["code"]) == (431, "headers_too_large")


# -- what it shows --------------------------------------------------------------------------------


async def test_a_backend_has_the_members_of_the_interface(
    gateway: Gateway, operator: httpx.AsyncClient
) -> None:
    """One backend is what the list has of it: state, slots with their source, context, models, rates."""
    gateway.fleet.members["small"].last_error = "status: HTTP 500"
    listed = (await operator.get("/admin/backends")).json()
    assert [one["name"] for one in listed] == ["small", "large"]
    small = (await operator.get("/admin/backends/small")).json()
    assert small == listed[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", small.pop("since"))
    assert small == {
        "name": "small",
        "url": "http://127.0.0.1:9",
        "engine": "llamacpp",
        "state": "ready",
        "reason": "",
        "slots": {
            "total": 1,
            "source": "configured",
            "sources": {"configured": 1},
            "reason": "",
            "in_use": 0,
            "leaving": 0,
            "foreign": 0,
            "free": 1,
        },
        "context_tokens": 8192,
        "context_source": None,
        "kv_tokens": None,
        "kv_source": None,
        "kv_held": 0,
        "models": ["m"],
        "backup": False,
        "rates": {
            "setup_seconds": 0.0845,
            "first_token_seconds": 0.0,
            "prefill_tokens_per_second": 465.0,
            "prefill_head_tokens_per_second": 465.0,
            "prefill_square_seconds": 1.28e-8,
            "decode_base_seconds": 0.0412,
            "decode_step_seconds": 0.0107,
            "decode_depth_seconds": 1.67e-7,
            "starved_tokens_per_second": 0.227,
            "samples": 0,
            "error_ratio": None,
            "source": "prior",
        },
        "prefix": {
            "entries": 0,
            "room": 1,
            "efficiency": 1.0,
            "block_tokens": 1,
            "found_less": 0,
            "found_more": 0,
            "hit_ratio": None,
        },
        "last_error": "status: HTTP 500",
    }


async def test_what_is_not_known_is_null(operator: httpx.AsyncClient) -> None:
    """An engine that was never reached has no context and no kind yet; its slot is an assumption."""
    large = (await operator.get("/admin/backends/large")).json()
    assert (large["engine"], large["context_tokens"], large["state"]) == ("auto", None, "starting")
    assert (large["slots"]["total"], large["slots"]["source"]) == (1, "assumed")
    assert large["models"] == ["big", "m"]


async def test_slots_tell_who_has_them(gateway: Gateway, operator: httpx.AsyncClient) -> None:
    """A slot whose client left is leaving, not in use, and not free either."""
    submit(gateway, "a")
    slots = (await operator.get("/admin/backends/small")).json()["slots"]
    assert (slots["in_use"], slots["leaving"], slots["free"]) == (1, 0, 0)
    gateway.admission.leave("a", gateway.dispatcher.clock())
    slots = (await operator.get("/admin/backends/small")).json()["slots"]
    assert (slots["in_use"], slots["leaving"], slots["free"]) == (0, 1, 0)


@pytest.mark.parametrize("call", [("GET", ""), ("POST", "/drain"), ("POST", "/resume")])
async def test_an_unknown_backend_is_told_the_known_ones(
    operator: httpx.AsyncClient, call: tuple[str, str]
) -> None:
    """A misspelt name is a 404 that lists the names there are."""
    response = await operator.request(call[0], f"/admin/backends/smal{call[1]}")
    error = error_of(response)
    assert (response.status_code, error["code"]) == (404, "not_found")
    assert error["message"] == "There is no backend 'smal'. These exist: small, large."


@pytest.mark.parametrize(("path", "mend"), [("/", "Did you mean /console?"), ("/v1/models", "client port")])
async def test_a_path_meant_for_elsewhere_is_told_where(
    operator: httpx.AsyncClient, path: str, mend: str
) -> None:
    """The page, or the other port: still a 404."""
    response = await operator.get(path)
    assert response.status_code == 404
    assert mend in error_of(response)["message"]


async def test_the_page_is_only_read(operator: httpx.AsyncClient) -> None:
    """Other methods are told so, as on any path."""
    response = await operator.post("/console")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
    assert error_of(response)["code"] == "method_not_allowed"


async def test_the_queue_is_in_the_order_of_starts(gateway: Gateway, operator: httpx.AsyncClient) -> None:
    """Interactive calls stand before agents'; each says by backend why it waits."""
    submit(gateway, "running")
    submit(gateway, "agent", agent="a\x1b[31m")
    submit(gateway, "person", priority=Priority.INTERACTIVE, prompt_tokens=50)
    queue = (await operator.get("/admin/queue")).json()
    assert [one["id"] for one in queue] == ["person", "agent"]
    assert queue[1].pop("age_seconds") >= 0
    assert queue[1].pop("predicted_start_seconds") > queue[0]["predicted_start_seconds"] > 0
    assert queue[1] == {
        "id": "agent",
        "class": "agent",
        "agent": "a\x1b[31m",
        "model": "m",
        "prompt_tokens": 100,
        "why": {"small": "slots", "large": "not_ready"},
    }


async def test_a_prompt_that_a_backend_cannot_hold_waits_for_another(
    gateway: Gateway, operator: httpx.AsyncClient
) -> None:
    """The reason is the context, although that backend is free."""
    gateway.admission.resize(
        "large", gateway.dispatcher.clock(), slots=1, source=Source.REPORTED, context_tokens=90_000
    )
    submit(gateway, "long", prompt_tokens=9000)
    (waiting,) = (await operator.get("/admin/queue")).json()
    assert waiting["why"] == {"small": "context", "large": "not_ready"}


async def test_a_backup_stands_by(gateway: Gateway, operator: httpx.AsyncClient) -> None:
    """It is free, and that is no reason to use it; one that is too small is that first."""
    now = gateway.dispatcher.clock()
    large = gateway.admission.backends["large"]
    large.backup = True
    gateway.admission.set_state("large", State.READY, now)
    submit(gateway, "running")
    submit(gateway, "waiting")
    (waiting,) = (await operator.get("/admin/queue")).json()
    assert waiting["why"] == {"small": "slots", "large": "standby"}
    gateway.admission.resize("large", now, slots=1, source=Source.REPORTED, context_tokens=50)
    (waiting,) = (await operator.get("/admin/queue")).json()
    assert waiting["why"] == {"small": "slots", "large": "context"}


async def test_a_long_prompt_behind_another_waits_by_the_gate(
    gateway: Gateway, operator: httpx.AsyncClient
) -> None:
    """A free slot is not the reason then; the gate is."""
    now = gateway.dispatcher.clock()
    gateway.admission.resize("small", now, slots=4, source=Source.REPORTED, context_tokens=90_000)
    submit(gateway, "first", prompt_tokens=5000)
    submit(gateway, "second", prompt_tokens=5000)
    (waiting,) = (await operator.get("/admin/queue")).json()
    assert (waiting["id"], waiting["why"]["small"]) == ("second", "prefill_gate")


async def test_requests_are_those_at_a_backend(gateway: Gateway, operator: httpx.AsyncClient) -> None:
    """What waits is in the queue only; nothing of a prompt is shown."""
    tasks = [served(gateway, id, phase)[1] for id, phase in (("q", Phase.QUEUED), ("p", Phase.PREFILL))]
    await asyncio.sleep(0)
    response = await operator.get("/admin/requests")
    (running,) = response.json()
    assert (running.pop("age_seconds"), running.pop("phase_seconds")) >= (0, 0)
    assert running == {
        "id": "p",
        "phase": "prefill",
        "backend": "small",
        "class": "agent",
        "agent": "someone",
        "model": "m",
        "streamed": False,
        "prompt_tokens": 40,
        "cached_tokens_predicted": None,
    }
    assert "secret" not in response.text
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_metrics_are_those_of_the_gateway(operator: httpx.AsyncClient) -> None:
    """The admin port has the same page as the client port."""
    response = await operator.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'slotgate_slots{backend="small",state="total"} 1.0' in response.text


async def test_the_schema_describes_every_answer(operator: httpx.AsyncClient) -> None:
    """`/openapi.json` names the members as they are sent; there are no pages for people."""
    schema = (await operator.get("/openapi.json")).json()
    assert set(schema["paths"]) == {
        "/admin/advice",
        "/admin/backends",
        "/admin/backends/{name}",
        "/admin/backends/{name}/drain",
        "/admin/backends/{name}/resume",
        "/admin/events",
        "/admin/prefix",
        "/admin/queue",
        "/admin/reload",
        "/admin/requests",
        "/admin/requests/{id}",
        "/admin/shutdown",
        "/admin/usage",
        "/metrics",
    }
    assert "class" in schema["components"]["schemas"]["WaitingView"]["properties"]
    for path in ("/docs", "/redoc", "/admin/queue/"):
        assert (await operator.get(path)).status_code == 404


async def test_a_body_that_cannot_be_read_is_told_so(operator: httpx.AsyncClient) -> None:
    """Also where its bytes are no text at all, in the interface's form."""
    headers = {"content-type": "application/json"}
    reply = await operator.post("/admin/backends/small/drain", content=b"\xff\xfe{", headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/admin/backends", {"url": "http://a:1", "slot": 3}, "slot is no option."),
        ("POST", "/admin/backends", {"name": "a"}, "url is missing."),
        (
            "POST",
            "/admin/backends",
            {"url": "http://a:1", "slots": 0},
            "slots must be greater than or equal to 1.",
        ),
        ("POST", "/admin/backends", {"url": "http://a:1", "name": "a b"}, "name must be 1 to 64 letters, "),
        ("POST", "/admin/backends/small/drain", {"wait": 3}, "wait is no option."),
        ("GET", "/admin/usage?by=nobody", None, "by must be 'agent', 'model' or 'backend'."),
    ],
)
async def test_a_wrong_option_is_told_as_in_a_file(
    operator: httpx.AsyncClient, method: str, path: str, body: object, message: str
) -> None:
    """In words of this project, not of the library's."""
    reply = await operator.request(method, path, json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(message)


async def test_a_defect_is_an_error_object_too(gateway: Gateway, operator: httpx.AsyncClient) -> None:
    """A route that raises answers 500 in the interface's form, without a word of the cause."""

    @gateway.admin.get("/admin/defect")
    async def defect() -> None:
        raise ValueError("inner secret")

    response = await operator.get("/admin/defect")
    assert (response.status_code, error_of(response)["code"]) == (500, "internal_error")
    assert "secret" not in response.text


# -- what it does ---------------------------------------------------------------------------------


async def test_from_the_answer_on_nothing_starts_on_a_draining_backend(
    gateway: Gateway, operator: httpx.AsyncClient
) -> None:
    """A drain answers at once while requests run, and those that come wait."""
    submit(gateway, "running")
    answer = await operator.post("/admin/backends/small/drain", json={"reason": "new driver"})
    assert answer.json() == {"state": "draining", "in_flight": 1}
    submit(gateway, "late")
    gateway.dispatcher.finish("running")
    backend = (await operator.get("/admin/backends/small")).json()
    assert (backend["state"], backend["reason"], backend["slots"]["free"]) == ("drained", "new driver", 1)
    assert [one["id"] for one in (await operator.get("/admin/queue")).json()] == ["late"]


async def test_an_idle_backend_is_drained_at_once(operator: httpx.AsyncClient) -> None:
    """Without a body the defaults hold, and a second drain says the same."""
    for _ in range(2):
        answer = await operator.post("/admin/backends/small/drain")
        assert answer.json() == {"state": "drained", "in_flight": 0}


async def test_a_drain_with_wait_answers_when_the_last_request_ended(
    gateway: Gateway, operator: httpx.AsyncClient
) -> None:
    """It answers as soon as the backend is drained, not when the time is up."""
    submit(gateway, "running")
    waiting = asyncio.create_task(operator.post("/admin/backends/small/drain", json={"wait_seconds": 60}))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    assert gateway.admission.backends["small"].state is State.DRAINING
    gateway.dispatcher.finish("running")
    answer = await asyncio.wait_for(waiting, 10)
    assert answer.json() == {"state": "drained", "in_flight": 0}


async def test_a_drain_with_wait_answers_when_the_time_is_up(
    gateway: Gateway, operator: httpx.AsyncClient
) -> None:
    """The backend stays draining, and the requests of clients that left count: the engine has them."""
    submit(gateway, "leaving")
    gateway.admission.leave("leaving", gateway.dispatcher.clock())
    answer = await operator.post("/admin/backends/small/drain", json={"wait_seconds": 0.05})
    assert answer.json() == {"state": "draining", "in_flight": 1}


async def test_a_resumed_backend_starts_anew(operator: httpx.AsyncClient) -> None:
    """It goes through warm-up again; to resume what was never drained changes nothing."""
    assert (await operator.post("/admin/backends/small/resume")).json()["state"] == "ready"
    await operator.post("/admin/backends/small/drain")
    assert (await operator.post("/admin/backends/small/resume")).json() == {
        "state": "starting",
        "in_flight": 0,
    }


@pytest.mark.parametrize(
    ("content", "param", "code"),
    [
        (b"{", None, "invalid_json"),
        (b"[]", None, "invalid_request"),
        (b'{"wait_seconds": -1}', "wait_seconds", "invalid_request"),
        (b'{"wait_seconds": NaN}', "wait_seconds", "invalid_request"),
        (b'{"wait_seconds": 1e9}', "wait_seconds", "invalid_request"),
        (b'{"wait": 5}', "wait", "invalid_request"),
        (b'{"reason": "%s"}' % (b"x" * 201), "reason", "invalid_request"),
    ],
)
async def test_a_wrong_drain_drains_nothing(
    gateway: Gateway, operator: httpx.AsyncClient, content: bytes, param: str | None, code: str
) -> None:
    """The error names the member that is wrong, in the interface's form."""
    path, headers = "/admin/backends/small/drain", {"content-type": "application/json"}
    response = await operator.post(path, content=content, headers=headers)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert gateway.admission.backends["small"].state is State.READY


async def test_an_operator_ends_a_request_wherever_it_is(
    gateway: Gateway, operator: httpx.AsyncClient
) -> None:
    """Running or waiting, it fails with `Ended`; the answer is what it was."""
    for phase in Phase:
        _, task = served(gateway, "r", phase)
        await asyncio.sleep(0)
        answer = await operator.delete("/admin/requests/r")
        assert (answer.status_code, answer.json()["phase"]) == (200, phase.value)
        with pytest.raises(errors.Ended):
            await task


async def test_a_request_that_is_over_cannot_be_ended(operator: httpx.AsyncClient) -> None:
    """The answer is a 404."""
    response = await operator.delete("/admin/requests/nobody")
    assert response.status_code == 404
    assert error_of(response)["message"] == "No request 'nobody' is running or waiting."
