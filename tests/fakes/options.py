"""The command line of a fake engine."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Options:
    """What an engine is started with; the same names, with dashes, are its options."""

    port: int = 0  # 0: any
    host: str = "127.0.0.1"
    personality: str = "openai"
    slots: int = 1
    context_tokens: int = 65_536  # per slot
    kv_tokens: int = 0  # of all running requests together; 0: every slot's context
    queue_limit: int | None = None  # requests it holds back before it refuses more; None: endlessly many
    model: list[str] = field(default_factory=list)  # may be repeated
    embeddings: bool = False  # serve /v1/embeddings too
    tokens: int = 8  # of an answer, unless the client allows fewer
    tokens_per_event: int = 1
    spec_accept: float = 0.0  # share of drafted tokens accepted; 0: no speculation
    usage_details: bool = False  # tell cached tokens, where an engine must be told to
    dev_mode: bool = False  # vLLM's development routes
    prefill_tps: float = 4000.0  # one prefill at a time
    decode_tps: float = 200.0  # of each slot
    instant: bool = False  # no time at all: answers hardly overlap, so concurrency cannot be judged
    loading_seconds: float = 0.0
    abort_seconds: float = 0.0  # from a client's close to the free slot and our close
    idle_seconds: float = 0.0  # idle connections are closed after this; 0: never
    shutdown_seconds: float = 0.0  # after SIGTERM what runs may finish; 0: it is ended at once
    prefix_cache: bool = False
    host_tokens: int = 0  # of what its cache gives up, kept in the host's memory or on disk
    profile: str = ""  # of the simulator's engines the one that sets its times: see `modelled`
    speed: float = 1.0  # how many times as fast

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
        if option.name == "personality":
            parser.add_argument(name, choices=sorted(personalities), default=default)
        elif isinstance(default, bool):
            parser.add_argument(name, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(name, action="append", default=default)
        else:
            parser.add_argument(name, type=int if default is None else type(default), default=default)
    return parser.parse_args(arguments, namespace=Options())
