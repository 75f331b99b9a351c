"""A real vLLM on the CPU, for tests: its environment, its tiny model, and a server of it.

`python tests/real/vllm.py --install` makes the environment (a download of 0.6 GB, 2.5 GB on disk) and the
model in the checkout's .cache, from the hash-pinned vllm.lock beside this file; a second run finds them
there. The lock is for CPython 3.11 on x86-64 Linux and names the CPU build of torch, which PyPI does not have
there: where pip does not find it, point PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL at PyTorch's wheels.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache"
LOCK = Path(__file__).with_suffix(".lock")
MODEL = Path(__file__).with_name("vllm_model.py")
NAME = "tiny"
SLOTS = 3
CONTEXT_TOKENS = 2048
START_SECONDS = 240  # 40 s on an idle machine of two cores: three processes import torch one after the other
STOP_SECONDS = 30


class VllmFailed(Exception):
    """vLLM cannot be installed here, or ended instead of serving."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """An installed vLLM and a model for it."""

    environment: Path
    model: Path


@dataclass(frozen=True, slots=True)
class VllmServer:
    """One that answers."""

    url: str
    pid: int
    start_seconds: float


def install(cache: Path = CACHE) -> Vllm:
    """The vLLM of the lock file and the model, made if they are not there or others."""
    if (platform.machine(), sys.version_info[:2]) != ("x86_64", (3, 11)):
        raise VllmFailed("tests/real/vllm.lock is for CPython 3.11 on x86-64: make the environment with that")
    cache.mkdir(exist_ok=True)
    made = Vllm(cache / "vllm-venv", cache / "vllm-model")
    python = str(made.environment / "bin/python")
    stamp = made.environment / "vllm.lock.sha256"
    wanted = hashlib.sha256(LOCK.read_bytes() + MODEL.read_bytes()).hexdigest()
    with (cache / "vllm-venv.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == wanted):
            venv.create(made.environment, clear=True, with_pip=True)
            pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*pip, "--require-hashes", "-r", str(LOCK)], check=True, stdout=sys.stderr)
            shutil.rmtree(made.model, ignore_errors=True)
            words = [python, str(MODEL), str(made.model)]
            subprocess.run(words, check=True, stdout=sys.stderr, env=os.environ | {"HF_HUB_OFFLINE": "1"})
            stamp.write_text(wanted)
    return made


@contextmanager
def vllm_server(vllm: Vllm, port: int, folder: Path, *flags: str) -> Iterator[VllmServer]:
    """Serve the model for the length of the block; the log goes into the folder.

    The server's processes are a group of their own: what is left of it in the end is killed.
    """
    # The `vllm` command asks for the package's metadata by a name that the CPU build does not have.
    module = [str(vllm.environment / "bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
    limits = ["--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(SLOTS)]
    cheap = ["--enforce-eager", "--dtype", "bfloat16", "--kv-cache-memory-bytes", "64M"]
    here = ["--host", "127.0.0.1", "--port", str(port)]
    served = ["--model", str(vllm.model), "--served-model-name", NAME]
    one_thread = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = folder / "vllm.log"
    with log.open("wb") as out:
        started = time.monotonic()
        child = subprocess.Popen(
            [*module, *served, *here, *limits, *cheap, *flags],
            cwd=folder,
            env=os.environ | one_thread | offline,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(child, url, started + START_SECONDS, log)
        yield VllmServer(url, child.pid, time.monotonic() - started)
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        with suppress(ProcessLookupError):  # all of them have ended, as they should
            os.killpg(child.pid, signal.SIGKILL)


def _wait(child: subprocess.Popen[bytes], url: str, end: float, log: Path) -> None:
    """Wait until it is healthy; while it loads, connections are refused."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        if child.poll() is not None or time.monotonic() > end:
            raise VllmFailed(f"vLLM does not serve; its log ends with:\n{log.read_text()[-4000:]}")
        try:
            with direct.open(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass  # not yet
        time.sleep(0.25)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--install", action="store_true", required=True, help="make environment and model")
    parser.parse_args()
    sys.stdout.write(f"{install().environment}\n")
