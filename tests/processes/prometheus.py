"""A real Prometheus that scrapes a gateway, in a world where time passes faster.

All durations of the configuration and of the rules, and the limits in seconds that rules compare with, are
divided by the same number; nothing else of them is touched.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.processes.process import WAIT_SECONDS, Process, free_port, until

RULES = Path(__file__).resolve().parents[2] / "docker" / "prometheus"
FASTER = 120  # five minutes are two and a half seconds
SCRAPE = "200ms"  # fifteen seconds would be 125 ms
UNITS = {"s": 1, "m": 60, "h": 3600}


def sooner(text: str) -> str:
    """The same expression with shorter durations."""
    return re.sub(r"\b(\d+)([smh])\b", lambda found: _shorter(int(found[1]) * UNITS[found[2]]), text)


def _shorter(seconds: int) -> str:
    return f"{seconds * 1000 // FASTER}ms"


def rules(name: str) -> dict[str, Any]:
    """A file of rules in that faster world."""
    file: dict[str, Any] = yaml.safe_load((RULES / name).read_text())
    for group in file["groups"]:
        for rule in group["rules"]:
            rule["expr"] = sooner(rule["expr"])
            if "for" in rule:
                rule["for"] = sooner(rule["for"])
            if limit := re.fullmatch(r"vector\((\d+)\)", rule["expr"]):
                rule["expr"] = f"vector({int(limit[1]) / FASTER})"
    return file


class Prometheus:
    """The running server."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=f"{url}/api/v1/", trust_env=False, timeout=WAIT_SECONDS)

    async def ready(self) -> bool:
        """Whether it answers yet."""
        try:
            return (await self._client.get("status/runtimeinfo")).status_code == 200
        except httpx.TransportError:
            return False

    async def value(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now, without those that are not a number."""
        answer = await self._client.post("query", data={"query": expression})
        assert answer.status_code == 200, (expression, answer.text)
        series: list[dict[str, Any]] = answer.json()["data"]["result"]
        return [one for one in series if not math.isnan(float(one["value"][1]))]

    async def answered(self, expressions: Iterable[str], seconds: float) -> None:
        """Wait until each of them has had data."""
        left = set(expressions)

        async def all_had() -> bool:
            for expression in list(left):
                if await self.value(expression):
                    left.discard(expression)
            return not left

        try:
            await until(all_had, "data", seconds)
        except AssertionError:
            raise AssertionError(f"without data: {sorted(left)}") from None

    async def fired(self, alerts: Iterable[str], seconds: float) -> None:
        """Wait until each of these has fired, written as the alert's name and the backend or class that it
        is about."""
        left = set(alerts)

        async def all_had() -> bool:
            left.difference_update(await self._firing())
            return not left

        try:
            await until(all_had, "alerts", seconds)
        except AssertionError:
            raise AssertionError(f"silent: {sorted(left)}") from None

    async def _firing(self) -> set[str]:
        answer = await self._client.get("alerts")
        alerts = answer.json()["data"]["alerts"]
        labels = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
        return {f"{one['alertname']} {one.get('backend', one.get('class', ''))}".strip() for one in labels}

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()


@asynccontextmanager
async def prometheus(target: str) -> AsyncIterator[Prometheus]:
    """Run it with the configuration and rules that the repository ships; `target`: HOST:PORT of a gateway."""
    port = free_port()
    config = yaml.safe_load((RULES / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE}
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [target]}]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "prometheus.yaml").write_text(json.dumps(config))
        for name in config["rule_files"]:
            (Path(folder) / name).write_text(json.dumps(rules(name)))
        arguments = [
            "--config.file=prometheus.yaml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        process = Process(arguments, Path(folder), dict(os.environ), program="prometheus")
        server = Prometheus(f"http://127.0.0.1:{port}")
        try:
            await until(server.ready, "an answer of Prometheus")
            yield server
        except BaseException as error:
            error.add_note(f"Prometheus said:\n{process.errors[-4000:]}")
            raise
        finally:
            await server.close()
            await process.kill()
