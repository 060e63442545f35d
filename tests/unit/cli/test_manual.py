"""Man pages and completions: as the repository has them, and as shells and man read them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tsd.cli import COMMANDS
from tsd.config.loader import SEARCHED

ROOT = Path(__file__).parents[3]
SHARE = ROOT / "packaging" / "share"
PAGES = SHARE / "man" / "man1"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.iterdir()}


def test_repository_has_what_is_generated(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "tsd.cli.manual", tmp_path], check=True, cwd=ROOT)
    assert contents(tmp_path) == contents(PAGES)


def test_every_command_has_a_page() -> None:
    assert {f"tsd-{name}.1" for name in COMMANDS} <= {path.name for path in PAGES.iterdir()}


def test_pages_name_the_configurations_that_are_read_without_the_option() -> None:
    for page in PAGES.iterdir():
        _, files = page.read_text().split(".SH FILES\n")
        assert files.splitlines()[1] == f".I {', '.join(map(str, SEARCHED))}", page.name


def test_pages_are_read_without_warnings(program: Callable[[str], Path]) -> None:
    groff = program("groff")
    pages = sorted(PAGES.iterdir())
    done = subprocess.run([groff, "-man", "-Tutf8", "-ww", "-z", *pages], capture_output=True, text=True, check=True)
    assert done.stderr == ""


START = {
    "bash": "source {file}\n",
    "zsh": "autoload -U compinit; compinit -u; source {file}\n",
    "fish": "source {file}\n",
}
ASK = {
    "bash": "COMP_WORDS=({words}); COMP_CWORD={last}; _tsd_completion tsd; printf '%s\\n' ${{COMPREPLY[@]}}",
    "zsh": "compadd() {{ print -l -- $completions }}; _describe() {{ print -l -- $completions_with_descriptions }}\n"
    "words=({words}); CURRENT=$(({last} + 1)); _tsd_completion",
    "fish": "complete --do-complete '{words}'",
}
FILES = {
    "bash": "bash-completion/completions/tsd",
    "zsh": "zsh/site-functions/_tsd",
    "fish": "fish/vendor_completions.d/tsd.fish",
}


@pytest.mark.parametrize("shell", FILES)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [(("ver",), "version"), (("uid", "fs"), "fsck"), (("health", "re"), "ready"), (("top", "--on"), "--once")],
)
def test_shells_complete_commands_and_options(
    tmp_path: Path, program: Callable[[str], Path], shell: str, words: tuple[str, ...], wanted: str
) -> None:
    assert wanted in re.split(r"[\s:]+", completed(tmp_path, program, shell, words))


@pytest.mark.parametrize(("words", "wanted"), [(("import", "poi"), "points.txt"), (("uid", "fs"), "and repair it")])
def test_fish_completes_files_and_shows_descriptions_with_commas(
    tmp_path: Path, program: Callable[[str], Path], words: tuple[str, ...], wanted: str
) -> None:
    (tmp_path / "points.txt").touch()
    assert wanted in completed(tmp_path, program, "fish", words)


def completed(tmp_path: Path, program: Callable[[str], Path], shell: str, words: tuple[str, ...]) -> str:
    """Return what a shell completes the last word to."""
    (tmp_path / "tsd").write_text(f'#!/bin/sh\nexec {sys.executable} -m tsd "$@"\n')
    (tmp_path / "tsd").chmod(0o755)
    script = (START[shell] + ASK[shell]).format(
        file=SHARE / FILES[shell], words=" ".join(("tsd", *words)), last=len(words)
    )
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([program(shell), "-c", script], capture_output=True, text=True, env=env, cwd=tmp_path)
    return done.stdout
