"""Run one seed and print all that happens: `python -m tests.simulation.replay SEED`."""

from __future__ import annotations

import sys

from tests.simulation.scenario import draw
from tests.simulation.world import simulate


def main() -> int:
    """1 if an invariant was violated."""
    seed = int(sys.argv[1])
    lines = [str(draw(seed).limits), *map(str, draw(seed).engines)]
    result = simulate(seed, trace=lines.append)
    sys.stdout.write("\n".join([*lines, str(result), ""]))
    return 1 if result.violation else 0


if __name__ == "__main__":
    sys.exit(main())
