"""The cache of compiled loops: equal sources are compiled once, and what an earlier source gave is never left."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from sysconfig import get_config_var

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# A compiler that writes down what it makes; the file that it makes is never loaded. BROKEN holds a name it refuses.
COMPILER = """#!/bin/sh
echo "$*" >>"$LOG"
case "$*" in *"${BROKEN:-no such name}"*) exit 1 ;; esac
while [ $# -gt 1 ]; do
    if [ "$1" = -o ]; then echo $$ >"$2"; fi
    shift
done
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Compile with COMPILER, and keep a cache in a folder of the test. Return the compiler's log."""
    program = tmp_path / "cc"
    program.write_text(COMPILER)
    program.chmod(0o755)
    monkeypatch.setenv("CC", str(program))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "log"


def make_tree(folder: Path) -> Path:
    """Write a checkout with two loops, one of which names a file that it includes."""
    (folder / "tsd").mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", folder)
    (folder / "tsd" / "__init__.py").touch()
    (folder / "tsd" / "_one.pyx").write_text('include "_part.pxi"\n')
    (folder / "tsd" / "_part.pxi").write_text("ONE = 1\n")
    (folder / "tsd" / "_two.pyx").write_text("TWO = 2\n")
    return folder


def build(tree: Path, *words: str) -> dict[str, str]:
    """Build the loops of a tree. Return its compiled modules: the content of each by name."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", *(words or ["--inplace"])]
    done = subprocess.run(command, cwd=tree, env=os.environ.copy(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {
        file.name.partition(".")[0]: file.read_text()
        for file in (tree / "tsd").glob(f"*{get_config_var('EXT_SUFFIX')}")
    }


def compiled(log: Path) -> set[str]:
    """Return the names of C sources in the compiler's log, and empty it."""
    words = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return {Path(word).stem for word in words if word.endswith(".c")}


def test_equal_sources_are_compiled_once(compiler: Path, tmp_path: Path) -> None:
    first = build(make_tree(tmp_path / "a"))
    assert compiled(compiler) == set(first) == {"_one", "_two", "_cython"}
    assert build(make_tree(tmp_path / "b")) == first
    assert compiled(compiler) == set()


def test_a_change_compiles_only_the_loops_that_name_it(compiler: Path, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "a")
    first = build(tree)
    compiled(compiler)
    part = tree / "tsd" / "_part.pxi"
    part.write_text("ONE = 3\n")
    second = build(tree)
    assert compiled(compiler) == {"_one"}
    assert {name for name in first if first[name] != second[name]} == {"_one"}
    part.write_text("ONE = 1\n")
    assert build(tree) == first
    assert compiled(compiler) == set()


def test_no_loop_of_an_earlier_source_is_left(compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make_tree(tmp_path / "a")
    build(tree)
    (tree / "tsd" / "_one.pyx").unlink()
    (tree / "tsd" / "_two.pyx").write_text("TWO = 3\n")
    monkeypatch.setenv("BROKEN", "_two")
    assert set(build(tree)) == {"_cython"}


def test_another_compiler_compiles_again(compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make_tree(tmp_path / "a")
    build(tree)
    compiled(compiler)
    monkeypatch.setenv("CFLAGS", "-DOTHER")
    build(tree)
    assert compiled(compiler) == {"_one", "_two", "_cython"}


def test_wheels_are_compiled_without_the_cache(compiler: Path, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "a")
    build(tree)
    compiled(compiler)
    build(tree, "--build-lib", "built", "--build-temp", "other")
    assert compiled(compiler) == {"_one", "_two", "_cython"}


def test_a_cache_that_cannot_be_written_changes_nothing(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert set(build(make_tree(tmp_path / "a"))) == {"_one", "_two", "_cython"}
