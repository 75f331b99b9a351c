"""`slotgate simulate`."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.admin_client import AsJson
from gateway.cli.failure import CommandFailed

if TYPE_CHECKING:
    from policies.simulation.profile import Profile
    from policies.simulation.workload import Program, Workload
    from policies.simulator import Compared

MAIN = "main"
SESSIONS = "coding_agents.jsonl"  # recorded ones, in gateway/traces


def simulate(
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An engine; may be repeated. Default: one of each."),
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A journal: its backends play, as fast as its latest 3,000 requests show them. Or what "
            "llama-bench (-o json, jsonl), llama-batched-bench (--output-format jsonl) or vllm bench serve "
            "(--save-result --save-detailed) wrote: an engine as fast as that plays. Beside those of "
            "--engine, if there are any.",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Slots of the measured engine. Default: as many as ran at once."
        ),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="A scenario, or a trace in Mooncake's JSONL. Default: main, or with --fit its requests.",
        ),
    ] = "",
    agents: Annotated[int, typer.Option(metavar="N", min=1, help="Agents in a scenario.")] = 24,
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A policy; may be repeated. Default: all.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Runs of a scenario, with seeds 1 to N; means are shown.")
    ] = 5,
    mode: Annotated[
        str,
        typer.Option(
            metavar="strict|shared|both",
            help="Prefills first come first served, or short ones beside a long one, or both in turn.",
        ),
    ] = "both",
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with charts.")] = None,
) -> None:
    """Play a workload on modelled engines.

    It shows slotgate beside published policies, and the bound that none can beat. Nothing is sent anywhere.
    Engines are models fitted to published measurements, time is virtual, and the same arguments give the
    same figures. slotgate's rows are made by the code that serves.

    \b
    Engines:   vllm-2spark, llamacpp-131k, ds4-262k, ds4-64k
    Scenarios: main, burst, storm, heavy, lost, drift, unknown-slots, no-usage
    Policies:  slotgate, round-robin, least-requests, sticky, chwbl, cache-aware-64, cache-aware-4,
               lmetric, dynamo, central-fcfs, seconds-at-arrival

    \b
    Examples:
      slotgate simulate
      slotgate simulate --workload burst --agents 48 --html burst.html
      slotgate simulate --engine ds4-64k --engine ds4-64k --policy slotgate --policy sticky
      slotgate simulate --workload conversation_trace.jsonl --mode strict --json
      slotgate simulate --fit slotgate.db --policy slotgate --policy round-robin
      slotgate simulate --fit llama-bench.jsonl --slots 4 --policy slotgate
    """
    from policies.simulation.engine import Mode
    from policies.simulation.profile import PROFILES, fleet
    from policies.simulation.workload import Workload
    from policies.simulator import POLICIES, Comparison, compare, limits

    profiles = fleet(_known("engine", engine or ([] if fit else PROFILES), PROFILES))
    recorded: list[Program] = []
    if fit is not None:
        from gateway.cli.fitted import fitted

        more, recorded = fitted(fit, slots)
        profiles += more
    elif slots is not None:
        raise CommandFailed("--slots is for what --fit names; a named engine has its own.", 2)
    policies = _known("policy", policy or POLICIES, POLICIES)
    (named,) = _known("mode", [mode], [*map(str, Mode), "both"])
    modes = list(Mode) if named == "both" else [Mode(named)]
    if recorded and not workload:
        workload, workloads = str(fit), [Workload(recorded)]
    else:
        workload = workload or MAIN
        workloads = _workloads(workload, profiles, agents, seeds)
    rows = compare(profiles, workloads, policies, modes)
    compared = Comparison(
        workload=workload,
        agents=agents,
        runs=len(workloads),
        engines=tuple(profile.name for profile in profiles),
        limits=limits(profiles, workloads),
        rows=tuple(_watched(rows, len(policies) * len(modes))),
    )
    if html is not None:
        from gateway.cli.comparison_page import page

        try:
            html.write_text(page(compared), encoding="utf-8")
        except OSError as error:
            raise CommandFailed(
                f"Cannot write {html}: {error.strerror}; name another file with --html."
            ) from None
    if as_json:
        print(json.dumps(compared.plain()))
    else:
        from gateway.cli.comparison_table import tables
        from gateway.cli.tables import console

        console().print(tables(compared))


def _known(option: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names, all of which exist."""
    named = list(names)
    for name in named:
        if name not in known:
            raise CommandFailed(f"--{option} {name} is not known; there are: {', '.join(known)}.", 2)
    return named


def _workloads(name: str, profiles: Sequence[Profile], agents: int, seeds: int) -> list[Workload]:
    """A scenario once for each seed, or a trace once."""
    from policies.simulation.scenarios import SCENARIOS, Maker, TooFewEngines
    from policies.simulation.traces import UnreadableTrace, mooncake, sessions
    from policies.simulation.workload import Workload

    if name in SCENARIOS:
        recorded = sessions(files("gateway").joinpath("traces", SESSIONS).read_text("utf-8").splitlines())
        makers = [Maker(recorded, random.Random(seed)) for seed in range(1, seeds + 1)]
        try:
            return [SCENARIOS[name](maker, profiles, agents) for maker in makers]
        except TooFewEngines as error:
            raise CommandFailed(f"--workload {name}: {error}; add --engine.", 2) from None
    try:
        lines = Path(name).read_text("utf-8").splitlines()
        programs = mooncake(lines, max(profile.context_tokens for profile in profiles))
    except (OSError, UnicodeDecodeError):
        raise CommandFailed(
            f"--workload {name} is neither a file that can be read nor a scenario; there are: "
            f"{', '.join(SCENARIOS)}.",
            2,
        ) from None
    except UnreadableTrace as error:
        raise CommandFailed(f"{name}: {error}; it must be a trace in Mooncake's JSONL.", 2) from None
    if not programs:
        raise CommandFailed(f"{name} holds no request that these engines could take.", 2)
    return [Workload(programs)]


def _watched(rows: Iterable[Compared], count: int) -> Iterable[Compared]:
    """The rows; on a terminal with a bar, since a large comparison takes minutes."""
    if not sys.stderr.isatty():
        return rows
    from rich.console import Console
    from rich.progress import track

    return track(rows, "Simulating", total=count, console=Console(stderr=True), transient=True)
