"""`slotgate plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.admin_client import AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from gateway.cli.windows import Window

SIZE, TOKENS = "SIZE", "TOKENS"


def plan(
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="The kind of engine: ds4, llamacpp, vllm, sglang, openai.")
    ] = "",
    context: Annotated[
        list[int] | None,
        typer.Option(
            metavar=TOKENS,
            min=1,
            help="A window; may be repeated. With --free the first is that of the start, with --parallel "
            "it is the whole.",
        ),
    ] = None,
    free: Annotated[
        str, typer.Option(metavar=SIZE, help="Memory that was free, as ds4 says at its start.")
    ] = "",
    headroom: Annotated[
        str, typer.Option(metavar=SIZE, help="What of it is kept free. Default at ds4: 8GiB.")
    ] = "",
    per_slot: Annotated[str, typer.Option(metavar=SIZE, help="Memory of a slot; ds4's per_bank.")] = "",
    seen: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKENS:SLOTS", help="What a start with this window gave; two are needed."),
    ] = None,
    parallel: Annotated[
        list[int] | None, typer.Option(metavar="N", min=1, help="llama.cpp's slots; may be repeated.")
    ] = None,
    kv_tokens: Annotated[
        int, typer.Option(metavar=TOKENS, min=0, help="KV cache that all requests share, as vLLM tells it.")
    ] = 0,
    memory: Annotated[str, typer.Option(metavar=SIZE, help="Estimate: the machine's memory.")] = "",
    weights: Annotated[str, typer.Option(metavar=SIZE, help="Estimate: the model's weights.")] = "",
    kv_bytes_per_token: Annotated[
        str, typer.Option(metavar=SIZE, help="Estimate: KV cache of one token.")
    ] = "",
    fit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A journal: play its latest 3,000 requests with each window."),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Whose window it is, if the journal knows several.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Say how many slots a context window gives.

    With a journal (--fit) also what that would have been worth. ds4 measures at its start how many whole
    windows fit, llama.cpp cuts one context into slots, vLLM and SGLang share one pool among all requests. An
    estimate is no promise: start the engine and look.

    \b
    Examples:
      slotgate plan --engine ds4 --free 13.74GiB --headroom 8GiB --per-slot 508.3MiB
      slotgate plan --engine ds4 --seen 262144:2 --seen 65536:11 --context 131072
      slotgate plan --engine llamacpp --context 524288 --parallel 4 --parallel 8
      slotgate plan --engine vllm --kv-tokens 1894867 --context 1048576
      slotgate plan --memory 128GB --weights 81GB --kv-bytes-per-token 9.5KiB --context 65536
      slotgate plan --fit slotgate.db --engine ds4 --seen 262144:2 --seen 65536:11
    """
    from gateway.cli.windows import Given, planned

    given = Given(
        engine, context or [], free, headroom, per_slot, seen or [], parallel or [], kv_tokens,
        memory, weights, kv_bytes_per_token,
    )  # fmt: skip
    if fit is not None:
        from gateway.cli.hindsight import told

        what = told(fit, backend, given)
        plain: list[dict[str, object]] = what.plain()
        shown: RenderableType = what.page()
    else:
        windows = planned(given).windows
        plain, shown = [asdict(window) for window in windows], _table(windows)
    if as_json:
        print(json.dumps(plain))
    else:
        from gateway.cli.tables import console

        console().print(shown)


def _table(windows: list[Window]) -> Table:
    from gateway.cli.tables import cell, table

    shown = table("context", "slots", "full-length sequences", "", "how")
    for window in windows:
        shown.add_row(
            "-" if window.context_tokens is None else f"{window.context_tokens:,}",
            str(window.slots),
            "-" if window.sequences is None else f"{window.sequences:.2f}",
            "estimate" if window.estimate else "",
            cell(window.how),
        )
    return shown
