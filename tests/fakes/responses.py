"""The form of answers on `/v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tests.fakes.answer import Answer
from tests.fakes.chat import Event


class Responses:
    """One response: output items, each added, filled and done; every event is numbered."""

    done: ClassVar[bool] = False
    text_part: ClassVar[dict[str, Any]] = {"annotations": [], "type": "output_text"}
    of_text: ClassVar[dict[str, Any]] = {}  # more members of events with text
    unsaid: ClassVar[frozenset[str]] = frozenset()  # members that events do not have

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._sequence = 0
        self._items: list[dict[str, Any]] = []  # those that are done
        self._item: dict[str, Any] | None = None  # the one being filled
        self._text = ""  # of it

    def opening(self) -> list[Event]:
        """The response without output."""
        response = self.response("in_progress", [])
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def token(self, delta: dict[str, Any], usage: bool) -> list[Event]:
        """The events of one piece; they never tell usage."""
        return list(self._piece(delta))

    def closing(self, usage_on_finish: bool) -> list[Event]:
        """The events after the last token."""
        events = list(self._finish_item())
        response = self.response(self.status(), self._items)
        if self.answer.wants_usage:
            response["usage"] = self.usage()
        return [*events, self._event(self.last(), response=response)]

    def whole(self) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        for delta in self.answer.deltas:
            self.token(delta, False)
        list(self._finish_item())
        return self.response(self.status(), self._items) | {"usage": self.usage()}

    def status(self) -> str:
        """How it ended."""
        return "incomplete" if self.answer.finish_reason == "length" else "completed"

    def last(self) -> str:
        """The name of the last event."""
        return f"response.{self.status()}"

    def response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The object that the first events and the last carry, and that is the whole answer."""
        answer = self.answer
        cut = status == "incomplete"
        return {
            "id": f"resp_{answer.number}",
            "created_at": answer.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": answer.model,
            "object": "response",
            "output": list(output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "max_output_tokens": answer.limit,
            "status": status,
            "usage": None,
        }

    def usage(self) -> dict[str, Any]:
        """Tokens so far."""
        answer = self.answer
        return {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": answer.sent,
            "output_tokens_details": {"reasoning_tokens": answer.reasoned},
            "total_tokens": answer.prompt_tokens + answer.sent,
        }

    def message(self, id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        """An output item of words."""
        return {"id": id, "content": content, "role": "assistant", "status": status, "type": "message"}

    def part(self, text: str) -> dict[str, Any]:
        """The only part of a message."""
        return self.text_part | {"text": text}

    def first_part(self) -> dict[str, Any]:
        """The same before there are words."""
        return self.part("")

    def _piece(self, delta: dict[str, Any]) -> Iterator[Event]:
        name, value = next(iter(delta.items()))
        match name:
            case "content":
                yield from self._begin_message()
                yield self._delta("output_text", value, content_index=0, **self.of_text)
            case "reasoning":
                yield from self._begin_reasoning()
                yield self._delta("reasoning_text", value, content_index=0)
            case _:
                (part,) = value
                function = part["function"]
                if "id" in part:
                    yield from self._begin_call(part["id"], function["name"])
                else:
                    yield self._delta("function_call_arguments", function["arguments"])

    def _begin_message(self) -> Iterator[Event]:
        if self._item is None or self._item["type"] != "message":
            yield from self._begin(self.message(self._new_id("msg"), "in_progress", []))
            yield self._of_item("response.content_part.added", content_index=0, part=self.first_part())

    def _begin_reasoning(self) -> Iterator[Event]:
        if self._item is None or self._item["type"] != "reasoning":
            item = {"id": self._new_id("rs"), "content": [], "summary": [], "type": "reasoning"}
            yield from self._begin(item | {"status": "in_progress"})

    def _begin_call(self, id: str, name: str) -> Iterator[Event]:
        item = {"id": self._new_id("fc"), "call_id": id, "name": name, "arguments": ""}
        yield from self._begin(item | {"type": "function_call", "status": "in_progress"})

    def _begin(self, item: dict[str, Any]) -> Iterator[Event]:
        yield from self._finish_item()
        self._item, self._text = item, ""
        yield self._event("response.output_item.added", item=item, output_index=len(self._items))

    def _finish_item(self) -> Iterator[Event]:
        if self._item is None:
            return
        done = self._item | {"status": "completed"}
        match self._item["type"]:
            case "message":
                part = self.part(self._text)
                words = {"text": self._text} | self.of_text
                yield self._of_item("response.output_text.done", content_index=0, **words)
                yield self._of_item("response.content_part.done", content_index=0, part=part)
                done = self.message(self._item["id"], "completed", [part])
            case "reasoning":
                yield self._of_item("response.reasoning_text.done", content_index=0, text=self._text)
                done["content"] = [{"text": self._text, "type": "reasoning_text"}]
            case _:
                yield self._of_item("response.function_call_arguments.done", arguments=self._text)
                done["arguments"] = self._text
        yield self._event("response.output_item.done", item=done, output_index=len(self._items))
        self._items.append(done)
        self._item = None

    def _delta(self, kind: str, text: str, **members: Any) -> Event:
        self._text += text
        return self._of_item(f"response.{kind}.delta", delta=text, **members)

    def _of_item(self, kind: str, **members: Any) -> Event:
        assert self._item is not None
        return self._event(kind, item_id=self._item["id"], output_index=len(self._items), **members)

    def _event(self, kind: str, **members: Any) -> Event:
        number, self._sequence = self._sequence, self._sequence + 1
        members |= {"sequence_number": number, "type": kind}
        return kind, {name: value for name, value in members.items() if name not in self.unsaid}

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}_{self.answer.number}{len(self._items)}"
