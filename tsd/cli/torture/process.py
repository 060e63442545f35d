"""`tsd serve` as a process of its own: to be killed, starved and measured. What it logs is read and kept."""

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

from tsd.errors import TsdError
from tsd.torture.forked import Forked

PATIENCE_S = 150.0  # with a daemon that starts or ends: on a machine that is busy with others a minute is not much
WORD_S = 5.0  # with one that is to say where its tasks wait
TRACE_LINES = 30  # of an error that ended one: its last lines are a frame around groups, and say little
TASKS = "where tasks wait"  # how it says that


class Fallen(TsdError):
    """A daemon ended by itself, or does not start or end."""


D = TypeVar("D", bound="Daemon")


class Daemon:
    """A daemon's process."""

    def __init__(self, process: Forked, kept: Path) -> None:
        """What it writes is appended to the file `kept`."""
        self.process = process
        self._stderr = trio.lowlevel.FdStream(os.dup(process.stderr.fileno()))
        self._kept = kept
        self.news = trio.Event()
        self.events: list[dict[str, Any]] = []  # what it logged
        self.noise: list[str] = []  # what else it wrote: nothing, unless it fell over
        self.port = 0
        self.killed = False  # or told to end
        self.gone = trio.Event()  # it has ended, and all that it wrote was read

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    async def read_log(self) -> None:
        """Take down what it writes, until it has ended."""
        tail = b""
        with self._kept.open("ab", buffering=0) as kept:
            while data := await self._stderr.receive_some():
                kept.write(data)
                *lines, tail = (tail + data).split(b"\n")
                for line in lines:
                    try:
                        self.events.append(json.loads(line))
                    except ValueError:
                        self.noise.append(line.decode("utf-8", "replace"))
                self.news.set()
                self.news = trio.Event()
        await self.ended()
        self.news.set()
        self.gone.set()

    async def logged(self, *wordings: str) -> dict[str, Any]:
        """The first event with one of these wordings, once it has been logged. Raises Fallen."""
        with trio.move_on_after(PATIENCE_S):
            while not (found := [event for event in self.events if event["event"] in wordings]):
                if not self.alive:
                    raise Fallen(
                        f"a daemon ended by itself, with status {self.process.returncode}: {self.last_words()}"
                    )
                await self.news.wait()
            return found[0]
        await self.tell_tasks()
        raise Fallen(f"a daemon has not said {' or '.join(wordings)!r} within {PATIENCE_S:g} s: {self.last_words()}")

    async def tell_tasks(self) -> None:
        """Have it log where its tasks wait, if it still can."""
        before = len(self.events)
        self.process.send_signal(signal.SIGUSR1)
        with trio.move_on_after(WORD_S):
            while self.alive and all(event["event"] != TASKS for event in self.events[before:]):
                await self.news.wait()

    def last_words(self) -> str:
        """The end of what it wrote."""
        return "\n".join(self.noise[-TRACE_LINES:]) or str(self.events[-3:])

    async def ready(self) -> None:
        """Return once it serves its port. Raises Fallen."""
        self.port = (await self.logged("ready"))["port"]

    async def ended(self) -> int:
        """Its exit status, once it has ended."""
        return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    def check(self) -> None:
        """Raise Fallen where it ended by itself, or wrote what no daemon in good health writes."""
        if not self.alive or self.noise:
            raise Fallen(f"a daemon {'is in trouble' if self.alive else 'ended by itself'}: {self.last_words()}")

    async def kill(self) -> None:
        """End it as a crash does. Raises Fallen."""
        self.check()
        self.killed = True
        await self.end()

    async def terminate(self) -> list[str]:
        """End it as an operator does; everything that waits is stored then. The wordings of its log. Raises Fallen."""
        self.killed = True
        self.process.terminate()
        status = -1
        with trio.move_on_after(PATIENCE_S):
            status = await self.ended()
        if status or self.noise:
            raise Fallen(f"a daemon that was to end: status {status}: {self.last_words()}")
        return [event["event"] for event in self.events]

    async def end(self) -> None:
        """Leave nothing of it. Raises Fallen."""
        self.process.kill()
        with trio.move_on_after(PATIENCE_S):
            await self.ended()
            return
        raise Fallen(f"a daemon (process {self.pid}) was killed and has not ended within {PATIENCE_S:g} s")

    def close(self) -> None:
        """Give back what is held, once it has ended."""
        self._stderr.close()
        self.process.close()

    def resident_bytes(self) -> int:
        """Memory it holds now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def bound_files(self, most_bytes: int | None) -> None:
        """Let no file grow past `most_bytes`, as on a full disk; or (None) let them again."""
        bound_files(self.pid, most_bytes)


def bound_files(pid: int, most_bytes: int | None) -> None:
    """Let no file of a process grow past `most_bytes`, as on a full disk; or (None) let them again."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if most_bytes is None else most_bytes, hard))


@asynccontextmanager
async def running(words: Sequence[str], folder: Path, kept: Path, clock: Path | None = None) -> AsyncIterator[Daemon]:
    """`tsd` with these words, begun in `folder`, what it logs appended to the file `kept`; killed at the end, unless it
    has ended."""
    process = None
    try:
        with trio.move_on_after(PATIENCE_S):
            start = partial(Forked, words, folder=folder, clock=clock)
            process = await trio.to_thread.run_sync(start, abandon_on_cancel=True)
    except (OSError, struct.error) as exc:  # somebody has ended the process that it would be forked from
        raise Fallen(f"a daemon could not be started: {exc}") from exc
    if process is None:
        raise Fallen(f"a daemon's process has not begun within {PATIENCE_S:g} s")
    process.stdin.close()
    async with attended(Daemon(process, kept)) as daemon:
        yield daemon


@asynccontextmanager
async def attended(daemon: D) -> AsyncIterator[D]:
    """A daemon whose log is read; killed at the end, unless it has ended."""
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


def words_of(settings: Mapping[str, str]) -> list[str]:
    """The words that start a daemon with these settings and no others."""
    return ["serve", "--config", os.devnull, *(word for item in settings.items() for word in ("--set", "=".join(item)))]
