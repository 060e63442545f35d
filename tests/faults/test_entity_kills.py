"""Points in the layout's rows and in the tables of entities are the same after kills, also between these tables."""

import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from tests.e2e.command import HOST, PATIENCE_S, ROOT, Tsd, on_bigtable, on_hbase, send_lines
from tests.e2e.entities import Points, Series, stored_entities
from tests.peers.hbase import RunningHbase
from tsd.daemon.wiring import now_ms
from tsd.errors import TsdError
from tsd.store.remote import ControlClient
from tsd.tables.entity.tables import ENTITIES, NEWEST

KILLS = 4
PAST_S = 1_500_000_000
METRIC = "entity.kill"
SETTINGS = {"tsd.entity.enabled": "true", "tsd.core.auto_create_metrics": "true"}
Sent = dict[tuple[str, int], int]  # the value by host and time in seconds
Metadata = dict[str, dict[str, str]]  # by host and key


def put_lines(points: Sent) -> bytes:
    return "".join(f"put {METRIC} {at_s} {value} host={host}\n" for (host, at_s), value in points.items()).encode()


def check(tsd: Tsd, sent: Sent, metadata: Metadata) -> None:
    """Assert that all three tables hold what was sent, once. No daemon runs."""
    rows = sorted(f"{METRIC} {at_s} {value} host={host}" for (host, at_s), value in sent.items())
    assert sorted(tsd.lines(METRIC)) == rows
    expected: dict[Series, Points] = {}
    for (host, at_s), value in sorted(sent.items()):
        expected.setdefault((host, METRIC), []).append((at_s * 1000, value))
    found = stored_entities(tsd.folder, tsd.settings)
    assert found.points == expected
    assert found.newest == {series: points[-1:] for series, points in expected.items()}
    assert found.metadata == metadata


def crashing_command(tsd: Tsd, table: str, moment: str, *words: str) -> list[str]:
    """Return a command that kills itself before or after a call for a table; the words name the call first."""
    settings = [word for key, value in tsd.settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "tests.faults.crashing_daemon", table, moment, *words]
    return [*command, "--data", str(tsd.folder), *settings]


@contextmanager
def crashing(tsd: Tsd, table: str, moment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a daemon that kills itself before or after its first write to a table."""
    command = crashing_command(tsd.but({"tsd.log.format": "json"}), table, moment, "put", "serve", "--port", "0")
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def port_of(process: subprocess.Popen[bytes]) -> int:
    """Return the port of a daemon once it serves."""
    assert process.stderr is not None
    events = (json.loads(line) for line in process.stderr if line.startswith(b"{"))
    return int(next(event["port"] for event in events if event["event"] == "daemon.ready"))


def write_windows(folder: Path) -> None:
    """Ask for a write, which kills the daemon."""

    async def call() -> None:
        caller = await ControlClient.connect(folder / "control.sock")
        try:
            await caller.call("flush")
        finally:
            await caller.aclose()

    with suppress(TsdError, OSError):
        trio.run(call)


@pytest.fixture
def tsd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tsd]:
    """Commands on an engine with tables, and windows that stay open."""
    settings = {**SETTINGS, "tsd.storage.flush_interval": "60000"}
    folder = tmp_path / "state"
    if request.param == "embedded":
        yield Tsd(folder, settings)
        return
    if request.param == "bigtable":
        tsd = Tsd(folder, on_bigtable(request.getfixturevalue("bigtable"), settings))
        assert tsd.run("create-tables").status == 0
        yield tsd
        return
    hbase: RunningHbase = request.getfixturevalue("hbase")
    settings["tsd.storage.hbase.thrift2"] = f"{hbase.host}:{hbase.thrift2_port}"
    tsd = Tsd(folder, on_hbase(hbase, hbase.unused_tables(), settings))
    assert tsd.run("create-tables").status == 0
    yield tsd
    for name in (ENTITIES.name, NEWEST.name):
        hbase.tables.drop(name)


@pytest.mark.parametrize(
    ("tsd", "table", "moment"),
    [
        ("embedded", ENTITIES.name, "before"),
        ("embedded", NEWEST.name, "before"),
        ("embedded", NEWEST.name, "after"),
        pytest.param("hbase", NEWEST.name, "before", marks=pytest.mark.hbase),
        pytest.param("bigtable", NEWEST.name, "before", marks=pytest.mark.bigtable),
    ],
    indirect=["tsd"],
)
def test_kill_at_a_write_to_a_table_of_entities(tsd: Tsd, table: str, moment: str) -> None:
    now_s = now_ms() // 1000
    stored = {("a", PAST_S): 1, ("a", PAST_S + 10): 2, ("b", now_s): 3}
    with tsd.serve() as daemon:
        daemon.send_lines(put_lines(stored) + b"meta a rack=r1 owner=x\n")
    more = {("a", PAST_S + 10): 4, ("a", PAST_S + 20): 5, ("b", PAST_S): 6, ("c", PAST_S): 7, ("c", now_s): 8}
    with crashing(tsd, table, moment) as process:
        with socket.create_connection((HOST, port_of(process)), timeout=PATIENCE_S) as connection:
            lines = b"meta a rack=r2\n" + put_lines(more) + b"meta c rack=r3\n"
            assert send_lines(connection, lines) == b"synced %d\n" % (len(more) + 2)
        write_windows(tsd.folder)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    with tsd.serve():
        pass
    check(tsd, stored | more, {"a": {"rack": "r2", "owner": "x"}, "c": {"rack": "r3"}})


@pytest.mark.parametrize(
    ("tsd", "table", "moment"),
    [
        ("embedded", NEWEST.name, "after"),
        ("embedded", ENTITIES.name, "after"),
        pytest.param("hbase", ENTITIES.name, "after", marks=pytest.mark.hbase),
        pytest.param("bigtable", ENTITIES.name, "after", marks=pytest.mark.bigtable),
    ],
    indirect=["tsd"],
)
def test_kill_at_a_deletion_that_the_same_one_completes(tsd: Tsd, table: str, moment: str) -> None:
    sent = {(host, PAST_S + at): at for host in ("a", "b") for at in range(0, 60, 10)}
    kept = {place: value for place, value in sent.items() if place[1] < PAST_S + 20 or place[0] == "b"}
    with tsd.serve() as daemon:
        daemon.send_lines(put_lines(sent) + b"meta a rack=r1\n")
    words = ("delete", METRIC, "host=a", "--since", str(PAST_S + 20), "--until", "now", "--yes", "--json")
    killed = subprocess.run(crashing_command(tsd, table, moment, "delete", *words), capture_output=True, cwd=ROOT)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b"")
    assert tsd.run("entity", "check").status == 1  # tells that the deletion is unfinished
    assert json.loads(tsd.run(*words).out)["remaining"] == 0
    assert tsd.run("entity", "check").status == 0
    check(tsd, kept, {"a": {"rack": "r1"}})


def test_kills_between_sends(tmp_path: Path) -> None:
    chance = random.Random(20)
    tsd = Tsd(tmp_path / "state", {**SETTINGS, "tsd.storage.flush_interval": "20"})
    sent: Sent = {}
    metadata: Metadata = {}
    value = 0
    for _ in range(KILLS):
        with tsd.serve() as daemon:
            for _ in range(chance.randrange(1, 8)):
                points: Sent = {}
                for _ in range(chance.choice((1, 50, 1000))):
                    at_s = chance.choice((now_ms() // 1000, PAST_S)) - chance.choice((0, 1, 60, 3000))
                    value += 1
                    points[f"h{chance.randrange(20)}", at_s] = value
                host, key = chance.choice(list(points))[0], f"k{chance.randrange(3)}"
                lines = put_lines(points) + f"meta {host} {key}={value}\n".encode()
                assert daemon.send_lines(lines) == b"synced %d\n" % (len(points) + 1)
                sent.update(points)
                metadata.setdefault(host, {})[key] = str(value)
            if chance.random() < 0.5:
                daemon.kill_while_flushing()
            else:
                daemon.kill()
    with tsd.serve():
        pass
    check(tsd, sent, metadata)
