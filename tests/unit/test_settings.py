"""The configuration: every source, every fault, no secret shown."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.settings import ConfigError, Settings, is_loopback, load, misspelt, options
from policies.types import Limits

Write = Callable[[str], str]
SHA = "ab" * 32
BACKEND = '[[backends]]\nurl = "http://10.0.0.1:8080"\n'
KEY = f'[[keys]]\nname = "a"\nsha256 = "{SHA}"\n'
ALIAS = '[models.agent]\ntargets = ["m"]\n'


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Write slotgate.toml in an empty working directory and return its path."""

    def write(text: str) -> str:
        file = tmp_path / "slotgate.toml"
        file.write_text(text, encoding="utf-8")
        return str(file)

    with contextlib.chdir(tmp_path):
        yield write


def faults(file: str | None, environ: dict[str, str] | None = None, **given: object) -> list[str]:
    """The lines of the error that loading gives."""
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, **given)  # type: ignore[arg-type]
    lines = [str(fault) for fault in caught.value.faults]
    assert str(caught.value).split("\n") == lines
    return lines


BROKEN = [
    ("[server\nport = 1", "", "is not TOML: Expected ']' at the end of a table declaration (at line 1"),
    ("a = 1\nb = =", "", "is not TOML: Invalid value (at line 2, column 5)"),
    (f"x = {'[' * 5000}", "", "is nested too deeply"),
    (f"x = {'1' * 5000}", "", "is not TOML: "),
    ("colour = 1", "colour", "is no option"),
    ('"a\\nb" = 1', '"a\\nb"', "is no option"),
    ("[server]\nprot = 1", "server.prot", "did you mean server.port?"),
    ("server = 3", "server", "must be a table"),
    ("[server]\nport = 70000", "server.port", "must be less than or equal to 65535"),
    ("[server]\nport = -1", "server.port", "must be greater than or equal to 0"),
    ('[server]\nport = "8400"', "server.port", "must be a valid integer"),
    ("[server]\nport = true", "server.port", "must be a valid integer"),
    ('[server]\nhost = ""', "server.host", "must be the name or the address of a host"),
    ('[server]\nadmin_host = "0.0.0.0"', "server.admin_host", "set server.admin_token too"),
    ("[server]\nport = 8401", "server.admin_port", "is the client port too"),
    ('[server]\nadmin_token = "two words"', "server.admin_token", "printable ASCII"),
    ("[server]\nadmin_token = 5", "server.admin_token", "must be a valid string"),
    ('[server]\nadmin_token_env = "NOT_SET"', "server.admin_token_env", "names a variable that is not set"),
    ('[server]\nadmin_token_file = "/no/file"', "server.admin_token_file", "No such file or directory"),
    ('[server]\nadmin_token_file = "."', "server.admin_token_file", "Is a directory"),
    ("[server]\nadmin_token_file = 1", "server.admin_token_file", "must be text"),
    ('[server]\nadmin_token = "a"\nadmin_token_env = "B"', "server.admin_token", "give only one of"),
    ("[server]\nbody_bytes_max = 0", "server.body_bytes_max", "must be greater than or equal to 1"),
    (
        '[server]\nallowed_backends = ["h", "http://h"]',
        "server.allowed_backends[1]",
        "does not appear to be an IPv4 or IPv6 network",
    ),
    ("[queue]\nwaiting_max = 1.5", "queue.waiting_max", "must be a valid integer"),
    ("[queue]\nwait_seconds_max = 0", "queue.wait_seconds_max", "must be greater than 0"),
    ("[queue]\nwait_seconds_max = nan", "queue.wait_seconds_max", "must be"),
    ("[queue]\nwait_seconds_max = inf", "queue.wait_seconds_max", "must be"),
    ('[queue]\nheartbeat = "loud"', "queue.heartbeat", "must be 'auto', 'chunk', 'comment' or 'off'"),
    ("[routing]\nlong_prefills_per_backend = 0", "routing.long_prefills_per_backend", "must be greater"),
    ("[routing]\nhold_seconds_max = -1", "routing.hold_seconds_max", "must be greater"),
    ("backends = 1", "backends", "must be a list: in a file each of its tables begins with [[backends]]"),
    ('[[backend]]\nurl = "http://a:1"', "backend", "is no option; did you mean backends?"),
    ('[[backends]]\nurl = "http://localhost:8400/v1"', "backends[0].url", "is this gateway itself"),
    (
        '[server]\nhost = "0.0.0.0"\nport = 9000\n[[backends]]\nurl = "http://127.0.0.1:9000"',
        "backends[0].url",
        "is this gateway itself",
    ),
    ("[[backends]]", "backends[0].url", "is missing"),
    ('[[backends]]\nurl = "10.0.0.1:8080"', "backends[0].url", "must be a URL as http://HOST:PORT"),
    ('[[backends]]\nurl = "ftp://h"', "backends[0].url", "must be a URL as http://HOST:PORT"),
    ('[[backends]]\nurl = "http://h:99999"', "backends[0].url", "is not a URL"),
    ('[[backends]]\nurl = "http://[::1"', "backends[0].url", "is not a URL"),
    ('[[backends]]\nurl = "http://h/a b"', "backends[0].url", "must be a URL"),
    ('[[backends]]\nurl = "http://u:hush@h"', "backends[0].url", "must not hold credentials; use api_key"),
    ('[[backends]]\nurl = "http://h?key=hush"', "backends[0].url", "must not have a query"),
    ('[[backends]]\nurl = "http://h/a/../v1"', "backends[0].url", "must not have . or .. in its path"),
    ('[[backends]]\nurl = "http://h/%2e/v1"', "backends[0].url", "must not have . or .. in its path"),
    (BACKEND + BACKEND.replace('80"', '80/v1/"'), "backends[1].url", "is the same engine as backends[0]"),
    (
        '[[backends]]\nurl="http://[fd00::1]:1"\n[[backends]]\nurl="http://[FD00:0:0::1]:1"',
        "backends[1].url",
        "is the same engine as backends[0]",
    ),
    (
        '[[backends]]\nurl="http://localhost:1"\n[[backends]]\nurl="http://127.0.0.1:1"',
        "backends[1].url",
        "is the same engine as backends[0]",
    ),
    (
        '[[backends]]\nurl="http://a"\nname="x"\n[[backends]]\nurl="http://b"\nname="x"',
        "backends[1].name",
        "is also the name of backends[0]",
    ),
    (f'{BACKEND}name = "a b"', "backends[0].name", "must be 1 to 64 letters"),
    (f'{BACKEND}name = "{"x" * 65}"', "backends[0].name", "must be 1 to 64 letters"),
    (f"{BACKEND}slots = 0", "backends[0].slots", "must be greater than or equal to 1"),
    (f'{BACKEND}engine = "ollama"', "backends[0].engine", "must be 'auto', 'ds4', 'llamacpp'"),
    (f"{BACKEND}kv_tokens = -1", "backends[0].kv_tokens", "must be greater than or equal to 0"),
    (f'{BACKEND}backup = "yes"', "backends[0].backup", "must be a valid boolean"),
    (f"{BACKEND}max_tokens_default = 1.5", "backends[0].max_tokens_default", "must be"),
    (f'{BACKEND}api_key_env = "NOT_SET"', "backends[0].api_key_env", "names a variable that is not set"),
    (f"{BACKEND}timeouts = {{ idle = 1 }}", "backends[0].timeouts.idle", "is no option"),
    (f"{BACKEND}timeouts = {{ idle_seconds = 0 }}", "backends[0].timeouts.idle_seconds", "must be greater"),
    (f"{BACKEND}warmup = 2", "backends[0].warmup", "must be a table"),
    ('[[keys]]\nname = "a"\nsha256 = "hush"', "keys[0].sha256", "must be 64 hexadecimal digits"),
    (KEY + KEY.replace('"a"', '"b"'), "keys[1].sha256", "is the same as in keys[0]"),
    (KEY + KEY.replace("ab", "cd"), "keys[1].name", "is the same as in keys[0]"),
    (f'{KEY}priority = "root"', "keys[0].priority", "must be 'interactive', 'agent' or 'batch'"),
    (f"{KEY}expires = 0", "keys[0].expires", 'must be a date as "2027-01-31"'),
    (f'{KEY}expires = "2027-13-01"', "keys[0].expires", "must be a valid date"),
    ('[server]\nallowed_backends = ["10.0.0.1/8"]', "server.allowed_backends[0]", "has host bits set"),
    ('[server]\nallowed_backends = ["a b"]', "server.allowed_backends[0]", "must be host, host:port or"),
    (f"{KEY}concurrency_max = -1", "keys[0].concurrency_max", "must be greater than or equal to 0"),
    ("models = 3", "models", "must be a table"),
    ('models.agent = "m"', "models.agent", "must be a table"),
    ("[models.agent]", "models.agent.targets", "is missing"),
    ("[models.agent]\ntargets = []", "models.agent.targets", "must not be empty"),
    ('[models.agent]\ntargets = "m"', "models.agent.targets", "must be a list"),
    (
        f'{ALIAS}fallback = ["n"]',
        "models.agent.fallback",
        "is no option; did you mean models.*.fallbacks?",
    ),
    *(
        (
            f"{ALIAS}advertise_context = {wrong}",
            "models.agent.advertise_context",
            "must be 'smallest', 'largest' or a number of tokens",
        )
        for wrong in ("0", "true", "1.5", '"small"', "[1]")
    ),
    ('[models."a\\nb"]\ntargets = ["m"]', 'models."a\\nb"."[key]"', "must be 1 to 200 characters"),
    (f'{ALIAS}{BACKEND}models = ["other", "agent"]', "models.agent", "is a model of backends[0] too"),
    (f'{ALIAS}[models.b]\ntargets = ["m", "agent"]', "models.b.targets[1]", "is an alias itself"),
    (f'{ALIAS}fallbacks = ["agent"]', "models.agent.fallbacks[0]", "is an alias itself"),
    ('[prefix]\nstabilise = "some"', "prefix.stabilise", "must be 'off', 'tools' or 'all'"),
    ('[prefix]\npatterns = ["("]', "prefix.patterns[0]", "is no regular expression"),
    ('[prefix]\npatterns = ["(?(1)a|b)"]', "prefix.patterns[0]", "is no regular expression"),
    ('[prefix]\npatterns = ["a{99999999999}"]', "prefix.patterns[0]", "is no regular expression"),
    ('[prefix]\npatterns = ["(a)"]', "prefix.patterns[0]", "have no group but (?:...)"),
    ('[prefix]\npatterns = ["a*"]', "prefix.patterns[0]", "must match at least one character"),
    *(
        (f"[prefix]\npatterns = ['{wide}']", "prefix.patterns[0]", "must not match a single letter or blank")
        for wide in (".", "(?s:.)+", r"\w+", "[^0-9]", "[a-z]+", r"\s", "[xyz]", "Q")
    ),
    ("[prefix.agents.a]\nx = 1", "prefix.agents.a.x", "is no option"),
    ("[prefix.agents.a]\nstabilize = 1", "prefix.agents.a.stabilize", "did you mean prefix.agents.*"),
    ('[accounting]\njournal = "a\\u0000b"', "accounting.journal", "must be a path"),
    ("[accounting]\njournal_days = 0", "accounting.journal_days", "must be greater than or equal to 1"),
    ("[accounting]\njournal_bytes_max = 1000", "accounting.journal_bytes_max", "must be greater than"),
    ('[redis]\nurl = "http://:hush@h"', "redis.url", "must be a URL as redis://HOST:PORT"),
    ("[redis]\nlease_seconds = 0.5", "redis.lease_seconds", "must be greater than or equal to 1"),
    ('[redis]\npool = "a b"', "redis.pool", "must be 1 to 64 letters"),
]


@pytest.mark.parametrize(("text", "key", "reason"), BROKEN)
def test_each_fault_is_one_line_with_file_key_and_reason(
    write: Write, text: str, key: str, reason: str
) -> None:
    """A broken file gives exactly one line, which names file and key and shows no value."""
    file = write(text)
    (line,) = faults(file)
    assert line.startswith(f"{file}: {key}: " if key else f"{file}: ")
    assert reason in line
    assert "\n" not in line
    assert "hush" not in line


def test_all_faults_are_told_at_once(write: Write) -> None:
    """Three faults give three lines."""
    file = write("[server]\nport = -1\n[queue]\nwaiting_max = 0\n[redis]\nurl = 'x'")
    assert [line.split(": ")[1] for line in faults(file)] == ["server.port", "queue.waiting_max", "redis.url"]


def test_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    """A missing file, a directory and a file that is not text are faults; no traceback."""
    (tmp_path / "binary.toml").write_bytes(b"a = 1\xff")
    assert faults("missing.toml") == ["missing.toml: cannot be read: No such file or directory"]
    assert faults(str(tmp_path)) == [f"{tmp_path}: cannot be read: Is a directory"]
    assert faults("binary.toml") == ["binary.toml: is not UTF-8 (byte 5)"]
    assert faults(None, {"SLOTGATE_CONFIG": "gone.toml"}) == [
        "gone.toml: cannot be read: No such file or directory"
    ]


def test_no_file_at_all_is_the_defaults(write: Write) -> None:
    """Without any source everything has its default, and admission gets the same bounds."""
    settings = load(None, {})
    assert settings == Settings()
    assert settings.limits() == Limits()


def test_the_file_in_the_working_directory_is_read(write: Write) -> None:
    """./slotgate.toml counts if nothing else is named, and a byte order mark does not hurt."""
    write("\ufeff[server]\nport = 1")
    assert load(None, {}).server.port == 1


def test_what_is_named_goes_before_the_environment_names(write: Write, tmp_path: Path) -> None:
    """`--config` is stronger than $SLOTGATE_CONFIG, which is stronger than ./slotgate.toml."""
    write("[server]\nport = 1")
    (tmp_path / "two.toml").write_text("[server]\nport = 2")
    (tmp_path / "three.toml").write_text("[server]\nport = 3")
    environ = {"SLOTGATE_CONFIG": "two.toml"}
    assert load(None, environ).server.port == 2
    assert load("three.toml", environ).server.port == 3


def test_environment_goes_before_the_file_and_the_command_line_before_both(write: Write) -> None:
    """Each source is stronger than the one before, option by option."""
    write("[server]\nport = 1\nhost = '10.0.0.1'\nadmin_port = 5\n" + BACKEND)
    environ = {"SLOTGATE_SERVER__PORT": "2", "SLOTGATE_QUEUE__HEARTBEAT": "off"}
    settings = load(None, environ)
    assert (settings.server.port, settings.server.host) == (2, "10.0.0.1")
    assert settings.queue.heartbeat == "off"
    settings = load(None, environ, port=3, host="0.0.0.0", backends=["http://b:1/v1"])
    assert (settings.server.port, settings.server.host, settings.server.admin_port) == (3, "0.0.0.0", 5)
    assert [backend.url for backend in settings.backends] == ["http://b:1"]


def test_lists_come_from_the_environment_as_json(write: Write) -> None:
    """SLOTGATE_BACKENDS and SLOTGATE_KEYS replace the lists of the file."""
    write(BACKEND)
    settings = load(
        None,
        {
            "SLOTGATE_BACKENDS": json.dumps([{"url": "http://b:1", "slots": 3, "models": ["m"]}]),
            "SLOTGATE_KEYS": json.dumps([{"name": "k", "sha256": SHA.upper(), "expires": "2027-01-01"}]),
        },
    )
    assert [(b.url, b.slots, b.models) for b in settings.backends] == [("http://b:1", 3, ("m",))]
    assert settings.keys[0].sha256 == SHA


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("SLOTGATE_SERVER__PROT", "1", "server.prot: is no option; did you mean SLOTGATE_SERVER__PORT?"),
        ("SLOTGATE_server__port", "1", "server.port: is no option"),
        ("SLOTGATE_X__Y", "1", "x.y: is no option"),
        ("SLOTGATE_SERVER__PORT", "many", "server.port: must be a valid integer"),
        ("SLOTGATE_SERVER__PORT", "", "server.port: must be a valid integer"),
        ("SLOTGATE_SERVER__PORT", "9" * 5000, "server.port: must be a valid integer"),
        ("SLOTGATE_QUEUE__HEARTBEAT_SECONDS", "NaN", "queue.heartbeat_seconds: must be"),
        ("SLOTGATE_REDIS__URL", "hush", "redis.url: must be a URL"),
        ("SLOTGATE_BACKENDS", "http://hush", "backends: is not JSON"),
        ("SLOTGATE_BACKENDS", '{"url": "hush"}', "backends: must be a list"),
        ("SLOTGATE_BACKENDS", '["http://hush"]', "backends[0]: must be a table"),
        (
            "SLOTGATE_KEYS",
            '[{"name": "a", "sha256": "hush"}]',
            "keys[0].sha256: must be 64 hex",
        ),
        (
            "SLOTGATE_SERVER__ADMIN_TOKEN_ENV",
            "HUSH",
            "server.admin_token_env: names a variable that is not set",
        ),
    ],
)
def test_faults_of_the_environment_name_the_variable(
    write: Write, variable: str, value: str, line: str
) -> None:
    """A fault that comes from a variable says so, and does not show its value."""
    write(BACKEND)
    (fault,) = faults(None, {variable: value})
    assert fault.startswith(f"{variable}: {line}")
    assert "hush" not in fault


def test_faults_of_the_command_line_name_the_option(write: Write) -> None:
    """`--backend` and `--port` with bad values are told as such."""
    write("[server]\nport = 1")
    assert faults(None, backends=["nonsense"])[0].startswith("--backend: backends[0].url: must be a URL")
    assert faults(None, port=-5)[0].startswith("--port: server.port: must be")


def test_other_variables_are_ignored(write: Write) -> None:
    """Names of other commands and programs are no options."""
    names = (
        "SLOTGATE_ADMIN_URL",
        "SLOTGATE_ADMIN_TOKEN",
        "SLOTGATE_CONFIG",
        "SLOTGATE_MODELS",
        "OTHER__PORT",
    )
    assert load(None, dict.fromkeys(names, "")) == Settings()


def test_one_underscore_too_few_is_told() -> None:
    """Silently ignored, such a name costs an hour; it may stand there for another program all the same."""
    given = (
        "SLOTGATE_SERVER_PORT",
        "SLOTGATE_REDIS_URL_FILE",
        "SLOTGATE_ADMIN_TOKEN",
        "SLOTGATE_BACKENDS",
        "PORT",
    )
    assert dict(misspelt(dict.fromkeys(given, "1"))) == {
        "SLOTGATE_SERVER_PORT": "SLOTGATE_SERVER__PORT",
        "SLOTGATE_REDIS_URL_FILE": "SLOTGATE_REDIS__URL_FILE",
    }
    both = ("SLOTGATE_SERVER_PORT", "SLOTGATE_SERVER__PORT")
    assert not dict(misspelt(dict.fromkeys(both, "1")))


def test_a_section_that_is_no_table_is_the_fault_of_the_file(write: Write) -> None:
    """A variable cannot mend a file whose section is a number."""
    file = write("server = 3")
    assert faults(file, {"SLOTGATE_SERVER__PORT": "1"}) == [f"{file}: server: must be a table"]


def test_secrets_come_from_variables_and_files(write: Write, tmp_path: Path) -> None:
    """`NAME_env` and `NAME_file` stand for the secret, in each backend too; the line end is not part."""
    (tmp_path / "token").write_text("hush-file\n")
    write(
        '[server]\nadmin_host = "0.0.0.0"\nadmin_token_file = "token"\n'
        + f'{BACKEND}api_key_env = "ENGINE_KEY"\n[[backends]]\nurl = "http://b"\napi_key = "hush-plain"'
    )
    settings = load(None, {"ENGINE_KEY": "hush-variable"})
    assert settings.server.admin_token.get_secret_value() == "hush-file"
    keys = [backend.api_key.get_secret_value() for backend in settings.backends]
    assert keys == ["hush-variable", "hush-plain"]
    assert "hush" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_an_empty_secret_file_does_not_open_the_admin_port(write: Write, tmp_path: Path) -> None:
    """A secret that is asked for and empty is a fault."""
    (tmp_path / "token").write_text("\n")
    file = write('[server]\nadmin_token_file = "token"')
    assert faults(file) == [f"{file}: server.admin_token_file: names a file that is empty"]


def test_a_secret_of_the_environment_replaces_each_form_in_the_file(write: Write) -> None:
    """A token from a variable wins over one from a file that the configuration file names."""
    write('[server]\nadmin_token_file = "/no/file"')
    settings = load(None, {"SLOTGATE_SERVER__ADMIN_TOKEN": "t"})
    assert settings.server.admin_token.get_secret_value() == "t"
    settings = load(None, {"SLOTGATE_SERVER__ADMIN_TOKEN_ENV": "TOKEN", "TOKEN": "u"})
    assert settings.server.admin_token.get_secret_value() == "u"


def test_key_hashes_and_redis_credentials_are_not_shown(write: Write) -> None:
    """The representation of settings tells no digest."""
    assert SHA not in repr(load(write(KEY), {}))


@pytest.mark.parametrize(
    ("given", "url", "name"),
    [
        ("http://10.0.0.1:8080", "http://10.0.0.1:8080", "10.0.0.1-8080"),
        ("HTTP://Spark.LAN:8080/v1/", "http://spark.lan:8080", "spark.lan-8080"),
        ("http://h/v1", "http://h", "h"),
        ("https://h:443//", "https://h", "h"),
        ("http://[::1]:8080/v1", "http://[::1]:8080", "1-8080"),
        ("http://h:1/engines/a/v1", "http://h:1/engines/a", "h-1"),
    ],
)
def test_urls_are_normalised_and_give_the_name(write: Write, given: str, url: str, name: str) -> None:
    """With or without /v1 and slashes it is the same engine; its name is host and port."""
    (backend,) = load(None, {}, backends=[given]).backends
    assert (backend.url, backend.name) == (url, name)


def test_aliases_keep_their_order_and_defaults(write: Write) -> None:
    """A name in quotation marks may hold what model ids hold; the context is told as of the smallest slot."""
    write(
        '[models."org/agent:latest"]\ntargets = ["b", "a"]\nfallbacks = ["d", "c"]\n'
        f"advertise_context = 100000\n{ALIAS}"
    )
    models = load(None, {}).models
    assert list(models) == ["org/agent:latest", "agent"]
    first, second = models.values()
    assert (first.targets, first.fallbacks, first.advertise_context) == (("b", "a"), ("d", "c"), 100_000)
    assert (second.targets, second.fallbacks, second.advertise_context) == (("m",), (), "smallest")


def test_the_defaults_can_be_spelt_out(write: Write) -> None:
    """A file that spells out the defaults of the whole contract is valid."""
    write(
        "[server]\nallowed_backends = []\n[routing]\nhold_seconds_max = 60\n"
        '[prefix]\nstabilise = "off"\npatterns = []\n'
        '[accounting]\njournal = "slotgate.db"\njournal_days = 30\njournal_bytes_max = 1073741824\n'
        f'[redis]\nurl = ""\npool = "default"\nlease_seconds = 15\n{KEY}concurrency_max = 0\nmodels = ["m"]\n'
        f"{BACKEND}kv_tokens = 0\nbackup = false\nmax_tokens_default = 16384\n"
        "timeouts = { connect_seconds = 5, first_token_seconds = 900, idle_seconds = 120 }\n"
        "warmup = { requests = 2 }\n"
    )
    settings = load(None, {})
    assert settings.backends[0].timeouts.first_token_seconds == 900
    assert settings.accounting == Settings().accounting
    assert load(None, {"SLOTGATE_ACCOUNTING__JOURNAL": ""}).accounting.journal == ""


def test_settings_do_not_change(write: Write) -> None:
    """Settings are frozen."""
    with pytest.raises(ValueError, match="frozen"):
        load(None, {}).server.port = 1


def test_every_option_has_a_name_type_and_meaning() -> None:
    """The README's table has a row for each option, complete."""
    rows = {option.name: option for option in options()}
    assert len(rows) == len(options())
    assert all(row.type and row.description for row in rows.values())
    port = rows["server.port"]
    assert (port.type, port.default, port.variable) == ("integer", "8400", "SLOTGATE_SERVER__PORT")
    assert (rows["backends[].slots"].type, rows["backends[].slots"].default) == ("integer", "")
    assert rows["backends[].timeouts.idle_seconds"].default == "120.0"
    assert rows["server.admin_token"].type == "secret"
    assert rows["keys[].expires"].type == "date"
    assert rows["queue.heartbeat"].type == "auto | chunk | comment | off"
    targets = rows["models.*.targets"]
    assert (targets.type, targets.default, targets.variable) == ("list of text", "", None)
    assert rows["models.*.advertise_context"].type == "smallest | largest | integer"
    assert (rows["redis.url"].type, rows["redis.url"].default) == ("secret", '""')


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("::", False),
        ("localhost.evil", False),
        ("127.0.0.1.evil", False),
        ("", False),
    ],
)
def test_loopback_hosts(host: str, expected: bool) -> None:
    """Only names and addresses that can be nothing but this machine are loopback."""
    assert is_loopback(host) is expected
