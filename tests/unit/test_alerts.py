"""The rules for Prometheus: its own tool plays them, and they speak only of metrics that there are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from gateway.families import table
from tests.debian import needs

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "prometheus"
PARTS = ("_bucket", "_sum", "_count")  # of histograms and summaries


def rules(name: str) -> list[dict[str, Any]]:
    """All rules of a file."""
    groups = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )


@needs("promtool")
def test_prometheus_takes_the_configuration() -> None:
    """With both files of rules, and no warning."""
    done = promtool("check", "config", "--lint=all", "--lint-fatal", "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs("promtool")
def test_alerts_come_when_they_should() -> None:
    """Not before, and none of a good hour; the cases are Prometheus's own, so that operators can run them."""
    done = promtool("test", "rules", "alerts_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_case_and_says_what_to_do() -> None:
    """An alert that no test has seen fire is a hope."""
    cases = (FOLDER / "alerts_test.yaml").read_text()
    for rule in rules("alerts"):
        assert rule["alert"] in cases
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "action"} == set(rule["annotations"])
        assert rule["for"]


def test_rules_speak_of_metrics_that_there_are() -> None:
    """Of the gateway's own, or recorded ones."""
    known = {f"{name}{part}" for name, _, _ in table() for part in ("", *PARTS)}
    recorded = {rule["record"] for rule in rules("recording")}
    for rule in rules("alerts") + rules("recording"):
        own = re.findall(r"(?<![:\w])slotgate_\w+", rule["expr"])
        made = re.findall(r"\b\w+:slotgate_\w+:\w+", rule["expr"])
        assert own or made or rule["expr"].startswith(("up{", "vector("))
        assert set(own) <= known
        assert set(made) <= recorded
