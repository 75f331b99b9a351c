"""Engines by what is on file of them: a journal, or the results of a load generator."""

from __future__ import annotations

from pathlib import Path

from gateway.cli import hindsight
from gateway.cli.failure import CommandFailed
from gateway.engines import ENGINES
from policies.measured import UnreadableResults, measured
from policies.replay import profile
from policies.simulation.profile import CacheKind, Profile
from policies.simulation.workload import Program
from policies.traffic import programs

SQLITE = b"SQLite format 3\0"  # how a journal begins


def fitted(path: Path, slots: int | None) -> tuple[list[Profile], list[Program]]:
    """The engines that a file tells of, and the requests that they had, if it is a journal. `slots`: of the
    engine that was measured, else as many as ran side by side. CommandFailed: it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"--fit {path}: {error.strerror}; name a journal or results.", 2) from None
    if content.startswith(SQLITE):
        if slots is not None:
            raise CommandFailed("--slots is for results of a load generator; a journal shows its own.", 2)
        asked = hindsight.requests(path)
        return hindsight.fleet(asked), programs(asked)
    try:
        found = measured(content.decode("utf-8", errors="replace"))
    except UnreadableResults as error:
        raise CommandFailed(f"--fit {path}: {error}; name a journal or results that tell rates.", 2) from None
    kind = ENGINES[found.engine]
    service = found.service(kind.service)
    cache = CacheKind(kind.prefix_kind)
    return [profile(path.stem, service, cache, slots=slots or found.slots, context_tokens=None)], []
