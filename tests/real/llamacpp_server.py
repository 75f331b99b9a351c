"""A real llama.cpp server for a test: started on a free port, ended by its pid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.demo.child import free_ports, start_engine
from gateway.demo.engine import MODEL_NAME
from gateway.demo.model import cache_folder, fetch


@dataclass(frozen=True, slots=True)
class LlamaCppServer:
    """One that is ready."""

    url: str
    pid: int
    model: str = MODEL_NAME


@contextmanager
def llamacpp_server(folder: Path, *, slots: int = 2, context_tokens: int = 1024) -> Iterator[LlamaCppServer]:
    """Serve the demo's model, fetched once, for the length of the block; the log goes into the folder."""
    model = fetch(cache_folder(), print)
    (port,) = free_ports(1)
    name = f"llamacpp-{port}"
    url = f"http://127.0.0.1:{port}"
    with start_engine(
        name, port, slots=slots, context_tokens=context_tokens, model=model, folder=folder
    ) as engine:
        engine.wait_ready(f"{url}/health")
        yield LlamaCppServer(url, engine.pid)
