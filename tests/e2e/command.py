"""The `tsd` command as users run it: processes with the test's own state folder and settings."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

import trio

from tests.peers.bigtable import PROJECT, RunningBigtable
from tests.peers.cassandra import RunningCassandra
from tests.peers.hbase import RunningHbase
from tests.peers.tables import Tables
from tsd.cli.torture.fork_server import Forked
from tsd.errors import TsdError
from tsd.store import Put, Row
from tsd.store.remote import ControlClient
from tsd.store.rocksdb.engine import EmbeddedStore

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
PATIENCE_S = 60.0  # how long a test waits before it fails
Event = Mapping[str, Any]


class Done(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    def on_new_store(self, folder: Path) -> "Done":
        """Return it without the line that reports a new store in `folder`, which the first command prints."""
        first, *rest = self.err.splitlines(keepends=True)
        assert str(folder) in first
        return self._replace(err="".join(rest))


class Tsd:
    """Commands that share a state folder and settings."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, clock: Path | None = None) -> None:
        """`clock` is the file of the processes' wall clock, see `set_ahead` of `tsd.cli.torture.fork_server`."""
        self.folder = folder
        self.settings = dict(settings or {})
        self.clock = clock

    def but(self, settings: Mapping[str, str]) -> "Tsd":
        """Return the same folder with some settings changed."""
        return Tsd(self.folder, {**self.settings, **settings}, self.clock)

    def run(
        self, *words: str | Path, stdin: bytes = b"", env: Mapping[str, str] | None = None, encoding: str = "utf-8"
    ) -> Done:
        """Run a command to its end. `encoding` is that of its output: lines to import are in ISO-8859-1."""
        with self.popen(*words, env=env) as process:
            out, err = process.communicate(stdin)
            return Done(process.wait(), out.decode(encoding), err.decode())

    def popen(self, *words: str | Path, env: Mapping[str, str] | None = None) -> Forked:
        """Start a command. The common options are appended."""
        return Forked([*words, *self._options()], folder=self.folder.parent, env=_environment(env), clock=self.clock)

    def put_directly(self, table: str, *cells: Put) -> None:
        """Put cells into an existing table of the embedded store, which no process may have open."""

        async def put() -> None:
            store = await EmbeddedStore.open(self.folder / "store", lambda: 0)
            try:
                await store.put(table, cells)
            finally:
                await store.aclose()

        trio.run(put)

    def read_directly(self, table: str) -> list[Row]:
        """Return all rows of a small table of the embedded store, which no process may have open."""

        async def read() -> list[Row]:
            store = await EmbeddedStore.open(self.folder / "store", lambda: 0)
            try:
                page = await store.page(table, b"", None, limit=1_000_000)
                assert page.next_start is None
                return page.rows
            finally:
                await store.aclose()

        return trio.run(read)

    def lines(self, *metrics: str, start: str = "1") -> list[str]:
        """Return what `tsd scan --import` prints for metrics."""
        selections = (word for metric in metrics for word in ("sum", metric))
        done = self.run("scan", "--import", start, *selections, encoding="latin-1")
        assert (done.status, done.err) == (0, ""), done
        return done.out.splitlines()

    @contextmanager
    def serve(self, *words: str, env: Mapping[str, str] | None = None) -> Iterator["Served"]:
        """Run a daemon on a free port and wait until it serves. Stop it cleanly at the end of the block."""
        with self.spawn(*words, env=env) as served:
            served.await_ready()
            yield served

    @contextmanager
    def spawn(self, *words: str, env: Mapping[str, str] | None = None) -> Iterator["Served"]:
        """Start a daemon, which may fail."""
        options = ["--set", "tsd.log.format=json", *self._options(), *(words or ("--port", "0"))]
        served = Served(self.folder, options, _environment(env), self.clock)
        try:
            yield served
            if served.alive:
                assert served.stop() == 0, served.log_text()
        finally:
            served.close()

    def _options(self) -> list[str]:
        settings = (word for key, value in self.settings.items() for word in ("--set", f"{key}={value}"))
        return ["--data", str(self.folder), *settings]


class Served:
    """A daemon process. Its log is read as it is written."""

    def __init__(self, folder: Path, options: Sequence[str], env: Mapping[str, str], clock: Path | None) -> None:
        self._folder = folder
        self._process = Forked(["serve", *options], folder=folder.parent, env=env, clock=clock)
        self._process.stdin.close()
        self._log_changed = threading.Condition()
        self._lines: list[str] = []
        self._silent = False
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def port(self) -> int:
        """The port of the listener."""
        return int(self.await_ready()["port"])

    def await_ready(self) -> Event:
        """Return the log event of readiness. Fail if the daemon exits."""
        return self.await_event("daemon.ready")

    def await_event(self, name: str, count: int = 1) -> Event:
        """Return the `count`-th event with this name. Fail if the daemon exits or does not log it in time."""

        def found() -> bool:
            return self._silent or len(self.events(name)) >= count

        with self._log_changed:
            in_time = self._log_changed.wait_for(found, PATIENCE_S)
        events = self.events(name)
        assert len(events) >= count, f"{'daemon exited' if in_time else 'timeout'}, wanted {name!r}:\n{self.log_text()}"
        return events[count - 1]

    def events(self, name: str) -> list[Event]:
        """Return the logged events with this name."""
        return [event for event in map(_event, list(self._lines)) if event.get("event") == name]

    def log_text(self) -> str:
        """Return the whole standard error."""
        return "".join(self._lines)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def stop(self) -> int:
        """Stop the daemon with SIGTERM. Return its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kill the daemon."""
        self.signal(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Wait for the exit and the end of the output. Return the exit status."""
        status = self._process.wait(PATIENCE_S)
        self._reader.join()
        return status

    def send_lines(self, lines: bytes) -> bytes:
        """Send whole lines over a new connection. Return the replies up to that of `sync`."""
        with self.connect() as connection:
            return send_lines(connection, lines)

    def connect(self) -> socket.socket:
        """Connect to the daemon."""
        return socket.create_connection((HOST, self.port), timeout=PATIENCE_S)

    def stats(self) -> dict[str, int]:
        """Return the reply of `stats` by name and own tag."""
        with self.connect() as connection:
            connection.sendall(b"stats\nexit\n")
            text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        words = [line.removeprefix("tsd.").split(" ") for line in text.splitlines()]
        return {
            " ".join([name, *(tag for tag in tags if not tag.startswith("host="))]): int(value)
            for name, _, value, *tags in words
        }

    def await_stat(self, name: str, value: int) -> None:
        """Return once `stats` has this value."""
        until(lambda: self.stats()[name] == value, f"{name} {value}")

    def flush(self) -> None:
        """Write the open window, as soon as the store accepts it."""
        until(lambda: self.request("flush") is True, "points in the store")

    def kill_while_flushing(self) -> None:
        """Kill the daemon while it may be writing the open window."""

        def flush() -> None:
            with suppress(TsdError, OSError, AssertionError):
                self.flush()

        flushing = threading.Thread(target=flush)
        flushing.start()
        self.kill()
        flushing.join()

    def request(self, verb: str) -> object:
        """Send a request to the control socket and return its answer."""

        async def call() -> object:
            caller = await ControlClient.connect(self._folder / "control.sock")
            try:
                return await caller.call(verb)
            finally:
                await caller.aclose()

        return trio.run(call)

    def close(self) -> None:
        """Kill the process and join its threads."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.close()

    def _listen(self) -> None:
        for line in self._process.stderr:
            with self._log_changed:
                self._lines.append(line.decode(errors="replace"))
                self._log_changed.notify_all()
        with self._log_changed:
            self._silent = True
            self._log_changed.notify_all()


def send_lines(connection: socket.socket, lines: bytes) -> bytes:
    """Send whole lines and `sync`. Return everything up to the reply of `sync`."""
    sender = threading.Thread(target=connection.sendall, args=(lines + b"sync\n",))
    sender.start()  # a daemon with many replies may stop reading until they are read
    answer = b""
    while not (answer.endswith(b"\n") and answer.rstrip(b"\n").rpartition(b"\n")[2].startswith(b"synced ")):
        part = connection.recv(65536)
        assert part, f"closed after {answer!r}"
        answer += part
    sender.join()
    return answer


def until(is_true: Callable[[], bool], wanted: str) -> None:
    """Return once `is_true()`. Ask at least every 0.1 s; the deadline only bounds a failure."""
    deadline = time.monotonic() + PATIENCE_S
    for pause_s in chain((0.001, 0.002, 0.005, 0.01, 0.02, 0.05), repeat(0.1)):  # other tests need the CPU
        if is_true():
            return
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {wanted}"
        time.sleep(pause_s)  # noqa: TID251 - between two looks at the condition


def on_hbase(hbase: RunningHbase, tables: Tables, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings of a daemon on tables of the test's HBase."""
    named = {f"tsd.storage.hbase.{kind}_table": name for kind, name in tables._asdict().items()}
    return {
        "tsd.storage.backend": "hbase",
        "tsd.storage.hbase.thrift": hbase.gateway,
        "tsd.core.auto_create_metrics": "true",
        **named,
        **(settings or {}),
    }


def on_cassandra(cassandra: RunningCassandra, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings of a daemon on a keyspace of its own, which is not created yet."""
    return {
        "tsd.storage.backend": "cassandra",
        "tsd.storage.cassandra.hosts": cassandra.address,
        "tsd.storage.cassandra.keyspace": cassandra.unused_keyspace(),
        "tsd.core.auto_create_metrics": "true",
        **(settings or {}),
    }


def on_bigtable(bigtable: RunningBigtable, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings of a daemon on an instance of its own, without tables."""
    return {
        "tsd.storage.backend": "bigtable",
        "tsd.storage.bigtable.emulator": bigtable.address,
        "tsd.storage.bigtable.project": PROJECT,
        "tsd.storage.bigtable.instance": bigtable.unused_instance(),
        "tsd.core.auto_create_metrics": "true",
        **(settings or {}),
    }


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of this process, with the source tree importable from any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}


def _event(line: str) -> Event:
    try:
        event: Event = json.loads(line)
    except ValueError:
        return {}
    return event
