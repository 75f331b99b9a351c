"""Compiles what every request passes, by mypyc: `HATCH_BUILD_HOOK_ENABLE_CUSTOM=true pip install .`

The same sources, with their types, as C extensions. It needs a C compiler and Python's headers, and takes a
minute or two; without it the package is pure Python. Left as they are: what does not run for each request,
what frameworks look into (FastAPI, pydantic, typer, `get_type_hints`), exceptions with defaults, and what
inherits from classes that are not compiled.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("gateway", "policies")
# At O1 it compiles in half the time that mypyc's own default, O3, takes, and is as fast.
SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
flags = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
made = mypycify(flags + sys.argv[1:], opt_level="1", debug_level="0", multi_file=True, group_name="slotgate")
setup(name="slotgate", packages=[], ext_modules=made, script_args=["-q", "build_ext", "--inplace"])
"""


class Compile(BuildHookInterface[Any]):
    """Adds the extensions to a wheel, beside the sources that they stand for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it writes. Raises RuntimeError if it does not compile."""
        if version == "editable":  # an extension would hide what is edited
            return
        self._folder = Path(tempfile.mkdtemp(prefix="slotgate-build-"))
        for package in PACKAGES:
            shutil.copytree(Path(self.root, package), self._folder / package)
        setup = self._folder / "setup.py"
        setup.write_text(SETUP)
        command = [sys.executable, str(setup), *self._modules()]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(self._folder)
            raise RuntimeError(f"mypyc failed:\n{(done.stdout + done.stderr)[-4000:]}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        built = [path for path in self._folder.rglob("*.so") if "build" not in path.parts]
        build_data["force_include"] |= {str(path): str(path.relative_to(self._folder)) for path in built}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling when the wheel is written."""
        if version != "editable":
            shutil.rmtree(self._folder)

    def _modules(self) -> list[str]:
        names, left = (
            {
                str(path.relative_to(self._folder))
                for pattern in self.config[key]
                for path in self._folder.glob(pattern)
            }
            for key in ("include", "exclude")
        )
        return sorted(names - left)
