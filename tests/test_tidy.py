"""The house rules that a machine can check: arrows point down, names are nouns, nothing is swallowed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("gateway", "policies")
LINES_MAX = 400
LINES_MANY = 300
FORBIDDEN_NAMES = {"utils", "util", "common", "manager", "service", "helpers", "helper", "core"}
ENGINE_NAMES = {"llamacpp", "ds4", "vllm", "sglang"}
MAY_COMPARE_ENGINES = ("gateway/engines/", "gateway/demo/", "gateway/bench/")
# Of the standard library, what reaches outside the process or waits.
INPUT_AND_OUTPUT = {
    "asyncio", "concurrent", "ftplib", "glob", "http", "io", "multiprocessing", "os", "pathlib", "select",
    "selectors", "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "urllib",
}  # fmt: skip
IMPURE = INPUT_AND_OUTPUT | {"datetime", "logging", "random", "secrets", "time", "uuid"}
# Written so that this file does not contain what it looks for.
FORBIDDEN_TEXT = {
    "unfinished work": r"\b(TO[D]O|FIX[M]E)\b",
    "the workplace it was written in": r"/[w]ork/|\b[s]hared/|\b[f]arm\b",
    "the host of a package registry": r"\b(pypi\.[o]rg|files\.python[h]osted\.org)\b",
}


@cache
def files() -> tuple[Path, ...]:
    """Every file of the repository, tracked or about to be; without git, every file that is not hidden."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # an archive, or a checkout of another user
        top = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
        paths = [below for path in top for below in (path, *path.rglob("*"))]
        return tuple(path for path in paths if path.is_file() and "__pycache__" not in path.parts)
    return tuple(path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file())


def named(path: Path) -> str:
    """The path from the root."""
    return path.relative_to(ROOT).as_posix()


def modules(*under: str) -> Iterator[Path]:
    """Python files below these directories."""
    return (path for path in files() if path.suffix == ".py" and named(path).startswith(under))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[str]:
    """Absolute names of all modules that this one imports, wherever in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)}:{node.lineno} imports relatively"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def wrong_imports(under: str, allowed: Callable[[str], bool]) -> list[str]:
    paths = list(modules(under))
    assert paths, f"nothing below {under}"
    return [f"{named(path)}: {name}" for path in paths for name in imports(path) if not allowed(name)]


def standard(name: str, without: set[str]) -> bool:
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names and top not in without


# -- the arrows ----------------------------------------------------------------------------------------


def test_policies_are_pure() -> None:
    """They import the standard library, without its clocks, chance and I/O, and each other."""
    assert not wrong_imports("policies/", lambda n: n.startswith("policies.") or standard(n, IMPURE))


def test_policies_never_wait_and_read_no_clock() -> None:
    """No await, no call of time, random or print: `now` is an argument."""
    waiting = (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)
    found = [
        f"{named(path)}:{node.lineno}"
        for path in modules("policies/")
        for node in ast.walk(tree(path))
        if isinstance(node, waiting)
        or (isinstance(node, ast.Name) and node.id in {"print", "open", "input", "hash"})
    ]
    assert not found


def test_engines_do_no_input_or_output() -> None:
    """They say what to ask and how to read the answer; who asks is elsewhere."""
    ours = ("policies.", "gateway.engines.")
    assert not wrong_imports(
        "gateway/engines/", lambda n: n.startswith(ours) or standard(n, INPUT_AND_OUTPUT)
    )


def test_the_gateway_never_imports_its_tests_or_programs() -> None:
    """What serves does not depend on what measures or shows it."""
    outer = ("tests", "gateway.bench", "gateway.demo")
    serving = [p for p in modules("gateway/") if not named(p).startswith(("gateway/bench/", "gateway/demo/"))]
    found = [
        f"{named(path)}: {name}"
        for path in serving
        if not named(path).startswith("gateway/cli/") and path.name != "__main__.py"
        for name in imports(path)
        if name.startswith(outer)
    ]
    assert not found


def test_no_engine_is_compared_by_name_outside_its_package() -> None:
    """Whatever differs between engines is a field or method of the protocol."""
    found = [
        f"{named(path)}:{line}"
        for path in modules("gateway/", "policies/")
        if not named(path).startswith(MAY_COMPARE_ENGINES)
        for line in compared_engines(tree(path))
    ]
    assert not found


def compared_engines(module: ast.Module) -> Iterator[int]:
    """Lines where an engine's name decides something."""
    for node in ast.walk(module):
        match node:
            case ast.Compare():
                parts: list[ast.AST] = [node.left, *node.comparators]
            case ast.MatchValue():
                parts = [node.value]
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith" | "get" | "removeprefix")):
                parts = list(node.args)
            case _:
                continue
        if any(
            isinstance(leaf, ast.Constant) and leaf.value in ENGINE_NAMES
            for part in parts
            for leaf in ast.walk(part)
        ):
            yield node.lineno


# -- names and sizes -------------------------------------------------------------------------------------


def test_modules_are_named_by_a_noun_of_their_own() -> None:
    """A drawer for everything else is not a module."""
    parts = {
        part: named(path) for path in modules(*SOURCES) for part in Path(named(path)).with_suffix("").parts
    }
    assert not {part: path for part, path in parts.items() if part in FORBIDDEN_NAMES}


def test_files_are_short(record_property: Callable[[str, object], None]) -> None:
    """Over 300 lines is on record, over 400 is two files."""
    lines = {named(path): len(path.read_text().splitlines()) for path in modules(*SOURCES)}
    record_property("many lines", {name: count for name, count in lines.items() if count > LINES_MANY})
    assert not {name: count for name, count in lines.items() if count > LINES_MAX}


def test_every_module_says_what_it_is() -> None:
    """A docstring at the top; an empty `__init__.py` needs none."""
    assert not [
        named(path)
        for path in modules(*SOURCES, "tests/")
        if path.read_text().strip() and not ast.get_docstring(tree(path))
    ]


def test_every_test_says_what_is_expected() -> None:
    """One sentence, so that a failure can be read without the code."""
    assert not [
        f"{named(path)}:{node.lineno} {node.name}"
        for path in modules("tests/")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]


# -- what must not stand there -----------------------------------------------------------------------------


def test_no_failure_is_swallowed() -> None:
    """`except Exception: pass`, its bare form, and `suppress(Exception)` hide defects."""
    found = [
        f"{named(path)}:{line}" for path in modules(*SOURCES, "tests/") for line in swallowed(tree(path))
    ]
    assert not found


def swallowed(module: ast.Module) -> Iterator[int]:
    """Lines where every exception vanishes."""
    for node in ast.walk(module):
        match node:
            case ast.ExceptHandler() if broad(node.type) and all(map(empty, node.body)):
                yield node.lineno
            case ast.Call() if ast.unparse(node.func).endswith("suppress") and any(map(broad, node.args)):
                yield node.lineno


def broad(type: ast.expr | None) -> bool:
    names = type.elts if isinstance(type, ast.Tuple) else [type]
    return any(name is None or ast.unparse(name) in {"Exception", "BaseException"} for name in names)


def empty(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass | ast.Continue) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


@pytest.mark.parametrize("what", FORBIDDEN_TEXT)
def test_no_file_mentions(what: str) -> None:
    """Text files of every kind, recorded ones too."""
    pattern = re.compile(FORBIDDEN_TEXT[what])
    found = []
    for path in files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{named(path)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    assert not found


def test_every_metric_is_explained() -> None:
    """Its name stands in the README."""
    name = re.compile(r"\bslotgate_[a-z_]+")
    metrics = set(name.findall((ROOT / "gateway" / "families.py").read_text()))
    assert metrics
    assert not sorted(metrics - set(name.findall((ROOT / "README.md").read_text())))


# -- the rules can be broken -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "if engine.name == 'ds4': pass",
        "x = 'vllm' in names",
        "x = name in ('llamacpp', 'openai')",
        "match name:\n    case 'sglang': pass",
        "x = {'a': 1}.get('ds4')",
    ],
)
def test_sees_an_engine_compared(source: str) -> None:
    """The check above is not blind."""
    assert list(compared_engines(ast.parse(source)))
    assert not list(compared_engines(ast.parse("Literal['ds4', 'vllm']\nname = 'ds4'")))


@pytest.mark.parametrize(
    "source",
    [
        "try: f()\nexcept Exception: pass",
        "try: f()\nexcept: pass",
        "try: f()\nexcept (ValueError, BaseException): ...",
        "for x in y:\n  try: f()\n  except Exception:\n    'why'\n    continue",
        "with contextlib.suppress(Exception): f()",
    ],
)
def test_sees_a_failure_swallowed(source: str) -> None:
    """The check above is not blind."""
    assert list(swallowed(ast.parse(source)))
    assert not list(swallowed(ast.parse("try: f()\nexcept Exception: log()\nwith suppress(OSError): f()")))
