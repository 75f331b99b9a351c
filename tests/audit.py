"""What the gateway stands on: `make audit`.

Checks the packages of `requirements.lock` against the known advisories, and writes what they are to
`.cache/sbom.json` (CycloneDX). The tools for it come from the hash-pinned audit.lock beside this file, in an
environment of their own. Exit code 1 if an advisory names a package, or the bill of materials lacks one.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
LOCK = ROOT / "requirements.lock"
TOOLS = Path(__file__).with_suffix(".lock")
SBOM = CACHE / "sbom.json"
SECONDS_MAX = 300


def tools() -> Path:
    """The environment with the tools, made if it is not there or another one."""
    CACHE.mkdir(exist_ok=True)
    environment = CACHE / "audit-venv"
    stamp = environment / "audit.lock.sha256"
    wanted = hashlib.sha256(TOOLS.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == wanted):
        sys.stderr.write(f"Setting up {environment.relative_to(ROOT)} (once) ...\n")
        venv.create(environment, clear=True, with_pip=True)
        pip = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
        subprocess.run([*pip, "-r", str(TOOLS)], check=True, stdout=sys.stderr)
        stamp.write_text(wanted)
    return environment / "bin"


def locked() -> dict[str, str]:
    """The packages of the lock and their versions."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))


def advisories(bin: Path) -> list[dict[str, Any]] | None:
    """Each package as it was audited; None where the advisories cannot be reached."""
    options = ["--requirement", str(LOCK), "--require-hashes", "--disable-pip", "--format", "json"]
    done = subprocess.run(
        [str(bin / "pip-audit"), *options, "--progress-spinner", "off", "--timeout", "15"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    try:
        audited: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    return None if all("skip_reason" in one for one in audited) else audited


def materials(bin: Path) -> dict[str, str]:
    """Write the bill of materials; what stands in it."""
    options = ["--output-reproducible", "--output-file", str(SBOM), str(LOCK)]
    command = [str(bin / "cyclonedx-py"), "requirements", *options]
    subprocess.run(command, check=True, timeout=SECONDS_MAX, stderr=subprocess.DEVNULL)
    listed = json.loads(SBOM.read_text())["components"]
    return {one["name"]: one["version"] for one in listed if one.get("purl")}


def main() -> int:
    """1 if something is wrong."""
    bin, packages = tools(), locked()
    written, faults = materials(bin), 0
    missing = sorted(packages.items() - written.items())
    sys.stdout.write(f"{len(written)} packages in {SBOM.relative_to(ROOT)}; missing: {missing or 'none'}\n")
    audited = advisories(bin)
    if audited is None:
        sys.stdout.write("Not audited: no advisories can be reached from this machine.\n")
        return 1 if missing else 0
    for one in audited:
        for found in one.get("vulns", ()):
            faults += 1
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            sys.stdout.write(f"{one['name']} {one['version']}: {found['id']}, mended in {fixed}\n")
    skipped = sum("skip_reason" in one for one in audited)
    sys.stdout.write(f"{len(audited) - skipped} packages audited, {skipped} unknown, {faults} advisories\n")
    return 1 if faults or missing else 0


if __name__ == "__main__":
    sys.exit(main())
