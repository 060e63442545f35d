"""Daemons that are handed the sockets they serve, as systemd hands them to a service: fd 3, LISTEN_PID, LISTEN_FDS."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.command import HOST, PATIENCE_S, ROOT
from tests.e2e.notices import Notices

FIRST_FD = 3
# What becomes the daemon: the descriptors are put in place, and the process says that they are for itself.
_BECOME = f"""
import os, sys
fds, words = sys.argv[1].split(","), sys.argv[2:]
far = [os.dup(int(fd)) for fd in fds]
for place, fd in enumerate(far, {FIRST_FD}):
    os.dup2(fd, place)
    os.set_inheritable(place, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=":".join("tsd" for _ in fds))
os.execv(sys.executable, [sys.executable, "-m", "tsd", *words])
"""


class Life:
    """One daemon on sockets that are there before it and after it."""

    def __init__(self, folder: Path, sockets: Sequence[socket.socket], notices: Notices, words: Sequence[str]) -> None:
        fds = [one.fileno() for one in sockets]
        self._notices = notices
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BECOME, ",".join(map(str, fds)), "serve", "--data", str(folder), *words],
            pass_fds=fds, cwd=ROOT, env=os.environ | notices.env | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE,
        )  # fmt: skip

    def await_ready(self) -> int:
        """The port that it says it serves, once it does."""
        return int(self._notices.take_until(r"^STATUS=serving port (\d+)$")[1])

    def end(self) -> tuple[int, str]:
        """Its exit status after SIGTERM, and what it had to say."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Its exit status, and what it had to say."""
        _, said = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, re.sub(r"\x1b\[[0-9;]*m", "", said.decode())

    def close(self) -> None:
        """Leave nothing of it."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def life(folder: Path, sockets: Sequence[socket.socket], notices: Notices, *words: str) -> Iterator[Life]:
    """A daemon that may be about to serve; killed at the end, if it still runs."""
    daemon = Life(folder, sockets, notices, words)
    try:
        yield daemon
    finally:
        daemon.close()


@contextmanager
def held_port() -> Iterator[socket.socket]:
    """A port that is held as systemd holds one."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        held.listen(4096)
        yield held
