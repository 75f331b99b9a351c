"""The gateway as in its container, but without Docker: the same user, rights and health check."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.dockerfile import lineage, stages
from tests.processes.harness import Engine, engine
from tests.processes.process import Process, free_port, until

ROOT = Path(__file__).resolve().parents[2]
USER = lineage("gateway")[0].last("USER").partition(":")[0]

# Everything is read-only but what the image's volumes are; the checkout is the image's /opt.
SCRIPT = """
set -e
mount -t tmpfs none /mnt
mkdir /mnt/app /mnt/tmp /mnt/data
mount --bind "$1" /mnt/app
chown $2 /mnt/tmp /mnt/data
mount --bind /mnt/tmp /tmp
mount -o remount,bind,ro /mnt/app
mount -o remount,bind,ro /
cd /mnt/data
exec setpriv --reuid "$2" --regid "$2" --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs \\
  /mnt/app/.venv/bin/python -m gateway serve
"""


@asynccontextmanager
async def contained(environment: dict[str, str]) -> AsyncIterator[Process]:
    """The gateway in a namespace of its own; skipped where the machine does not allow one."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh", str(ROOT), USER]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SLOTGATE_")}
        own = {"PYTHONPATH": "/mnt/app", "PYTHONDONTWRITEBYTECODE": "1"}
        process = Process(arguments, Path(folder), clean | own | environment, program="unshare")
        try:
            yield process
        finally:
            await process.kill()


async def well(port: int) -> int:
    """The exit code of the image's health check."""
    program, *arguments = stages()["gateway"].health_check
    assert program == "python"
    here = [argument.replace(":8400/", f":{port}/") for argument in arguments]
    assert here != arguments
    child = await asyncio.create_subprocess_exec(sys.executable, *here, stderr=asyncio.subprocess.DEVNULL)
    return await child.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces and other users' processes")
async def test_it_serves_as_another_user_who_may_write_nothing_but_its_volumes() -> None:
    """Also: without a capability, able to gain none, its journal in the volume, and drained by SIGTERM."""
    port, admin_port = free_port(), free_port()
    async with (
        engine(slots=2) as one,
        contained(
            {
                "SLOTGATE_SERVER__PORT": str(port),
                "SLOTGATE_SERVER__ADMIN_PORT": str(admin_port),
                "SLOTGATE_SERVER__SHUTDOWN_PAUSE_SECONDS": "0",
                "SLOTGATE_BACKENDS": f'[{{"name": "b", "url": "{one.url}", "slots": 2}}]',
                "SLOTGATE_ACCOUNTING__JOURNAL": "/mnt/data/slotgate.db",
            }
        ) as process,
    ):
        if reason := await refused(process):
            pytest.skip(f"this machine allows no such namespace: {reason}")
        assert await well(port) == 0
        assert await served(one, port)
        rights = rights_of(process)
        assert rights["Uid:"] == USER
        assert rights["NoNewPrivs:"] == "1"
        assert {rights[f"Cap{name}:"].strip("0") for name in ("Eff", "Prm", "Inh", "Bnd", "Amb")} == {""}
        await until(lambda: "slotgate.db" in volume_of(process), "a journal in its volume")
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
        assert await well(port) == 1


async def refused(process: Process) -> str:
    """Wait until the gateway listens; the words of the program that was not allowed to do its part."""
    await until(
        lambda: "listening" in process.output or process.exit_code is not None, "a gateway in its namespace"
    )
    if process.exit_code is None:
        return ""
    assert re.match(r"(unshare|mount|setpriv): ", process.errors), process.errors
    return process.errors.strip()


def rights_of(process: Process) -> dict[str, str]:
    """What the kernel says that it may do, by the names in its status file."""
    words = Path(f"/proc/{process.pid}/status").read_text().split()
    return dict(pairwise(words))


def volume_of(process: Process) -> list[str]:
    """The files in its volume."""
    return os.listdir(f"/proc/{process.pid}/root/mnt/data")


async def served(one: Engine, port: int) -> bool:
    """Whether a request comes to the engine and back."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:

        async def ready() -> bool:
            return (await client.get("/ready")).status_code == 200

        await until(ready, "a ready gateway")
        body = {"model": "fake-model", "messages": [{"role": "user", "content": "Hello"}]}
        answer = await client.post("/v1/chat/completions", json=body)
        return answer.status_code == 200 and len(await one.records()) >= 1
