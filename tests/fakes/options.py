"""The command line of a fake engine."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Options:
    """What an engine is started with; the same names, with dashes, are its options."""

    port: int = 0  # 0: any
    host: str = "127.0.0.1"
    personality: str = "openai"
    slots: int = 1
    context_tokens: int = 65_536  # per slot
    model: list[str] = field(default_factory=list)  # may be repeated
    tokens: int = 8  # of an answer, unless the client allows fewer
    prefill_tps: float = 4000.0  # one prefill at a time
    decode_tps: float = 200.0  # of each slot
    instant: bool = False  # no time at all: answers hardly overlap, so concurrency cannot be judged
    loading_seconds: float = 0.0
    abort_seconds: float = 0.0  # from a client's close to the free slot and our close
    idle_seconds: float = 0.0  # idle connections are closed after this; 0: never
    prefix_cache: bool = False


def read(arguments: list[str] | None = None) -> Options:
    """Options from a command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.engine")
    defaults = Options()
    for option in fields(Options):
        name, default = f"--{option.name.replace('_', '-')}", getattr(defaults, option.name)
        if isinstance(default, bool):
            parser.add_argument(name, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(name, action="append", default=default)
        else:
            parser.add_argument(name, type=type(default), default=default)
    return parser.parse_args(arguments, namespace=Options())
