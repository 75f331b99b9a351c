"""Sizes of memory as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

from gateway.cli.failure import CommandFailed

UNITS = {
    f"{prefix}{infix}b": base ** (power + 1)
    for base, infix in ((1000, ""), (1024, "i"))
    for power, prefix in enumerate("kmgt")
}


def bytes_of(option: str, text: str, *, plain: bool = False) -> int:
    """`13.74GiB`, `81 GB`, `508.3MiB`; `plain`: a number without a unit is one of bytes.

    CommandFailed: it is no size; the option's name is for the message.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = found[2].lower() if found else ""
    factor = 1 if unit == "b" or (plain and not unit) else UNITS.get(unit)
    if found is None or factor is None:
        raise CommandFailed(
            f"{option} must be a size with its unit, such as 13.74GiB or 508.3MiB, not {text!r}.", 2
        )
    size = int(Decimal(found[1]) * factor)
    if size < 1:
        raise CommandFailed(f"{option} must be more than nothing.", 2)
    return size
