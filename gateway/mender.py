"""Holds the heads of prompts still where the operator said so: `[prefix] stabilise`.

The body is edited in place before anything is made of it, so that hashes, estimates and engine see the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal, NamedTuple

import xxhash

from gateway.identify import conversation_of
from gateway.json_spans import Span
from gateway.options import PrefixSettings
from gateway.prefixes import Prefixes, turn_of
from gateway.request import Request
from policies.mending import Heads, ordered_tools
from policies.volatility import Kind

log = logging.getLogger("slotgate.prefix")


Mode = Literal["off", "tools", "all"]


class Way(NamedTuple):
    """How an agent's prompts are mended."""

    tools: bool
    heads: Heads | None  # None: system prompts go as they come


class Told(NamedTuple):
    """What the operator said, as it is followed."""

    usual: Way
    agents: Mapping[str, Way]  # those of which something else was said
    works: bool  # whether anything is mended at all

    def way(self, agent: str) -> Way:
        """How this agent's prompts are mended."""
        return self.agents.get(agent, self.usual)


class Mender:
    """Mends requests, agent by agent."""

    def __init__(self, settings: PrefixSettings, prefixes: Prefixes) -> None:
        self._prefixes = prefixes
        self._heads: dict[tuple[str, ...], Heads] = {}  # by patterns
        self._told = self._followed(settings)

    def follow(self, settings: PrefixSettings) -> None:
        """Go by these settings from the next request on.

        What is held goes on being held wherever its patterns stay the same; under other patterns each
        conversation's head is taken as it comes next.
        """
        self._told = self._followed(settings)

    @property
    def works(self) -> bool:
        """Whether anything is mended at all."""
        return self._told.works

    def mode(self, agent: str) -> Mode:
        """What is told for this agent."""
        way = self._told.way(agent)
        return "off" if not way.tools else "tools" if way.heads is None else "all"

    def mended(self, request: Request, agent: str, headers: dict[bytes, bytes]) -> Request:
        """The request as it goes to an engine: itself, where nothing is to be held still."""
        way = self._told.way(agent)
        if not way.tools or not request.route.generates:
            return request
        try:
            edits, kinds = _edits(request, way, agent, conversation_of(headers, request))
            if not edits:
                return request
            mended = request.mended(edits, tuple(sorted(kinds)))
        except Exception:  # a defect of ours; the request is good as it came
            log.exception("a request could not be mended")
            return request
        for kind in kinds:
            self._prefixes.mended(agent, kind)
        return mended

    def _followed(self, settings: PrefixSettings) -> Told:
        known, self._heads = self._heads, {}

        def way(stabilise: str, patterns: tuple[str, ...]) -> Way:
            if stabilise != "all":
                return Way(stabilise != "off", None)
            if patterns not in self._heads:
                self._heads[patterns] = known[patterns] if patterns in known else Heads(patterns)
            return Way(True, self._heads[patterns])

        usual = way(settings.stabilise, settings.patterns)
        agents = {
            name: way(agent.stabilise or settings.stabilise, (*agent.patterns, *settings.patterns))
            for name, agent in settings.agents.items()
        }
        return Told(usual, agents, any(way.tools for way in (usual, *agents.values())))


def _edits(
    request: Request, way: Way, agent: str, session: str | None
) -> tuple[list[tuple[Span, bytes]], set[Kind]]:
    """What to put where, and what that holds still."""
    edits: list[tuple[Span, bytes]] = []
    kinds: set[Kind] = set()
    if "tools" in request.spans:
        start, end = request.spans["tools"]
        tools, found = ordered_tools(request.body[start:end])
        edits.append(((start, end), tools))
        kinds.update(found)
    turn = turn_of(request, ()) if way.heads is not None else None
    if way.heads is not None and turn is not None and turn.first < len(turn):
        said = [
            xxhash.xxh3_64_intdigest(turn.kept(place))
            for place in range(turn.first, min(len(turn), turn.first + 2))
        ]
        for place in range(1, turn.first):
            start, end = request.parts[place].start, request.parts[place].end
            text, found = way.heads.still((agent, place), session, said, request.body[start:end])
            edits.append(((start, end), text))
            kinds.update(found)
    return [(span, text) for span, text in edits if request.body[slice(*span)] != text], kinds
