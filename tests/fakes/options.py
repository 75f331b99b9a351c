"""The command line of a fake engine."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any


def _option(default: Any, explained: str) -> Any:
    return field(default=default, metadata={"help": explained})


@dataclass(slots=True)
class Options:
    """What an engine is started with; the same names, with dashes, are its options."""

    port: int = _option(0, "0: any")
    host: str = _option("127.0.0.1", "where it listens")
    personality: str = _option("openai", "the engine it behaves like")
    slots: int = _option(1, "sequences that run side by side")
    context_tokens: int = _option(65_536, "per slot")
    kv_tokens: int = _option(0, "of all running requests together; 0: every slot's context")
    queue_limit: int | None = _option(
        None, "requests it holds back before it refuses more; None: endlessly many"
    )
    model: list[str] = field(default_factory=list, metadata={"help": "one it serves; may be repeated"})
    embeddings: bool = _option(False, "serve /v1/embeddings too")
    tokens: int = _option(8, "of an answer, unless the client allows fewer")
    tokens_per_event: int = _option(1, "of a stream")
    spec_accept: float = _option(0.0, "share of drafted tokens accepted; 0: no speculation")
    usage_details: bool = _option(False, "tell cached tokens, where an engine must be told to")
    dev_mode: bool = _option(False, "vLLM's development routes")
    prefill_tps: float = _option(4000.0, "one prefill at a time")
    decode_tps: float = _option(200.0, "of each slot")
    instant: bool = _option(False, "no time at all: answers hardly overlap, so concurrency cannot be judged")
    loading_seconds: float = _option(0.0, "until it can serve")
    abort_seconds: float = _option(0.0, "from a client's close to the free slot and our close")
    idle_seconds: float = _option(0.0, "idle connections are closed after this; 0: never")
    shutdown_seconds: float = _option(0.0, "after SIGTERM what runs may finish; 0: it is ended at once")
    prefix_cache: bool = _option(False, "keep prompts, and read what is new of the next one only")
    host_tokens: int = _option(0, "of what its cache gives up, kept in the host's memory or on disk")
    profile: str = _option("", "of the simulator's engines the one that sets its times: see `modelled`")
    speed: float = _option(1.0, "how many times as fast")

    def drafted(self, completion_tokens: int) -> tuple[int, int]:
        """Tokens drafted and accepted for so many tokens of answers."""
        if not self.spec_accept:
            return 0, 0
        return round(completion_tokens / self.spec_accept), completion_tokens


def read(personalities: Iterable[str], arguments: list[str] | None = None) -> Options:
    """Options from a command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.engine")
    defaults = Options()
    for option in fields(Options):
        name, default = f"--{option.name.replace('_', '-')}", getattr(defaults, option.name)
        explained = option.metadata["help"].replace("%", "%%")
        if option.name == "personality":
            parser.add_argument(name, choices=sorted(personalities), default=default, help=explained)
        elif isinstance(default, bool):
            parser.add_argument(name, action="store_true", help=explained)
        elif isinstance(default, list):
            parser.add_argument(name, action="append", default=default, help=explained)
        else:
            kind = int if default is None else type(default)
            parser.add_argument(name, type=kind, default=default, help=f"{explained} (default: {default})")
    return parser.parse_args(arguments, namespace=Options())
