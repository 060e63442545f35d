"""Holds the package's imports against the order that the parts stand in: they go down only, and never in a circle.

    python -m scripts.imports

Prints one line for each that breaks a rule, and then ends with status 1.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

PACKAGE = "tsd"

# The parts of the package, lowest first. A part may import those on lines above its own, and itself.
ORDER = (
    ("bytemap", "errors", "heap", "properties", "build", "credentials", "latency", "pattern_cost", "tasks"),
    ("codec",),
    ("setting", "opentsdb_keys"),
    ("access_settings", "limit_settings"),
    ("settings",),
    ("access",),
    ("config", "log", "state", "systemd"),
    ("store",),
    ("uid_flight", "series_entries"),
    ("uids",),
    ("metadata", "rollups", "histograms", "series_index"),
    ("ingest", "query", "compaction", "copying", "fsck", "uid_table", "uid_pace", "uid_recheck", "loop_lag"),
    ("graphs",),
    ("assembly", "doors", "series_watch", "canary", "reloads", "signals", "upkeep"),
    ("deadletters",),
    ("stats", "watchdog"),
    ("api",),
    ("serving",),
    ("daemon", "torture"),
    ("life",),
    ("cli",),
    ("__main__",),
)
LEVELS = {part: level for level, parts in enumerate(ORDER) for part in parts}

# What turns bytes into other bytes neither waits, nor looks at the clock, nor speaks.
NUMBERS = "aggregators bucketed buckets calendar downsample folds javamath merge merging ranges ranks rate"
PURE = ("tsd.codec", *(f"tsd.query.{name}" for name in NUMBERS.split()))
IMPURE = frozenset({"trio", "asyncio", "threading", "socket", "time", "logging", "structlog"})


class Import(NamedTuple):
    """One import of a module, as far as the rules care."""

    line: int
    target: str  # the module, as deep as there is a file for it
    nested: bool  # within a function


def problems(root: Path) -> list[str]:
    """What breaks a rule in the package under `root`: one sentence each, with file and line."""
    modules = {module_name(file, root): file for file in sorted((root / PACKAGE).rglob("*.py"))}
    imports = {name: list(imports_of(file.read_text("utf-8"), modules)) for name, file in modules.items()}
    found = []
    for name, file in modules.items():
        for imported in imports[name]:
            where = f"{file.relative_to(root)}:{imported.line}"
            found += [f"{where}: {wrong}" for wrong in wrongs(name, imported)]
    return found + list(circle(imports))


def wrongs(module: str, imported: Import) -> Iterator[str]:
    """What is wrong with one import, but for circles."""
    target = imported.target
    if imported.nested:
        yield f"{target} is imported within a function"
    if is_pure(module) and target.partition(".")[0] in IMPURE:
        yield f"{module} is pure: it cannot import {target}"
    if not target.startswith(f"{PACKAGE}."):
        return
    own, other = part(module), part(target)
    for unknown in {own, other} - {*LEVELS, ""}:
        yield f"{PACKAGE}.{unknown} has no place in the order of parts (scripts/imports.py)"
    if own != other and LEVELS.get(own, len(ORDER)) <= LEVELS.get(other, -1):
        yield f"{module} imports {target}: imports go down only"


def imports_of(source: str, modules: Iterable[str]) -> Iterator[Import]:
    """The imports in a module's text: `from tsd.store import embedded` is one of tsd.store.embedded if that is a
    module, and of tsd.store if it is not."""
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
    """The module that `from base import name` reads."""
    return f"{base}.{name}" if f"{base}.{name}" in known else base


def circle(imports: Mapping[str, Iterable[Import]]) -> Iterator[str]:
    """A circle of modules that import each other, if there is one."""
    graph = {
        name: {i.target for i in found if i.target in imports and i.target != name} for name, found in imports.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        yield "imports in a circle: " + " < ".join(exc.args[1])


def module_name(file: Path, root: Path) -> str:
    """The dotted name of a file; a package's `__init__` has the package's."""
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part(module: str) -> str:
    """The second word of a module's name: errors, codec, store, …; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def is_pure(module: str) -> bool:
    """Whether a module is one that only turns bytes into bytes."""
    return any(module == pure or module.startswith(f"{pure}.") for pure in PURE)


if __name__ == "__main__":
    broken = problems(Path(__file__).parents[1])
    print("\n".join(broken) or "imports go down only")
    sys.exit(1 if broken else 0)
