"""`tsd` commands as child processes, forked from a server process that has imported the package.

A short command spends most of its time starting the interpreter and importing, and tests run thousands of commands. A
forked command has its own arguments, environment, working folder and pipes, and the caller's resource limits. It exits
like any other command. Variables that Python reads at its start (PYTHON…) have no effect.

A command may have its own clock: a file with the offset of its wall clock. The daemon reads the time only from Python's
`time` module, where the offset is added. (A time namespace does not shift the wall clock, and libfaketime may be
missing.)

`python -m tsd.cli.torture.fork_server` is the server process: one for each process that starts commands. It ends with
that process.
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

ROOT = Path(__file__).parents[3]  # where the package is
COMMANDS = "tsd.cli"  # imported before forking; a name, because it imports this module
LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]
NUMBER = struct.Struct("=i")  # a process id or an exit status
AHEAD = struct.Struct("=q")  # content of a clock file: nanoseconds
FDS = 5  # of a request: standard input, output and error, a pipe for pid and exit status, and the request itself


_STARTING = threading.Lock()


class Forked:
    """A running `tsd` command, similar to subprocess.Popen. Its output goes to pipes."""

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        folder: Path,
        env: Mapping[str, str] | None = None,
        clock: Path | None = None,
    ) -> None:
        """Start it in `folder` with the environment `env` (None: the current one) and a clock file of `set_ahead`."""
        request = {
            "words": list(map(str, words)),
            "folder": str(folder),
            "env": dict(os.environ if env is None else env),
            "clock": None if clock is None else str(clock),
            "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        }
        stdin, stdout, stderr, status_pipe = (os.pipe() for _ in range(4))
        theirs = [stdin[0], stdout[1], stderr[1], status_pipe[1], os.memfd_create("request")]
        try:
            os.pwrite(theirs[-1], json.dumps(request).encode(), 0)
            socket.send_fds(_server_socket(), [b"!"], theirs)
        finally:
            for fd in theirs:
                os.close(fd)
        self.stdin = os.fdopen(stdin[1], "wb")
        self.stdout = os.fdopen(stdout[0], "rb")
        self.stderr = os.fdopen(stderr[0], "rb")
        self._status_pipe = os.fdopen(status_pipe[0], "rb", buffering=0)
        self._polling = threading.Lock()
        self.returncode: int | None = None
        self.pid = self._read_number()

    def poll(self) -> int | None:
        """Return the exit status (negative for a signal), None while the command runs."""
        with self._polling:
            if self.returncode is None and _readable(self._status_pipe.fileno(), 0):
                self.returncode = self._read_number()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit and return its status. Raise subprocess.TimeoutExpired after `timeout` seconds.

        Several threads may wait, and one of them may close it meanwhile.
        """
        with self._polling:
            if self.returncode is not None:
                return self.returncode
            # Duplicate the descriptor: the number of a closed one may be reused for another pipe.
            status_pipe = os.dup(self._status_pipe.fileno())
        try:
            if not _readable(status_pipe, timeout):
                raise subprocess.TimeoutExpired("tsd", timeout or 0)
        finally:
            os.close(status_pipe)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal unless the command has exited."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just exited
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: bytes = b"") -> tuple[bytes, bytes]:
        """Write `given` to standard input, wait for the exit, and return standard output and error."""
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
        """Close this process's ends of the pipes."""
        with self._polling:
            self._status_pipe.close()
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

    def _read_number(self) -> int:
        number: int = NUMBER.unpack(self._status_pipe.read(NUMBER.size))[0]
        return number

    def _feed(self, given: bytes) -> None:
        try:
            if given:
                self.stdin.write(given)
            self.stdin.close()
        except BrokenPipeError:  # it does not read all of it
            pass


def _readable(fd: int, timeout: float | None) -> bool:
    with selectors.PollSelector() as selector:  # select() takes no fd above 1023
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(timeout))


def _server_socket() -> socket.socket:
    """Return the socket of the fork server, which the first call starts."""
    with _STARTING:
        return _start_server()


@functools.cache
def _start_server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(  # noqa: S603 - this module
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=ROOT, process_group=0,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},  # no threads before fork
        )  # fmt: skip
    atexit.register(server.wait)
    atexit.register(ours.close)  # ends the server
    return ours


def _serve(requests: socket.socket) -> None:
    """Fork commands until the socket is closed. Return only in a command's process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that wait for commands are not waited for
    while True:
        word, fds, _, _ = socket.recv_fds(requests, 1, FDS)
        if not word:  # the caller has exited, maybe by a crash: kill its commands
            os.killpg(0, signal.SIGKILL)
        if os.fork() == 0:
            requests.close()
            return _become_command(fds)
        for fd in fds:
            os.close(fd)


def _become_command(fds: Sequence[int]) -> None:
    """Fork again: return in the command's process, and report its process id and exit status from this one."""
    *standard, status_pipe, request_file = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    unready, ready = os.pipe()
    pid = os.fork()
    if pid:
        for fd in (*standard, request_file, ready):
            os.close(fd)
        os.read(unready, 1)  # wait until the limits are set: a caller that has the process id may change them
        os.write(status_pipe, NUMBER.pack(pid))
        os.write(status_pipe, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    with open(request_file, "rb") as file:
        request = json.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    os.close(status_pipe)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    for name, limit in request["limits"].items():
        resource.setrlimit(getattr(resource, name), limit)
    if request["clock"] is not None:
        _shift_clock(Path(request["clock"]))
    os.close(unready)
    os.close(ready)
    sys.argv[1:] = request["words"]


def set_ahead(clock: Path, ahead_ms: int) -> None:
    """Set how far a clock is ahead of the real one (negative: behind it)."""
    with clock.open("r+b" if os.path.exists(clock) else "w+b") as file:
        file.write(AHEAD.pack(ahead_ms * 1_000_000))


def _shift_clock(clock: Path) -> None:
    """Shift this process's wall clock by the offset in a clock file, which may change."""
    with clock.open("rb") as file:
        ahead = mmap.mmap(file.fileno(), AHEAD.size, access=mmap.ACCESS_READ)
    real_ns = time.time_ns

    def shifted_ns() -> int:
        return real_ns() + int(AHEAD.unpack_from(ahead)[0])

    vars(time).update(time_ns=shifted_ns, time=lambda: shifted_ns() / 1e9)


if __name__ == "__main__":
    importlib.import_module(COMMANDS).import_all()
    gc.freeze()  # otherwise each exit collects all imported objects, which takes longer than the command
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("tsd", run_name="__main__", alter_sys=True)
