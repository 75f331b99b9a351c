"""The configuration: the only reader of files and environment.

A configuration is valid as a whole or gives `ConfigError`, one line for each fault; no line shows a
secret's value.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
import tomllib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.options import PREFIX, BackendSettings, KeySettings, Option, Settings, options
from gateway.values import IN_WORDS, Table

__all__ = [
    "BackendSettings",
    "ConfigError",
    "Fault",
    "KeySettings",
    "Option",
    "Settings",
    "contradictions",
    "dotted",
    "file_of",
    "is_loopback",
    "load",
    "misspelt",
    "options",
    "worded",
]

DEFAULT_FILE = "slotgate.toml"

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a configuration."""

    where: str  # the file, environment variable or command line option
    key: str  # dotted; "" where there is none, as in a file that is not TOML
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.key, self.reason) if part)


class ConfigError(Exception):
    """The configuration cannot be used; `faults` is all that is known to be wrong with it."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


def is_loopback(host: str) -> bool:
    """Whether a name or address without port and brackets can only be this machine's own."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def file_of(config: str | None, environ: Mapping[str, str]) -> str | None:
    """The file to be read: `config`, else $SLOTGATE_CONFIG, else ./slotgate.toml if there is one."""
    named = config or environ.get(f"{PREFIX}CONFIG")
    return named or (DEFAULT_FILE if Path(DEFAULT_FILE).is_file() else None)


def load(
    config: str | None,
    environ: Mapping[str, str],
    *,
    backends: Sequence[str] = (),
    host: str | None = None,
    port: int | None = None,
) -> Settings:
    """The configuration: file (see `file_of`), then environment, then command line, each stronger than the
    one before; `backends` are URLs that stand in place of all configured ones. Raises ConfigError with every
    fault found."""
    return _Loader(environ, config).load(backends, host, port)


def misspelt(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that are ignored, each with the one that was most likely meant: `SLOTGATE_SERVER_PORT` has
    one underscore where two join a path."""
    meant = {variable.replace("__", "_"): variable for variable in _variables()}
    for variable in sorted(environ):
        right = meant.get(variable, variable)
        if right != variable and right not in environ:
            yield variable, right


class _Loader:
    """One reading of all sources, with what each value came from."""

    def __init__(self, environ: Mapping[str, str], config: str | None) -> None:
        self._environ = environ
        self._file = file_of(config, environ)
        self._origins: dict[KeyPath, str] = {}  # of what does not come from the file
        self._faults: list[Fault] = []

    def load(self, backends: Sequence[str], host: str | None, port: int | None) -> Settings:
        raw = self._read_file() if self._file else {}
        self._take_environment(raw)
        if backends:
            self._put(raw, ("backends",), [{"url": url} for url in backends], "--backend")
        if host is not None:
            self._put(raw, ("server", "host"), host, "--host")
        if port is not None:
            self._put(raw, ("server", "port"), port, "--port")
        self._resolve_secrets(raw)
        try:
            settings = Settings.model_validate(raw)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                if detail["type"] != "default_factory_not_called":  # says only that there are others
                    self._fault(detail["loc"], worded(detail))
        else:
            for path, reason in contradictions(settings):
                self._fault(path, reason)
            if not self._faults:
                return settings
        raise ConfigError(self._faults)

    def _read_file(self) -> Table:
        file = self._file or ""
        try:
            return tomllib.loads(Path(file).read_bytes().decode("utf-8-sig"))
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
        except UnicodeDecodeError as error:
            reason = f"is not UTF-8 (byte {error.start})"
        except RecursionError:
            reason = "is nested too deeply"
        except ValueError as error:  # a syntax error, which names line and column, or a number too long
            reason = f"is not TOML: {error}"
        raise ConfigError([Fault(file, "", reason)])

    def _take_environment(self, raw: Table) -> None:
        variables = _variables()
        for variable, text in sorted(self._environ.items()):
            if variable in variables:
                path, is_text = variables[variable]
                try:
                    value = text if is_text else json.loads(text)
                except (ValueError, RecursionError):
                    if len(path) == 1:
                        self._faults.append(Fault(variable, dotted(path), "is not JSON"))
                        continue
                    value = text  # which is then told what it must be
                self._put(raw, path, value, variable)
            elif variable.startswith(PREFIX) and "__" in variable:
                path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
                self._faults.append(Fault(variable, dotted(path), _unknown(variable, variables)))

    def _put(self, raw: Table, path: tuple[str, ...], value: object, origin: str) -> None:
        """Set one value; a section that is no table stays as it is, and is a fault of the file."""
        *sections, name = path
        table: Any = raw
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                return
        table[name] = value
        self._origins[path] = origin

    def _resolve_secrets(self, raw: Table) -> None:
        """Replace `NAME_env` and `NAME_file` by what they point to."""
        listed = raw.get("backends")
        tables: list[tuple[KeyPath, str, Any]] = [
            (("server",), "admin_token", raw.get("server")),
            (("redis",), "url", raw.get("redis")),
        ]
        if isinstance(listed, list):
            tables += [(("backends", i), "api_key", table) for i, table in enumerate(listed)]
        for path, name, table in tables:
            if isinstance(table, dict):
                self._resolve_secret(path, name, table)

    def _resolve_secret(self, path: KeyPath, name: str, table: Table) -> None:
        sources = {key: table[key] for key in (name, f"{name}_env", f"{name}_file") if table.get(key)}
        stronger = [key for key in sources if (*path, key) in self._origins]
        chosen = stronger or list(sources)
        for key in (f"{name}_env", f"{name}_file"):
            table.pop(key, None)
        if len(chosen) > 1:
            self._fault((*path, name), f"give only one of {', '.join(chosen)}")
        elif chosen:
            key, value = chosen[0], sources[chosen[0]]
            secret, reason = (value, "") if key == name else self._fetch(key, value)
            if reason:
                self._fault((*path, key), reason)
            table[name] = secret

    def _fetch(self, key: str, value: object) -> tuple[str, str]:
        """The secret that a variable or file holds, or why there is none. An empty one is a fault: it
        would open what it was to close."""
        if not isinstance(value, str):
            return "", "must be text"
        if key.endswith("_env"):
            secret = self._environ.get(value, "")
            return secret, "" if secret else "names a variable that is not set"
        try:
            secret = Path(value).read_text(encoding="utf-8").strip()
        except OSError as error:
            return "", f"names a file that cannot be read: {error.strerror}"
        except ValueError:
            return "", "names a file that is not text"
        return secret, "" if secret else "names a file that is empty"

    def _fault(self, path: KeyPath, reason: str) -> None:
        prefixes = (path[:length] for length in range(len(path), 0, -1))
        where = next((self._origins[prefix] for prefix in prefixes if prefix in self._origins), None)
        self._faults.append(Fault(where or self._file or "", dotted(path), reason))


def contradictions(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """What is wrong although each value alone is right."""
    server = settings.server
    if not is_loopback(server.admin_host) and not server.admin_token.get_secret_value():
        yield ("server", "admin_host"), "is not a loopback address; set server.admin_token too"
    if server.port == server.admin_port != 0 and server.host == server.admin_host:
        yield ("server", "admin_port"), "is the client port too; choose another"
    backends = settings.backends
    urls = dict(_repeats(backend.place for backend in backends))
    for i, first in urls.items():
        yield ("backends", i, "url"), f"is the same engine as backends[{first}]; its slots would count twice"
    ports = ((server.host, server.port), (server.admin_host, server.admin_port))
    own = [(_from_here(host), port) for host, port in ports]
    for i, backend in enumerate(backends):
        engine = urlsplit(backend.url)
        if (_from_here(engine.hostname or ""), engine.port) in own:
            yield ("backends", i, "url"), "is this gateway itself; name an engine, or set another server.port"
    for i, first in _repeats(backend.name for backend in backends):
        if i not in urls:
            yield ("backends", i, "name"), f"is also the name of backends[{first}]; give another"
    for option in ("name", "sha256"):
        for i, first in _repeats(getattr(key, option) for key in settings.keys):
            yield ("keys", i, option), f"is the same as in keys[{first}]"
    served = {model: i for i, backend in enumerate(backends) for model in backend.models}
    for alias, choice in settings.models.items():
        if alias in served:
            yield ("models", alias), f"is a model of backends[{served[alias]}] too; name the alias otherwise"
        for option in ("targets", "fallbacks"):
            for i, model in enumerate(getattr(choice, option)):
                if model in settings.models:
                    yield ("models", alias, option, i), "is an alias itself; name the models behind it"


def _from_here(host: str) -> str:
    """The address that a host is on this machine itself, where there are several ways to say so."""
    return "127.0.0.1" if host.lower() in ("localhost", "0.0.0.0", "::") else host.lower()


def _repeats(values: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Positions of values seen before, each with that of the first."""
    first: dict[Hashable, int] = {}
    for i, value in enumerate(values):
        if first.setdefault(value, i) != i:
            yield i, first[value]


def worded(detail: ErrorDetails) -> str:
    """A fault in the words of this project; pydantic speaks of inputs and tuples."""
    match detail["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            names = {option.name for option in options()}
            return _unknown(_declared(detail["loc"]), names | {re.split(r"[.[]", name)[0] for name in names})
        case "model_type" | "dict_type":
            return "must be a table"
        case "tuple_type" if len(detail["loc"]) == 1:
            return f"must be a list: in a file each of its tables begins with [[{detail['loc'][0]}]]"
        case "tuple_type":
            return "must be a list"
        case "too_short":
            return "must not be empty"
        case "string_pattern_mismatch":
            return IN_WORDS[detail["ctx"]["pattern"]]
    message = detail["msg"].removeprefix("Value error, ")
    return message.replace("Input should", "must")


def _unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.8)
    return f"is no option; did you mean {near[0]}?" if near else "is no option"


def _declared(path: KeyPath) -> str:
    """The name under which the option at this place would be declared."""
    for table in (("models",), ("prefix", "agents")):  # what follows is a name of the operator's choice
        if path[: len(table)] == table and len(path) > len(table) + 1:
            return ".".join((*table, "*", dotted(path[len(table) + 1 :])))
    return re.sub(r"\[\d+\]", "[]", dotted(path))


def dotted(path: KeyPath) -> str:
    """`backends[0].url`; a part that is no plain word is quoted, so that a fault stays one line."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "." * bool(text) + (part if re.fullmatch(r"[\w-]+", part) else json.dumps(part))
    return text


def _variables() -> dict[str, tuple[tuple[str, ...], bool]]:
    """Environment variables: the path that each sets, and whether its value is text rather than JSON."""
    variables: dict[str, tuple[tuple[str, ...], bool]] = {
        f"{PREFIX}{name.upper()}": ((name,), False) for name in ("backends", "keys")
    }
    for option in options():
        if option.variable:
            section, name = option.name.split(".")
            is_text = option.type in ("text", "secret") or "|" in option.type
            variables[option.variable] = ((section, name), is_text)
            if option.type == "secret":
                for suffix in ("_env", "_file"):
                    variables[option.variable + suffix.upper()] = ((section, name + suffix), True)
    return variables
