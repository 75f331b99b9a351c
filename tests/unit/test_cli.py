"""The commands, as far as no gateway is needed: help, wrong use, and what a page shows."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from gateway import __version__, errors
from gateway.app import misdirected
from gateway.auth import Keys
from gateway.cli.admin_client import AdminClient, backend_path
from gateway.cli.app import main
from gateway.cli.failure import CommandFailed
from gateway.cli.status_page import bar, page
from gateway.settings import Settings

ROOT = Path(__file__).parents[2]
COMMANDS = ("serve", "check", "status", "drain", "resume", "usage", "prefix", "simulate", "plan", "key")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as exited:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert isinstance(exited.value.code, int)
    return exited.value.code, out, err


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration in sight."""
    for name in ("SLOTGATE_CONFIG", "SLOTGATE_BACKENDS", "SLOTGATE_ADMIN_URL", "SLOTGATE_ADMIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


# -- help and wrong use ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """The examples stand one per line, as they are typed."""
    code, out, err = run(capsys, command, "--help")
    assert (code, err) == (0, "")
    assert f"\n    slotgate {command}" in out.partition("Examples:")[2]


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that exist, and no others."""
    _, out, _ = run(capsys, "--help")
    listed = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed == list(COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` is one line for people and scripts."""
    assert run(capsys, "--version") == (0, f"slotgate {__version__}\n", "")


def test_help_does_not_load_the_gateway() -> None:
    """Nothing that takes long is imported before a command runs."""
    code = "import sys, gateway.cli.app; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split()
    assert b"typer" in modules
    assert not {b"fastapi", b"httpx", b"pydantic", b"rich", b"uvicorn", b"gateway.app"} & set(modules)


@pytest.mark.parametrize(
    "arguments",
    [
        ("flush",),
        ("drain",),
        ("status", "--nonsense"),
        ("drain", "a", "--timeout", "-1"),
        ("serve", "--port", "x"),
        ("serve", "--workers", "0"),
        ("status", "--admin", "localhost:8401"),
        ("status", "--admin", "http://127.0.0.1:99999"),
        ("status", "--token", "zwei Wörter"),
    ],
)
def test_wrong_use_is_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    """Nothing on standard output, the reason on standard error."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()[-1]) > 20


def test_several_workers_are_refused_in_one_sentence() -> None:
    """Without shared slots each process would hand all of them out."""
    words = ["serve", "--workers", "4", "--backend", "http://127.0.0.1:9"]
    ended = subprocess.run(
        [sys.executable, "-m", "gateway", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )  # in a process of its own: it sets up its log
    told = ended.stderr.decode().splitlines()[-1]
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert told.startswith("slotgate: --workers 4 needs redis.url")


def test_a_gateway_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """It names the URL and what to do; exit code 1."""
    for command in (["status"], ["drain", "a"], ["resume", "a"]):
        code, out, err = run(capsys, *command, "--admin", "http://127.0.0.1:9")
        assert (code, out) == (1, "")
        assert err.startswith(
            "slotgate: No gateway answers at http://127.0.0.1:9 ([Errno 111] Connection refused): "
        )
        assert "`slotgate serve`" in err
        assert err.count("\n") == 1


def test_check_tells_each_fault_with_file_and_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One line each, exit code 1; in JSON the same on standard output."""
    file = tmp_path / "slotgate.toml"
    file.write_text('[server]\nprot = 1\n[[backends]]\nurl = "nonsense"\n')
    code, out, err = run(capsys, "check")
    assert (code, out) == (1, "")
    lines = err.splitlines()
    assert [line.partition("slotgate: slotgate.toml: ")[2].split(":")[0] for line in lines] == [
        "server.prot",
        "backends[0].url",
    ]
    code, out, err = run(capsys, "check", "--json", "--config", str(file))
    answer = json.loads(out)
    assert (code, answer["valid"], answer["backends"]) == (1, False, [])
    assert answer["faults"][0] == {
        "where": str(file),
        "key": "server.prot",
        "reason": "is no option; did you mean server.port?",
    }


def test_check_wants_a_backend(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An empty configuration is valid and of no use: that is said."""
    (tmp_path / "slotgate.toml").write_text("")
    code, _, err = run(capsys, "check")
    assert (code, err.count("\n")) == (1, 1)
    assert "add a [[backends]] table" in err


def test_check_names_a_variable_that_is_ignored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As serve does: one underscore, where two join a path."""
    (tmp_path / "slotgate.toml").write_text("")
    monkeypatch.setenv("SLOTGATE_SERVER_PORT", "9000")
    _, _, err = run(capsys, "check")
    assert "slotgate: SLOTGATE_SERVER_PORT is ignored; did you mean SLOTGATE_SERVER__PORT?\n" in err


def test_check_says_that_a_file_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is said of what would be in it."""
    assert run(capsys, "check") == (
        1,
        "",
        "slotgate: slotgate.toml: there is no such file; write it, or name another with --config\n",
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:9", "Redis cannot be asked: Error 111 connecting to 127.0.0.1:9"),
        ("unix:///nowhere/redis.sock", "Redis cannot be asked: "),
        ("redis://127.0.0.1:nine", "cannot be used: "),
        ("redis://127.0.0.1:9?colour=1", "cannot be used: it has an unknown option: "),
    ],
)
def test_check_asks_redis(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, words: str
) -> None:
    """Beside the engines; one line if it cannot be asked."""
    (tmp_path / "slotgate.toml").write_text('[[backends]]\nurl = "http://127.0.0.1:9"\n')
    monkeypatch.setenv("SLOTGATE_REDIS__URL", url)
    code, _, err = run(capsys, "check")
    assert code == 1
    engine, redis = err.splitlines()
    assert engine.startswith("slotgate: slotgate.toml: backends[0].url: ")
    assert redis.startswith(f"slotgate: SLOTGATE_REDIS__URL: redis.url: {words}")


def test_check_finds_a_certificate_file_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The key is named; the engine is asked all the same."""
    (tmp_path / "slotgate.toml").write_text(
        '[[backends]]\nurl = "https://127.0.0.1:9"\ntls_ca_file = "/nowhere"\n'
    )
    code, out, err = run(capsys, "check")
    assert code == 1
    assert "127.0.0.1-9" in out
    first, second = err.splitlines()
    assert first.startswith("slotgate: slotgate.toml: backends[0].tls_ca_file: cannot be used: No such file")
    assert second.startswith("slotgate: slotgate.toml: backends[0].url: https://127.0.0.1:9 does not answer")


# -- the client of the admin port -----------------------------------------------------------------


def answering(status: int, body: bytes) -> AdminClient:
    """A client whose gateway always says this."""
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=body))
    return AdminClient("http://127.0.0.1:8401/", "token", transport)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, errors.InvalidApiKey().body(), "wants the admin token, and this is not it"),
        (403, errors.Forbidden("Ask as localhost.").body(), "Ask as localhost."),
        (404, errors.NotFound("There is no backend 'x'.").body(), "There is no backend 'x'."),
        (404, errors.NotFound().body(), "is not a gateway's admin port"),
        (404, misdirected("/admin/backends").body(), "is not a gateway's admin port"),
        (404, b'{"error": {"message": "unknown endpoint"}}', "is not a gateway's admin port"),
        (404, b"<html>", "is not a gateway's admin port"),
        (200, b"<html>", "is not a gateway's admin port"),
        (500, b'{"error": "text"}', "is not a gateway's admin port"),
        (502, b"[]", "is not a gateway's admin port"),
    ],
)
def test_a_refusal_becomes_one_sentence(status: int, body: bytes, words: str) -> None:
    """The gateway's own message, or what is wrong with the URL or the token."""
    with (
        answering(status, body) as client,
        pytest.raises(CommandFailed, match=r"^[^\n]+\.$") as failed,
    ):
        client.get("/admin/queue")
    assert words in str(failed.value)
    assert failed.value.exit_code == 1


def test_a_name_stays_one_part_of_the_path() -> None:
    """A slash in a mistyped name reaches no other route."""
    assert backend_path("../queue?", "drain") == "/admin/backends/..%2Fqueue%3F/drain"


# -- what a page shows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "shown"),
    [
        ((4, 0, 0, 0), "...."),
        ((4, 2, 1, 1), "##-x"),
        ((4, 1, 0, 5), "#xxxxx"),  # a stranger's requests wait inside the engine
        ((2, 3, 0, 0), "###"),  # it came back with fewer slots than are in use
        ((64, 1, 0, 0), "#" + "." * 15),
        ((64, 63, 0, 0), "#" * 16),
        ((64, 32, 0, 16), "#" * 8 + "x" * 4 + "." * 4),
    ],
)
def test_the_bar_shows_who_has_the_slots(slots: tuple[int, int, int, int], shown: str) -> None:
    """A character for each slot; of many, no more than fit, and a busy one never looks free."""
    total, in_use, leaving, foreign = slots
    assert bar({"total": total, "in_use": in_use, "leaving": leaving, "foreign": foreign}).plain == shown


def test_a_page_shows_names_as_text() -> None:
    """Markup and escapes in what clients call themselves do nothing; long lists are cut and say so."""
    request: dict[str, Any] = {
        "id": "r1",
        "backend": "spark",
        "phase": "decode",
        "class": "agent",
        "agent": "[red]x\x1b[2J",
        "age_seconds": 3.2,
        "prompt_tokens": 12_345,
    }
    backend: dict[str, Any] = {
        "name": "spark",
        "engine": "llamacpp",
        "state": "draining",
        "reason": "new [bold]driver",
        "slots": {"total": 2, "source": "reported", "in_use": 1, "leaving": 0, "foreign": 0, "free": 1},
        "context_tokens": 65_536,
        "models": ["m"],
        "backup": False,
    }
    standby = backend | {"name": "spare", "state": "ready", "reason": "", "backup": True}
    waiting = {"class": "batch", "age_seconds": 61.0, "why": {"spark": "slots"}}
    out = io.StringIO()
    Console(file=out, width=200).print(
        page({"backends": [backend, standby], "queue": [waiting], "requests": [request] * 25})
    )
    text = out.getvalue()
    assert "\x1b" not in text
    for shown in (
        "draining new [bold]driver",
        "ready backup",
        "#. 1/2 reported 65,536",
        "waiting: 0 interactive, 0 agent, 1 batch; the oldest for 61 s; held by slots",
        "[red]x\\x1b[2J",
        "12,345",
        "and 5 more",
    ):
        assert shown in " ".join(text.split()), shown


# -- key ------------------------------------------------------------------------------------------


def test_a_new_key_opens_what_its_table_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The table is TOML as the configuration takes it, and holds the hash of the printed key alone."""
    code, out, err = run(capsys, "key", "new", "team-a")
    secret = err.split()[-1]
    assert secret not in out  # which goes to the file
    (table,) = Settings.model_validate(tomllib.loads(out)).keys
    assert code == 0
    assert Keys([table]).identify([(b"authorization", f"Bearer {secret}".encode())]).name == "team-a"
    told = json.loads(run(capsys, "key", "new", "team-a", "--json")[1])
    assert hashlib.sha256(told["key"].encode()).hexdigest() == told["sha256"]
    assert told["key"] != secret and len(told["key"]) > 40


def test_a_key_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    """One that would break the table is refused."""
    code, _, err = run(capsys, "key", "new", 'a"b')
    assert code == 2 and "NAME must be" in err
