"""The admin port holds to its own description, whatever it is asked."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

from tests.fuzzing import TIMES
from tests.processes.fleet import becomes, configured
from tests.processes.harness import engine, gateway

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
EXAMPLES = 15 * min(TIMES, 10)
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
LEFT_OUT = ("/admin/shutdown", "/admin/events")  # one ends it, the other never ends


async def test_answers_are_those_of_the_schema() -> None:
    """Requests that the schema allows, and those that it does not: nothing but described answers."""
    left_out = [part for path in LEFT_OUT for part in ("--exclude-path", path)]
    async with engine(slots=2) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        child = await asyncio.create_subprocess_exec(
            SCHEMATHESIS,
            *("run", f"{front.admin}/openapi.json", "--checks", CHECKS, "--phases", "coverage,fuzzing"),
            *("--max-examples", str(EXAMPLES), "--no-color", *left_out),
            stdout=PIPE,
            stderr=STDOUT,
            cwd=front.config.parent,
        )
        said, _ = await child.communicate()
        assert child.returncode == 0, said.decode()[-5000:]
        assert b"14" in said
