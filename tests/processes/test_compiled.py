"""The compiled package: that it is what the gateways of these tests run."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from tests import compiled

CODE = "import gateway.handler as h, policies.admission as a; print(h.__file__, a.__file__)"


@pytest.mark.skipif(not compiled.is_possible(), reason="no C compiler, or no headers of Python")
@pytest.mark.skipif(not compiled.is_fresh(), reason="not compiled since the last edit: `make compiled`")
def test_gateways_of_tests_run_extensions() -> None:
    """Where it can be compiled, it is: nothing falls back to the sources unseen."""
    surroundings = os.environ | {"PYTHONPATH": compiled.paths()}
    command = [sys.executable, "-P", "-c", CODE]
    told = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True, timeout=60)
    assert [path.rpartition(".")[2] for path in told.stdout.split()] == ["so", "so"]


def test_each_name_in_the_list_of_what_is_compiled_is_a_module() -> None:
    """A module that was renamed does not leave the list silently."""
    project = tomllib.loads((compiled.ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    patterns = hook["include"] + hook["exclude"]
    assert [pattern for pattern in patterns if not [*compiled.ROOT.glob(pattern)]] == []
