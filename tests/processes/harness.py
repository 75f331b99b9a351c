"""Real processes on real sockets: fake engines, the gateway, and a client that sees every byte.

Everything waits with a limit, and a process is ended by its own id, whatever happens.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests import compiled
from tests.fakes.script import Script
from tests.processes.process import WAIT_SECONDS, Process, free_port, until
from tests.processes.raw_client import Event, Head, RawClient

__all__ = [
    "Engine",
    "Event",
    "Gateway",
    "Head",
    "Process",
    "RawClient",
    "chat",
    "engine",
    "free_port",
    "gateway",
    "until",
]

ROOT = Path(__file__).resolve().parents[2]
PATHS = compiled.paths()
DEFECTS = ("Traceback (most recent call last)", "never retrieved", "was destroyed", "never awaited")


def chat(content: str, **more: Any) -> dict[str, Any]:
    """The body of a streaming chat request."""
    return {"model": "fake-model", "messages": [{"role": "user", "content": content}], "stream": True} | more


class Engine:
    """A fake engine in its own process."""

    def __init__(self, process: Process, port: int, options: dict[str, Any]) -> None:
        self.process = process
        self.port = port
        self.options = options
        self.url = f"http://127.0.0.1:{port}"
        self._control = httpx.AsyncClient(
            base_url=f"{self.url}/_fake/", trust_env=False, verify=False, timeout=WAIT_SECONDS
        )

    async def state(self) -> dict[str, Any]:
        """Its counts: see `FakeEngine.state`."""
        value: dict[str, Any] = await self._get("state")
        return value

    async def records(self, last: int = 1_000_000) -> list[dict[str, Any]]:
        """Its completion requests, oldest first: see `Record`."""
        value: list[dict[str, Any]] = await self._get(f"records?last={last}")
        return value

    async def requests(self, last: int = 1) -> list[dict[str, Any]]:
        """Its last completion requests as received: method, target, headers (pairs), body (bytes)."""
        kept: list[dict[str, Any]] = await self._get(f"requests?last={last}")
        return [one | {"body": base64.b64decode(one["body"])} for one in kept]

    async def script(self, **script: Any) -> None:
        """Misbehave: the members of `Script`."""
        Script(**script)  # a misspelt name fails here
        await self._post("script", script)

    async def resize(self, slots: int, **more: Any) -> None:
        """Have other slots at once, as after a restart; also `context_tokens`."""
        await self._post("slots", {"slots": slots} | more)

    async def loaded(self) -> None:
        """Have its model at once, whatever is left of `loading_seconds`."""
        await self._post("loaded", {})

    async def reset(self) -> None:
        """Behave, and count from here."""
        await self._post("reset", {})

    async def idle(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until it works on nothing."""

        async def nothing() -> bool:
            return bool((await self.state())["concurrent"] == 0)

        await until(nothing, "an idle engine", seconds)

    async def busy(self, requests: int = 1, seconds: float = WAIT_SECONDS) -> None:
        """Wait until it works on so many requests."""

        async def enough() -> bool:
            return bool((await self.state())["running"] >= requests)

        await until(enough, f"{requests} running requests", seconds)

    async def restart(self, **options: Any) -> None:
        """Kill it and start it again on its port, with other options where given."""
        await self.process.kill()
        self.options |= options
        self.process.arguments[1:] = _engine_arguments(self.port, self.options)
        self.process.start()
        await self.ready()

    async def ready(self) -> None:
        """Wait until it listens."""

        def listening() -> bool:
            if self.process.exit_code is not None:
                raise AssertionError(f"the fake engine ended by itself:\n{self.process.errors}")
            return "READY" in self.process.output

        await until(listening, "a listening engine")

    async def close(self) -> None:
        """End it."""
        await self._control.aclose()
        await self.process.kill()

    async def _get(self, path: str) -> Any:
        response = await self._control.get(path)
        response.raise_for_status()
        return response.json()

    async def _post(self, path: str, value: dict[str, Any]) -> None:
        response = await self._control.post(path, json=value)
        assert response.status_code == 200, response.text


def _engine_arguments(port: int, options: dict[str, Any]) -> list[str]:
    module = "tests.fakes.modelled" if "profile" in options else "tests.fakes.engine"
    arguments = ["-m", module, "--port", str(port)]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif value is not False:
            values = value if isinstance(value, list) else [value]
            arguments += [part for one in values for part in (flag, str(one))]
    return arguments


@asynccontextmanager
async def engine(personality: str = "openai", **options: Any) -> AsyncIterator[Engine]:
    """Run a fake engine; the options are those of its command line, with underscores."""
    options["personality"] = personality
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        one = Engine(Process(_engine_arguments(port, options), Path(folder), environment), port, options)
        try:
            await one.ready()
            yield one
        finally:
            await one.close()
        assert not one.process.errors, f"the fake engine is defective:\n{one.process.errors}"


class Gateway:
    """The gateway in its own process."""

    def __init__(self, process: Process, port: int, admin_port: int, config: Path) -> None:
        self.process = process
        self.config = config
        self.url = f"http://127.0.0.1:{port}"
        self.admin = f"http://127.0.0.1:{admin_port}"
        self.client, self.operator = (
            httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=WAIT_SECONDS * 2)
            for url in (self.url, self.admin)
        )
        self._stopped = False

    async def answers(self, path: str) -> bool:
        """Whether the client port answers a path with 200; fails if the process has ended."""
        if self.process.exit_code is not None:
            raise AssertionError("the gateway ended by itself")
        try:
            return (await self.client.get(path)).status_code == 200
        except httpx.TransportError:
            return False

    async def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = WAIT_SECONDS) -> int:
        """End it with a signal; returns its exit code."""
        self.expect_end()
        self.process.signal(number)
        return await self.process.ended(seconds)

    def expect_end(self) -> None:
        """From now on it may end without failing the test."""
        self._stopped = True

    async def close(self) -> None:
        """End it if it still runs; the test fails if it had ended unasked, or ends badly."""
        await self.client.aclose()
        await self.operator.aclose()
        ended = self.process.exit_code
        self.process.signal(signal.SIGTERM)
        try:
            code = await self.process.ended()
        finally:
            await self.process.kill()
        if not self._stopped:
            assert ended is None, f"the gateway ended by itself with exit code {ended}"
            assert code == 0, f"the gateway ended with exit code {code} after SIGTERM"


@asynccontextmanager
async def gateway(
    config: dict[str, Any],
    *arguments: str,
    wait_for: str | None = "/ready",
    clean: bool = True,
    environment: dict[str, str] | None = None,
    program: Sequence[str] = ("gateway", "serve"),
) -> AsyncIterator[Gateway]:
    """Run the gateway on free ports with this configuration, and wait until a path answers 200.

    With `clean`, whatever asyncio or Python complain about on its standard error fails the test.
    """
    port, admin_port = free_port(), free_port()
    server = {
        "host": "127.0.0.1",
        "port": port,
        "admin_port": admin_port,
        "shutdown_pause_seconds": 0,
        "shutdown_seconds": 5,
    } | config.get("server", {})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "slotgate.toml"
        file.write_text(toml(config | {"server": server}))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLOTGATE_")}
        process = Process(
            ["-m", *program, "--config", str(file), *arguments],
            Path(folder),
            inherited | {"PYTHONPATH": PATHS} | (environment or {}),
        )
        one = Gateway(process, server["port"], server["admin_port"], file)
        try:
            try:
                if wait_for is not None:
                    await until(lambda: one.answers(wait_for), f"200 at {wait_for}")
                yield one
            finally:
                await one.close()
            if clean:
                found = [words for words in DEFECTS if words in process.errors]
                assert not found, f"on the gateway's standard error: {found}"
        except BaseException as error:
            error.add_note(f"the gateway's standard error ended with:\n{process.errors[-8000:]}")
            raise


def toml(config: dict[str, Any]) -> str:
    """A configuration as TOML: tables, lists of tables, everything deeper inline."""
    parts = [f"{key} = {_value(value)}" for key, value in config.items() if not _is_table(value)]
    for key, value in config.items():
        if isinstance(value, dict):
            parts += [f"[{key}]", *(f"{_key(name)} = {_value(inner)}" for name, inner in value.items())]
        elif _is_table(value):
            for table in value:
                parts += [f"[[{key}]]", *(f"{_key(name)} = {_value(inner)}" for name, inner in table.items())]
    return "\n".join(parts) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_value(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    return json.dumps(value)
