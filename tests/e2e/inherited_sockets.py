"""Daemons that inherit their sockets as systemd services do: descriptors from 3, LISTEN_PID, LISTEN_FDS."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.command import HOST, PATIENCE_S, ROOT
from tests.e2e.notify_socket import NotifySocket

FIRST_FD = 3
# This program moves the descriptors into place, sets the variables and becomes the daemon.
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


class InheritingDaemon:
    """A daemon on sockets that exist before it starts and after it ends."""

    def __init__(
        self, folder: Path, sockets: Sequence[socket.socket], notify_socket: NotifySocket, words: Sequence[str]
    ) -> None:
        fds = [one.fileno() for one in sockets]
        self._notify_socket = notify_socket
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BECOME, ",".join(map(str, fds)), "serve", "--data", str(folder), *words],
            pass_fds=fds,
            cwd=ROOT,
            env=os.environ | notify_socket.env | {"PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
        )

    def await_ready(self) -> int:
        """Return the port in the daemon's status once it serves."""
        return int(self._notify_socket.receive_until(r"^STATUS=serving port (\d+)$")[1])

    def end(self) -> tuple[int, str]:
        """Send SIGTERM. Return exit status and standard error."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Return exit status and standard error."""
        _, errors = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, re.sub(r"\x1b\[[0-9;]*m", "", errors.decode())

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def inheriting_daemon(
    folder: Path, sockets: Sequence[socket.socket], notify_socket: NotifySocket, *words: str
) -> Iterator[InheritingDaemon]:
    """Start a daemon, and kill it at the end if it still runs."""
    daemon = InheritingDaemon(folder, sockets, notify_socket, words)
    try:
        yield daemon
    finally:
        daemon.close()


@contextmanager
def bound_port() -> Iterator[socket.socket]:
    """Bind and listen on a free port, as systemd does."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        held.listen(4096)
        yield held
