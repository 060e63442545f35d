"""A daemon with the system call filter of a systemd unit, enforced by the kernel.

`python -m tests.e2e.sandbox CALLS WORD…` installs the filter and becomes `tsd WORD…`. `CALLS` are the names of the
allowed calls, separated by commas. Other calls fail with EPERM. Memory cannot become executable.
"""

import ctypes
import errno
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.e2e.command import HOST, PATIENCE_S, ROOT
from tests.e2e.notify_socket import NotifySocket

ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # of libseccomp
NO_NEW_PRIVILEGES, MDWE, REFUSE_GAIN = 38, 65, 1  # of prctl(2)


class SandboxedDaemon:
    """A daemon behind a unit's SystemCallFilter= and MemoryDenyWriteExecute=."""

    def __init__(self, folder: Path, analyze: Path, rules: Sequence[str]) -> None:
        """`rules` are the values of SystemCallFilter=; those that begin with ~ remove calls."""
        calls: set[str] = set()
        for rule in rules:
            named = {call for group in rule.lstrip("~").split() for call in expanded(analyze, group)}
            calls = calls - named if rule.startswith("~") else calls | named
        self._folder = tempfile.TemporaryDirectory(prefix="tsd")
        self._notify_socket = NotifySocket(f"{self._folder.name}/notify")
        words = ["serve", "--port", "0", "--data", str(folder)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.sandbox", ",".join(sorted(calls)), *words],
            cwd=ROOT, env=os.environ | self._notify_socket.env | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._port = 0

    def __enter__(self) -> Self:
        try:
            self._port = int(self._notify_socket.receive_until(r"^STATUS=serving port (\d+)$")[1])
        except TimeoutError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._notify_socket.close()
        self._folder.cleanup()

    def send_lines(self, lines: bytes, *, until: bytes) -> bytes:
        """Send lines. Return the replies once they end with `until`."""
        answer = b""
        with socket.create_connection((HOST, self._port), timeout=PATIENCE_S) as connection:
            connection.sendall(lines)
            while not answer.endswith(until):
                part = connection.recv(65536)
                assert part, answer
                answer += part
        return answer

    def get(self, path: str) -> bytes:
        """Return the body of a page."""
        with urllib.request.urlopen(f"http://{HOST}:{self._port}{path}", timeout=PATIENCE_S) as answer:
            body: bytes = answer.read()
        return body

    def stop(self) -> int:
        """Return the exit status after SIGTERM."""
        self._process.terminate()
        return self._process.wait(PATIENCE_S)

    @staticmethod
    def can_draw() -> bool:
        """Whether the libraries that draw graphs are installed."""
        return importlib.util.find_spec("matplotlib") is not None


def expanded(analyze: Path, group: str) -> set[str]:
    """Return the system calls of a group and its subgroups."""
    if not group.startswith("@"):
        return {group}
    done = subprocess.run([analyze, "syscall-filter", "--no-pager", group], check=True, capture_output=True, text=True)
    members = re.findall(r"^ {4}(@?[a-z0-9_-]+)$", done.stdout, re.MULTILINE)
    assert members, done.stdout
    return {call for member in members for call in expanded(analyze, member)}


def restrict_system_calls(calls: Sequence[str]) -> None:
    """Make the kernel refuse all other calls of this process, and executable memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    libc.prctl(MDWE, REFUSE_GAIN, 0, 0, 0)  # older kernels do not know it
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(ERRNO | errno.EPERM))
    for call in calls:
        number = seccomp.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # the others belong to other processors
            assert seccomp.seccomp_rule_add(rules, ALLOW, number, 0) == 0, call
    assert seccomp.seccomp_load(rules) == 0


if __name__ == "__main__":
    restrict_system_calls(sys.argv[1].split(","))
    os.execv(sys.executable, [sys.executable, "-m", "tsd", *sys.argv[2:]])
