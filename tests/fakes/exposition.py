"""Prometheus text, as engines expose it."""

from __future__ import annotations

from collections.abc import Iterable

Series = tuple[str, float]  # labels in braces or nothing, and the value


def family(name: str, kind: str, help: str, *series: Series) -> str:
    """One metric. A counter's samples carry the name as given, `_total` included."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{labels} {value}" for labels, value in series]
    return "\n".join(lines) + "\n"


def labels(**values: object) -> str:
    """Labels in braces."""
    inside = ",".join(f'{name}="{value}"' for name, value in values.items())
    return f"{{{inside}}}"


def text(families: Iterable[str]) -> bytes:
    """All of them."""
    return "".join(families).encode()
