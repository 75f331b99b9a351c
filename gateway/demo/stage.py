"""What the demo runs on: two real engines with unlike slots, and the gateway in front of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.demo.child import Child, free_ports, start_engine

# One large slot and three small ones: long prompts fit only the first, short ones fit everywhere.
SLOTS_AND_CONTEXT = {"solo": (1, 4096), "trio": (3, 1024)}

_CONFIGURATION = """\
[server]
port = {port}
admin_port = {admin_port}
shutdown_pause_seconds = 0
shutdown_seconds = 2

[queue]
heartbeat_seconds = 300  # a heartbeat sends the head early, without the headers that the demo reads

[[backends]]
name = "solo"
url = "{solo}"

[[backends]]
name = "trio"
url = "{trio}"
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """Two engines and a gateway, all ready."""

    url: str  # the gateway's client port
    admin: str
    engines: dict[str, str]  # URL by name
    children: list[Child]

    def check(self) -> None:
        """Raise DemoFailed if one of them is gone."""
        for child in self.children:
            child.check()


def set_up(children: ExitStack, model: Path, folder: Path, say: Callable[[str], None]) -> Stage:
    """Start all and wait until all are ready; `children` ends them. Raises DemoFailed."""
    port, admin_port, *ports = free_ports(2 + len(SLOTS_AND_CONTEXT))
    engines: dict[str, str] = {}
    started: list[Child] = []
    for (name, (slots, context)), own in zip(SLOTS_AND_CONTEXT.items(), ports, strict=True):
        engine = start_engine(name, own, slots=slots, context_tokens=context, model=model, folder=folder)
        started.append(children.enter_context(engine))
        engines[name] = f"http://127.0.0.1:{own}"
    for engine in started:
        engine.wait_ready(f"{engines[engine.name]}/health")
        slots, context = SLOTS_AND_CONTEXT[engine.name]
        say(f"llama.cpp '{engine.name}' serves: {slots} x {context:,} tokens.")
    file = folder / "slotgate.toml"
    file.write_text(_CONFIGURATION.format(port=port, admin_port=admin_port, **engines))
    gateway = children.enter_context(Child("gateway", "gateway", "serve", "--config", file, folder=folder))
    stage = Stage(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", engines, [*started, gateway])
    gateway.wait_until(lambda: all(b["state"] == "ready" for b in backends(stage)))
    say(f"The gateway serves at {stage.url} and has warmed both up.")
    return stage


def backends(stage: Stage) -> list[dict[str, Any]]:
    """The gateway's own account of its backends."""
    answer = httpx.get(f"{stage.admin}/admin/backends", trust_env=False)
    found: list[dict[str, Any]] = answer.raise_for_status().json()
    return found
