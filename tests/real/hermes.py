"""Real Hermes agents, headless: their environment, and the two ways to run them.

`python tests/real/hermes.py --install` makes the environment (228 MB, from the hash-pinned hermes.lock beside
this file) in the checkout's .cache; a second run finds it there. Hermes brings versions of the openai SDK and
httpx of its own, hence an environment of its own. A run needs no network beyond its model's URL.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CACHE = Path(__file__).parents[2] / ".cache"
LOCK = Path(__file__).with_suffix(".lock")
THREADS = Path(__file__).with_name("hermes_threads.py")
IS_LOCAL = (
    "import sys; from agent.model_metadata import is_local_endpoint as local; print(local(sys.argv[1]))"
)
RUN_SECONDS = 120  # a run takes 7 to 15 s on an idle machine of two cores
CONTEXT_TOKENS = 131_072  # Hermes refuses to start below 64,000


@dataclass(frozen=True, slots=True)
class Run:
    """What an agent says of one conversation, its own sums of tokens included."""

    completed: bool  # every turn
    api_calls: int
    prompt_tokens: int
    completion_tokens: int
    answer: str  # of the last turn

    @classmethod
    def of(cls, report: dict[str, Any], answer: str) -> Run:
        """From an agent's report, whose `input_tokens` leave out what the engine had cached."""
        return cls(
            completed=report["completed"] is True and not report["failed"],
            api_calls=report["api_calls"],
            prompt_tokens=report["input_tokens"] + report["cache_read_tokens"],
            completion_tokens=report["output_tokens"],
            answer=answer,
        )


class HermesFailed(Exception):
    """Hermes ended without a report."""


@dataclass(frozen=True, slots=True)
class Hermes:
    """An installed Hermes and a home for its runs; each run of `ask` or `converse` is one process."""

    environment: Path
    home: Path
    url: str  # with /v1
    model: str
    context_tokens: int = CONTEXT_TOKENS  # that its operator tells it
    limits: Mapping[str, str] = field(default_factory=dict)  # variables that set its time limits
    seconds: float = RUN_SECONDS  # of a run at most

    def ask(self, prompt: str, *, toolsets: str | None = None) -> Run:
        """One question in a process of its own (`hermes -z`), with all tools unless some are named."""
        report = self.home / "usage.json"
        report.unlink(missing_ok=True)
        words = [str(self.environment / "bin/hermes"), "-z", prompt, "--usage-file", str(report)]
        output = self._run(words + (["-t", toolsets] if toolsets else []))
        if not report.exists():
            raise HermesFailed(output)
        return Run.of(json.loads(report.read_text()), output)

    def takes_for_local(self) -> bool:
        """Whether the URL is a local one to it, to which it is five times as patient."""
        return self._run([str(self.environment / "bin/python"), "-c", IS_LOCAL, self.url]).strip() == "True"

    def converse(
        self, conversations: Sequence[Sequence[str]], models: Sequence[str] | None = None
    ) -> list[Run]:
        """One agent thread per conversation, all at once in one process; its prompts are its turns. `models`:
        of each conversation, else all have the same."""
        task, reports = self.home / "conversations.json", self.home / "reports.json"
        reports.unlink(missing_ok=True)
        models = models or [self.model] * len(conversations)
        given = [{"model": model, "prompts": p} for model, p in zip(models, conversations, strict=True)]
        task.write_text(json.dumps({"url": self.url, "conversations": given}))
        output = self._run([str(self.environment / "bin/python"), *map(str, (THREADS, task, reports))])
        if not reports.exists():
            raise HermesFailed(output)
        return [Run.of(report, report["final_response"] or "") for report in json.loads(reports.read_text())]

    def _run(self, words: list[str]) -> str:
        (self.home / "config.yaml").write_text(json.dumps(self._config()))  # JSON is YAML
        surroundings = {"PATH": os.environ["PATH"], "HOME": str(self.home), "HERMES_HOME": str(self.home)}
        done = subprocess.run(
            words,
            cwd=self.home,
            env=surroundings | self.limits,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.seconds,
        )
        if done.returncode:
            raise HermesFailed(done.stdout + done.stderr)
        return done.stdout

    def _config(self) -> dict[str, Any]:
        return {
            "model": {
                "default": self.model,
                "provider": "custom",
                "base_url": self.url,
                "api_key": "any-key",
                "context_length": self.context_tokens,
            },
            "agent": {"environment_probe": False},
            "memory": {"memory_enabled": False, "user_profile_enabled": False},
            "auxiliary": {"title_generation": {"enabled": False}},
        }


def install(cache: Path = CACHE) -> Path:
    """The environment with the Hermes of the lock file, made if it is not there or another one."""
    cache.mkdir(exist_ok=True)
    environment = cache / "hermes-venv"
    stamp = environment / "hermes.lock.sha256"
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    with (cache / "hermes-venv.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == wanted):
            venv.create(environment, clear=True, with_pip=True)
            pip = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
            subprocess.run([*pip, "-r", str(LOCK)], check=True, stdout=sys.stderr)
            stamp.write_text(wanted)
    return environment


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--install", action="store_true", required=True, help="make the environment")
    parser.parse_args()
    sys.stdout.write(f"{install()}\n")
