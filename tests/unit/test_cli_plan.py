"""`slotgate plan`, and the requests of a journal played again."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.app import main
from gateway.cli.failure import CommandFailed
from gateway.cli.sizes import bytes_of
from gateway.row import packed
from gateway.traffic import asked, journalled
from policies.prefix import Link
from policies.simulation.profile import PROFILES
from tests.unit.bygone import SINCE, row, traffic, write

BOOT = ("--engine", "ds4", "--free", "13.74GiB", "--headroom", "8GiB", "--per-slot", "508.3MiB")
SEEN = ("--seen", "262144:2", "--seen", "65536:11")
VLLM = ("--engine", "vllm", "--kv-tokens", "1894867", "--context", "1048576")
ESTIMATE = ("--memory", "128GB", "--weights", "81GB", "--kv-bytes-per-token", "9.5KiB")


def run(capsys: pytest.CaptureFixture[str], *arguments: str, command: str = "plan") -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as exited:
        main([command, *arguments])
    out, err = capsys.readouterr()
    assert isinstance(exited.value.code, int)
    return exited.value.code, out, err


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The answer as JSON."""
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    found: list[dict[str, Any]] = json.loads(out)
    return found


@pytest.mark.parametrize(
    ("arguments", "windows"),
    [
        (BOOT, [(None, 11)]),
        ((*BOOT, "--context", "65536", "--context", "32768"), [(65536, 11), (32768, 23)]),
        (("--engine", "ds4", "--free", "7.45GiB"), [(None, 2)]),
        (("--free", "7.45GiB"), [(None, 2)]),
        ((*BOOT[:3], "7.45GiB", *BOOT[4:]), [(None, 2)]),
        (("--engine", "ds4", *SEEN), [(65536, 11), (262144, 2)]),
        (("--engine", "ds4", *SEEN, "--context", "131072"), [(131072, 5)]),
        (("--engine", "llamacpp", "--context", "524288", "--parallel", "4"), [(131072, 4)]),
        (("--context", "524288", "--parallel", "8", "--parallel", "1"), [(65536, 8), (524288, 1)]),
        (VLLM, [(1048576, 1)]),
        (("--kv-tokens", "1894867", "--context", "65536"), [(65536, 28)]),
        ((*ESTIMATE, "--context", "65536"), [(65536, 73)]),
    ],
)
def test_it_says_how_many_slots_a_window_gives(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], windows: list[tuple[int | None, int]]
) -> None:
    """The published starts, and what follows from them; for people the same figures."""
    found = told(capsys, *arguments)
    assert [(one["context_tokens"], one["slots"]) for one in found] == windows
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    lines = out.splitlines()[1:]
    for line, (context, slots) in zip(lines, windows, strict=True):
        assert line.split()[:2] == ["-" if context is None else f"{context:,}", str(slots)]


def test_a_pool_holds_parts_of_windows(capsys: pytest.CaptureFixture[str]) -> None:
    """1.81 sequences of full length, as that engine's start says."""
    assert told(capsys, *VLLM)[0]["sequences"] == 1.81
    assert "1.81" in run(capsys, *VLLM)[1]


def test_estimates_are_named_so(capsys: pytest.CaptureFixture[str]) -> None:
    """What is an engine's own arithmetic is not, what goes beyond it is."""
    certain = (*BOOT, "--context", "65536")
    assert [one["estimate"] for one in told(capsys, *certain, "--context", "32768")] == [False, True]
    assert "estimate" not in run(capsys, *certain)[1]
    assert "estimate" in run(capsys, *ESTIMATE, "--context", "65536")[1]
    assert "the engine's floor" in run(capsys, "--engine", "ds4", "--free", "7.45GiB")[1]


@pytest.mark.parametrize(
    ("arguments", "mend"),
    [
        ((), "Name the engine with --engine"),
        (("--engine", "gguf"), "there are: ds4, llamacpp, vllm, sglang"),
        (("--engine", "ds4"), "--free must be given"),
        (("--engine", "ds4", "--kv-tokens", "9", "--context", "9"), "--free must be given"),
        (("--engine", "vllm", "--kv-tokens", "9"), "--context must be given"),
        (("--engine", "openai"), "for an estimate give"),
        (("--engine", "ds4", "--free", "13.74"), "13.74GiB"),
        (("--engine", "ds4", "--free", "lots"), "not 'lots'"),
        (("--engine", "ds4", "--free", "0GiB"), "more than nothing"),
        (BOOT[:4], "--per-slot is needed"),
        (("--free", "7GiB", "--context", "4096", "--context", "8192"), "--per-slot is needed"),
        ((*BOOT, "--parallel", "4"), "--parallel cannot be used with --free"),
        (("--seen", "4096:4"), "--seen is needed twice"),
        (("--seen", "4096:4", "--seen", "8192:8"), "the larger one cannot have more slots"),
        (("--seen", "4096"), "such as 65536:11, not '4096'"),
        (("--seen", "0:4"), "such as 65536:11, not '0:4'"),
        (ESTIMATE, "--context must be given"),
        ((*ESTIMATE[:2], "--weights", "200GB", *ESTIMATE[4:], "--context", "9"), "leave nothing of --memory"),
        (("--context", "4", "--parallel", "8"), "--parallel is more than"),
        (("--context", "4", "--context", "8", "--parallel", "2"), "--context is one figure"),
        (("--fit", "nowhere.db"), "name a journal"),
    ],
)
def test_wrong_use_is_one_sentence_that_names_the_mend(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], mend: str
) -> None:
    """Exit 2, nothing on standard output."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("slotgate: ")
    assert err.count("\n") == 1
    assert mend in err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("2kB", 2000),
        ("2 KiB", 2048),
        ("508.3MiB", int(508.3 * 2**20)),
        ("81GB", 81 * 10**9),
        ("13.74gib", math.floor(13.74 * 2**30)),
        ("0.5TiB", 2**39),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    """Decimal and binary units, any case."""
    assert bytes_of("--free", text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1", "-1GiB", "1e3GiB", "1.GiB", "1GiBs", "1PB", "1 2GiB"])
def test_other_sizes_are_refused(text: str) -> None:
    """A number of what?"""
    with pytest.raises(CommandFailed) as failed:
        bytes_of("--free", text)
    assert failed.value.exit_code == 2
    assert bytes_of("--kv-bytes-per-token", "8262", plain=True) == 8262


# -- with a journal ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve agents on one engine of two slots."""
    path = tmp_path_factory.mktemp("journal") / "slotgate.db"
    write(path, traffic([replace(PROFILES["ds4-262k"], name="box")], agents=12))
    return path


def test_a_journal_is_what_was_asked(journal: Path) -> None:
    """Written and read: every request, to a millisecond, and to the last message of its prompt."""
    found = journalled(journal)
    expected = sorted(
        traffic([replace(PROFILES["ds4-262k"], name="box")], agents=12), key=lambda one: one.arrived
    )
    assert len(found) == len(expected) == 48
    for one, other in zip(found, expected, strict=True):
        assert one.arrived - SINCE == pytest.approx(other.arrived, abs=1e-3)
        assert one.ended - SINCE == pytest.approx(other.ended, abs=1e-3)
        times = {"arrived": 0.0, "dispatched": 0.0, "first": 0.0, "ended": 0.0}
        assert replace(one, **times) == replace(other, **times)  # type: ignore[arg-type]


def test_what_no_backend_worked_on_is_not_played() -> None:
    """Refused, gone while it waited, counted without a slot, or of no known length."""
    (one, *_) = traffic([PROFILES["ds4-262k"]], agents=1)
    assert asked(row(one)) is not None
    for change in (
        {"backend": None},
        {"queue_seconds": None},
        {"slot_seconds": None},
        {"prompt_tokens": None},
        {"outcome": "rejected"},
    ):
        assert asked(row(one)._replace(**change)) is None
    silent = asked(row(one)._replace(ttft_seconds=None, tpot_seconds=None, completion_tokens=0))
    assert silent is not None
    assert (silent.first, silent.output_tokens) == (None, 1)
    guessed = asked(
        row(one)._replace(cached_tokens=None, cached_tokens_predicted=7, chain=packed((Link(1, 2),)))
    )
    assert guessed is not None
    assert (guessed.cached_tokens, guessed.chain) == (7, (Link(1, 2),))


def test_windows_are_played_with_the_journal_s_requests(
    capsys: pytest.CaptureFixture[str], journal: Path
) -> None:
    """The present as it was seen, then the windows that are worth a look; eleven slots hardly wait."""
    arguments = ("--fit", str(journal), "--engine", "ds4", *SEEN)
    found = told(capsys, *arguments)
    assert (found[0]["how"], found[0]["slots"]) == ("seen, or more", 2)
    by_slots = {one["slots"]: one["played"] for one in found}
    assert by_slots[11]["wait_mean"] < 0.2 * by_slots[2]["wait_mean"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert re.search(r"99 % of 48 prompts are under [\d,]+ tokens", out)
    assert re.search(
        r"box would have (about )?\d+ slots instead of 2; expected queue wait \d+ s -> \d+ s\.", out
    )


def test_windows_that_are_named_are_all_that_is_played(
    capsys: pytest.CaptureFixture[str], journal: Path
) -> None:
    """One that holds none of the requests is left out."""
    named = ("--context", "65536", "--context", "1024")
    found = told(capsys, "--fit", str(journal), "--engine", "ds4", *SEEN, *named)
    assert [one["slots"] for one in found] == [2, 11]


def test_a_pool_is_played_with_more_slots(capsys: pytest.CaptureFixture[str], journal: Path) -> None:
    """A window of the pool is no slot: twice the slots at the window that there is. The journal is another
    kind of engine's, so the play of the present is not what was seen, and that is said."""
    arguments = ("--fit", str(journal), *VLLM)
    found = told(capsys, *arguments)
    assert [(one["context_tokens"], one["slots"]) for one in found] == [(1_048_576, 2), (1_048_576, 4)]
    _, out, _ = run(capsys, *arguments)
    assert "With about 4 slots instead of 2 and its context as it is" in out
    assert re.search(r"\d+ s were waited on average, but a play of the present gives \d+ s", out)


def test_without_a_law_there_is_only_the_present(capsys: pytest.CaptureFixture[str], journal: Path) -> None:
    """And the sentence that says what to add."""
    assert len(told(capsys, "--fit", str(journal))) == 1
    assert "name the kind of engine and its figures" in run(capsys, "--fit", str(journal))[1]


def test_several_backends_must_be_told_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By name; the others are played as they were."""
    path = tmp_path / "two.db"
    write(path, traffic([replace(PROFILES["ds4-262k"], name=name) for name in "ab"], agents=12))
    code, _, err = run(capsys, "--fit", str(path))
    assert (code, err) == (2, "slotgate: --backend must name the one to plan for: a, b.\n")
    found = told(capsys, "--fit", str(path), "--backend", "b", "--engine", "ds4", *SEEN)
    assert found[0]["slots"] == 2
    assert len(found) > 1


def test_an_empty_journal_cannot_be_played(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The job failed: exit 1."""
    path = tmp_path / "empty.db"
    write(path, [])
    code, _, err = run(capsys, "--fit", str(path))
    assert (code, err.count("\n")) == (1, 1)
    assert "holds no request" in err


def test_policies_are_compared_on_the_journal_s_requests(
    capsys: pytest.CaptureFixture[str], journal: Path
) -> None:
    """Its backends and its requests, without another word; other workloads and engines where named."""
    some = ("--fit", str(journal), "--policy", "slotgate", "--mode", "strict", "--json")
    _, out, _ = run(capsys, *some, command="simulate")
    found = json.loads(out)
    assert (found["engines"], found["workload"], found["runs"]) == (["box"], str(journal), 1)
    assert found["rows"][0]["figures"]["requests"] == 48
    more = (*some, "--engine", "ds4-64k", "--workload", "burst", "--agents", "2", "--seeds", "1")
    _, out, _ = run(capsys, *more, command="simulate")
    found = json.loads(out)
    assert (found["engines"], found["workload"]) == (["ds4-64k", "box"], "burst")
