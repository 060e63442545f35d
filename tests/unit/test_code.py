"""Rules for the package's code: it must not run text as code, or start programs that a request names."""

import ast
import re
from collections.abc import Iterator, Sequence
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
    "tsd/__init__.py",
}  # a picture's own process, what tests daemons of its own, and Git for the commit of a checkout
TORTURE = frozenset({"runpy", "runpy.run_path", "runpy.run_module", "importlib.import_module"})  # those daemons' code

LAZY = {  # constants
    "tsd/cli/options.py": frozenset({"importlib.import_module"}),
    "tsd/lazy.py": frozenset({"importlib.import_module"}),
    "tsd/__init__.py": frozenset({"importlib.import_module"}),
}


def calls(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    """Each call with the name that it has in the text; of one that was imported by name, with its module's."""
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }
    for node in nodes:
        if isinstance(node, ast.Call):
            name = spelled(node.func)
            yield modules.get(name, name), node


def spelled(function: ast.expr) -> str:
    """What is called, if it is a name or an attribute of one."""
    names = []
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    names.append(function.id if isinstance(function, ast.Name) else "")
    return ".".join(reversed(names))


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("package", sorted({file.parent for file in FILES}), ids=lambda folder: named(folder))
def test_nothing_runs_text_as_code_or_starts_processes(package: Path) -> None:
    wrong = []
    for file in (file for file in FILES if file.parent == package):
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
        allowed = TORTURE if named(file).startswith("tsd/cli/torture/") else LAZY.get(named(file), frozenset())
        may_start = any(named(file).startswith(place) for place in STARTING)
        for name, call in calls(nodes):
            shell = any(keyword.arg == "shell" and not _is_false(keyword.value) for keyword in call.keywords)
            if (name in CODE - allowed) or shell or (name in PROCESSES and not may_start):
                wrong.append(f"{named(file)}:{call.lineno}: {name}")
        for node in nodes:
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            wrong += [f"{named(file)}: imports {name}" for name in found if name.partition(".")[0] in MODULES - allowed]
    assert wrong == []


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_absence_of_files_is_told_from_errors() -> None:
    """Methods of Path return False or nothing for errors of the disk: see tsd/config/files.py."""
    wrong = []
    for file in FILES:
        for name, call in calls(list(ast.walk(ast.parse(file.read_text("utf-8"))))):
            if re.search(r"\.(exists|is_file|is_dir|glob|rglob)$", name) and not name.startswith(("os.path.", "tsd.")):
                wrong.append(f"{named(file)}:{call.lineno}: {name}")
    assert wrong == []


def test_search_finds_forbidden_calls() -> None:
    text = "from subprocess import run as go\nimport os\ngo('x')\nos.system('x')\nre.compile('x')\neval('1')"
    assert {"subprocess.run", "os.system", "eval"} <= {name for name, _ in calls(list(ast.walk(ast.parse(text))))}


# Constants that tests may import: parts of a format, limits that clients see, and sizes from which a test derives input
# that is just below or above a limit. Values that only tune speed or timing are arguments, or tests do without them.
ALLOWED_IN_TESTS = frozenset(
    "BASE_BYTES BATCH_BYTES BATCH_POINTS BLOCK_BYTES CHECKSUM_BYTES DIGEST_BYTES END_MS FIRST_MS HEADER_BYTES HOUR_MS "
    "HOUR_S LAST_BASE_MS LEAST_POINTS LONGEST_HBASE_KEY LONGEST_HEROIC_KEY LONG_BYTES MOST_BYTES NO_POINTS PAGE_BYTES "
    "POINT_BYTES START_BYTES DEFAULT_WIDTH_MS MINUTE_MS UNCHUNKED_BYTES UNCOUNTED_BYTES "
    "MAX_DEPTH MAX_FILTERS MAX_GZIP_MEMBERS MAX_HEAD_BYTES MAX_JSON_BYTES MAX_LOGIN_ATTEMPTS MAX_SUB_QUERIES MAX_TEXT "
    "MOST_LATE_DAYS BUSY_MS CELL_POINTS CHUNK_BYTES DAY_MS EXTENSION_S JITTER_S LOGIN_TIMEOUT_S MIN_COMPRESSED_BYTES "
    "PROGRESS_INTERVAL_S READ_BYTES RECENT_S RELOAD_INTERVAL_S REOPEN_S RESERVED_DESCRIPTORS SAFE_S SETTLED_MS "
    "SETTLE_MS SMALL_PACKET_BYTES STALLED_CHECKS START_GRACE_S "
    "HIGH_BYTES_PER_S HOLD_S MAX_PAUSE_S MAX_SAMPLE_AGE_S MIN_PAUSE_S PAUSE_RATIO SAMPLE_S".split()
)
TUNING = re.compile(
    r"(MAX|MIN|MOST|LARGE|FIRST|LONGEST|SAMPLE)_[A-Z_]+|[A-Z_]+_(S|MS|BYTES|CELLS|ROWS|POINTS|LINES)|RETRIES"
)
IMPORTS = re.compile(r"^[ \t]*(from[ \t]+tsd\b[^(\n]*(?:\([^)]*\))?)", re.MULTILINE)  # to parse every file takes 2 s


def test_tests_import_no_new_tuning_constants() -> None:
    texts = [file.read_text("utf-8") for file in sorted((ROOT / "tests").rglob("*.py"))]
    words = [{word for part in IMPORTS.findall(text) for word in re.findall(r"[A-Z_]+", part)} for text in texts]
    assert ALLOWED_IN_TESTS & set().union(*words)
    found = {
        alias.name
        for text, some in zip(texts, words, strict=True)
        if any(TUNING.fullmatch(word) for word in some - ALLOWED_IN_TESTS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tsd"
        for alias in node.names
        if TUNING.fullmatch(alias.name)
    }
    assert found - ALLOWED_IN_TESTS == set()
