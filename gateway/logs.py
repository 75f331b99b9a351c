"""Log lines: for people on a terminal, one JSON object per line everywhere else.

What clients sent (model, agent, id) may stand in a line, so nothing in it can end the line, steer a
terminal or grow without bound. Prompt text is never logged at all.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Protocol, TextIO

LINES = "lines"  # the name in `extra` of what makes one record as many lines: a sequence of `Line`
LINE_BYTES_MAX = 8191  # 8 KiB with its end
ELLIPSIS = "..."
DELETE = "\\u007f"  # the one byte of ASCII that JSON need not escape and a terminal may heed
ENDED = "request ended"

# A record's own attributes; what else it has was given as `extra`.
OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# They tell of every probe and every start of a listener, which is not news.
QUIET = ("uvicorn", "httpx", "httpcore")


class Line(Protocol):
    """One of many lines that a thread hands over at once: the steps for a single record cost more than
    all the rest."""

    @property
    def ended(self) -> float:
        """When it happened, in seconds since 1970."""
        ...

    def members(self) -> str:
        """What it tells machines, as the members of a JSON object; in ASCII that no terminal heeds."""
        ...

    def sentence(self) -> str:
        """What it tells people."""
        ...


def setup(level: str, stream: TextIO | None = None) -> None:
    """Send all loggers of the process, uvicorn's too, to `stream`, by default standard error."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PeopleFormatter() if stream.isatty() else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """One JSON object: time (UTC), level, logger, message, extra fields, exception. It is ASCII only, so
    that no byte of it is anything but a character of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of at most `LINE_BYTES_MAX` bytes, or as several such lines."""
        if lines := vars(record).get(LINES):
            common = _json({"level": record.levelname.lower(), "logger": record.name, "message": ENDED})[1:-1]
            text = [f'{{"time": "{_time(one.ended)}", {common}, {one.members()}}}' for one in lines]
            return "\n".join(
                [line if len(line) <= LINE_BYTES_MAX else _line(json.loads(line)) for line in text]
            )
        fields: dict[str, object] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told = dict(record.args) if isinstance(record.args, Mapping) else {}  # what stands in the message
        fields |= {name: value for name, value in (told | extra(record)).items() if name not in fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _line(fields)


class PeopleFormatter(logging.Formatter):
    """Time of day, the level where it is a warning or worse, the message; a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line; of one with an exception, as some."""
        if ended := vars(record).get(LINES):
            return "\n".join(printable(f"{_time_of_day(one.ended)} {one.sentence()}") for one in ended)
        when = _time_of_day(record.created)
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        fields = "".join(f" {name}={value}" for name, value in extra(record).items())
        lines = [f"{when} {level}{record.getMessage()}{fields}"]
        if record.exc_info:
            lines += [f"    {line}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(map(printable, lines))


def printable(text: str) -> str:
    """The text with whatever could steer a terminal written as an escape, cut to the longest line."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:LINE_BYTES_MAX]
    )
    shown_bytes = shown.encode()
    if len(text) <= LINE_BYTES_MAX and len(shown_bytes) <= LINE_BYTES_MAX:
        return shown
    return shown_bytes[: LINE_BYTES_MAX - len(ELLIPSIS)].decode(errors="ignore") + ELLIPSIS


def extra(record: logging.LogRecord) -> dict[str, object]:
    """What was logged beside the message, by name."""
    return {name: value for name, value in vars(record).items() if name not in OWN}


def _time(seconds: float) -> str:
    whole = int(seconds)
    return f"{_time_of_second(whole)}.{int((seconds - whole) * 1000):03}+00:00"


@lru_cache(maxsize=64)  # what ended in the same second need not be written out anew
def _time_of_second(whole: int) -> str:
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _time_of_day(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _line(fields: dict[str, object]) -> str:
    """The fields as JSON, the longest ones without their middle where the line would be too long."""
    values = {
        name: value if value is None or isinstance(value, int | float) else _without_middle(str(value))
        for name, value in fields.items()
    }
    line = _json(values)
    while len(line) > LINE_BYTES_MAX:
        longest = max(values, key=lambda name: len(_json(values[name])))
        text = str(values[longest])
        if len(text) <= 2 * len(ELLIPSIS):
            break  # a thousand short fields: nothing of ours logs so
        values[longest] = _without_middle(text, len(text) // 2)
        line = _json(values)
    return line


def _without_middle(text: str, length: int = LINE_BYTES_MAX) -> str:
    """A traceback is told by its ends, and so is most else."""
    half = length // 2
    return text if len(text) <= length else text[:half] + ELLIPSIS + text[-half:]


def quoted(text: str) -> str:
    """A text as JSON."""
    return encode_basestring_ascii(text).replace("\x7f", DELETE)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=True).replace("\x7f", DELETE)
