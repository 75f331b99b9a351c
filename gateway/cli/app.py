"""The command line: which commands there are, and how they end."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gateway import __version__
from gateway.cli.check import check
from gateway.cli.drain import drain
from gateway.cli.failure import CommandFailed
from gateway.cli.key import key
from gateway.cli.plan import plan
from gateway.cli.prefix import prefix
from gateway.cli.resume import resume
from gateway.cli.serve import serve
from gateway.cli.simulate import simulate
from gateway.cli.status import status
from gateway.cli.usage import usage

# Plain help starts faster than rich's, and is as plain in a pipe. Each command imports what it needs
# when it runs: the gateway takes half a second.
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
for command in (serve, check, status, drain, resume, usage, prefix, simulate, plan):
    app.command()(command)
app.add_typer(key, name="key")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"slotgate {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """One OpenAI-compatible URL in front of all your inference engines: one queue, real slots.

    \b
    Examples:
      slotgate serve --backend http://127.0.0.1:8080
      slotgate status
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command that the arguments name, by default those of the process; exits."""
    try:
        app(arguments, prog_name="slotgate")
    except CommandFailed as failed:
        for line in str(failed).splitlines():
            print(f"slotgate: {line}", file=sys.stderr)
        sys.exit(failed.exit_code)
