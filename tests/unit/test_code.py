"""Rules for the package's code: it must not run text as code, or start programs that a request names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tsd").rglob("*.py"))

# Calls that run text as code, or read bytes as objects; and those that start processes.
CODE = frozenset(
    "eval exec compile __import__ pickle.load pickle.loads marshal.load marshal.loads shelve.open yaml.load "
    "yaml.unsafe_load dill.loads code.interact runpy.run_path runpy.run_module importlib.import_module "
    "os.system os.popen subprocess.getoutput subprocess.getstatusoutput jinja2.Template string.Template".split()
)
PROCESSES = frozenset(
    "subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen "
    "trio.run_process trio.lowlevel.open_process os.fork os.forkpty os.posix_spawn os.posix_spawnp os.execv os.execve "
    "os.execvp os.execvpe os.spawnv os.spawnve multiprocessing.Process pty.spawn".split()
)
MODULES = frozenset("pickle marshal shelve dill yaml jinja2 mako runpy pty commands code".split())
STARTING = {
    "tsd/api/graph/process.py",
    "tsd/cli/torture/",
}  # a picture's own process, and what tests daemons of its own
TORTURE = frozenset({"runpy", "runpy.run_path", "runpy.run_module", "importlib.import_module"})  # those daemons' code

LAZY = {"tsd/cli/__init__.py": frozenset({"importlib.import_module"})}  # commands, from a table of constants


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Each call with the name that it has in the text; of one that was imported by name, with its module's."""
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            yield modules.get(name, name), node


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("package", sorted({file.parent for file in FILES}), ids=lambda folder: named(folder))
def test_nothing_runs_text_as_code_or_starts_processes(package: Path) -> None:
    wrong = []
    for file in (file for file in FILES if file.parent == package):
        tree = ast.parse(file.read_text("utf-8"))
        allowed = TORTURE if named(file).startswith("tsd/cli/torture/") else LAZY.get(named(file), frozenset())
        may_start = any(named(file).startswith(place) for place in STARTING)
        for name, call in calls(tree):
            shell = any(keyword.arg == "shell" and not _is_false(keyword.value) for keyword in call.keywords)
            if (name in CODE - allowed) or shell or (name in PROCESSES and not may_start):
                wrong.append(f"{named(file)}:{call.lineno}: {name}")
        for node in ast.walk(tree):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            wrong += [f"{named(file)}: imports {name}" for name in found if name.partition(".")[0] in MODULES - allowed]
    assert wrong == []


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_search_finds_forbidden_calls() -> None:
    text = "from subprocess import run as go\nimport os\ngo('x')\nos.system('x')\nre.compile('x')\neval('1')"
    assert {"subprocess.run", "os.system", "eval"} <= {name for name, _ in calls(ast.parse(text))}
