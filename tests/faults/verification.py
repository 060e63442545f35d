"""Compare the stored points with the lines that clients sent: none lost, none invented, none misplaced."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.load import Line, Sender
from tests.peers.tables import Hbase, Tables
from tsd.codec.names import Kind
from tsd.codec.opentsdb.check import Trouble
from tsd.codec.opentsdb.row import data_cells, points, problems
from tsd.codec.opentsdb.rowkey import KeyLayout, split_key
from tsd.codec.opentsdb.uid import COUNTER_ROW, decode_counter, decode_uid, encode_counter, id_column, name_column
from tsd.config.settings import Config
from tsd.store import scan
from tsd.store.rocksdb.engine import EmbeddedStore

StoredRow = list[tuple[bytes, bytes, int]]  # column, value, write time in ms


class Contents(NamedTuple):
    """All rows of the data table and the UID table."""

    data: dict[bytes, StoredRow]
    uids: dict[bytes, StoredRow]


class StoredPoint(NamedTuple):
    """A point with its names from the UID table."""

    line: Line
    value: int | float


async def embedded_contents(folder: Path) -> Contents:
    """Read the embedded store of a state folder without a running daemon."""
    config = Config()
    store = await EmbeddedStore.open(folder / "store", lambda: 0)
    try:
        found: list[dict[bytes, StoredRow]] = [{}, {}]
        for rows, table in zip(found, (config.data_table, config.uid_table), strict=True):
            async for page in scan(store, table):
                rows.update((row.key, [(cell.column, cell.value, cell.time_ms) for cell in row.cells]) for row in page)
    finally:
        await store.aclose()
    return Contents(*found)


def hbase_contents(hbase: Hbase, tables: Tables) -> Contents:
    """Read HBase's tables."""
    data, uids = (
        {row: [(column, *cell) for column, cell in cells.items()] for row, cells in hbase.timed(table).items()}
        for table in (tables.data, tables.uid)
    )
    return Contents(data, uids)


def check_contents(contents: Contents, senders: Sequence[Sender]) -> None:
    """Assert that confirmed lines are stored, that stored points were sent, and that rows and UIDs are sound.

    A replay may have written points again in cells of another length, but never with another value.
    """
    check_names(contents.uids)
    found: dict[int, set[int]] = {sender.lines.connection: set() for sender in senders}
    lines = {f"c{sender.lines.connection}": sender.lines for sender in senders}
    for point in stored_points(contents):
        sent = lines[dict(point.line.tags)["connection"]]
        assert isinstance(point.value, int)
        assert point.line == sent.line(point.value), point
        found[sent.connection].add(point.value)
    for sender in senders:
        stored = found[sender.lines.connection]
        assert max(stored, default=-1) < sender.sent
        for confirmed in sender.confirmed():
            lost = set(confirmed) - stored
            assert not lost, f"connection {sender.lines.connection}: {len(lost)} lost of {confirmed}: {min(lost)}…"


def check_names(uids: dict[bytes, StoredRow]) -> None:
    """Assert that names and UIDs map to each other one to one, and that no counter is too low.

    A crash between the two writes of an assignment leaves an unused UID, and a crash before them an unused number. Both
    are allowed.
    """
    for kind in Kind:
        there = _column(uids, id_column(kind))
        back = _column(uids, name_column(kind))
        counter = decode_counter(there.pop(COUNTER_ROW, encode_counter(0)))
        assert all(back[uid] == name for name, uid in there.items())
        assert len(set(there.values())) == len(there)
        assert all(decode_uid(uid) <= counter for uid in back)


def stored_points(contents: Contents) -> Iterator[StoredPoint]:
    """Yield the points of all rows, and assert that each row is sound."""
    names = {kind: _column(contents.uids, name_column(kind)) for kind in Kind}
    for key, cells in contents.data.items():
        chosen = data_cells(cells)
        wrong = [problem for problem in problems(key, chosen) if problem.trouble is not Trouble.REPEATED]
        assert wrong == [], (key, wrong)
        parts = split_key(KeyLayout(), key)
        metric = names[Kind.METRIC][parts.series.metric].decode()
        pairs = ((names[Kind.TAGK][tagk], names[Kind.TAGV][tagv]) for tagk, tagv in parts.series.pairs)
        tags = tuple(sorted((tagk.decode(), tagv.decode()) for tagk, tagv in pairs))
        for point in points(key, chosen):  # raises if two cells have different values for a time
            time = parts.base * 1000 + point.offset_ms
            yield StoredPoint(Line(metric, tags, time if point.in_ms else time // 1000), point.number)


def _column(rows: dict[bytes, StoredRow], wanted: bytes) -> dict[bytes, bytes]:
    """Return a column's values by row."""
    return {row: value for row, cells in rows.items() for column, value, _ in cells if column == wanted}
