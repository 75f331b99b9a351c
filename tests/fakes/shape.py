"""The shape of an answer, and where one differs from another: a fake must have its original's.

The shape of JSON is its members and the kinds of their values; that of an event stream is its events in their
order, equal neighbours counted as one, since answers differ in length; that of an answer is its status, what
its header says of the body, and the body's shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

TOLD = ("content-type", "server", "retry-after", "allow")


@dataclass(frozen=True, slots=True)
class Answered:
    """One whole HTTP answer."""

    status: int
    headers: Mapping[str, str]  # lower-case names
    body: bytes

    @classmethod
    def recorded(cls, path: Path) -> Answered:
        """One from a file: status line, header, empty line, body."""
        head, _, body = path.read_text().partition("\n\n")
        status, *lines = head.split("\n")
        pairs = (line.partition(": ") for line in lines)
        return cls(int(status.split()[1]), {name.lower(): value for name, _, value in pairs}, body.encode())


def differences(fake: Answered, real: Answered, but: frozenset[str] = frozenset()) -> list[str]:
    """Where the fake is not as its original, without the places named in `but` and what is below them."""
    found = [*_heads(fake, real), *_bodies(fake, real)]
    return [line for line in found if not any(line.startswith(place) for place in but)]


def _heads(fake: Answered, real: Answered) -> Iterator[str]:
    if fake.status != real.status:
        yield f"status: {fake.status} for {real.status}"
    for name in TOLD:
        if fake.headers.get(name) != real.headers.get(name):
            yield f"{name}: {fake.headers.get(name)} for {real.headers.get(name)}"


def _bodies(fake: Answered, real: Answered) -> Iterator[str]:
    kind = real.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        yield from _different("", *([[*_events(one.body)] for one in (fake, real)]), "events")
    elif "json" in kind:
        yield from _different("", json.loads(fake.body), json.loads(real.body), "")
    elif kind.startswith("text/plain"):
        families = _families(real.body)
        for name, family in _families(fake.body).items():
            yield from _different("", family, families.get(name), name)
    elif fake.body != real.body:
        yield "body: another"


def _different(above: str, fake: Any, real: Any, name: str) -> Iterator[str]:
    place = f"{above}.{name}".strip(".")
    if _kind(fake) != _kind(real):
        yield f"{place}: {_kind(fake)} for {_kind(real)}"
    elif isinstance(fake, dict):
        for key in fake.keys() | real.keys():
            if key not in fake or key not in real:
                yield f"{place}.{key}: {'missing' if key not in fake else 'added'}".lstrip(".")
            else:
                yield from _different(place, fake[key], real[key], key)
    elif isinstance(fake, list) and name == "events":
        if [event for event, _ in fake] != [event for event, _ in real]:
            yield f"events: {fake} for {real}"
        for (event, one), (_, other) in zip(fake, real, strict=False):
            yield from _different(event, one, other, "")
    elif isinstance(fake, list) and bool(fake) != bool(real):
        yield f"{place}: {len(fake)} entries for {len(real)}"
    elif isinstance(fake, list) and fake:
        yield from _different(place, fake[0], real[0], "0")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case _:
            return type(value).__name__


def _events(body: bytes) -> Iterator[tuple[str, Any]]:
    """Each run of events of one shape as one: its name or what it carries, and the first one's data."""
    last: Any = None
    for block in re.split(r"\n\n+", body.decode().strip()):
        fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
        data = fields.get("data", "")
        value = data if data == "[DONE]" or not data else json.loads(data)
        shape = (fields.get("event"), _outline(value))
        if shape != last:
            yield fields.get("event") or _carries(value), value
        last = shape


def _outline(value: Any) -> Any:
    """A value without its words and numbers, comparable."""
    if isinstance(value, dict):
        return {key: _outline(inner) for key, inner in value.items()}
    return [_outline(inner) for inner in value] if isinstance(value, list) else _kind(value)


def _carries(value: Any) -> str:
    """What an event without a name is: its marker, or the members of its delta."""
    if not isinstance(value, dict):
        return str(value)
    choices = value.get("choices") or [{}]
    carried = choices[0].get("delta", ["text"] if "text" in choices[0] else [])
    words = [*carried, *(["finish"] if choices[0].get("finish_reason") else [])]
    return "+".join(words) or ("usage" if "usage" in value else "other")


def _families(body: bytes) -> dict[str, Any]:
    """Metrics by name: their kind, and the names of their labels."""
    return {
        family.name: {"type." + family.type: 0, **{label: "" for s in family.samples for label in s.labels}}
        for family in text_string_to_metric_families(body.decode())
    }
