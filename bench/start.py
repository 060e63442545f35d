"""`python -m bench.start`: CPU time of commands, some of which open a store, compared with an import of click.

Print ms of CPU time (medians) and the ratio to that interpreter.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROUNDS = 7
PEER = "import click"
MAIN = "from tsd.cli import main; main()"
COMMANDS = (
    "--help",
    "version",
    "check-config",
    "health",
    "rejected",
    "token list",
    "top --once --interval 0",
    "uid grep x",
    "scan 1h-ago sum x",
    "query 1h-ago sum:x",
)


def cpu_ms(program: str, words: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run Python with a program and arguments. Return its user and system time."""
    before = os.times()
    subprocess.run([sys.executable, "-c", program, *words], capture_output=True, check=False, env=environment)
    after = os.times()
    return 1000 * (after.children_user + after.children_system - before.children_user - before.children_system)


def main() -> None:
    """Measure in alternating rounds, and print a table."""
    spent: dict[str, list[float]] = {name: [] for name in ("click alone", *COMMANDS)}
    with TemporaryDirectory() as folder:
        accounts = Path(folder) / "accounts"
        accounts.touch()
        settings = ["--set", f"tsd.storage.path={folder}", "--set", f"tsd.auth.file={accounts}"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / ".bytecode")  # installed programs have it, too
        for at in range(ROUNDS + 1):
            spent["click alone"].append(cpu_ms(PEER, [], environment))
            for command in COMMANDS:
                spent[command].append(cpu_ms(MAIN, [*settings, *command.split()], environment))
            if not at:
                spent = {name: [] for name in spent}  # the first round has compiled everything
    peer = statistics.median(spent["click alone"])
    for name, values in spent.items():
        median = statistics.median(values)
        print(f"{name:<24} {median:6.0f} ms   {median / peer:.2f}")


if __name__ == "__main__":
    main()
