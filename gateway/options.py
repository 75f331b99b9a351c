"""Every option of the configuration, declared once: name, type, bounds, default, meaning.

`gateway.settings` reads them; the README's table is made from `options`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic.fields import FieldInfo

from gateway.values import (
    Advertised,
    Alias,
    Count,
    CountFromZero,
    Day,
    File,
    Host,
    LeaseSeconds,
    Name,
    Patterns,
    Places,
    Port,
    RedisUrl,
    Seconds,
    SecondsFromZero,
    Secret,
    Sha256,
    Texts,
    Url,
    name_of,
)
from policies.types import Limits

PREFIX = "SLOTGATE_"


class Section(BaseModel):
    """A table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ServerSettings(Section):
    """Where the gateway listens, and how it stops."""

    host: Host = Field(default="127.0.0.1", description="address of the client port")
    port: Port = Field(default=8400, description="clients: /v1/*, /health, /ready, /metrics")
    admin_host: Host = Field(default="127.0.0.1", description="address of the admin port")
    admin_port: Port = Field(default=8401, description="operators: /admin/*, /console, /metrics")
    admin_token: Secret = Field(default=SecretStr(""), description="required when admin_host is not loopback")
    body_bytes_max: Count = Field(
        default=33_554_432,
        description="largest request body; those on their way: 1.5 times that in all",
    )
    shutdown_pause_seconds: SecondsFromZero = Field(
        default=5.0, description="after SIGTERM: not ready, still serving, so that balancers notice"
    )
    shutdown_seconds: SecondsFromZero = Field(
        default=120.0, description="then no new requests; running and waiting ones have this long to finish"
    )
    allowed_backends: Places = Field(
        default=(), description="host[:port] or CIDR that POST /admin/backends may add; none: none"
    )


class KeySettings(Section):
    """A client key. None at all: the client port is open to whoever reaches it."""

    name: Name = Field(description="name in accounts and logs")
    sha256: Sha256 = Field(repr=False, description="SHA-256 of the key, 64 hexadecimal digits")
    models: Texts = Field(default=(), description="models it may use; empty: all")
    priority: Literal["interactive", "agent", "batch"] = Field(
        default="interactive", description="the highest class this key may ask for"
    )
    expires: Day | None = Field(default=None, description="the first day, in UTC, on which it is refused")
    concurrency_max: CountFromZero = Field(
        default=0, description="requests of this key at a time, waiting ones too; 0: as many as come"
    )


class QueueSettings(Section):
    """Bounds of the one queue, and what waiting clients get."""

    waiting_max: Count = Field(default=1024, description="requests that may wait")
    waiting_bytes_max: Count = Field(default=268_435_456, description="bodies of waiting requests")
    wait_seconds_max: Seconds = Field(default=900.0, description="longest wait for a slot")
    total_seconds_max: Seconds = Field(default=3600.0, description="wait and generation of one request")
    unavailable_grace_seconds: SecondsFromZero = Field(
        default=60.0, description="all backends of a model down: wait this long before 503"
    )
    heartbeat: Literal["auto", "chunk", "comment", "off"] = Field(
        default="auto", description="what a streaming client gets while nothing else is sent"
    )
    heartbeat_seconds: Seconds = Field(default=10.0, description="silence before each heartbeat")


class RoutingSettings(Section):
    """How calls are spread over backends."""

    prefill_gate_seconds: Seconds = Field(default=1.0, description="more uncached prefill than this is long")
    long_prefills_per_backend: Count = Field(default=1, description="long prefills at a time on one backend")
    interactive_reserve_slots: CountFromZero = Field(
        default=1,
        description="kept for interactive calls on backends with more than 2 slots, while such calls come",
    )
    hold_seconds_max: SecondsFromZero = Field(
        default=60.0, description="longest that a call leaves free slots to others for a better one"
    )


class TimeoutSettings(Section):
    """How long an engine may be silent."""

    connect_seconds: Seconds = Field(default=5.0, description="until it accepts the connection")
    first_token_seconds: Seconds = Field(default=900.0, description="from dispatch to the first token")
    idle_seconds: Seconds = Field(default=120.0, description="between data events after the first token")


class WarmupSettings(Section):
    """What a backend must answer before it takes calls, at the start and after each restart."""

    requests: CountFromZero = Field(default=2, description="short requests sent first; 0: none")


class BackendSettings(Section):
    """One running engine."""

    url: Url = Field(description="http(s)://HOST:PORT, with or without /v1")
    name: Name = Field(
        default_factory=name_of, description="name in metrics and commands; none: host and port of the URL"
    )
    engine: Literal["auto", "ds4", "llamacpp", "vllm", "sglang", "openai"] = Field(
        default="auto", description="kind of engine; openai: any that speaks OpenAI's protocol"
    )
    slots: Count | None = Field(default=None, description="overrides what the engine reports; unknown: 1")
    context_tokens: Count | None = Field(
        default=None, description="context of one slot; else as the engine reports"
    )
    kv_tokens: CountFromZero = Field(
        default=0,
        description="tokens that all running requests may hold together; 0: as the engine reports",
    )
    models: Texts = Field(default=(), description="models it serves; empty: as the engine lists them")
    backup: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="used only while no other backend can serve"
    )
    api_key: Secret = Field(default=SecretStr(""), description="sent to this backend only")
    tls_ca_file: str = Field(default="", description="certificate authorities for https; empty: the system's")
    max_tokens_default: CountFromZero = Field(
        default=16_384,
        description="put in where an engine reserves by max_tokens and the client gave none; 0: nothing is",
    )
    timeouts: TimeoutSettings = TimeoutSettings()
    warmup: WarmupSettings = WarmupSettings()

    @property
    def place(self) -> str:
        """Its URL, the same for the same engine however this machine is named in it."""
        return re.sub(r"//localhost(?=[:/]|$)", "//127.0.0.1", self.url)


class AliasSettings(Section):
    """A name that clients may ask for in place of a model's."""

    targets: Annotated[Texts, Field(min_length=1)] = Field(description="models that may serve it")
    fallbacks: Texts = Field(default=(), description="models tried in turn while no target has a backend up")
    advertise_context: Advertised = Field(
        default="smallest",
        description="context that /v1/models tells: of the smallest or largest slot for it, or a number",
    )


class AgentPrefixSettings(Section):
    """One agent's prompts."""

    stabilise: Literal["off", "tools", "all"] | None = Field(
        default=None, description="the same for this agent alone"
    )
    patterns: Patterns = Field(default=(), description="beside those for all")


class PrefixSettings(Section):
    """What of prompts is held still, so that engines find them in their caches."""

    stabilise: Literal["off", "tools", "all"] = Field(
        default="off",
        description="tools: in one order; all: also times, dates, identifiers and counters in system prompts",
    )
    patterns: Patterns = Field(
        default=(), description="what else changes in system prompts, as regular expressions"
    )
    agents: dict[Alias, AgentPrefixSettings] = {}


class AccountingSettings(Section):
    """The journal of requests: figures and names, never prompt text."""

    journal: File = Field(
        default="slotgate.db", description='its file, one row per request; "": none is kept'
    )
    journal_days: Annotated[int, Field(strict=True, ge=1, le=36_500)] = Field(
        default=30, description="age at which rows go"
    )
    journal_bytes_max: Annotated[int, Field(strict=True, ge=16_777_216, le=2**53)] = Field(
        default=1_073_741_824, description="its size, beyond which the oldest rows go"
    )


class RedisSettings(Section):
    """Slots shared by several gateways."""

    url: RedisUrl = Field(
        default=SecretStr(""),
        description="redis://, rediss:// (TLS) or unix://; set: slots are shared by all gateways of the pool",
    )
    pool: Name = Field(default="default", description="gateways that name the same one share")
    lease_seconds: LeaseSeconds = Field(
        default=15.0, description="until the slots of a gateway that was lost are free again"
    )


class Settings(Section):
    """A whole, valid configuration."""

    server: ServerSettings = ServerSettings()
    keys: tuple[KeySettings, ...] = ()
    queue: QueueSettings = QueueSettings()
    routing: RoutingSettings = RoutingSettings()
    backends: tuple[BackendSettings, ...] = ()
    models: dict[Alias, AliasSettings] = {}
    prefix: PrefixSettings = PrefixSettings()
    accounting: AccountingSettings = AccountingSettings()
    redis: RedisSettings = RedisSettings()

    def limits(self) -> Limits:
        """The bounds that admission keeps."""
        return Limits(
            waiting_max=self.queue.waiting_max,
            waiting_bytes_max=self.queue.waiting_bytes_max,
            wait_seconds_max=self.queue.wait_seconds_max,
            unavailable_grace_seconds=self.queue.unavailable_grace_seconds,
            prefill_gate_seconds=self.routing.prefill_gate_seconds,
            long_prefills_per_backend=self.routing.long_prefills_per_backend,
            interactive_reserve_slots=self.routing.interactive_reserve_slots,
            hold_seconds_max=self.routing.hold_seconds_max,
        )


@dataclass(frozen=True, slots=True)
class Option:
    """One option, for people: a row of the README."""

    name: str  # dotted, `[]` after a list, `*` for a name of the operator's choice
    type: str
    default: str  # as in TOML; "" where there is none
    description: str
    variable: str | None  # None: set with its whole list


def options() -> list[Option]:
    """All options in the order of their declaration."""
    return [
        Option(
            name=name,
            type=_type(option.annotation),
            default=_default(option),
            description=option.description or "",
            variable=_variable(name),
        )
        for name, option in _walk(Settings)
    ]


def _walk(section: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, option in section.model_fields.items():
        origin = get_origin(option.annotation)
        many = "[]" if origin is tuple else ".*" if origin is dict else ""
        inner: Any = get_args(option.annotation)[origin is dict] if many else option.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _walk(inner, f"{above}{name}{many}.")
        else:
            yield above + name, option


def _variable(name: str) -> str | None:
    """The environment variable of one option: a list is set whole, an alias stands in the file."""
    alone = "." in name and "[]" not in name and "*" not in name
    return PREFIX + name.replace(".", "__").upper() if alone else None


def _type(annotation: Any) -> str:
    """An option's type in the words of TOML."""
    if get_origin(annotation) is Annotated or type(None) in get_args(annotation):
        return _type(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " | ".join(get_args(annotation))
    if get_origin(annotation) is Union:
        return " | ".join(map(_type, get_args(annotation)))
    names = {int: "integer", float: "number", bool: "boolean", str: "text", SecretStr: "secret", date: "date"}
    return "list of text" if annotation in (Texts, Patterns, Places) else names[annotation]


def _default(option: FieldInfo) -> str:
    if option.is_required() or option.default_factory or option.default is None:
        return ""
    value = option.default
    return json.dumps(value.get_secret_value() if isinstance(value, SecretStr) else value)
