"""Check the package's imports: they go down the layers only, and never in a circle.

    python -m scripts.imports

Points and queries depend on no table layout, table layouts do not depend on each other, and only the configuration and
`tsd.daemon.wiring` name an engine. Prints one line for each import or name that breaks a rule, and then exits with
status 1.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

PACKAGE = "tsd"

# The layers of the package, lowest first. A part may import itself and the layers below. Parts of one layer do not
# import each other.
LAYERS = (
    ("errors", "lazy"),
    ("codec",),
    ("config",),
    ("auth",),
    ("store",),
    ("tables",),
    ("ingest", "query"),
    ("server",),
    ("api",),
    ("daemon",),
    ("cli",),
)
LEVELS = {part: level for level, parts in enumerate(LAYERS) for part in parts}
TOP = "__main__"  # may import every part

# Pure modules turn values into values: they do not wait, read a clock or log.
NUMBERS = "aggregate buckets calendar downsample merge plan"
PURE = ("tsd.codec", *(f"tsd.query.{name}" for name in NUMBERS.split()))
IMPURE = frozenset({"trio", "asyncio", "threading", "socket", "time", "logging", "structlog"})

# Names that only some parts of the package may contain, in code, compiled code and comments: (pattern, what to write in
# the message, the parts that must not contain it). Compiled sources import too.
SOURCES = ("*.py", "*.pyi", "*.pyx", "*.pxd", "*.pxi")
LAYOUT = re.compile(r"\b(?:codec|tables)\.(opentsdb|kairosdb|heroic|tall|entity)\b")
ENGINE = re.compile(r"\bBackend\.[A-Z]")
LAYOUT_FREE = ("ingest", "query", "server", "api")
ENGINE_FREE = ("errors", "codec", "auth", "store", "tables", "ingest", "query", "server", "api", "daemon", "cli")
ENGINE_NAMED = frozenset({"tsd/daemon/wiring.py"})


class Import(NamedTuple):
    """One import of a module, as far as the rules care."""

    line: int
    target: str  # the module, as deep as there is a file for it
    nested: bool  # within a function


def problems(root: Path) -> list[str]:
    """Return what breaks a rule in the package under `root`: one sentence each, with file and line."""
    modules = {module_name(file, root): file for file in sorted((root / PACKAGE).rglob("*.py"))}
    known = {*modules, *(module_name(file, root) for file in (root / PACKAGE).rglob("*.pyx"))}
    imports = {name: list(imports_of(file.read_text("utf-8"), known)) for name, file in modules.items()}
    found = []
    for name, file in modules.items():
        for imported in imports[name]:
            where = f"{file.relative_to(root)}:{imported.line}"
            found += [f"{where}: {wrong}" for wrong in wrongs(name, imported)]
    return found + list(circle(imports)) + list(names(root))


def names(root: Path) -> Iterator[str]:
    """Sources that name a table layout or an engine and must not: one sentence for each line."""
    for file in sorted(found for pattern in SOURCES for found in (root / PACKAGE).rglob(pattern)):
        path = file.relative_to(root).as_posix()
        own = part(module_name(file, root))
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            if own in LAYOUT_FREE and (match := LAYOUT.search(line)):
                yield f"{path}:{number}: {match[0]}: tsd.{own} depends on no table layout"
            if own in ENGINE_FREE and path not in ENGINE_NAMED and (match := ENGINE.search(line)):
                yield f"{path}:{number}: {match[0]}…: only tsd.config and tsd.daemon.wiring name an engine"


def wrongs(module: str, imported: Import) -> Iterator[str]:
    """Yield what is wrong with one import, except for circles."""
    target = imported.target
    if imported.nested:
        yield f"{target} is imported within a function"
    if is_pure(module) and target.partition(".")[0] in IMPURE:
        yield f"{module} is pure: it cannot import {target}"
    if not target.startswith(f"{PACKAGE}."):
        return
    own, other = part(module), part(target)
    for unknown in {own, other} - {*LEVELS, TOP, ""}:
        yield f"{PACKAGE}.{unknown} has no layer (scripts/imports.py)"
    goes_down = own in (other, TOP) or LEVELS.get(own, len(LAYERS)) > LEVELS.get(other, -1)
    if not goes_down:
        yield f"{module} imports {target}: imports go down only"
    layout, other_layout = LAYOUT.search(module), LAYOUT.search(target)
    if layout and other_layout and layout[1] != other_layout[1]:
        yield f"{module} imports {target}: table layouts do not import each other"


def imports_of(source: str, modules: Iterable[str]) -> Iterator[Import]:
    """Yield the imports in a module's text. `from tsd.store import memory` imports tsd.store.memory if that is a file,
    and otherwise tsd.store."""
    known = frozenset(modules)

    def walk(node: ast.AST, nested: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, nested)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for target in dict.fromkeys(deepest(base, alias.name, known) for alias in node.names):
                yield Import(node.lineno, target, nested)
        inside = nested or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    return walk(ast.parse(source), nested=False)


def deepest(base: str, name: str, known: frozenset[str]) -> str:
    """Return the module that `from base import name` reads."""
    return f"{base}.{name}" if f"{base}.{name}" in known else base


def circle(imports: Mapping[str, Iterable[Import]]) -> Iterator[str]:
    """Yield a circle of modules that import each other, if there is one."""
    graph = {
        name: {i.target for i in found if i.target in imports and i.target != name} for name, found in imports.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        yield "imports in a circle: " + " < ".join(exc.args[1])


def module_name(file: Path, root: Path) -> str:
    """Return the dotted name of a file; `__init__` has its package's name."""
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part(module: str) -> str:
    """Return the second word of a module's name: errors, codec, store, …; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def is_pure(module: str) -> bool:
    """Return whether a module is pure."""
    return any(module == pure or module.startswith(f"{pure}.") for pure in PURE)


if __name__ == "__main__":
    broken = problems(Path(__file__).parents[1])
    print("\n".join(broken) or "imports go down only")
    sys.exit(1 if broken else 0)
