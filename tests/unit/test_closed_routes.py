"""Every route of the client port, as the application itself lists them, with every kind of wrong key."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import statistics
import time
from collections import defaultdict
from typing import Any

import httpx
from starlette.routing import Route

from gateway.app import Gateway
from gateway.options import BackendSettings, KeySettings, ServerSettings
from gateway.routes import ROUTES
from gateway.settings import Settings

log = logging.getLogger("tests.routes")

OPEN = {"/health", "/ready"}
SECRET, TOKEN = "sg-the-right-one", "operators-token"
ROUNDS = 16

WRONG: dict[str, list[tuple[bytes, bytes]]] = {
    "none": [],
    "empty": [(b"authorization", b"Bearer ")],
    "unknown": [(b"authorization", b"Bearer sg-the-wrong-one")],
    "almost": [(b"authorization", f"Bearer {SECRET[:-1]}".encode())],
    "expired": [(b"authorization", b"Bearer sg-expired")],
    "the admin token": [(b"authorization", f"Bearer {TOKEN}".encode())],
    "in the wrong header": [(b"api-key", SECRET.encode())],
    "very long": [(b"x-api-key", b"x" * 60_000)],
    "not ASCII": [(b"x-api-key", b"schl\xfcssel")],
}


def key(name: str, secret: str, **more: Any) -> KeySettings:
    """As it is configured."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return KeySettings.model_validate({"name": name, "sha256": digest} | more)


def requests(gateway: Gateway) -> list[tuple[str, str]]:
    """Method and path of everything that is served."""
    routes = [route for route in gateway.api.routes if isinstance(route, Route)]
    rare = [(method, route.path) for route in routes for method in sorted(route.methods or ())]
    return [*(("POST", path) for path in ROUTES), *rare]


async def test_no_route_answers_without_a_valid_key() -> None:
    """But for the two that are open: 401 with the same body whatever is wrong; how long it takes tells
    nothing either, which is measured, not asserted."""
    settings = Settings(
        server=ServerSettings.model_validate({"admin_token": TOKEN}),
        keys=(key("right", SECRET), key("old", "sg-expired", expires="2020-01-01")),
        backends=(BackendSettings(url="http://127.0.0.1:9"),),
    )
    gateway = Gateway(settings)
    routes = requests(gateway)
    assert {"/v1/chat/completions", "/v1/messages", "/tokenize", "/metrics", "/v1/models"} <= {
        path for _, path in routes
    }
    bodies, took, asked = set(), defaultdict[str, list[float]](list), 0
    transport = httpx.ASGITransport(gateway)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for _ in range(ROUNDS):
            for method, path in routes:
                for case, headers in WRONG.items():
                    began = time.perf_counter()
                    answer = await client.request(method, path, headers=headers, content=b"{}")
                    took[case].append(time.perf_counter() - began)
                    asked += 1
                    if path in OPEN:
                        assert answer.status_code in (200, 503), (method, path, case)
                        continue
                    assert answer.status_code == 401, (method, path, case)
                    if method != "HEAD":
                        error = answer.json()["error"]
                        bodies.add(error["message"] if "message" in error else str(error))
        assert (await client.get("/v1/models", headers={"x-api-key": SECRET})).status_code == 200
    assert len(bodies) == 1
    medians = {case: 1000 * statistics.median(seconds) for case, seconds in took.items()}
    log.info("%d calls; medians from %.2f to %.2f ms", asked, min(medians.values()), max(medians.values()))
    await gateway.fleet.close()


async def test_the_namespaces_of_both_ports_are_apart() -> None:
    """A client key opens nothing on the admin port, and no admin path is known on the client port."""
    settings = Settings(
        server=ServerSettings.model_validate({"admin_token": TOKEN}), keys=(key("right", SECRET),)
    )
    gateway = Gateway(settings)
    admin = [route for route in gateway.admin.routes if isinstance(route, Route)]
    operators = httpx.AsyncClient(transport=httpx.ASGITransport(gateway.admin), base_url="http://gateway")
    clients = httpx.AsyncClient(transport=httpx.ASGITransport(gateway), base_url="http://gateway")
    both = [{"authorization": f"Bearer {secret}"} for secret in (SECRET, TOKEN)]
    async with operators, clients:
        for route in admin:
            for method in route.methods or ():
                assert (await operators.request(method, route.path, headers=both[0])).status_code == 401
                if route.path == "/metrics":  # of both ports
                    continue
                for headers in both:
                    assert (await clients.request(method, route.path, headers=headers)).status_code == 404
    await asyncio.sleep(0)
    await gateway.fleet.close()
