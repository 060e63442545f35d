"""Readiness and stop of the daemon as systemd sees them, without a running systemd."""

import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.command import PATIENCE_S, Served, Tsd, on_hbase, until
from tests.e2e.notify_socket import NotifySocket
from tests.peers.hbase import RunningHbase
from tsd.cli.torture.proxy import FaultyProxy, ProxyMode

pytestmark = pytest.mark.slow
STOPPING = "STOPPING=1\nSTATUS=writing pending points"
LONGEST_STOP_S = 5 + 60 + 10  # for connections, the writer and the end; stalled calls to HBase take longer
START_S = 1356998400
HOSTS = 20
LONG = {"tsd.storage.flush_interval": "3600000"}  # nothing is written early


def numbered(count: int, connection: int = 0) -> Iterator[bytes]:
    """Yield put lines, each with its number as value."""
    numbers = itertools.count() if count < 0 else range(count)
    for n in numbers:
        yield b"put load.%d %d %d host=web%02d\n" % (connection, START_S + n // HOSTS, n, n % HOSTS)


def stored(tsd: Tsd, connection: int = 0) -> list[int]:
    """Return the numbers of the stored lines in order. Assert that each has its own name and time."""
    numbers = []
    for line in tsd.lines(f"load.{connection}"):
        _, time, value, host = line.split(" ")
        assert (int(time), host) == (START_S + int(value) // HOSTS, f"host=web{int(value) % HOSTS:02d}"), line
        numbers.append(int(value))
    return sorted(numbers)


@pytest.mark.parametrize("notify_socket", ["", "@"], ids=["path", "abstract"], indirect=True)
def test_ready_when_listening(tmp_path: Path, notify_socket: NotifySocket) -> None:
    tsd = Tsd(tmp_path / "state", LONG)
    with tsd.serve() as daemon:
        assert daemon.send_lines(b"".join(numbered(20_000))) == b"synced 20000\n"
        daemon.kill()
    assert list((tmp_path / "state" / "journal").glob("*.journal"))
    with tsd.spawn(env=notify_socket.env) as daemon:
        ready = re.fullmatch(r"READY=1\nSTATUS=serving port (\d+)", notify_socket.receive())
        assert ready
        assert int(ready[1]) == daemon.port
        daemon.await_stat("ledger.stored", 20_000)
        stats = daemon.stats()
        assert (stats["ledger.received"], stats["ledger.journaled"]) == (20_000, 0)
        assert daemon.stop() == 0
        assert notify_socket.pending()[1:] == [f"{STOPPING}\nEXTEND_TIMEOUT_USEC={LONGEST_STOP_S}000000"]
    assert stored(tsd) == list(range(20_000))


def test_replay_that_waits_for_store_does_not_delay_start(
    hbase: RunningHbase, tmp_path: Path, notify_socket: NotifySocket
) -> None:
    settings = on_hbase(hbase, hbase.new_tables(), LONG)
    with Tsd(tmp_path / "state", settings).serve() as daemon:
        assert daemon.send_lines(b"".join(numbered(2000))) == b"synced 2000\n"
        daemon.kill()
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        proxy.mode = ProxyMode.HOLD
        tsd = Tsd(tmp_path / "state", settings | {"tsd.storage.hbase.thrift": f"{proxy.host}:{proxy.port}"})
        with tsd.spawn(env=notify_socket.env) as daemon:
            assert proxy.holding.wait(PATIENCE_S)
            assert notify_socket.receive().startswith("READY=1\n")
            assert daemon.stats()["ledger.stored"] == 0
            proxy.mode = ProxyMode.PASS
            daemon.await_stat("ledger.stored", 2000)
            assert stored(tsd) == list(range(2000))


class Load:
    """A client that sends lines until its connection is closed, and records the number of acknowledged lines.

    It waits if 20 blocks are not acknowledged: else one client could send far more than others until all have sent
    enough.
    """

    def __init__(self, daemon: Served, number: int) -> None:
        self.confirmed = 0
        self._places = threading.Semaphore(20)
        self._closed = False
        self._number = number
        self._connection = daemon.connect()
        self._threads = [threading.Thread(target=way) for way in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Return when the daemon has closed the connection."""
        for thread in self._threads:
            thread.join()
        self._connection.close()

    def _send(self) -> None:
        lines = numbered(-1, self._number)
        with suppress(OSError):
            while self._places.acquire() and not self._closed:
                self._connection.sendall(b"".join(itertools.islice(lines, 500)) + b"sync\n")

    def _receive(self) -> None:
        answers = b""
        with suppress(OSError):
            while part := self._connection.recv(65536):
                *whole, answers = (answers + part).split(b"\n")
                assert all(line.startswith(b"synced ") for line in whole), whole
                if whole:
                    self.confirmed = int(whole[-1].removeprefix(b"synced "))
                    self._places.release(len(whole))
        self._closed = True
        self._places.release()


@pytest.fixture(params=["embedded", pytest.param("hbase", marks=pytest.mark.hbase)])
def tsd(request: pytest.FixtureRequest, tmp_path: Path) -> Tsd:
    """Commands on each engine."""
    if request.param == "embedded":
        return Tsd(tmp_path / "state")
    hbase: RunningHbase = request.getfixturevalue("hbase")
    return Tsd(tmp_path / "state", on_hbase(hbase, hbase.new_tables()))


def test_stop_under_load_loses_no_accepted_line(tsd: Tsd, tmp_path: Path, notify_socket: NotifySocket) -> None:
    with tsd.but({"tsd.storage.flush_interval": "200"}).serve(env=notify_socket.env) as daemon:
        loads = [Load(daemon, number) for number in range(4)]
        until(lambda: min(load.confirmed for load in loads) > 5000, "5000 lines of each connection confirmed")
        received = daemon.stats()["ledger.received"]
        assert daemon.stop() == 0
        for load in loads:
            load.join()
        assert any(message.startswith("STOPPING=1\n") for message in notify_socket.pending())
        assert daemon.events("journal.points_pending") == []
    assert list((tmp_path / "state" / "journal").glob("*.journal")) == []
    with tsd.serve():
        found = [stored(tsd, number) for number in range(len(loads))]
    for numbers, load in zip(found, loads, strict=True):
        assert numbers == list(range(len(numbers)))  # lines are read in order
        assert len(numbers) >= load.confirmed
    assert sum(map(len, found)) >= received


def test_unwritten_points_replayed_at_next_start(
    hbase: RunningHbase, tmp_path: Path, notify_socket: NotifySocket
) -> None:
    with FaultyProxy(hbase.host, hbase.thrift_port) as proxy:
        settings = on_hbase(hbase, hbase.new_tables(), LONG) | {
            "tsd.storage.hbase.thrift": f"{proxy.host}:{proxy.port}",
            "tsd.storage.hbase.thrift.timeout": "300",
            "tsd.core.drain_timeout": "500",
        }
        tsd = Tsd(tmp_path / "state", settings)
        with tsd.serve(env=notify_socket.env) as daemon:
            lines = list(numbered(4000))
            daemon.send_lines(b"".join(lines[:2000]))
            until(lambda: daemon.request("flush") is True, "lines are stored")  # 300 ms may be too short at first
            proxy.mode = ProxyMode.HANG
            assert daemon.send_lines(b"".join(lines[2000:])) == b"synced 2000\n"
            assert daemon.stop() == 0
            assert notify_socket.pending()[-1].startswith(STOPPING)
            assert daemon.await_event("journal.points_pending")["points"] == 2000
        proxy.mode = ProxyMode.PASS
        later = tsd.but({"tsd.storage.hbase.thrift.timeout": "15000"})
        with later.serve() as daemon:
            daemon.await_stat("ledger.stored", 2000)  # a start does not wait for a long replay
            assert stored(later) == list(range(4000))
