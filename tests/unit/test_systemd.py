"""Sockets that are handed over, and the units that do it."""

from __future__ import annotations

import configparser
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import systemd
from gateway.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "packaging"
CHILD = """
import os
from gateway import systemd
os.environ["LISTEN_PID"] = str(os.getpid() + {off})
try:
    print({{name: one.getsockname()[1] for name, one in systemd.sockets(os.environ).items()}})
except ValueError as error:
    print(error)
print(sorted(name for name in os.environ if name.startswith("LISTEN")))
"""


def handed(*sockets: socket.socket, names: str = "", off: int = 0) -> list[str]:
    """What a process makes of these sockets."""
    moved = {systemd.FIRST + i: one.fileno() for i, one in enumerate(sockets)}
    keeps = "; ".join(f"exec {place}<&{number}" for place, number in moved.items()) or ":"
    done = subprocess.run(
        ["bash", "-c", f'{keeps}; exec "$0" -c "$1"', sys.executable, CHILD.format(off=off)],
        pass_fds=tuple(moved.values()),
        env=os.environ | {"LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": names, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.splitlines()


def test_sockets_come_by_name_or_in_order() -> None:
    """The variables are for this process alone, and not for its children."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        a, b = (each.getsockname()[1] for each in (one, two))
        assert handed(one, two) == [str({"clients": a, "operators": b}), "[]"]
        assert handed(one, two, names="operators:clients") == [str({"operators": a, "clients": b}), "[]"]
        assert handed(one, two, names="x.socket:y.socket") == [str({"clients": a, "operators": b}), "[]"]
        assert handed(one, names="operators") == [str({"operators": a}), "[]"]
        assert handed(one) == [str({"clients": a}), "[]"]
        assert handed(one, off=1) == ["{}", "[]"]  # they are somebody else's


def test_sockets_that_cannot_be_listened_on_are_refused() -> None:
    """In words that name the mend."""
    with socket.socket() as idle, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("")
        unix.listen()
        for one in (idle, unix):
            assert "use ListenStream=" in handed(one)[0]
        assert "two sockets at most" in handed(idle, idle, idle)[0]


def test_the_manager_is_told_if_there_is_one(tmp_path: Path) -> None:
    """By path or abstract name; if it is gone, that is nobody's fault."""
    path = str(tmp_path / "notify")
    for address, bound in ((path, path), (f"@slotgate-{os.getpid()}", f"\0slotgate-{os.getpid()}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(bound)
            systemd.tell("READY=1", {"NOTIFY_SOCKET": address})
            assert manager.recv(100) == b"READY=1"
        systemd.tell("READY=1", {"NOTIFY_SOCKET": address})
    systemd.tell("READY=1", {})


def unit(name: str) -> configparser.RawConfigParser:
    """A unit file; a key stands in it once."""
    parser = configparser.RawConfigParser(delimiters="=", comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNITS / name)
    return parser


def test_the_units_hand_over_what_is_looked_for() -> None:
    """By the names and addresses of the configuration, with time enough to stop."""
    server, service = Settings().server, unit("slotgate.service")["Service"]
    for name, fd, host, port in (
        ("slotgate.socket", systemd.CLIENTS, server.host, server.port),
        ("slotgate-admin.socket", systemd.OPERATORS, server.admin_host, server.admin_port),
    ):
        one = unit(name)["Socket"]
        assert (one["FileDescriptorName"], one["ListenStream"]) == (fd, f"{host}:{port}")
        assert name in service["Sockets"].split()
    assert int(service["TimeoutStopSec"]) > server.shutdown_pause_seconds + server.shutdown_seconds + 10
    assert service["Type"] == "notify"
    assert service["ExecReload"].startswith("/bin/kill -HUP")
    assert (service["DynamicUser"], service["NoNewPrivileges"], service["ProtectSystem"]) == (
        "yes",
        "yes",
        "strict",
    )
    assert service["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze not found")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Without a warning."""
    for path in UNITS.iterdir():
        program = path.read_text().replace("/opt/slotgate/bin/slotgate", sys.executable)
        (tmp_path / path.name).write_text(program)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "slotgate" in line]
    assert not ours and done.returncode == 0, done.stderr
