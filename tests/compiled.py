"""The package as operators may install it, compiled: `python tests/compiled.py` makes it, and gateways that
tests start as processes run it. Tests of one module take the sources as they are written.

It can where there are a C compiler and Python's headers; elsewhere processes run the sources too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".cache" / "compiled"
SECONDS_MAX = 900


def is_possible() -> bool:
    """Whether there is what compiling needs."""
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return shutil.which("cc") is not None and headers.exists()


def is_fresh() -> bool:
    """Whether it was made of the sources as they are now."""
    sources = {path for package in ("gateway", "policies") for path in (ROOT / package).rglob("*.py")}
    return FOLDER.exists() and all(
        (copy := FOLDER / path.relative_to(ROOT)).exists() and copy.read_bytes() == path.read_bytes()
        for path in sources | {ROOT / "hatch_build.py"}
    )


def paths() -> str:
    """PYTHONPATH of a gateway."""
    return os.pathsep.join([str(FOLDER)] * is_fresh() + [str(ROOT)])


def make() -> None:
    """Raises CalledProcessError if it does not compile."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run(
        [*pip, "--target", str(FOLDER), str(ROOT)],
        env=os.environ | {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true"},
        timeout=SECONDS_MAX,
        check=True,
    )
    shutil.copy(ROOT / "hatch_build.py", FOLDER)


if __name__ == "__main__":
    if not is_possible():
        sys.stderr.write("No C compiler, or no headers of Python: gateways of tests run the sources.\n")
    elif not is_fresh():
        sys.stderr.write("Compiling what every request passes (a minute or two) ...\n")
        make()
