"""Commands of `tsd` as processes of their own, forked from one that has imported all of it.

Most of a short command's time is the interpreter's start and its imports, and who kills daemons, or tests commands,
runs thousands of them. One that is forked has the arguments, environment, folder and pipes that it is given and the
limits of who starts it, and ends as any other: by its interpreter's end.
What it lacks is what an environment tells an interpreter at its start (PYTHON…).

It may be given a clock of its own: a file that says how far its wall clock is ahead. The daemon reads the time from
Python's `time` module alone, so it is put in there; a time namespace shifts no wall clock, and libfaketime is not
everywhere.

`python -m tsd.torture.forked` is the process to fork from: one for each process that asks, and it ends with it.
"""

import atexit
import functools
import gc
import importlib
import json
import mmap
import os
import resource
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]  # where the package is
COMMANDS = "tsd.cli"  # what is forked has imported it; named, because it imports us
LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]
NUMBER = struct.Struct("=i")  # a process, or how it ended
AHEAD = struct.Struct("=q")  # what a clock's file holds: nanoseconds
FDS = 5  # of a request: standard input, output and error, where to tell how it ended, and what to run


_STARTING = threading.Lock()


class Forked:
    """A command of `tsd` under way, as a subprocess.Popen of bytes. Its output goes to pipes."""

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        folder: Path,
        env: Mapping[str, str] | None = None,
        clock: Path | None = None,
    ) -> None:
        """Start it in `folder`, with the environment `env` (None: ours) and a clock that `set_ahead` has made."""
        request = {
            "words": list(map(str, words)),
            "folder": str(folder),
            "env": dict(os.environ if env is None else env),
            "clock": None if clock is None else str(clock),
            "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        }
        stdin, stdout, stderr, told = (os.pipe() for _ in range(4))
        theirs = [stdin[0], stdout[1], stderr[1], told[1], os.memfd_create("request")]
        try:
            os.pwrite(theirs[-1], json.dumps(request).encode(), 0)
            socket.send_fds(_origin(), [b"!"], theirs)
        finally:
            for fd in theirs:
                os.close(fd)
        self.stdin = os.fdopen(stdin[1], "wb")
        self.stdout = os.fdopen(stdout[0], "rb")
        self.stderr = os.fdopen(stderr[0], "rb")
        self._told = os.fdopen(told[0], "rb", buffering=0)
        self._polling = threading.Lock()
        self.returncode: int | None = None
        self.pid = self._next_told()

    def poll(self) -> int | None:
        """Its exit status (of a signal: negative), None while it runs."""
        with self._polling:
            if self.returncode is None and _readable(self._told.fileno(), 0):
                self.returncode = self._next_told()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended. Raises subprocess.TimeoutExpired after `timeout` seconds. Several may
        wait, and one of them close it while another has not yet looked."""
        with self._polling:
            if self.returncode is not None:
                return self.returncode
            # A descriptor of our own: the number of one that is closed is soon another pipe's, which may stay silent.
            told = os.dup(self._told.fileno())
        try:
            if not _readable(told, timeout):
                raise subprocess.TimeoutExpired("tsd", timeout or 0)
        finally:
            os.close(told)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: bytes = b"") -> tuple[bytes, bytes]:
        """Write `given` to its input, and return its output and error output once it has ended."""
        errors: list[bytes] = []
        others = [
            threading.Thread(target=self._feed, args=(given,)),
            threading.Thread(target=lambda: errors.append(self.stderr.read())),
        ]
        for other in others:
            other.start()
        output = self.stdout.read()
        for other in others:
            other.join()
        self.wait()
        return output, errors[0]

    def close(self) -> None:
        """Close our ends of its pipes."""
        with self._polling:
            self._told.close()
        for pipe in (self.stdout, self.stderr):
            pipe.close()
        self._feed(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._feed(b"")
        self.wait()
        self.close()

    def _next_told(self) -> int:
        number: int = NUMBER.unpack(self._told.read(NUMBER.size))[0]
        return number

    def _feed(self, given: bytes) -> None:
        try:
            if given:
                self.stdin.write(given)
            self.stdin.close()
        except BrokenPipeError:  # it does not want all of it
            pass


def _readable(fd: int, timeout: float | None) -> bool:
    with selectors.PollSelector() as selector:  # select() takes no fd above 1023
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(timeout))


def _origin() -> socket.socket:
    """Where to ask for commands."""
    with _STARTING:
        return _start_origin()


@functools.cache
def _start_origin() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        origin = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=ROOT, process_group=0,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},  # what forks must have no threads
        )  # fmt: skip
    atexit.register(origin.wait)
    atexit.register(ours.close)  # it ends then
    return ours


def _serve(asked: socket.socket) -> None:
    """Fork commands until nobody can ask any more; returns in a command's process only."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # it does not wait for those who wait
    while True:
        word, fds, _, _ = socket.recv_fds(asked, 1, FDS)
        if not word:  # whoever asked has ended, maybe by a crash: what it started ends too
            os.killpg(0, signal.SIGKILL)
        if os.fork() == 0:
            asked.close()
            return _become(fds)
        for fd in fds:
            os.close(fd)


def _become(fds: Sequence[int]) -> None:
    """Fork once more: return in the command's process, and tell its number and its end from this one."""
    *standard, told, request = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    unready, ready = os.pipe()
    pid = os.fork()
    if pid:
        for fd in (*standard, request, ready):
            os.close(fd)
        os.read(unready, 1)  # its end: who knows the number may change limits, and that must come later than ours
        os.write(told, NUMBER.pack(pid))
        os.write(told, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    with open(request, "rb") as file:
        asked = json.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    os.close(told)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    time.tzset()
    for name, limit in asked["limits"].items():
        resource.setrlimit(getattr(resource, name), limit)
    if asked["clock"] is not None:
        _go_by(Path(asked["clock"]))
    os.close(unready)
    os.close(ready)
    sys.argv[1:] = asked["words"]


def set_ahead(clock: Path, ahead_ms: int) -> None:
    """Have a clock be so far ahead of the real one (below 0: behind it) from now on."""
    with clock.open("r+b" if clock.exists() else "w+b") as file:
        file.write(AHEAD.pack(ahead_ms * 1_000_000))


def _go_by(clock: Path) -> None:
    """Have this process's wall clock be as far ahead as a file says, at any time."""
    with clock.open("rb") as file:
        ahead = mmap.mmap(file.fileno(), AHEAD.size, access=mmap.ACCESS_READ)
    real_ns = time.time_ns

    def shifted_ns() -> int:
        return real_ns() + int(AHEAD.unpack_from(ahead)[0])

    vars(time).update(time_ns=shifted_ns, time=lambda: shifted_ns() / 1e9)


if __name__ == "__main__":
    importlib.import_module(COMMANDS)
    gc.freeze()  # or each command's end goes through all that was imported, which takes longer than the command
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("tsd", run_name="__main__", alter_sys=True)
