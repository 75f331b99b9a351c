"""The commands as a user runs them: real processes, their exit codes and every word they say."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import __version__
from gateway.cli.survey import LOCAL_PORTS, look_around
from tests.processes.harness import PATHS, ROOT, Gateway, Process, chat, engine, free_port, gateway, until
from tests.processes.process import WAIT_SECONDS

CHAT = "/v1/chat/completions"
LONG = {"tokens": 2000, "decode_tps": 10.0}  # an answer that outlasts every test


def environment(**more: str) -> dict[str, str]:
    """This process's own, without what would configure a gateway."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLOTGATE_")}
    return inherited | {"PYTHONPATH": PATHS, "COLUMNS": "200"} | more


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it complained about, line by line."""
        return self.err.splitlines()


async def command(*arguments: str, folder: Path | None = None, **more: str) -> Ended:
    """Run a command to its end; neither of its outputs is a terminal."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        *arguments,
        cwd=folder or ROOT / "tests",
        env=environment(**more),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(), WAIT_SECONDS)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode is not None
    return Ended(child.returncode, out.decode(), err.decode())


class OnTerminal:
    """A command whose outputs are one terminal."""

    def __init__(self, child: asyncio.subprocess.Process, master: int) -> None:
        self.child = child
        self._master = master
        self._seen = b""

    @property
    def seen(self) -> str:
        """What was written so far."""
        try:
            while part := os.read(self._master, 65_536):
                self._seen += part
        except OSError:  # nothing more now, or the last writer has gone
            pass
        return self._seen.decode(errors="replace")

    async def ended(self) -> int:
        """Wait for its end, reading on: a full terminal would hold up its last words."""

        def gone() -> bool:
            return bool(self.seen) and self.child.returncode is not None

        await until(gone, "the end of the command")
        assert self.child.returncode is not None
        return self.child.returncode


@asynccontextmanager
async def on_terminal(*arguments: str, folder: Path, **more: str) -> AsyncIterator[OnTerminal]:
    """Run a command on a terminal of its own."""
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        *arguments,
        cwd=folder,
        env=environment(TERM="xterm", **more),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        yield OnTerminal(child, master)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        os.close(master)


@asynccontextmanager
async def asking(one: Gateway, content: str) -> AsyncIterator[httpx.Response]:
    """A streaming request that has its first token."""
    async with one.client.stream("POST", CHAT, json=chat(content)) as response:
        assert response.status_code == 200
        yield response


def serving(*urls: str, **server: Any) -> dict[str, Any]:
    """A configuration: backends b0, b1, ... at these URLs, without warm-up."""
    backends = [{"name": f"b{i}", "url": url, "warmup": {"requests": 0}} for i, url in enumerate(urls)]
    return {"server": server, "backends": backends}


# -- serve ----------------------------------------------------------------------------------------


async def test_serve_tells_where_it_is_and_what_it_found() -> None:
    """One line on standard output once both ports answer; on standard error JSON with each state."""
    async with (
        engine("llamacpp", slots=3, context_tokens=4096) as one,
        gateway(serving(one.url)) as running,
    ):
        for client in (running.client, running.operator):
            assert (await client.get("/metrics")).status_code == 200
        assert running.process.output == f"slotgate: listening on {running.url} (admin {running.admin})\n"
        assert await running.stop() == 0
        said = [json.loads(line) for line in running.process.errors.splitlines()]
    messages = [line["message"] for line in said]
    assert messages[0] == f"slotgate {__version__}"
    assert any(f"{running.url}/v1" in message and "Ctrl-C" in message for message in messages)
    assert "b0: llamacpp, 3 slots (reported) of 4,096 tokens; models: fake-model" in messages
    assert messages[-1] == "stopped"
    assert {line["level"] for line in said} == {"info"}


async def test_serve_on_a_terminal_speaks_to_people(tmp_path: Path) -> None:
    """Lines of text, and Ctrl-C ends it with exit code 0."""
    port, admin_port = str(free_port()), str(free_port())
    async with (
        engine("openai") as one,
        on_terminal(
            *("serve", "--backend", one.url, "--port", port),
            folder=tmp_path,
            SLOTGATE_SERVER__ADMIN_PORT=admin_port,
        ) as shown,
    ):
        await until(lambda: "models: fake-model" in shown.seen, "a ready backend")
        assert (
            f"slotgate: listening on http://127.0.0.1:{port} (admin http://127.0.0.1:{admin_port})"
            in shown.seen
        )
        assert "1 is assumed; set slots" in shown.seen
        assert '{"time"' not in shown.seen
        shown.child.send_signal(signal.SIGINT)
        assert await shown.ended() == 0
    assert "Traceback" not in shown.seen


@pytest.mark.parametrize("which", ["client", "admin"])
async def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path, which: str) -> None:
    """It names the port and how to choose another; exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"client": (port, free_port()), "admin": (free_port(), port)}[which]
        ended = await command(
            *("serve", "--backend", "http://127.0.0.1:9", "--port", str(ports[0])),
            folder=tmp_path,
            SLOTGATE_SERVER__ADMIN_PORT=str(ports[1]),
        )
    option = {"client": "--port or server.port", "admin": "server.admin_port or SLOTGATE_SERVER__ADMIN_PORT"}[
        which
    ]
    assert (ended.code, ended.out) == (1, "")
    assert ended.lines[-1] == (
        f"slotgate: Cannot listen on 127.0.0.1, port {port}: address already in use; "
        f"choose another with {option}."
    )
    assert "Traceback" not in ended.err


async def test_serve_refuses_a_wrong_configuration(tmp_path: Path) -> None:
    """Each fault is a line with file, key and reason; exit code 2; nothing listens meanwhile."""
    (tmp_path / "slotgate.toml").write_text('[server]\nport = "x"\n[queue]\nwaiting_max = 0\n')
    ended = await command("serve", folder=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert [line for line in ended.lines if line.startswith("slotgate: ")] == ended.lines[-2:]
    assert ended.lines[-2].startswith("slotgate: slotgate.toml: server.port: ")
    assert ended.lines[-1].startswith("slotgate: slotgate.toml: queue.waiting_max: ")


async def test_serve_refuses_a_certificate_file_that_is_not_there(tmp_path: Path) -> None:
    """That is a fault of the configuration, not a defect."""
    (tmp_path / "slotgate.toml").write_text(
        f"[server]\nport = {free_port()}\nadmin_port = {free_port()}\n"
        '[[backends]]\nurl = "https://127.0.0.1:9"\ntls_ca_file = "/nowhere"\n'
    )
    ended = await command("serve", folder=tmp_path)
    assert ended.code == 2
    assert "tls_ca_file" in ended.lines[-1]
    assert "Traceback" not in ended.err


async def test_an_open_port_is_warned_of() -> None:
    """Who listens beyond this machine without keys reads one line about it."""
    async with engine() as one, gateway(serving(one.url, host="0.0.0.0")) as running:
        said = [json.loads(line) for line in running.process.errors.splitlines()]
        (warning,) = [line["message"] for line in said if "[[keys]]" in line["message"]]
        assert warning.startswith("whoever reaches 0.0.0.0 may use the engines")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


async def test_serve_finds_an_engine_on_this_machine(tmp_path: Path) -> None:
    """Without any configuration an engine on a usual port is found, named and served."""
    usual = next((port for port in LOCAL_PORTS if _free(port)), None)
    if usual is None:
        pytest.skip("all usual ports are taken on this machine")
    environ = environment(SLOTGATE_SERVER__ADMIN_PORT=str(free_port()))
    port = free_port()
    folders = [tmp_path / "engine", tmp_path / "gateway"]
    for folder in folders:
        folder.mkdir()
    fake = Process(
        ["-m", "tests.fakes.engine", "--port", str(usual), "--personality", "llamacpp"], folders[0], environ
    )
    serve = None
    try:
        await until(lambda: "READY" in fake.output, "an engine")
        serve = Process(["-m", "gateway", "serve", "--port", str(port)], folders[1], environ)
        await until(lambda: f"127.0.0.1-{usual} is ready" in serve.errors, "a ready backend")
        assert f"found llamacpp at http://127.0.0.1:{usual}: 1 slot (reported)" in serve.errors
    finally:
        for process in (fake, serve):
            if process is not None:
                await process.kill()


async def test_serve_without_an_engine_says_how_to_name_one(tmp_path: Path) -> None:
    """It lists the ports it tried; exit code 2."""
    if not all(map(_free, LOCAL_PORTS)):
        pytest.skip("something listens on a usual port of this machine")
    ended = await command("serve", folder=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert "(ports 8000, 8080, 8888, 30000, 11434)" in ended.lines[-1]
    assert "`slotgate serve --backend http://HOST:PORT`" in ended.lines[-1]


async def test_looking_around_tells_engines_from_others() -> None:
    """What answers is told apart: an engine, one that loads, one that wants a key, something else."""
    async with (
        engine("llamacpp", slots=2) as up,
        engine("llamacpp", loading_seconds=60) as loading,
        engine("openai") as closed,
        engine("openai") as other,
    ):
        await closed.script(path="/v1/models", status=401, times=None)
        await other.script(path="/v1/models", status=404, body="<html>", times=None)
        nobody = free_port()
        seen = await look_around([up.port, loading.port, closed.port, other.port, nobody])
    assert [one.state for one in seen] == ["up", "loading", "unknown", "unknown"]
    assert (seen[0].engine, seen[0].report.slots) == ("llamacpp", 2)
    assert "refuses the api_key" in seen[2].fault
    assert "answers as no engine does (/v1/stats 404, /v1/models 404" in seen[3].fault


# -- check ----------------------------------------------------------------------------------------


async def test_check_shows_what_each_backend_is(tmp_path: Path) -> None:
    """A row for each; one that loads is no fault, one that does not answer is, with its key."""
    async with (
        engine("llamacpp", slots=3, context_tokens=4096) as up,
        engine("llamacpp", loading_seconds=60) as loading,
        engine("openai", model=["a", "b"]) as plain,
    ):
        backends: list[dict[str, Any]] = [
            {"name": "up", "url": up.url},
            {"name": "loading", "url": loading.url, "engine": "llamacpp"},
            {"name": "plain", "url": plain.url, "slots": 7, "context_tokens": 512},
        ]
        good = await command("check", folder=tmp_path, SLOTGATE_BACKENDS=json.dumps(backends))
        backends.append({"name": "off", "url": f"http://127.0.0.1:{free_port()}"})
        bad = await command("check", "--json", folder=tmp_path, SLOTGATE_BACKENDS=json.dumps(backends))
    assert (good.code, good.err) == (0, "")
    rows = [line.split() for line in good.out.splitlines()]
    assert rows[0] == ["backend", "url", "engine", "slots", "context", "models", "state"]
    assert rows[1] == ["up", up.url, "llamacpp", "3", "reported", "4,096", "fake-model", "up"]
    assert rows[2] == ["loading", loading.url, "llamacpp", "1", "assumed", "not", "known", "loading"]
    assert rows[3] == ["plain", plain.url, "openai", "7", "configured", "512", "a,", "b", "up"]
    assert bad.code == 1
    assert json.loads(bad.out)["backends"][3]["state"] == "down"
    (line,) = bad.lines
    assert line.startswith("slotgate: SLOTGATE_BACKENDS: backends[3].url: http://127.0.0.1:")
    assert line.endswith("does not answer: connection refused; start it, or correct the url")


async def test_check_holds_aliases_to_the_models_that_engines_tell(tmp_path: Path) -> None:
    """A name that is taken, and models that nobody serves; while an engine has told none, it may be any."""
    async with engine("openai", model=["a", "b"]) as one, engine("llamacpp", loading_seconds=60) as loading:
        file = tmp_path / "slotgate.toml"
        text = f"""
            [models.b]
            targets = ["a"]
            [models."x/y"]
            targets = ["a", "c"]
            fallbacks = ["d", "a"]
            [[backends]]
            url = "{one.url}"
            """
        file.write_text(text)
        bad = await command("check", folder=tmp_path)
        file.write_text(text.replace("[models.b]", "[models.z]") + f'[[backends]]\nurl = "{loading.url}"\n')
        good = await command("check", folder=tmp_path)
    assert bad.code == 1
    assert [line.removeprefix("slotgate: ") for line in bad.lines] == [
        "slotgate.toml: models.b: is a model of " + one.url + " too; name the alias otherwise",
        """slotgate.toml: models."x/y".targets[1]: no backend serves 'c'; correct it""",
        """slotgate.toml: models."x/y".fallbacks[0]: no backend serves 'd'; correct it""",
    ]
    assert (good.code, good.err) == (0, "")


# -- status ---------------------------------------------------------------------------------------


async def test_status_shows_slots_queue_and_requests() -> None:
    """In a pipe it prints once, in JSON all that the admin port tells; a wrong token is one sentence."""
    async with (
        engine("llamacpp", slots=1, **LONG) as one,
        gateway(serving(one.url, admin_token="let-me-in")) as running,
        asking(running, "a secret prompt"),
    ):
        second = asyncio.create_task(running.client.post(CHAT, json=chat("another secret")))
        token: dict[str, Any] = {"SLOTGATE_ADMIN_URL": running.admin, "SLOTGATE_ADMIN_TOKEN": "let-me-in"}

        async def queued() -> bool:
            shown = await command("status", "--json", **token)
            return len(json.loads(shown.out)["queue"]) == 1

        await until(queued, "a waiting request")
        shown = await command("status", "--json", **token)
        value = json.loads(shown.out)
        assert (shown.code, shown.err) == (0, "")
        assert value["backends"][0]["slots"]["in_use"] == 1
        assert [request["phase"] for request in value["requests"]] == ["decode"]
        assert value["queue"][0]["why"] == {"b0": "slots"}
        page = await command("status", **token)
        assert page.code == 0
        assert "1/1 reported" in page.out
        assert "waiting: 1 interactive, 0 agent, 0 batch; the oldest for" in page.out
        assert value["requests"][0]["id"] in page.out
        assert "secret" not in shown.out + page.out
        wrong = await command("status", "--admin", running.admin, "--token", "guess")
        assert (wrong.code, wrong.out, len(wrong.lines)) == (1, "", 1)
        assert "wants the admin token" in wrong.err
        client_port = await command("status", "--admin", running.url)
        assert (client_port.code, len(client_port.lines)) == (1, 1)
        assert "is not a gateway's admin port" in client_port.err
        second.cancel()
        await asyncio.wait([second])


async def test_status_on_a_terminal_is_live(tmp_path: Path) -> None:
    """It shows changes as they come, keeps the page while the gateway is away, and ends by Ctrl-C."""
    async with engine("llamacpp", slots=2, **LONG) as one, gateway(serving(one.url)) as running:
        async with on_terminal("status", "--admin", running.admin, folder=tmp_path) as shown:
            await until(lambda: "0/2 reported" in shown.seen, "a page")
            async with asking(running, "x"):
                await until(lambda: "1/2 reported" in shown.seen, "a changed page")
            assert await running.stop() == 0
            await until(lambda: "No gateway answers" in shown.seen, "the reason")
            shown.child.send_signal(signal.SIGINT)
            assert await shown.ended() == 0
        assert "Traceback" not in shown.seen


# -- drain and resume -----------------------------------------------------------------------------


async def test_drain_waits_for_what_runs_and_resume_takes_it_back() -> None:
    """Without --wait it answers at once; with it when the engine has nothing more of ours to do."""
    async with (
        engine("llamacpp", slots=2, **LONG) as one,
        gateway(serving(one.url)) as running,
    ):
        admin: dict[str, Any] = {"SLOTGATE_ADMIN_URL": running.admin}
        async with asking(running, "x"):
            ended = await command("drain", "b0", "--reason", "new driver", **admin)
            assert (ended.code, ended.out) == (0, "b0 is draining: 1 request is still running\n")
            waiting = asyncio.create_task(command("drain", "b0", "--wait", **admin))
            await asyncio.sleep(0.5)
            assert not waiting.done()
        ended = await waiting
        assert (ended.code, ended.out, ended.err) == (0, "b0 is drained: safe to stop\n", "")
        assert (await one.state())["concurrent"] == 0
        late = asyncio.create_task(running.client.post(CHAT, json=chat("later", max_tokens=2)))
        again = await command("drain", "b0", "--wait", "--json", **admin)
        assert json.loads(again.out) == {"name": "b0", "state": "drained", "in_flight": 0}
        resumed = await command("resume", "b0", **admin)
        assert (resumed.code, resumed.err) == (0, "")
        assert (await late).status_code == 200


async def test_drain_gives_up_when_the_time_is_up(tmp_path: Path) -> None:
    """Exit code 1 and a sentence; a terminal shows what it waits for; a resume by others ends the wait."""
    async with (
        engine("llamacpp", slots=2, **LONG) as one,
        gateway(serving(one.url)) as running,
        asking(running, "x"),
    ):
        admin: dict[str, Any] = {"SLOTGATE_ADMIN_URL": running.admin}
        ended = await command("drain", "b0", "--wait", "--timeout", "0.2", "--json", **admin)
        assert ended.code == 1
        assert json.loads(ended.out) == {"name": "b0", "state": "draining", "in_flight": 1}
        assert len(ended.lines) == 1
        assert "`slotgate resume b0`" in ended.err
        async with on_terminal("drain", "b0", "--wait", folder=tmp_path, **admin) as shown:
            await until(lambda: "1 request is still running" in shown.seen, "progress")
            assert (await command("resume", "b0", **admin)).code == 0
            assert await shown.ended() == 1
            assert "was resumed while it drained" in shown.seen
        unknown = await command("drain", "b7", **admin)
        assert (unknown.code, unknown.err) == (1, "slotgate: There is no backend 'b7'. These exist: b0.\n")


async def test_an_operator_ends_a_stream() -> None:
    """The client gets an error event and no [DONE]; the slot is free again."""
    async with engine("llamacpp", slots=1, **LONG) as one, gateway(serving(one.url)) as running:
        async with asking(running, "x") as response:
            (request,) = (await running.operator.get("/admin/requests")).json()
            assert (await running.operator.delete(f"/admin/requests/{request['id']}")).status_code == 200
            text = (await response.aread()).decode()
        assert "ended by the operator" in text
        assert "[DONE]" not in text
        await one.idle()

        async def free() -> bool:
            backend = (await running.operator.get("/admin/backends/b0")).json()
            return bool(backend["slots"]["free"] == 1)

        await until(free, "a free slot")
