"""What breaks the cached prefixes of each agent's prompts, as operators see it: where, at what cost, and what
to do about it. Never the text itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pydantic import BaseModel, Field

from gateway.mender import Mender, Mode
from policies.findings import Breaks, Finding
from policies.volatility import Kind

TOOLS = frozenset({Kind.TOOL_ORDER, Kind.TOOL_KEY_ORDER})
HEADS = frozenset({Kind.DATE, Kind.TIME, Kind.UUID, Kind.COUNTER, Kind.RANDOM_ID})
ADVICE = {
    Kind.DATE: "keep the date of the first turn, or tell a new one in the newest message",
    Kind.TIME: "leave the time out, or tell it in the newest message",
    Kind.UUID: "leave the identifier out, or keep one for the whole conversation",
    Kind.COUNTER: "leave the count out, or tell it in the newest message",
    Kind.RANDOM_ID: "leave the identifier out, or keep one for the whole conversation",
    Kind.PATTERN: "keep it as it was in the first turn",
    Kind.WHITESPACE: "write the same blanks and line breaks in every turn",
    Kind.TOOL_ORDER: "send the tools in one order, by name",
    Kind.TOOL_KEY_ORDER: "write the members of tools and their schemas in one order",
    Kind.TOOLS: "send all tools from the first turn on, whether they are needed yet or not",
    Kind.MODEL: "stay with one model for the whole conversation",
    Kind.SYSTEM: "keep the system prompt; tell news in the newest message",
    Kind.HISTORY: "never change what was said: add to it",
    Kind.COMPACTION: "a shorter conversation is worth its price, once; do it seldom and far",
    Kind.CALL_IDS: "repeat calls of tools under the identifiers they came with",
    Kind.REASONING: "send reasoning back as it came, or never send it",
}
SHARED = "tell it in the first message: then new conversations share the system prompt of those before"


class KindView(BaseModel):
    """Breaks of one kind."""

    kind: Kind
    between: bool = Field(description="new conversations do not share the head of those before; else: turns")
    breaks: int
    tokens: int = Field(description="that were known before and are computed again")
    seconds: float = Field(description="of prefill for them, by the backends' rates: what mending saves")
    path: str = Field(description="where in the body the last one was")
    offset: int = Field(description="its byte")
    last: datetime
    advice: str = Field(description="what to change in the agent")
    stabilise: Mode | None = Field(description="the `prefix.stabilise` that holds it still; null: none does")


class PrefixView(BaseModel):
    """One agent's prompts since the gateway's start."""

    agent: str
    turns: int = Field(description="prompts that were compared with the one before")
    breaks: int
    tokens: int
    seconds: float
    stabilise: Mode = Field(description="what is told for this agent")
    held: dict[Kind, int] = Field(description="prompts in which it was held still")
    kinds: list[KindView] = Field(description="the one that costs most first")


def prefix_view(agent: str, finding: Finding, mender: Mender, now: float) -> PrefixView:
    """One agent; `now` is the gateway's monotonic time."""
    kinds = [_kind_view(kind, breaks, now, between) for (kind, between), breaks in finding.breaks.items()]
    return PrefixView(
        agent=agent,
        turns=finding.turns,
        breaks=finding.count,
        tokens=finding.tokens,
        seconds=round(finding.seconds, 3),
        stabilise=mender.mode(agent),
        held=dict(finding.mends),
        kinds=sorted(kinds, key=lambda view: (-view.seconds, -view.tokens, -view.breaks)),
    )


def _kind_view(kind: Kind, breaks: Breaks, now: float, between: bool) -> KindView:
    last = breaks.last
    held: Mode | None = None
    if between and kind not in TOOLS:
        held = "all" if kind is Kind.TIME else None
    elif last is not None and last.head and last.path.partition("[")[0] != "tools":
        held = "all" if kind in HEADS else None
    elif kind in TOOLS:
        held = "tools"
    return KindView(
        kind=kind,
        between=between,
        breaks=breaks.count,
        tokens=breaks.tokens,
        seconds=round(breaks.seconds, 3),
        path=last.path if last is not None else "",
        offset=last.offset if last is not None else 0,
        last=(datetime.now(UTC) - timedelta(seconds=now - breaks.at)).replace(microsecond=0),
        advice=SHARED if between and kind not in TOOLS else ADVICE[kind],
        stabilise=held,
    )
