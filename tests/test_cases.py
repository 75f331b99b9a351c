"""The table of cases names tests that exist, and passes over none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "tests" / "CASES.md").read_text()
CASES = 125
ROW = re.compile(r"^\| (B-\d{3}) \| (.+?) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`((?:unit|processes|faults|real|simulation)/[\w/]+\.py)::(test_\w+)`")


@cache
def names_in(file: str) -> frozenset[str]:
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in found)


def rows() -> dict[str, str]:
    """What each case says of where it is held."""
    return {number: held for number, _, held in ROW.findall(TABLE)}


def test_every_case_has_its_row() -> None:
    """Once, in order; each names a test."""
    numbers = [number for number, _, _ in ROW.findall(TABLE)]
    assert numbers == [f"B-{number:03}" for number in range(1, CASES + 1)]
    assert not [number for number, held in rows().items() if not NAMED.search(held)]


def test_every_test_it_names_exists() -> None:
    """A test that is renamed takes its row with it."""
    named = [pair for held in rows().values() for pair in NAMED.findall(held)]
    assert not [f"{file}::{name}" for file, name in named if name not in names_in(file)]
    assert not [held for held in rows().values() if held.count("::") != len(NAMED.findall(held))]


def test_the_sums_are_right() -> None:
    """At the top of the page it says how many."""
    elsewhere = sum("Otherwise here:" in held for held in rows().values())
    text = " ".join(TABLE.split())
    assert f"All {CASES} are held by tests" in text
    assert f"{elsewhere} of them in another way" in text


def test_the_commands_beside_the_figures_exist() -> None:
    """What the README says is measured by files of tests, modules and targets that are there."""
    text = (ROOT / "README.md").read_text()
    assert not [file for file in set(re.findall(r"tests/[\w/]+\.py", text)) if not (ROOT / file).exists()]
    modules = {name.replace(".", "/") for name in re.findall(r"python -m ((?:gateway|tests)[\w.]*)", text)}
    assert not [name for name in modules if not any((ROOT / name).parent.glob(f"{Path(name).name}*"))]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)", text)) <= targets
