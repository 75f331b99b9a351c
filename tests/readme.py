"""The tables of the README that come from the code: `python -m tests.readme` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gateway.families import table
from gateway.options import options

README = Path(__file__).resolve().parents[1] / "README.md"


def tables() -> dict[str, str]:
    """Each generated table by the name of its markers."""
    return {
        "options": _table(
            ("option", "type", "default", "meaning"),
            [(f"`{o.name}`", o.type, o.default, o.description) for o in options()],
        ),
        "metrics": _table(
            ("metric", "labels", "meaning"),
            [(f"`{name}`", ", ".join(labels), help) for name, labels, help in table()],
        ),
    }


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def filled(text: str) -> str:
    """The README with its tables as they should be."""
    for name, rows in tables().items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        assert marked.search(text), f"README.md has no place for {name}"
        text = marked.sub(lambda found, rows=rows: f"{found[1]}{rows}\n{found[2]}", text)
    return text


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
