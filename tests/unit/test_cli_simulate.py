"""`slotgate simulate`: what it prints, writes, and refuses."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateway.cli.app import main
from policies.simulation.engine import Mode
from policies.simulation.profile import PROFILES
from policies.simulation.scenarios import SCENARIOS
from policies.simulator import POLICIES

TRACE = Path(__file__).parents[1] / "fixtures" / "traces" / "mooncake_conversation.jsonl"
SMALL = ("simulate", "--agents", "3", "--seeds", "2", "--policy", "slotgate", "--policy", "sticky")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as exited:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert isinstance(exited.value.code, int)
    return exited.value.code, out, err


def test_it_prints_a_table_for_each_mode(capsys: pytest.CaptureFixture[str]) -> None:
    """The bound first, then the policies in the order asked for."""
    code, out, err = run(capsys, *SMALL)
    assert (code, err) == (0, "")
    assert out.startswith("main, 3 agents on vllm-2spark, llamacpp-131k, ds4-262k, ds4-64k; means of 2 runs")
    firsts = [
        line.split()[0] for line in out.splitlines() if line.startswith(("(bound)", "slotgate", "sticky"))
    ]
    assert firsts == ["(bound)", "slotgate", "sticky"] * 2
    assert all(f"prefills {mode}:" in out for mode in Mode)


def test_it_repeats_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """The same arguments, the same bytes."""
    assert run(capsys, *SMALL, "--json") == run(capsys, *SMALL, "--json")


def test_programs_read_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that the table shows, and what it leaves out."""
    _, out, _ = run(
        capsys, *SMALL, "--json", "--mode", "shared", "--engine", "ds4-64k", "--engine", "ds4-64k"
    )
    found = json.loads(out)
    assert found["engines"] == ["ds4-64k", "ds4-64k#2"]
    assert (found["workload"], found["agents"], found["runs"]) == ("main", 3, 2)
    assert [(row["policy"], row["mode"]) for row in found["rows"]] == [
        ("slotgate", "shared"),
        ("sticky", "shared"),
    ]
    for row in found["rows"]:
        figures = row["figures"]
        assert figures["makespan_seconds"] >= found["limits"]["makespan_seconds"] > 0
        assert set(figures["ttft"]) == set(figures["wait"]) == {"interactive", "agent"}
        assert figures["ttft"]["agent"]["p50"] <= figures["ttft"]["agent"]["p99"]


def test_a_trace_is_played_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Mooncake's format; there is nothing to draw."""
    arguments = ("--workload", str(TRACE), "--policy", "dynamo", "--mode", "strict")
    code, out, _ = run(capsys, "simulate", *arguments)
    assert code == 0
    assert out.startswith(f"{TRACE} on vllm-2spark, llamacpp-131k, ds4-262k, ds4-64k; 1 run; seconds")


class Page(HTMLParser):
    """Counts what a page holds, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_has_charts_and_loads_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A bar for each policy in each of six charts, for each mode."""
    path = tmp_path / "page.html"
    code, out, _ = run(capsys, *SMALL, "--html", str(path))
    page = Page()
    page.feed(path.read_text())
    assert code == 0
    assert "slotgate" in out
    assert page.tags.count("svg") == 2 * 6
    assert page.tags.count("rect") == 2 * 6 * 2
    assert page.texts.count("slotgate") == 2 * 6
    assert not page.loads
    assert not {"script", "link", "img"} & set(page.tags)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engine", "gpt"), "--engine gpt is not known; there are: vllm-2spark"),
        (("--policy", "best"), "--policy best is not known; there are: slotgate, round-robin"),
        (("--mode", "loose"), "--mode loose is not known; there are: strict, shared, both"),
        (("--workload", "nowhere"), "--workload nowhere is neither a file that can be read nor a scenario"),
        (("--workload", "lost", "--engine", "ds4-64k"), "two or more; add --engine"),
        (("--agents", "0"), "--agents"),
    ],
)
def test_wrong_use(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    """Exit 2, and what there is."""
    code, out, err = run(capsys, "simulate", *arguments)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "line 1 is not in Mooncake's format"),
        ("", "holds no request that these engines could take"),
        ("\udcff", "neither a file that can be read"),
    ],
)
def test_a_trace_that_is_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str
) -> None:
    """Exit 2, and the line."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, out, err = run(capsys, "simulate", "--workload", str(path))
    assert (code, out) == (2, "")
    assert words in err


def test_a_page_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exit 1, and which option to mend."""
    code, _, err = run(capsys, *SMALL, "--html", str(tmp_path / "no" / "page.html"))
    assert code == 1
    assert "name another file with --html" in err


def test_help_names_all_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Engines, scenarios, policies: none more, none less."""
    _, out, _ = run(capsys, "simulate", "--help")
    words = " ".join(out.split())
    for name, known in (("Engines", PROFILES), ("Scenarios", SCENARIOS), ("Policies", POLICIES)):
        assert f"{name}: {', '.join(known)}" in words
