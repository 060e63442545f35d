"""Send the same lines to a real OpenTSDB and to this daemon, with separate tables: the bytes in HBase are equal."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance.hbase_points import NamedRow, named_rows, pieces
from tests.conformance.put_lines import Generator, Sent, Series, block, flags_of, last_of_each_instant, series, waves
from tests.e2e.command import Tsd, on_hbase, send_lines
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tests.peers.tables import Cells, Tables

HOURS = [0, 1356998400, 1357002000, 1500001200, 1699999200, 4294965600]
MILLIS = [4298400, 1356998400, 1357002000, 1699999200, 4294962000]
SERIES = [
    series(b"sys.cpu.user", b"host=web01 cpu=0"),
    series(b"sys.cpu.user", b"cpu=1 host=web01"),
    series(b"sys.cpu.user", b"host=web02 cpu=0 dc=lga"),
    series(b"net/bytes_in-1", b"iface=eth0"),
    series(b"net/bytes_in-1", b"host=host iface=eth0 h=1 a=b c=d e=f g=h z=z"),
    series(b"host", b"host=host"),
    series(b"temp.caf\xe9", b"lieu=\xe9tage"),
    series(b"UPPER.lower", b"A=a a=A"),
]
LINES = 5_000  # plain ones, and as many others; then some points again


class Theirs(NamedTuple):
    """OpenTSDB's tables after the lines."""

    parts: list[list[Sent]]
    tables: Tables
    rows: dict[NamedRow, Cells]


@pytest.fixture(scope="module")
def theirs(hbase: RunningHbase, opentsdb_shared: Callable[..., Opentsdb]) -> Theirs:
    """Send the lines to an OpenTSDB that keeps each point in its own cell: some instants have several.

    A second value of an instant is sent after the first is stored, because HBase may reorder OpenTSDB's batches.
    """
    generator = Generator(20130101, SERIES, HOURS, millis=MILLIS, plain=True)
    first = generator.lines(LINES)
    parts = [first, generator.again(first, 1500, changed=True)]
    generator = Generator(20130102, SERIES, HOURS, millis=MILLIS)
    parts += [generator.lines(LINES), generator.again(first, 500, changed=False)]
    parts.append(generator.again(parts[1], 300, changed=True))
    lines = [sent for part in parts for sent in part]
    assert sum(map(len, last_of_each_instant(lines).values())) < 2 * LINES - 100
    tables = hbase.new_tables()
    peer = opentsdb_shared(tables, **{"tsd.storage.enable_compaction": "false"})
    for part in parts:
        for wave in waves(part):
            assert peer.send(block(wave)) == b""
    return Theirs(parts, tables, named_rows(hbase, tables))


@pytest.fixture
def ours(hbase: RunningHbase, tmp_path: Path) -> Callable[..., Tables]:
    """`ours(parts, settings)`: tables of a daemon that received the lines and has stopped."""

    def store(parts: list[list[Sent]], settings: dict[str, str]) -> Tables:
        tables = hbase.new_tables()
        with (
            Tsd(tmp_path / "state", on_hbase(hbase, tables, settings)).serve() as daemon,
            daemon.connect() as connection,
        ):
            sent = 0
            for part in parts:  # a block of plain lines is parsed differently from one with other lines
                connection.sendall(block(part))
                sent += len(part)
                daemon.await_stat("ledger.received", sent)
            assert send_lines(connection, b"") == b"synced %d\n" % sent
        return tables

    return store


def test_each_point_has_the_same_cell(hbase: RunningHbase, theirs: Theirs, ours: Callable[..., Tables]) -> None:
    settings = {"tsd.storage.join_points": "false", "tsd.storage.flush_interval": "100"}
    rows = named_rows(hbase, ours(theirs.parts, settings))
    assert sum(map(len, rows.values())) > 1.5 * LINES
    assert set(rows) == set(theirs.rows)
    for row, cells in theirs.rows.items():
        assert rows[row] == cells, row


def test_new_tables_are_equal_including_uids(hbase: RunningHbase, theirs: Theirs, ours: Callable[..., Tables]) -> None:
    tables = ours(theirs.parts, {"tsd.storage.join_points": "false"})
    for kind in ("data", "uid"):
        assert hbase.tables.rows(getattr(tables, kind)) == hbase.tables.rows(getattr(theirs.tables, kind)), kind


def test_joined_cell_has_the_same_points(hbase: RunningHbase, theirs: Theirs, ours: Callable[..., Tables]) -> None:
    one_window = {"tsd.storage.join_points": "true", "tsd.storage.flush_interval": "3600000"}
    rows = named_rows(hbase, ours(theirs.parts, one_window))
    wanted = last_of_each_instant(sent for part in theirs.parts for sent in part)
    found: dict[Series, set[int]] = {}
    for row, cells in rows.items():
        assert len(cells) == 1, f"{row}: one window makes one cell a row"
        for piece in pieces(*next(iter(cells.items()))):
            instant_ms = row.base * 1000 + piece.offset_ms
            found.setdefault(row.series, set()).add(instant_ms)
            assert theirs.rows[row][piece.qualifier] == piece.value
            assert piece.flags == flags_of(wanted[row.series][instant_ms].number)
    assert found == {name: set(instants) for name, instants in wanted.items()}
    assert set(rows) == set(theirs.rows)
