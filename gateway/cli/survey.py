"""One look at an engine that no gateway serves yet: what it is, what it has, what is wrong with it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from gateway.engines import DETECTION_PATHS, ENGINES, detect
from gateway.engines.base import Report
from gateway.probes import NoAnswer, Probes, probing

LOCAL_PORTS = (8000, 8080, 8888, 30000, 11434)  # vLLM, llama.cpp, ds4, SGLang, Ollama


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look told."""

    url: str
    state: Literal["up", "loading", "down", "unknown"]  # unknown: it answers, but as no engine does
    engine: str | None = None  # None: not recognised, or not yet
    report: Report = field(default_factory=Report)
    fault: str = ""  # why it cannot be used as it is


async def look(url: str, api_key: str = "", engine: str = "auto", tls: ssl.SSLContext | None = None) -> Seen:
    """Probe one engine, of the kind named or of any."""
    known = ENGINES.get(engine)
    paths = known.paths if known else DETECTION_PATHS
    answers = await Probes().ask(probing(url, api_key, tls), paths)
    if isinstance(answers, NoAnswer):
        return Seen(url, "down", fault=f"does not answer: {answers.value}")
    statuses = ", ".join(f"{path} {answer.status}" for path, answer in answers.items())
    if any(answer.status in (401, 403) for answer in answers.values()):
        return Seen(url, "unknown", fault=f"refuses the api_key ({statuses})")
    if all(answer.status == 503 for answer in answers.values()):
        return Seen(url, "loading", known.name if known else None)
    found = known or detect(answers)
    if found is None:
        return Seen(url, "unknown", fault=f"answers as no engine does ({statuses})")
    report = found.read(answers)
    return Seen(url, "loading" if report.loading else "up", found.name, report)


async def look_around(ports: Iterable[int]) -> list[Seen]:
    """Whatever answers on these ports of this machine."""
    seen = await asyncio.gather(*(look(f"http://127.0.0.1:{port}") for port in ports))
    return [one for one in seen if one.state != "down"]
