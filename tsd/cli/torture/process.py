"""`tsd serve` as a child process that can be killed, limited and measured. Its log is parsed and kept."""

import json
import os
import resource
import signal
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from tsd.cli.torture.fork_server import Forked
from tsd.errors import TsdError

TIMEOUT_S = 150.0  # for a daemon to start or end, also on a busy machine
DUMP_TIMEOUT_S = 5.0  # for a daemon to log where its tasks wait
TRACE_LINES = 30  # of a traceback: the last lines of an exception group say little
TASKS = "tasks.dumped"  # event of SIGUSR1


class DaemonExited(TsdError):
    """Raised when a daemon exited unexpectedly, or does not start or end."""


D = TypeVar("D", bound="DaemonProcess")


class DaemonProcess:
    """A daemon's process."""

    def __init__(self, process: Forked, log_file: Path) -> None:
        """Append the daemon's output to `log_file`."""
        self.process = process
        self._stderr = trio.lowlevel.FdStream(os.dup(process.stderr.fileno()))
        self._log_file = log_file
        self._since = trio.current_time()
        self.output_changed = trio.Event()
        self.events: list[dict[str, Any]] = []  # logged so far
        self.other_output: list[str] = []  # lines that are not log events: a traceback, for example
        self.port = 0
        self.killed = False  # or terminated by us
        self.exited = trio.Event()  # set once it has exited and its output is read

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self.process.poll() is None

    async def read_log(self) -> None:
        """Read the output until the process has exited."""
        tail = b""
        with self._log_file.open("ab", buffering=0) as log_file:
            while data := await self._stderr.receive_some():
                log_file.write(data)
                *lines, tail = (tail + data).split(b"\n")
                for line in lines:
                    try:
                        self.events.append(json.loads(line))
                    except ValueError:
                        self.other_output.append(line.decode("utf-8", "replace"))
                self.output_changed.set()
                self.output_changed = trio.Event()
        await self.ended()
        self.output_changed.set()
        self.exited.set()

    async def logged(self, *names: str) -> dict[str, Any]:
        """Return the first event with one of these names, once it is logged. Raise DaemonExited."""
        with trio.move_on_after(TIMEOUT_S):
            while not (found := [event for event in self.events if event["event"] in names]):
                if not self.alive:
                    raise DaemonExited(f"a daemon exited with status {self.process.returncode}: {self.last_output()}")
                await self.output_changed.wait()
            return found[0]
        await self.dump_tasks()
        raise DaemonExited(
            f"a daemon has not logged {' or '.join(names)!r} within {TIMEOUT_S:g} s: {self.last_output()}"
        )

    async def dump_tasks(self) -> None:
        """Make the daemon log where its tasks wait, if it still can."""
        before = len(self.events)
        self.process.send_signal(signal.SIGUSR1)
        with trio.move_on_after(DUMP_TIMEOUT_S):
            while self.alive and all(event["event"] != TASKS for event in self.events[before:]):
                await self.output_changed.wait()

    def last_output(self) -> str:
        """Return the end of its output."""
        return "\n".join(self.other_output[-TRACE_LINES:]) or str(self.events[-3:])

    async def ready(self) -> None:
        """Return once the daemon is ready. Raise DaemonExited."""
        self.port = (await self.logged("daemon.ready"))["port"]

    async def ended(self) -> int:
        """Wait for the exit and return its status."""
        return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    def check(self) -> None:
        """Raise DaemonExited if the daemon exited or wrote anything but log events."""
        if not self.alive or self.other_output:
            raise DaemonExited(f"a daemon {'failed' if self.alive else 'exited'}: {self.last_output()}")

    async def kill(self) -> None:
        """Kill the daemon (SIGKILL). Raise DaemonExited."""
        self.check()
        self.killed = True
        await self.end()

    async def terminate(self) -> list[str]:
        """Stop the daemon (SIGTERM); it stores all points. Return the names of its events. Raise DaemonExited."""
        self.killed = True
        self.process.terminate()
        status = -1
        with trio.move_on_after(TIMEOUT_S):
            status = await self.ended()
        if status or self.other_output:
            raise DaemonExited(f"a daemon did not stop cleanly: status {status}: {self.last_output()}")
        return [event["event"] for event in self.events]

    async def end(self) -> None:
        """Kill the process and wait for its exit. Raise DaemonExited."""
        self.process.kill()
        with trio.move_on_after(TIMEOUT_S):
            await self.ended()
            return
        raise DaemonExited(f"a daemon (process {self.pid}) was killed and has not exited within {TIMEOUT_S:g} s")

    def close(self) -> None:
        """Close its pipes, after its exit."""
        self._stderr.close()
        self.process.close()

    def scheduling(self) -> str:
        """Say how long its event loop has run, and how long it waited for a processor: the machine may be too busy."""
        try:
            ran_ns, waited_ns, _ = map(int, Path(f"/proc/{self.pid}/schedstat").read_text().split())
        except (OSError, ValueError):  # it has exited, or the kernel does not count
            return f"the load average is {os.getloadavg()[0]:.1f}"
        return (
            f"in {trio.current_time() - self._since:.0f} s the daemon's event loop ran for {ran_ns / 1e9:.1f} s and "
            f"waited for a processor for {waited_ns / 1e9:.1f} s, the load average is {os.getloadavg()[0]:.1f}"
        )

    def resident_bytes(self) -> int:
        """Return its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def limit_file_size(self, most_bytes: int | None) -> None:
        """Let no file grow past `most_bytes`, as on a full disk; None removes the limit."""
        limit_file_size(self.pid, most_bytes)


def limit_file_size(pid: int, most_bytes: int | None) -> None:
    """Let no file of a process grow past `most_bytes`, as on a full disk; None removes the limit."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if most_bytes is None else most_bytes, hard))


@asynccontextmanager
async def running(
    words: Sequence[str], folder: Path, log_file: Path, clock: Path | None = None
) -> AsyncIterator[DaemonProcess]:
    """Run `tsd` with these arguments in `folder` and append its output to `log_file`. Kill it at the end."""
    process = None
    try:
        with trio.move_on_after(TIMEOUT_S):
            start = partial(Forked, words, folder=folder, clock=clock)
            process = await trio.to_thread.run_sync(start, abandon_on_cancel=True)
    except (OSError, struct.error) as exc:  # the fork server was killed
        raise DaemonExited(f"a daemon could not be started: {exc}") from exc
    if process is None:
        raise DaemonExited(f"a daemon's process did not start within {TIMEOUT_S:g} s")
    process.stdin.close()
    async with supervised(DaemonProcess(process, log_file)) as daemon:
        yield daemon


@asynccontextmanager
async def supervised(daemon: D) -> AsyncIterator[D]:
    """Read a daemon's log during the block. Kill it at the end if it runs."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.read_log)
            try:
                yield daemon
            finally:
                with trio.CancelScope(shield=True):
                    await daemon.end()
    finally:
        daemon.close()


def serve_arguments(settings: Mapping[str, str]) -> list[str]:
    """Return the arguments that start a daemon with these settings and no others."""
    return ["serve", "--config", os.devnull, *(word for item in settings.items() for word in ("--set", "=".join(item)))]
