"""Log lines: one each, bounded, whatever stands in them."""

from __future__ import annotations

import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from gateway.logs import LINE_BYTES_MAX, JsonFormatter, PeopleFormatter, printable, setup

NASTY = [
    "two\r\nlines",
    "\x1b[31mred\x1b[0m \x07 \x00 \x7f \x9b31m",
    'quotes " and \\ backslashes',
    "separators \u2028 \u2029 \x85 and \u202eright-to-left",
    "a lone surrogate \ud800",
    "x" * 1_000_000,
    "\x00" * 1_000_000,
    "\N{PILE OF POO}" * 100_000,
]


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """`setup` is for a process; undo it for the other tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    quiet = {name: logging.getLogger(name).level for name in ("uvicorn", "httpx", "httpcore")}
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in quiet.items():
        logging.getLogger(name).setLevel(before)


def a_record(message: str, *arguments: object, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("slotgate.test", logging.INFO, __file__, 1, message, arguments, None)
    vars(record).update(fields)
    return record


def failed(message: str) -> logging.LogRecord:
    """A record with an exception whose own text ends lines too."""
    try:
        raise ValueError("first\nsecond \x1b[2J")
    except ValueError:
        record = a_record(message)
        record.levelno, record.levelname, record.exc_info = logging.ERROR, "ERROR", sys.exc_info()
        return record


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
@pytest.mark.parametrize("where", ["message", "field", "exception"])
def test_a_json_line_is_one_bounded_parsable_line(text: str, where: str) -> None:
    """Any text anywhere gives one object of ASCII without control characters, of at most 8 KiB."""
    record = a_record("model %s", text) if where == "message" else a_record("fine", model=text, count=3)
    if where == "exception":
        record.exc_info = (ValueError, ValueError(text), None)
    line = JsonFormatter().format(record)
    assert len(line) + 1 <= 8192
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"][:6] in ("model ", "fine")


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_a_line_for_people_is_one_bounded_line(text: str) -> None:
    """Nothing in it steers a terminal."""
    line = PeopleFormatter().format(a_record("model %s", text, agent=text))
    assert len(line.encode()) + 1 <= 8192
    assert line.isprintable()


def test_short_texts_come_through_whole() -> None:
    """JSON gives back what was logged, with time, level and logger, and fields with their types."""
    texts = [text for text in NASTY if len(text) < 1000]
    for text in texts:
        value = json.loads(JsonFormatter().format(a_record("is %s", text, agent=text, tokens=7, none=None)))
        assert datetime.fromisoformat(value.pop("time")).tzinfo is not None
        assert value == {
            "level": "info",
            "logger": "slotgate.test",
            "message": f"is {text}",
            "agent": text,
            "tokens": 7,
            "none": None,
        }


def test_what_stands_in_the_message_is_a_field_too() -> None:
    """Machines need not parse a sentence such as that of a backend's state; people get it once."""
    record = a_record("%(backend)s is %(state)s", {"backend": "b0", "state": "ready", "level": "x"})
    value = json.loads(JsonFormatter().format(record))
    assert (value["message"], value["backend"], value["state"]) == ("b0 is ready", "b0", "ready")
    assert value["level"] == "info"
    assert PeopleFormatter().format(record)[8:] == " b0 is ready"


def test_a_field_does_not_stand_in_for_a_fixed_one() -> None:
    """A field named `level` cannot make an error look like less."""
    value = json.loads(JsonFormatter().format(a_record("it", level="debug", time="never")))
    assert (value["level"], value["time"] == "never") == ("info", False)


def test_a_long_text_keeps_both_ends() -> None:
    """A traceback is read from its ends."""
    value = json.loads(JsonFormatter().format(a_record("begin" + "x" * 50_000 + "end")))
    assert value["message"].startswith("begin")
    assert value["message"].endswith("end")
    assert len(value["message"]) > LINE_BYTES_MAX / 3


def test_an_exception_is_a_field_or_indented_lines() -> None:
    """Machines get the traceback as one value; people get it below the line, its own text escaped."""
    value: dict[str, Any] = json.loads(JsonFormatter().format(failed("it broke")))
    assert value["message"] == "it broke"
    assert value["exception"].startswith("Traceback (most recent call last):\n")
    assert value["exception"].endswith("ValueError: first\nsecond \x1b[2J")
    first, *rest = PeopleFormatter().format(failed("it broke")).splitlines()
    assert first.endswith("error: it broke")
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert rest[-1] == "    second \\x1b[2J"


def test_printable_leaves_text_alone() -> None:
    """Letters of any script stay; what is cut says so."""
    assert printable("Ünïcödé 漢字 \t") == "Ünïcödé 漢字 \\t"
    assert printable("ü" * 9000).endswith("ü...")


def test_people_see_lines_and_machines_json(logging_restored: None) -> None:
    """A terminal gets text with the level where it matters; anything else gets JSON."""
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        setup("INFO", stream)
        logging.getLogger("slotgate.test").info("hello %s", "there", extra={"slots": 2})
        logging.getLogger("slotgate.test").warning("careful")
    first, second = terminal.getvalue().splitlines()
    assert first[8:] == " hello there slots=2"
    assert second[8:] == " warning: careful"
    values = [json.loads(line) for line in pipe.getvalue().splitlines()]
    assert [(one["message"], one["level"]) for one in values] == [
        ("hello there", "info"),
        ("careful", "warning"),
    ]
    assert values[0]["slots"] == 2


def test_other_loggers_speak_the_same_way(logging_restored: None) -> None:
    """uvicorn's errors and Python's warnings are such lines; its news and each probe's are not."""
    stream = io.StringIO()
    setup("INFO", stream)
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("httpx").info("HTTP Request: GET http://10.0.0.1/v1/models")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    values = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [one["logger"] for one in values] == ["uvicorn.error", "py.warnings"]
