"""Which dashboards there are, and what their files contain."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana import engine, fleet

FOLDER = Path(__file__).parent / "dashboards"


def texts() -> dict[str, str]:
    """The text of each file by its name."""
    dashboards = {"fleet.json": fleet.dashboard(), "engine.json": engine.dashboard()}
    return {
        name: json.dumps(builder.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for name, builder in dashboards.items()
    }
