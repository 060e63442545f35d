"""Debian's collectd with conf/collectd/tsd.conf feeds daemons for some seconds: no value is lost."""

import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance.put_lines import Series, series
from tests.conformance.readers import Shown, answered, scanned
from tests.e2e.command import PATIENCE_S, ROOT, Served, Tsd, on_hbase, until
from tests.e2e.recording_proxy import RecordingProxy
from tests.peers.hbase import RunningHbase
from tests.peers.needs import need_program
from tests.peers.opentsdb import Opentsdb
from tests.peers.tables import Tables

SNIPPET = (ROOT / "conf" / "collectd" / "tsd.conf").read_text()
SECONDS = 10  # duration of one series
RESTART_AT = 5  # second at which a daemon is restarted
MINUTE_S = 300  # limit on a busy machine
MAIN = """\
Hostname "web01"
FQDNLookup false
Interval 1
BaseDir "{folder}"
PIDFile "{folder}/collectd.pid"
LoadPlugin logfile
<Plugin logfile>
  LogLevel info
  File "{folder}/collectd.log"
</Plugin>
LoadPlugin cpu
LoadPlugin load
LoadPlugin memory
LoadPlugin interface
<Plugin interface>
  Interface "lo"
</Plugin>
LoadPlugin df
<Plugin df>
  MountPoint "/"
</Plugin>
LoadPlugin unixsock
<Plugin unixsock>
  SocketFile "{socket}"
</Plugin>
"""
# Values that no plugin above has: undefined, infinite, and a counter beyond 63 bits. None can be stored. collectd 5.12
# itself omits the first one, others send nan.
ODD = [f'PUTVAL "web01/odd/{what}" interval=1 N:{value}\n'.encode() for what, value in (
    ("gauge-none", "U"), ("gauge-large", "inf"), ("counter-full", 2**64 - 1),
)]  # fmt: skip
ODD_WORDS = {"nan", "inf", "18446744073709551615"}
LINE = re.compile(rb"put ([\w./-]+) (\d+) (nan|inf|[-+.e\d]+) (fqdn=web01  dc=home)")
Points = dict[Series, dict[int, Shown]]
pytestmark = [pytest.mark.clients, pytest.mark.slow]


class Line(NamedTuple):
    """A put line of collectd."""

    series: Series
    time: int
    value: str

    @property
    def storable(self) -> bool:
        """Whether a point can have its value."""
        return self.value not in ODD_WORDS


class Fed(NamedTuple):
    """A run of a daemon with collectd."""

    lines: list[Line]  # that were sent; the daemon may not have read all of them
    stats: dict[str, int]  # before the end


class Minute(NamedTuple):
    """The result of the minute."""

    tables: Tables
    on_tables: Tsd
    steady: Fed
    embedded: Tsd
    before: Fed
    after: Fed


class Collectd:
    """A running collectd."""

    def __init__(self, address: Path) -> None:
        self._address = address

    def dispatch(self, command: bytes) -> None:
        """Make collectd send a value."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._address))
            connection.sendall(command)
            assert connection.recv(1000).startswith(b"0 Success"), command


@contextmanager
def collectd(program: Path, folder: Path, more: str) -> Iterator[Collectd]:
    """Run collectd in the foreground. Stop it cleanly with the block, so that it sends its buffer."""
    with tempfile.TemporaryDirectory(prefix="tsd") as short:  # a socket's path has at most 107 bytes
        address = Path(short) / "socket"
        (folder / "collectd.conf").write_text(MAIN.format(folder=folder, socket=address) + more)
        running = subprocess.Popen([program, "-f", "-C", folder / "collectd.conf"], stdout=subprocess.DEVNULL)
        try:
            until(lambda: address.exists() or running.poll() is not None, "collectd listens, or has ended")
            yield Collectd(address)
            running.send_signal(signal.SIGTERM)
            assert running.wait(PATIENCE_S) == 0
        finally:
            running.kill()
            running.wait()


@pytest.fixture(scope="module")
def minute(hbase: RunningHbase, tmp_path_factory: pytest.TempPathFactory) -> Minute:
    """Feed two daemons: one on HBase, and an embedded one that is restarted in between."""
    program, folder = need_program("collectd"), tmp_path_factory.mktemp("minute")
    tables = hbase.new_tables()
    on_tables, embedded = Tsd(folder / "hbase", on_hbase(hbase, tables)), Tsd(folder / "embedded")
    with ExitStack() as stack:
        steady, before = stack.enter_context(on_tables.serve()), stack.enter_context(embedded.serve())
        first, second = (
            stack.enter_context(RecordingProxy(steady.port)),
            stack.enter_context(RecordingProxy(before.port)),
        )
        more = node(first.port) + node(second.port, rates=True).replace("LoadPlugin write_tsdb\n", "")
        with collectd(program, folder, more) as agent:
            await_seconds(first, 1)
            for odd in ODD:
                agent.dispatch(odd)
            await_seconds(second, RESTART_AT)
            counted = before.stats()
            assert before.stop() == 0
            cut = second.sent()
            after = stack.enter_context(embedded.serve())
            second.upstream = after.port
            await_seconds(first, SECONDS)
            until(lambda: len(lines_of(second.sent()[len(cut) :])) > RESTART_AT, "lines after the restart")
        first.drain()
        second.drain()
        later = second.sent()[len(cut) :]
        return Minute(
            tables,
            on_tables,
            counts_of(steady, first.sent()),
            embedded,
            Fed(lines_of(cut), counted),
            counts_of(after, later),
        )


def counts_of(daemon: Served, sent: list[bytes]) -> Fed:
    """Return the stats after the daemon has read everything sent to it."""
    lines = lines_of(sent)
    daemon.await_stat("ledger.received", len(lines))
    return Fed(lines, daemon.stats())


def node(port: int, *, rates: bool = False) -> str:
    """The shipped configuration for another port."""
    assert SNIPPET.count('Port "4242"') == SNIPPET.count("StoreRates false") == 1
    return SNIPPET.replace('"4242"', f'"{port}"').replace("StoreRates false", f"StoreRates {str(rates).lower()}")


def lines_of(sent: Iterable[bytes]) -> list[Line]:
    """Return the lines of some connections without their incomplete last ones."""
    matches = [(line, LINE.fullmatch(line)) for text in sent for line in text.split(b"\r\n")[:-1]]
    assert all(match for _, match in matches), [line for line, match in matches if not match]
    return [Line(series(m[1], m[4]), int(m[2]), m[3].decode()) for _, m in matches if m]


def points_of(lines: Iterable[Line]) -> Points:
    """Return the points of lines by series and instant in ms."""
    found: Points = {}
    for line in filter(lambda line: line.storable, lines):
        number = int(line.value) if line.value.lstrip("-").isdigit() else float(line.value)
        found.setdefault(line.series, {})[line.time * 1000] = Shown(line.time, repr(number))
    return found


def metrics_of(lines: Iterable[Line]) -> set[bytes]:
    """Return the metrics that have points."""
    return {name.metric for name in points_of(lines)}


def await_seconds(proxy: RecordingProxy, seconds: int) -> None:
    """Return once a series has this many seconds."""

    def longest() -> int:
        return max(map(len, points_of(lines_of(proxy.sent())).values()), default=0)

    with proxy.changed:
        assert proxy.changed.wait_for(lambda: longest() >= seconds, MINUTE_S), f"wanted {seconds}, got {longest()}"


def test_collectd_values_stored_except_nan(minute: Minute) -> None:
    lines, stats = minute.steady
    refused = [line.value for line in lines if not line.storable]
    assert ODD_WORDS - {"nan"} <= set(refused) <= ODD_WORDS
    assert stats["ledger.refused reason=invalid_values"] == stats["rpc.errors type=invalid_values"] == len(refused)
    plugins = {line.series.metric.partition(b".")[0] for line in lines}
    assert plugins == {b"cpu", b"load", b"memory", b"interface", b"df", b"odd"}
    assert max(map(len, points_of(lines).values())) >= SECONDS
    assert scanned(minute.on_tables, metrics_of(lines)) == points_of(lines)


def test_collectd_points_answered_by_opentsdb(minute: Minute, opentsdb: Callable[..., Opentsdb]) -> None:
    peer = opentsdb(minute.tables, **{"tsd.storage.fix_duplicates": "true"})  # an interval may be a little under 1 s
    metrics = metrics_of(minute.steady.lines)
    shown = scanned(minute.on_tables, metrics)
    times = [point.time for points in shown.values() for point in points.values()]
    found = answered(peer, metrics, min(times), max(times) + 1)
    assert {name: set(points) for name, points in found.items()} == {name: set(shown[name]) for name in shown}
    for name, points in found.items():
        for instant_ms, number in points.items():
            text = shown[name][instant_ms].number
            assert number == (float(text) if isinstance(number, float) else int(text)), (name, instant_ms)


def test_restart_loses_no_accepted_line(minute: Minute) -> None:
    before, after = minute.before, minute.after
    stored = scanned(minute.embedded, metrics_of(before.lines + after.lines))
    there = [line.time * 1000 in stored.get(line.series, {}) for line in before.lines]
    taken = max(before.stats["ledger.received"], len(there) - there[::-1].index(True))  # read in order
    assert points_of(before.lines[:taken] + after.lines) == stored
    assert before.stats["ledger.received"] > RESTART_AT
    assert after.stats["ledger.received"] == len(after.lines) > RESTART_AT  # collectd reconnected
    for run in (before, after):
        refused = [line for line in run.lines if not line.storable]
        assert run.stats["ledger.refused reason=invalid_values"] == len(refused)
