"""Where the values of a JSON object stand in its text, found in one scan.

The text is the body decoded as latin-1, so that an offset in the text is an offset in the bytes: JSON's
own structure is ASCII, and the few strings that matter are decoded again as UTF-8. Values are scanned by
the standard library's C scanner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json.scanner import make_scanner
from typing import Any, NoReturn

from gateway.errors import InvalidJson, InvalidRequest

# Each message costs some objects and a hash: a body of nothing but tiny ones held the loop for a minute.
ITEMS_MAX = 20_000

Span = tuple[int, int]
Item = tuple[Any, int, int]  # a value, where it starts and where it ends; its strings are latin-1
Member = tuple[str, Any, int, int]  # the same with the key before it

_SPACE = r"[ \t\n\r]*"
_KEY = rf'"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"{_SPACE}:{_SPACE}'
_first_key = re.compile(rf"{_SPACE}\{{{_SPACE}{_KEY}").match
_next_key = re.compile(rf"{_SPACE}(?:,{_SPACE}{_KEY}|\}})").match
_next_item = re.compile(rf"{_SPACE}(?:(,){_SPACE}|\])").match
_items_start = re.compile(rf"\[{_SPACE}(?!\])").match
_only_space = re.compile(_SPACE).fullmatch
_begun = re.compile(  # nothing at all, or the beginning of a word, a number or an escape
    rf"(?:t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?|-|\.|[eE][+-]?|u[0-9a-fA-F]{{0,4}})?{_SPACE}"
).fullmatch


def decode(body: bytes) -> str:
    """The body as text in which offsets are those of the bytes. Raises InvalidJson if it is not UTF-8."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                raise _ended_early(body) from None
            raise InvalidJson(f"The body must be UTF-8; byte {error.start} is not.") from None
    return body.decode("latin-1")


def read(text: str, listed: str = "") -> tuple[dict[str, Any], dict[str, Span]]:
    """Values and spans of the one object that this text must be, by key.

    An array under the key `listed` becomes a list of `Item`. Raises InvalidJson, and InvalidRequest for
    JSON that is no object, or that has a key twice: engines differ in which one they obey, and what is
    accounted must be what runs.
    """
    values: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    end = 0
    try:
        for key, value, start, end in members(text, listed=listed):
            if key in values:
                raise InvalidRequest(f"The key {key[:64]!a} stands twice.", key[:64])
            values[key] = value
            spans[key] = start, end
        if not _only_space(text, text.index("}", end) + 1):
            raise _Malformed
    except (ValueError, RecursionError):
        raise _fault(text) from None
    return values, spans


def members(text: str, start: int = 0, *, listed: str = "") -> list[Member]:
    """Each member of the object that starts there, which must have some; `listed` as above.

    Raises ValueError and RecursionError.
    """
    found: list[Member] = []
    match = _first_key(text, start)
    try:
        while match and (key := match[1]) is not None:
            if "\\" in key or not key.isascii():
                key = json.loads(_utf8(f'"{key}"'))
            start = match.end()
            value, end = _items(text, start, key) if key == listed else _scan(text, start)
            found.append((key, value, start, end))
            match = _next_key(text, end)
    except StopIteration:
        raise _Malformed from None
    if match is None:
        raise _Malformed
    return found


def string(text: str, value: object, span: Span | None) -> str | None:
    """A scanned value as a string; None if it is empty or none."""
    if not isinstance(value, str) or span is None:
        return None
    if not value.isascii():
        exact: str = json.loads(_utf8(text[span[0] : span[1]]))
        value = exact.encode(errors="replace").decode()  # "\ud800" is JSON, but no text
    return value or None


class _Malformed(ValueError):
    """Not one JSON object; `_fault` finds out why."""


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidJson(f"The body is not JSON: it has no {name}.")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
# A value and its end; raises StopIteration where there is none. (typeshed has its argument wrong.)
_scan: Callable[[str, int], tuple[Any, int]] = make_scanner(_decoder)  # type: ignore[arg-type]


def _items(text: str, start: int, key: str) -> tuple[Any, int]:
    """The items of the array that starts there, and where it ends; another value as it is."""
    match = _items_start(text, start)
    if match is None:
        return _scan(text, start)
    items: list[Item] = []
    comma: str | None = ","
    while comma:
        start = match.end()
        value, end = _scan(text, start)
        items.append((value, start, end))
        if len(items) > ITEMS_MAX:
            raise InvalidRequest(f"`{key}` has more than {ITEMS_MAX} items.", key)
        match = _next_item(text, end)
        if match is None:
            raise _Malformed
        comma = match[1]
    return items, match.end()


def _utf8(text: str) -> str:
    return text.encode("latin-1").decode()


def _fault(text: str) -> InvalidJson | InvalidRequest:
    """Why this text is no request body, in a sentence that helps."""
    try:
        _decoder.decode(text)
    except json.JSONDecodeError as error:
        begun = _begun(text, error.pos) and not error.msg.startswith("Extra data")
        if begun or error.msg.startswith("Unterminated string"):
            return _ended_early(text)
        return InvalidJson(f"The body is not JSON: {error.msg} (byte {error.pos}).")
    except RecursionError:
        return InvalidJson("The body is nested too deeply.")
    except ValueError:
        return InvalidJson("The body has a number of too many digits.")
    return InvalidRequest("The body must be one JSON object that names a `model`.")


def _ended_early(body: str | bytes) -> InvalidJson:
    return InvalidJson(f"The body ended early: its {len(body)} bytes are an incomplete JSON text.")
