"""The kinds of values that options take: what each may be, and why one is refused."""

from __future__ import annotations

import ipaddress
import re
import string
from datetime import date
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from gateway.backtracking import MOST, ways
from policies.volatility import volatile

Table = dict[str, Any]


def _url(text: str) -> str:
    """The engine's base URL: lower-case origin, path without `/v1` and closing slashes."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        host = f"[{ipaddress.ip_address(host)}]" if host and ":" in host else host  # in its one short form
    except ValueError:
        raise ValueError("is not a URL") from None
    if not re.fullmatch(r"[!-~]+", text) or parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValueError("must be a URL as http://HOST:PORT or https://HOST:PORT")
    if "@" in parts.netloc:
        raise ValueError("must not hold credentials; use api_key")
    if parts.query or parts.fragment:
        raise ValueError("must not have a query or fragment")
    if {".", ".."} & set(unquote(parts.path).split("/")):  # else one engine could stand in two tables
        raise ValueError("must not have . or .. in its path")
    port = None if port == {"http": 80, "https": 443}[parts.scheme] else port
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"


def name_of(validated: Table) -> str:
    """A backend's name from its URL's host and port, for one that was given none."""
    host_and_port = urlsplit(validated["url"]).netloc
    return re.sub(r"[^A-Za-z0-9._-]+", "-", host_and_port).strip("-")[:64]


def _redis_url(secret: SecretStr) -> SecretStr:
    url = secret.get_secret_value()
    if url and not re.fullmatch(r"rediss?://[!-~]+|unix://[!-~]*/[!-~]+", url):
        raise ValueError("must be a URL as redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH")
    return secret


def _header_safe(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]*", secret.get_secret_value()):
        raise ValueError("must be printable ASCII without blanks, as it goes into a header")
    return secret


def _calendar_date(value: object) -> object:
    if not isinstance(value, str | date):  # pydantic would read a number as seconds since 1970
        raise ValueError('must be a date as "2027-01-31"')
    return value


def _advertised(value: object) -> object:
    if value not in ("smallest", "largest") and (type(value) is not int or not 1 <= value <= 2**53):
        raise ValueError("must be 'smallest', 'largest' or a number of tokens")
    return value


def _place(text: str) -> str:
    if "/" in text:
        ipaddress.ip_network(text)  # its ValueError says what is wrong
    elif not re.fullmatch(
        r"(\[[0-9A-Fa-f:]+\]|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*|[0-9A-Za-z.-]+)(:\d{1,5})?", text
    ):
        raise ValueError("must be host, host:port or a network as 10.0.0.0/8")
    return text


SINGLE = (" ", *string.ascii_letters)  # digits alone may well be what changes


def _pattern(text: str) -> str:
    try:
        found, empty = volatile((text,)), re.search(text, "")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from None
    if found.groups != volatile().groups + 1 or empty:
        raise ValueError("must match at least one character, and have no group but (?:...)")
    if ways(text.encode()) > MOST:
        raise ValueError("could try for ever in some texts: bound its repeats, as {1,9}, or write ++ for +")
    if any(re.fullmatch(text, sign) for sign in SINGLE):
        raise ValueError("must not match a single letter or blank, which stand everywhere")
    return text


# What texts must look like, and the same in words.
HOST, NAME, ALIAS = r"^[0-9A-Za-z.:_-]+$", r"^[A-Za-z0-9._-]{1,64}$", r"^[^\x00-\x1f\x7f]{1,200}$"
PATH, SHA256 = r"^[^\x00]*$", r"^[0-9A-Fa-f]{64}$"
IN_WORDS = {
    HOST: "must be the name or the address of a host",
    NAME: "must be 1 to 64 letters, digits, dots, dashes and underscores",
    ALIAS: "must be 1 to 200 characters, none of them a control character",
    PATH: "must be a path, without NUL",
    SHA256: "must be 64 hexadecimal digits, as `slotgate key new` prints them",
}

Url = Annotated[str, AfterValidator(_url)]
Day = Annotated[date, BeforeValidator(_calendar_date)]
Port = Annotated[int, Field(strict=True, ge=0, le=65535)]  # 0: any free one, for tests
Count = Annotated[int, Field(strict=True, ge=1, le=2**53)]
CountFromZero = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=366 * 86_400)]  # timers take no more; nan falls out
SecondsFromZero = Annotated[float, Field(strict=True, ge=0, le=366 * 86_400)]
Host = Annotated[str, Field(pattern=HOST)]
Name = Annotated[str, Field(pattern=NAME)]
Alias = Annotated[str, Field(pattern=ALIAS)]
Secret = Annotated[SecretStr, AfterValidator(_header_safe)]
RedisUrl = Annotated[SecretStr, AfterValidator(_redis_url)]
LeaseSeconds = Annotated[float, Field(strict=True, ge=1, le=3600)]
Sha256 = Annotated[str, Field(pattern=SHA256), AfterValidator(str.lower)]
File = Annotated[str, Field(pattern=PATH)]
Texts = tuple[str, ...]
Patterns = tuple[Annotated[str, AfterValidator(_pattern)], ...]
Places = tuple[Annotated[str, AfterValidator(_place)], ...]
Advertised = Annotated[Literal["smallest", "largest"] | int, BeforeValidator(_advertised)]
