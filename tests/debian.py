"""Programs of Debian that tests drive: `python tests/debian.py` installs those that are missing.

It can where it runs as root on a machine with apt. Elsewhere their tests are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

PACKAGES = {  # by program
    "chromium": "chromium",
    "faketime": "faketime",
    "cc": "build-essential",
    "haproxy": "haproxy",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",
}
SECONDS_MAX = 600  # for one run of apt-get


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test where one of these programs is not there."""
    absent = [program for program in programs if shutil.which(program) is None]
    packages = sorted({PACKAGES[program] for program in programs})
    reason = f"{', '.join(absent)} not found; `apt-get install {' '.join(packages)}` brings it"
    return pytest.mark.skipif(bool(absent), reason=reason)


def missing() -> list[str]:
    """Packages of which a program is not there, and Python's headers where this Python is Debian's."""
    packages = {package for program, package in PACKAGES.items() if shutil.which(program) is None}
    if sys.base_prefix == "/usr" and not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        packages.add("python3-dev")
    return sorted(packages)


def install(packages: Sequence[str]) -> None:
    """Install them without asking or telling; what goes wrong is left to the tests to tell."""
    wanted = ["install", "--yes", "--no-install-recommends", *packages]
    for arguments in (wanted, ["update"], wanted):  # lists of packages may be absent, or old
        done = subprocess.run(
            ["apt-get", "-qq", *arguments],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS_MAX,
            check=False,
        )
        if arguments is wanted and done.returncode == 0:
            return


if __name__ == "__main__":
    if absent := missing():
        if os.geteuid() == 0 and shutil.which("apt-get"):
            sys.stderr.write(f"Installing Debian's {', '.join(absent)} for the tests (once) ...\n")
            install(absent)
        if absent := missing():
            sys.stderr.write(f"Tests that need Debian's {', '.join(absent)} will be skipped.\n")
