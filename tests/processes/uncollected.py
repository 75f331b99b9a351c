"""The gateway without a garbage collector: `python -m tests.processes.uncollected serve ...`.

At its end it writes to the file that `UNCOLLECTED` names what a collector would have had to find: kinds of
our own objects, and how many of each, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway import lifecycle
from gateway.cli.app import main
from gateway.collector import Collector

OURS = ("gateway.", "policies.")


class Never(Collector):
    """Looks at nothing once the gateway runs."""

    def start(self) -> None:
        """What starting it has left is not what is asked for."""
        self.look_at_all()
        gc.disable()


def left(serve: Callable[..., Any], file: Path) -> Callable[..., Any]:
    """The same, and then what it has left."""

    async def run(*arguments: Any, **named: Any) -> None:
        await serve(*arguments, **named)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        write(file)

    return run


def write(file: Path) -> None:
    """Of all that was found, what is ours."""
    kinds = Counter(type(each) for each in gc.garbage)
    ours = {kind: number for kind, number in kinds.items() if kind.__module__.startswith(OURS)}
    file.write_text(json.dumps({kind.__name__: number for kind, number in ours.items()}))


if __name__ == "__main__":
    lifecycle.Collector = Never  # type: ignore[misc]
    lifecycle.serve = left(lifecycle.serve, Path(os.environ["UNCOLLECTED"]))
    main()
