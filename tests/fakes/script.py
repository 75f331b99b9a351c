"""How an engine misbehaves, told by the test over its control API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tests.fakes.routes import GENERATING
from tests.fakes.wire import Request


@dataclass(slots=True)
class Script:
    """What the engine does with the requests it applies to. The defaults are good behaviour.

    Times are seconds. Events are data events, the role chunk being the first one of a chat.
    """

    # which requests
    times: int | None = 1  # so many; None: all
    match: str = ""  # whose body contains this
    path: str = ""  # on this path, for instance a probe's; empty: whatever generates or embeds

    # another answer, by status or refusal: at arrival and without a slot, but in a slot and later with
    # `prefill_seconds`
    status: int | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: str = ""
    refusal: str = ""  # the engine's own words for this reason, in the route's form: see its `refusals`

    # before the first token
    prefill_seconds: float | None = None  # silence instead of the computed prefill; others do not wait for it
    head_first: bool = False  # the head is sent before the prefill, though this engine would not
    comment_seconds: float | None = None  # comments during the prefill, after the head; None: as this engine
    comment: str | None = None  # None: what this engine sends on this route
    first_token_seconds: float = 0.0  # between role chunk and first token

    # the answer
    tokens: int | None = None
    reasoning_tokens: int = 0  # in front of the others
    token_seconds: float | None = None
    tokens_per_event: int | None = None  # None: as the engine was started
    tool_calls: list[dict[str, str]] | None = None  # name and arguments of each
    usage: Literal["asked", "always", "never", "finish", "cumulative"] = "asked"
    done: int | None = None  # how many [DONE]; None: as this engine does on this route
    after_done: str = ""
    end_seconds: float = 0.0  # from [DONE] to the end of the response; the slot is free by then
    plain: bool = False  # JSON although a stream was asked for
    raw: list[str] | None = None  # exactly these bytes, each as one event, instead of a stream

    # its bytes
    newline: str = "\n"
    space: bool = True  # after `data:`
    split_bytes: int = 0  # written in pieces of so many bytes; 0: whole events
    split_seconds: float = 0.0  # between the pieces
    framing: Literal["chunked", "close"] | None = None  # None: as this engine

    # its end
    cut: Literal["fin", "rst", "clean", "stall"] | None = None  # clean: the response ends as if complete
    cut_after: int | None = None  # events; 0: after the head; None: before any byte
    cut_inside: bool = False  # with half of the next event
    error_after: int | None = None  # events, then the error, then nothing
    error: dict[str, Any] | None = None  # None: this engine's on this route
    error_name: bool | None = None  # `event: error` in front of it; None: as this engine
    abort_seconds: float | None = None  # from the client's close to the free slot

    def applies(self, request: Request) -> bool:
        """Whether it is about this request."""
        here = request.path == self.path if self.path else request.path in GENERATING
        return here and self.match.encode() in request.body


class Scripts:
    """The scripts that are still to be played, oldest first."""

    def __init__(self) -> None:
        self._scripts: list[Script] = []

    def add(self, script: Script) -> None:
        """Play it after those that are there already."""
        self._scripts.append(script)

    def clear(self) -> None:
        """Behave again."""
        self._scripts.clear()

    def take(self, request: Request) -> Script | None:
        """The script for this request, if any."""
        script = next((script for script in self._scripts if script.applies(request)), None)
        if script is not None and script.times is not None:
            script.times -= 1
            if script.times <= 0:
                self._scripts.remove(script)
        return script
