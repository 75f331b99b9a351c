"""The compiled package: that it is what the gateways of these tests run."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from tests import compiled

NOT_POSSIBLE, STALE = (
    "no C compiler, or no headers of Python",
    "not compiled since the last edit: `make compiled`",
)
here = pytest.mark.skipif(not compiled.is_fresh(), reason=STALE if compiled.is_possible() else NOT_POSSIBLE)
CODE = "import gateway.handler as h, policies.admission as a; print(h.__file__, a.__file__)"


@here
def test_gateways_of_tests_run_extensions() -> None:
    """Where it can be compiled, it is: nothing falls back to the sources unseen."""
    surroundings = os.environ | {"PYTHONPATH": compiled.paths()}
    command = [sys.executable, "-P", "-c", CODE]
    told = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True, timeout=60)
    assert [path.rpartition(".")[2] for path in told.stdout.split()] == ["so", "so"]


@here
@pytest.mark.parametrize("workload", ["main", "heavy"])
def test_compiled_policies_decide_the_same(workload: str) -> None:
    """To the letter: one decision that differs changes a simulation's table."""
    words = ["simulate", "--workload", workload, "--agents", "8", "--seeds", "1", "--policy", "slotgate"]
    command = [sys.executable, "-P", "-m", "gateway", *words, "--json"]
    tables = [
        subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=True, timeout=240
        ).stdout
        for path in (compiled.paths(), str(compiled.ROOT))
    ]
    assert tables[0] == tables[1]
    assert tables[0]


def test_each_name_in_the_list_of_what_is_compiled_is_a_module() -> None:
    """A module that was renamed does not leave the list silently."""
    project = tomllib.loads((compiled.ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    patterns = hook["include"] + hook["exclude"]
    assert [pattern for pattern in patterns if not [*compiled.ROOT.glob(pattern)]] == []
