"""Tables on a terminal or in a pipe."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.logs import printable

PIPE_WIDTH = 200


def console() -> Console:
    """Standard output; in a pipe wide enough that no cell is cut."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def table(*columns: str) -> Table:
    """An empty table with these heads."""
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def cell(value: object, style: str = "") -> Text:
    """Text as it is: a client may have named itself in markup, or in escape sequences."""
    return Text(printable(str(value)), style)
