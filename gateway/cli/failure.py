"""How a command fails."""

from __future__ import annotations


class CommandFailed(Exception):
    """One sentence for standard error, which names the mend (of a configuration: a line for each fault),
    and the exit code: 1 the job failed, 2 the command was used wrongly."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
