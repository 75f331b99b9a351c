"""A real redis-server on a private port and directory, which tests kill, restart and pause."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.processes.process import Process, free_port, until


class Server:
    """It, and a connection of the test's own."""

    def __init__(self, folder: Path, port: int, arguments: Sequence[str], url: str) -> None:
        self.port = port
        self.folder = folder
        self.url = url or f"redis://127.0.0.1:{port}"
        own = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self.process = Process([*own, *arguments], folder, dict(os.environ), program="redis-server")

    async def ready(self) -> None:
        """Wait until it answers."""
        await until(self.answers, "an answer of redis-server")

    async def answers(self) -> bool:
        """Whether it does, and has loaded its data."""
        try:
            async with self.client() as client:
                await client.execute_command("PING")
        except (RedisError, OSError):
            assert self.process.exit_code is None, self.process.output
            return False
        return True

    def client(self) -> Redis:
        """A connection of the test's own, for `async with`."""
        return Redis.from_url(self.url)

    async def restart(self, *, empty: bool = False) -> None:
        """Start it again after it was killed; what it had written is kept or not."""
        if empty:
            for path in sorted(self.folder.rglob("*"), reverse=True):
                if path.name not in ("stdout", "stderr"):
                    path.rmdir() if path.is_dir() else path.unlink()
        self.process.start()
        await self.ready()


@asynccontextmanager
async def redis_server(*arguments: str, url: str = "") -> AsyncIterator[Server]:
    """Run it with these options of its command line; `url`: where they make it listen."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), free_port(), arguments, url)
        try:
            await server.ready()
            yield server
        finally:
            await server.process.kill()
