"""Run by Hermes' own Python: `hermes_threads.py CONVERSATIONS REPORTS`, one agent thread for each."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from run_agent import AIAgent  # type: ignore[import-not-found]


def converse(url: str, model: str, prompts: list[str]) -> dict[str, Any]:
    """One conversation; its report as that of a single turn. Hermes sums tokens itself, but not calls."""
    agent = AIAgent(
        base_url=url,
        api_key="any-key",
        provider="custom",
        model=model,
        quiet_mode=True,
        enabled_toolsets=["terminal"],
        skip_context_files=True,
        skip_memory=True,
        max_iterations=6,
    )
    turns: list[dict[str, Any]] = []
    for prompt in prompts:
        history = turns[-1]["messages"] if turns else []
        turns.append(agent.run_conversation(prompt, conversation_history=history))
    last = ("input_tokens", "cache_read_tokens", "output_tokens", "final_response")
    return {
        "completed": all(turn["completed"] for turn in turns),
        "failed": any(turn.get("failed") for turn in turns),
        "api_calls": sum(turn["api_calls"] for turn in turns),
        **{name: turns[-1][name] for name in last},
    }


def main(task: Path, reports: Path) -> None:
    """Run the conversations that stand in `task`."""
    given = json.loads(task.read_text())
    with ThreadPoolExecutor(len(given["conversations"])) as threads:
        runs = [
            threads.submit(converse, given["url"], one["model"], one["prompts"])
            for one in given["conversations"]
        ]
        reports.write_text(json.dumps([run.result() for run in runs]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
