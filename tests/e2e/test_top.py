"""`tsd top` on a terminal."""

import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.e2e.command import Tsd

pytestmark = pytest.mark.slow
COLUMNS = 80
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
REFUSED = b"put a.metric.with.a.rather.long.name.and.no.value.at.all host=" + b"x" * 300 + b"\n"


@contextmanager
def terminal(tsd: Tsd, *words: str) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """Run a command on a terminal of 80 columns. Yield the terminal's other side."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    # The shell that runs the tests may have them ignore SIGINT.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from tsd.cli import main; main()"
    command = [sys.executable, "-c", code, *words, "--data", str(tsd.folder)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            yield ours, process
        finally:
            process.kill()
            os.close(ours)


def read_until(terminal: int, wanted: str) -> str:
    """Read what the terminal shows until it has a pattern. Fail if the command ends before."""
    shown = b""
    while not re.search(wanted.encode(), shown, re.DOTALL):
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # as Linux reports the end
            pytest.fail(f"wanted {wanted!r}, got {shown!r}")
    return shown.decode()


@pytest.mark.parametrize("words", [("--once",), ()])
def test_numbers_whole_on_80_columns_after_refused_lines(tmp_path: Path, words: tuple[str, ...]) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "true"})
    with tsd.serve() as served:
        good = b"".join(b"put sys.cpu %d 42 host=web01\n" % (1356998400 + n) for n in range(12_345))
        served.send_lines(good + REFUSED * 7)
        with terminal(tsd, "top", "--interval", "0.01", *words) as (shown, process):
            text = read_until(shown, r"12,353.*illegal argument.*\n" + ("" if words else ".*quit"))
            if not words:
                os.write(shown, b"q")
            assert process.wait() == 0
        if not words:
            with terminal(tsd, "top") as (shown, process):
                read_until(shown, "quit")
                process.send_signal(signal.SIGINT)
                assert process.wait() == 130
    lines = ESCAPES.sub("", text.replace("\x1b[H", "\n")).replace("\r", "").split("\n")
    assert max(map(len, lines)) <= COLUMNS
    head = next(line for line in lines if "CLIENT" in line)
    row = next(line for line in lines if "127.0.0.1" in line)
    counts = dict(zip(re.split("  +", head), re.split("  +", row), strict=True))
    assert (counts["LINES"], counts["REFUSED"]) == ("12,353", "7")  # with the line `sync`
    assert {"LINES/S", "REFUSED/S"} <= set(counts)
