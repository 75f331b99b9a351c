"""What `slotgate prefix` prints, from the answer of the admin port."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from gateway.cli.tables import cell, table


def page(found: list[dict[str, Any]], agents_max: int) -> RenderableType:
    """The agents whose breaks cost most, and in one line all others."""
    if not found:
        return cell("no turns compared yet: it takes a second one in a conversation")
    broken = [agent for agent in found if agent["breaks"] or agent["held"]]
    turns = sum(agent["turns"] for agent in found)
    well = len(found) - sum(agent["breaks"] > 0 for agent in found)
    summary = f"turns compared: {turns:,}; agents: {len(found):,}, of which {well:,} break no prefix"
    if not broken:
        return cell(summary)
    parts: list[RenderableType] = [_agents(broken[:agents_max]), ""]
    if len(broken) > agents_max:
        parts.append(cell(f"and {len(broken) - agents_max:,} more agents (--agents)"))
    return Group(*parts, cell(summary))


def _agents(agents: list[dict[str, Any]]) -> RenderableType:
    shown = table("agent", "turns", "breaks", "what", "where", "tokens", "seconds", "what to change")
    for agent in agents:
        name, turns = agent["agent"], f"{agent['turns']:,}"
        for kind in agent["kinds"]:
            option = f" [{kind['stabilise']}]" if kind["stabilise"] else ""
            shown.add_row(
                cell(name),
                turns,
                f"{kind['breaks']:,}",
                cell(kind["kind"].replace("_", " ") + (" of each conversation" if kind["between"] else "")),
                cell(f"{kind['path']}, byte {kind['offset']:,}"),
                f"{kind['tokens']:,}",
                f"{kind['seconds']:,.1f}",
                cell(kind["advice"] + option),
            )
            name = turns = ""
        for kind, prompts in agent["held"].items():
            held = f"held still in {prompts:,} prompts ({agent['stabilise']})"
            shown.add_row(cell(name), turns, "", cell(kind.replace("_", " ")), held, "", "", "")
            name = turns = ""
    return shown
