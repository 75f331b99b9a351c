"""What `slotgate status` shows, from the answers of the admin port."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gateway.cli.tables import cell, table

BAR_WIDTH_MAX = 16
REQUESTS_MAX = 20
CLASSES = ("interactive", "agent", "batch")
STYLES = {"ready": "green", "down": "red", "ejected": "red"}  # others are on the way: yellow


def page(now: dict[str, Any]) -> RenderableType:
    """Backends, the queue by class, running requests."""
    parts = [_backends(now["backends"]), _queue(now["queue"])]
    if now["requests"]:
        parts.append(_requests(now["requests"]))
    return Group(*(line for part in parts for line in (part, "")))


def _backends(backends: list[dict[str, Any]]) -> RenderableType:
    shown = table("backend", "engine", "state", "slots", "", "context", "models")
    for one in backends:
        slots, context = one["slots"], one["context_tokens"]
        state = cell(one["state"], STYLES.get(one["state"], "yellow"))
        notes = ["backup"] * one["backup"] + [one["reason"]] * bool(one["reason"])
        shown.add_row(
            cell(one["name"]),
            cell(one["engine"]),
            state.append_text(cell(f" {'; '.join(notes)}", "dim")) if notes else state,
            bar(slots),
            f"{slots['in_use']}/{slots['total']} {slots['source']}",
            f"{context:,}" if context else "not known",
            cell(", ".join(one["models"] or ())),
        )
    return shown


def bar(slots: dict[str, Any]) -> Text:
    """One character for each slot, or for each share of them where there are many."""
    total = max(slots["total"], slots["in_use"] + slots["leaving"] + slots["foreign"])
    width = min(total, BAR_WIDTH_MAX)
    bar, end, taken = Text(), 0, 0
    for sign, style, number in (
        ("#", "green", slots["in_use"]),
        ("-", "yellow", slots["leaving"]),
        ("x", "magenta", slots["foreign"]),
        (".", "dim", total),
    ):
        start, taken = end, min(total, taken + number)
        end = -(-taken * width // total)
        bar.append(sign * (end - start), style)
    return bar


def _queue(queue: list[dict[str, Any]]) -> RenderableType:
    lengths = Counter(one["class"] for one in queue)
    text = "waiting: " + ", ".join(f"{lengths[name]} {name}" for name in CLASSES)
    if queue:
        text += f"; the oldest for {max(one['age_seconds'] for one in queue):.0f} s"
        reasons = Counter(reason for one in queue for reason in one["why"].values())
        text += "; held by " + ", ".join(reason for reason, _ in reasons.most_common()) if reasons else ""
    return cell(text)


def _requests(requests: list[dict[str, Any]]) -> RenderableType:
    shown = table("running", "backend", "phase", "class", "agent", "age", "prompt tokens")
    for one in requests[:REQUESTS_MAX]:
        shown.add_row(
            cell(one["id"]),
            cell(one["backend"]),
            one["phase"],
            one["class"],
            cell(one["agent"]),
            f"{one['age_seconds']:.0f} s",
            f"{one['prompt_tokens'] or 0:,}",
        )
    more = len(requests) - REQUESTS_MAX
    return Group(shown, f"and {more} more") if more > 0 else shown
