"""Check that the real peers run and that the tests read them correctly."""

import socket
from collections.abc import Callable

import happybase  # noqa: TID251 (a client that is not ours)
import pytest

from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb

START_S = 1356998400  # start of an hour
ROW = bytes.fromhex("000001 50e22700 000001 000001")
Start = Callable[..., Opentsdb]


def test_put_line_read_through_thrift_and_query(hbase: RunningHbase, opentsdb: Start) -> None:
    peer = opentsdb()
    assert peer.send(b"put sys.cpu.user 1356998401 42 host=web01\n") == b""
    assert hbase.tables.rows(peer.tables.data) == {ROW: {b"t:\x00\x10": b"\x2a"}}
    assert hbase.tables.rows(peer.tables.uid)[b"sys.cpu.user"] == {b"id:metrics": b"\0\0\1"}
    status, answer = peer.http("GET", "/api/query?start=1356998400&end=1356998460&m=sum:sys.cpu.user{host=web01}")
    assert status == 200
    assert answer[0]["dps"] == {"1356998401": 42}


def test_row_put_through_thrift_read_by_query(hbase: RunningHbase, opentsdb_shared: Start) -> None:
    peer = opentsdb_shared()
    peer.send(b"put peers.written 1356998400 1 host=web01\n")
    (row,) = (row for row in hbase.tables.rows(peer.tables.data) if row.startswith(uid(hbase, peer, b"peers.written")))
    hbase.tables.put(peer.tables.data, row, {b"t:\x00\x20": b"\x07"})
    body = {"start": START_S, "end": START_S + 60, "queries": [{"metric": "peers.written", "aggregator": "sum"}]}
    assert peer.http("POST", "/api/query", body)[1][0]["dps"] == {"1356998400": 1, "1356998402": 7}
    assert peer.http("GET", "/api/version")[1]["version"]


def test_send_returns_after_everything_is_stored(hbase: RunningHbase, opentsdb: Start) -> None:
    peer = opentsdb(**{"tsd.storage.enable_compaction": "false"})
    for burst in range(5):
        lines = (f"put burst.{burst} {START_S + i // 40} 1 series=s{i % 40}\n".encode() for i in range(2000))
        assert peer.send(b"".join(lines)) == b""
        rows = hbase.tables.rows(peer.tables.data)
        assert [sum(map(len, rows.values())), len(rows)] == [2000 * (burst + 1), 40 * (burst + 1)]


def test_end_marker_is_cut_from_answers(opentsdb_shared: Start) -> None:
    peer = opentsdb_shared()
    assert (
        peer.send(b"dropcaches\nput a.b 1 x h=w\n")
        == b"Caches dropped.\nput: invalid value: Invalid character 'x' in x\n"
    )
    assert peer.send(b"put never.ended 1 1 h=w") == b""
    assert peer.send(b"Put taken.for.http 1 1 h=w\n") == b""
    assert peer.send(b"exit\ndropcaches\n") == b""


def test_equal_settings_share_one_opentsdb(opentsdb_shared: Start) -> None:
    first = opentsdb_shared()
    assert opentsdb_shared() is first
    other = opentsdb_shared(**{"tsd.mode": "ro"})
    assert other is not first
    assert b"put" not in other.send(b"help\n")
    assert not set(other.tables) & set(first.tables)


def test_stop_flushes_despite_long_flush_interval(hbase: RunningHbase, opentsdb: Start) -> None:
    peer = opentsdb(**{"hbase.rpcs.buffered_flush_interval": "30000"})
    with socket.create_connection((hbase.host, peer.port), timeout=60) as connection:
        connection.sendall(b"put held.back 1356998401 42 host=web01\nexit\n")
        assert connection.recv(100) == b""
    assert hbase.tables.rows(peer.tables.data) == {}
    peer.stop()
    assert hbase.tables.rows(peer.tables.data) == {ROW: {b"t:\x00\x10": b"\x2a"}}


@pytest.mark.parametrize("end", [RunningHbase.thrift_stop, RunningHbase.thrift_kill])
def test_restarted_gateway_keeps_its_port(hbase: RunningHbase, end: Callable[[RunningHbase], None]) -> None:
    tables = hbase.new_tables()
    hbase.tables.put(tables.data, b"\0row\xff", {b"t:\0\x10": b"\1"}, time_ms=1500)
    end(hbase)
    with pytest.raises(Exception, match="Could not connect"):
        hbase.tables.tables()
    hbase.thrift_start()
    assert hbase.tables.timed(tables.data) == {b"\0row\xff": {b"t:\0\x10": (b"\1", 1500)}}


def test_stalled_gateway_accepts_and_does_not_answer(hbase: RunningHbase) -> None:
    table = hbase.new_tables().data
    hbase.thrift_pause()
    stalled = happybase.Connection(hbase.host, hbase.thrift_port, timeout=200)
    with pytest.raises(TimeoutError):
        stalled.tables()
    stalled.close()
    hbase.thrift_resume()
    assert table in hbase.tables.tables()


def test_new_tables_are_unused(hbase: RunningHbase) -> None:
    first, second = hbase.new_tables(), hbase.new_tables()
    assert not set(first) & set(second)
    assert {*first, *second} <= set(hbase.tables.tables())
    hbase.tables.drop(first.tree)
    assert first.tree not in hbase.tables.tables()


def uid(hbase: RunningHbase, peer: Opentsdb, metric: bytes) -> bytes:
    """Return the UID that OpenTSDB assigned to a metric."""
    return hbase.tables.rows(peer.tables.uid)[metric][b"id:metrics"]
