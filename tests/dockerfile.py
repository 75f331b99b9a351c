"""A Dockerfile as data: its stages and their instructions. Only what ours uses."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

DOCKER = Path(__file__).resolve().parents[1] / "docker"


@dataclass(slots=True)
class Stage:
    """One FROM and what follows it."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)  # instruction and its words

    def last(self, instruction: str) -> str:
        """The words of the last such instruction; empty: there is none."""
        return next((words for name, words in reversed(self.steps) if name == instruction), "")

    @property
    def environment(self) -> dict[str, str]:
        """What its ENV instructions set."""
        words = " ".join(words for name, words in self.steps if name == "ENV")
        return dict(pair.split("=", 1) for pair in words.split())

    @property
    def health_check(self) -> list[str]:
        """The command that tells whether the container is well."""
        command: list[str] = json.loads(self.last("HEALTHCHECK").partition("CMD ")[2])
        return command


def stages(path: Path = DOCKER / "Dockerfile") -> dict[str, Stage]:
    """All stages by name, in order."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    whole = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    found: dict[str, Stage] = {}
    for line in whole.splitlines():
        instruction, _, words = line.partition(" ")
        if instruction == "FROM":
            base, _, name = words.partition(" AS ")
            found[name] = stage = Stage(name, base)
        else:
            stage.steps.append((instruction, words.strip()))
    return found


def lineage(name: str) -> list[Stage]:
    """A stage and those that it is built upon, the first one first."""
    every = stages()
    line = [every[name]]
    while line[0].base in every:
        line.insert(0, every[line[0].base])
    return line
