"""The command `tsd`: its help, its version, its exit statuses and what it imports."""

import subprocess
import sys

import click
import pytest

from tsd import __version__
from tsd.cli import COMMANDS, find_command

PROGRAM = "import sys; from tsd.cli import main; sys.argv = ['tsd', *sys.argv[1:]]; "


def run(*words: str, program: str = "main()") -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", PROGRAM + program, *words], capture_output=True, text=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists(name: str) -> None:
    command = find_command(name)
    assert isinstance(command, click.Command)
    assert command.name == name


def test_help_lists_whole_summaries_without_importing_commands() -> None:
    done = run("--help", program="import atexit; atexit.register(lambda: print('trio' in sys.modules)); main()")
    assert done.returncode == 0
    assert all(entry.summary in done.stdout for entry in COMMANDS.values())
    assert done.stdout.endswith("False\n")


def test_version_option() -> None:
    assert run("--version").stdout == f"tsd {__version__}\n"


@pytest.mark.parametrize("words", [["nothing"], ["--nothing"], ["compact", "--rate", "x"]])
def test_wrong_usage_has_status_2(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert done.stdout == ""


def test_interrupted_command_has_status_130() -> None:
    raised = "import tsd.cli.serve as serve\n"
    raised += "def stop(*_): raise KeyboardInterrupt\nserve.trio.run = stop\nmain()"
    assert run("health", program="pass\n" + raised).returncode == 130


def test_closed_pipe_has_status_0() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM + "main()", "check-config", "--show"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0
