"""What is measured: the engine itself, plain proxies, a router of the field, and this gateway."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

CONFIGS = Path(__file__).parent / "configs"


class TargetMissing(Exception):
    """A target's program is not installed."""

    def __init__(self, target: Target) -> None:
        super().__init__(f"{target.name}: {target.command[0]} is not installed. {target.mend}")


@dataclass(frozen=True, slots=True)
class Target:
    """A program between load and engine; without a command, the engine itself.

    `${port}`, `${second_port}`, `${engine_port}`, `${config}` and `${folder}` are filled in, in the command
    and in the configuration.
    """

    name: str
    command: tuple[str, ...] = ()
    config: str | None = None  # a file of configs/
    mend: str = ""  # how to install it

    def check(self) -> None:
        """Raise TargetMissing unless the program is there."""
        if self.command and shutil.which(self.command[0]) is None:
            raise TargetMissing(self)

    def render(self, folder: Path, values: Mapping[str, object]) -> list[str]:
        """The command to run, its configuration written to the folder."""
        filled = {"folder": folder, **values}
        if self.config is not None:
            text = Template((CONFIGS / self.config).read_text()).substitute(filled)
            filled["config"] = folder / self.config
            (folder / self.config).write_text(text)
        return [Template(word).substitute(filled) for word in self.command]


def known_targets() -> dict[str, Target]:
    """All targets by name, in the order in which they are measured and reported."""
    apt = "Install it with apt-get install nginx haproxy."
    router = (
        os.environ.get("VLLM_ROUTER", "vllm-router"),
        *("--host", "127.0.0.1", "--port", "${port}", "--policy", "round_robin"),
        *("--worker-urls", "http://127.0.0.1:${engine_port}", "--prometheus-port", "${second_port}"),
    )
    targets = (
        Target("direct"),
        Target("nginx", ("nginx", "-c", "${config}"), "nginx.conf", apt),
        Target("haproxy", ("haproxy", "-f", "${config}"), "haproxy.cfg", apt),
        Target(
            "vllm-router", router, mend="Install it in an environment of its own, name it by VLLM_ROUTER."
        ),
        Target(
            "slotgate", (sys.executable, "-m", "gateway", "serve", "--config", "${config}"), "slotgate.toml"
        ),
    )
    return {target.name: target for target in targets}
