"""What a store holds in the end, against what its clients sent: nothing lost, nothing invented, nothing misplaced."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.load import Line, Sender
from tests.peers.tables import Hbase, Tables
from tsd.codec.checks import Trouble
from tsd.codec.row import data_cells, points, problems
from tsd.codec.rowkey import Layout, split_key
from tsd.codec.uid import COUNTER_ROW, Kind, decode_counter, decode_uid, encode_counter
from tsd.config import Config
from tsd.store import scan
from tsd.store.embedded import EmbeddedStore

StoredRow = list[tuple[bytes, bytes, int]]  # column, value, write time in ms


class Contents(NamedTuple):
    """All rows of the two tables."""

    data: dict[bytes, StoredRow]
    uids: dict[bytes, StoredRow]


class StoredPoint(NamedTuple):
    """A point, by its names as the UID table has them."""

    line: Line
    value: int | float


async def embedded_contents(folder: Path) -> Contents:
    """What the embedded store in a state folder holds; no daemon has it open."""
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
    """What HBase's tables hold."""
    data, uids = (
        {row: [(column, *cell) for column, cell in cells.items()] for row, cells in hbase.timed(table).items()}
        for table in (tables.data, tables.uid)
    )
    return Contents(data, uids)


def check_contents(contents: Contents, senders: Sequence[Sender]) -> None:
    """Every confirmed line is stored, and whatever is stored was sent, by that name; rows and UIDs are sound.

    A replay may have written points again, in cells of another length: never with another value.
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
    """Each name has one UID and leads there and back, no two share one, and no counter is behind.

    A crash between the two halves of an assignment leaves a UID with the name of a series that got another one since:
    it is used by nobody, and so is a number that was counted and not given away.
    """
    for kind in Kind:
        there = _column(uids, kind.id_column)
        back = _column(uids, kind.name_column)
        counter = decode_counter(there.pop(COUNTER_ROW, encode_counter(0)))
        assert all(back[uid] == name for name, uid in there.items())
        assert len(set(there.values())) == len(there)
        assert all(decode_uid(uid) <= counter for uid in back)


def stored_points(contents: Contents) -> Iterator[StoredPoint]:
    """All points of sound rows, by row."""
    names = {kind: _column(contents.uids, kind.name_column) for kind in Kind}
    for key, cells in contents.data.items():
        chosen = data_cells(cells)
        wrong = [problem for problem in problems(key, chosen) if problem.trouble is not Trouble.REPEATED]
        assert wrong == [], (key, wrong)
        parts = split_key(Layout(), key)
        metric = names[Kind.METRIC][parts.series.metric].decode()
        pairs = ((names[Kind.TAGK][tagk], names[Kind.TAGV][tagv]) for tagk, tagv in parts.series.pairs)
        tags = tuple(sorted((tagk.decode(), tagv.decode()) for tagk, tagv in pairs))
        for point in points(key, chosen):  # raises where two cells give a time different values
            time = parts.base * 1000 + point.offset_ms
            yield StoredPoint(Line(metric, tags, time if point.in_ms else time // 1000), point.number)


def _column(rows: dict[bytes, StoredRow], wanted: bytes) -> dict[bytes, bytes]:
    """A column's values by row."""
    return {row: value for row, cells in rows.items() for column, value, _ in cells if column == wanted}
