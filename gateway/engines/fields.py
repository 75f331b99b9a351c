"""Values out of answers that anybody may have written: of the type that was expected, or None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from gateway.engines.base import Answer, Drafts

LARGEST = 2**53


def told(answers: Mapping[str, Answer], path: str, *keys: str) -> Any:
    """What the answer to `path` says, or its member below these keys; None unless the answer is good."""
    answer = answers.get(path)
    return member(answer.json(), *keys) if answer is not None and answer.status == 200 else None


def member(value: object, *keys: str) -> Any:
    """`value[key][key]...` as far as there are objects that have them, else None."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def members(value: object) -> list[dict[str, Any]] | None:
    """The objects in a list; None if it is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else None


def natural(value: object) -> int | None:
    """A whole number from 0 on, of a size that counts something; in JSON `true` and 2.5 are none."""
    return value if type(value) is int and 0 <= value <= LARGEST else None


def positive(value: object) -> int | None:
    """A whole number above 0."""
    return natural(value) or None


def share(part: object, whole: object) -> float | None:
    """`part` of `whole`, 0 to 1; None without figures, of nothing, or of more than there is."""
    if not (_is_number(part) and _is_number(whole) and 0 <= part <= whole <= LARGEST and whole > 0):
        return None
    return part / whole


def drafts(drafted: object, accepted: object) -> Drafts | None:
    """Tokens drafted and accepted; None without figures, of nothing, or of more accepted than drafted."""
    total, good = natural(drafted), natural(accepted)
    return Drafts(total, good) if total and good is not None and good <= total else None


def _is_number(value: object) -> TypeGuard[int | float]:
    return type(value) in (int, float)
