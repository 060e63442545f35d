"""Eight processes assign UIDs to the same names at once, while some are killed and the gateway fails."""

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.hbase_points import COUNTERS, KINDS, NamedRow, named_rows, names_of, pieces
from tests.conformance.put_lines import series
from tests.e2e.command import PATIENCE_S, Tsd, on_hbase, send_lines, until
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb
from tests.peers.tables import Tables

EACH = 150  # metrics, and as many tag values
START_S = 1356998400  # start of an hour; each process has its own second
CHUNK = 20  # lines per send
DAEMONS, PEERS, COMMANDS = 3, 3, 2
KILLS = ((2, 5), (4,), ())  # of each daemon, after so many chunks
SETTINGS = {"tsd.storage.flush_interval": "200", "tsd.storage.hbase.thrift.timeout": "5000"}


@pytest.mark.slow
def test_racing_assignments_give_each_name_one_uid(
    hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path
) -> None:
    tables = hbase.new_tables()
    peers = [opentsdb(tables) for _ in range(PEERS)]
    tsds = [Tsd(tmp_path / f"state{at}", on_hbase(hbase, tables, SETTINGS)) for at in range(DAEMONS + COMMANDS)]
    start = threading.Barrier(DAEMONS + PEERS + COMMANDS, timeout=PATIENCE_S)
    doom = threading.Event()
    with ThreadPoolExecutor(start.parties) as pool:
        work = [pool.submit(feed_daemon, tsds[at], at, start, KILLS[at]) for at in range(DAEMONS)]
        work += [pool.submit(feed_peer, peer, DAEMONS + at, start) for at, peer in enumerate(peers)]
        work.append(pool.submit(assign, tsds[-2], "metrics", [metric(number) for number in order(6)], start, doom))
        work.append(pool.submit(assign, tsds[-1], "tagv", [host(number) for number in order(7)], start, None))
        until(lambda: assigned(hbase, tables) > EACH // 4, "an eighth of the names assigned")
        doom.set()
        until(lambda: assigned(hbase, tables) > EACH, "half of the names assigned")
        hbase.thrift_kill()
        hbase.thrift_start()
        for each in work:
            each.result()
        assert_sound(hbase, tables)
    rows = named_rows(hbase, tables)
    for number in range(EACH):
        cells = rows.pop(NamedRow(series(metric(number).encode(), f"host={host(number)}".encode()), START_S))
        points = [piece for qualifier, value in cells.items() for piece in pieces(qualifier, value)]
        found = {point.offset_ms // 1000: int.from_bytes(point.value, "big", signed=True) for point in points}
        assert found == dict.fromkeys(range(DAEMONS + PEERS), number)
    assert not rows


def metric(number: int) -> str:
    return f"race.metric.{number}"


def host(number: int) -> str:
    return f"host{number}"


def order(who: int) -> list[int]:
    """Return the order in which a process assigns the names: the same for every second process."""
    numbers = list(range(EACH))
    if who % 2:
        random.Random(who).shuffle(numbers)
    return numbers


def chunks(who: int) -> Iterator[bytes]:
    """Yield the lines of a process in chunks: each name's number is its point's value."""
    numbers = order(who)
    for at in range(0, EACH, CHUNK):
        part = numbers[at : at + CHUNK]
        yield b"".join(b"put race.metric.%d %d %d host=host%d\n" % (n, START_S + who, n, n) for n in part)


def feed_daemon(tsd: Tsd, who: int, start: threading.Barrier, kills: Sequence[int]) -> None:
    """Make a daemon store its lines. It is killed in between, and then gets the unconfirmed lines again."""
    left = list(chunks(who))
    total = len(left)
    for kill in (*kills, total):
        with tsd.serve() as daemon, daemon.connect() as connection:
            if len(left) == total:
                start.wait()
            while left and total - len(left) < kill:
                assert send_lines(connection, left[0]).startswith(b"synced "), left[0]
                left.pop(0)
            if left:
                connection.sendall(left[0])
                daemon.kill()
            else:
                until(lambda: daemon.request("flush") is True, "all stored")


def feed_peer(peer: Opentsdb, who: int, start: threading.Barrier) -> None:
    """Make an OpenTSDB store its lines."""
    start.wait()
    for chunk in chunks(who):
        assert peer.send(chunk) == b""


def assign(tsd: Tsd, kind: str, names: list[str], start: threading.Barrier, doom: threading.Event | None) -> None:
    """Run `tsd uid assign` until it succeeds, as an operator would. With `doom`, kill the first run on that event."""
    start.wait()
    if doom is not None:
        with tsd.popen("uid", "assign", kind, *names) as process:
            doom.wait(PATIENCE_S)
            process.kill()
            assert process.wait() in (-signal.SIGKILL, 0)  # it may have ended before
    until(lambda: tsd.run("uid", "assign", kind, *names).status == 0, "assigned without an error")


def assigned(hbase: RunningHbase, tables: Tables) -> int:
    """Return how many names have a UID."""
    rows = hbase.tables.rows(tables.uid)
    return sum(column.startswith(b"id:") for name in rows.keys() - {COUNTERS} for column in rows[name])


def assert_sound(hbase: RunningHbase, tables: Tables) -> None:
    """Assert that both directions agree (`names_of`), that leaked UIDs have a name, and that no counter is too low."""
    rows = hbase.tables.rows(tables.uid)
    names = names_of(hbase, tables)
    wanted = (map(metric, range(EACH)), ["host"], map(host, range(EACH)))
    for kind, all_names in zip(KINDS, wanted, strict=True):
        assert set(names[kind].values()) == {name.encode() for name in all_names}
        reverse = {uid: cells[b"name:" + kind] for uid, cells in rows.items() if b"name:" + kind in cells}
        orphans = {uid: name for uid, name in reverse.items() if uid not in names[kind]}
        assert set(orphans.values()) <= set(names[kind].values())
        assert set(names[kind]) <= set(reverse)
        counter = int.from_bytes(rows[COUNTERS][b"id:" + kind], "big")
        assert int.from_bytes(max(reverse), "big") <= counter
