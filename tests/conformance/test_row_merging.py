"""Rows of many kinds in HBase: OpenTSDB reads the same points as tsd, and compacts them to the same bytes."""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Collection

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import ANSWER_S, Opentsdb
from tests.property.codec_rows import appends, joined, points
from tests.seeds import FACTOR
from tests.unit.codec.codec_rows import applied
from tsd.codec.opentsdb.cell import COLUMN, Point, join
from tsd.codec.opentsdb.merge import MergeRules, StoredCell, merge
from tsd.codec.opentsdb.row import compact, data_cells
from tsd.codec.putline import HOUR_S

PARTS, ROWS = 2 * FACTOR, 500
FIRST_HOUR_S = 1356998400
WRITTEN_MS = 1600000000000
hours = itertools.count(FIRST_HOUR_S, HOUR_S)  # each row has its own hour
Rows = list[list[StoredCell]]
Bytes = dict[bytes, list[tuple[bytes, bytes]]]

repeating = st.lists(points(), min_size=2, max_size=6).map(  # in order, with duplicate times; OpenTSDB sorts no cell
    lambda found: join(sorted(found, key=lambda point: point.offset_ms))
)
last_bytes = st.builds(  # missing or without meaning; single points have none
    lambda cell, last: cell if len(cell.qualifier) < 6 else Point(cell.qualifier, cell.value[:-1] + last),
    joined,
    st.sampled_from([b"", b"\x07"]),
)
old = st.sampled_from(
    [
        Point(b"\0\x0b", bytes.fromhex("0000000042280000")),
        Point(b"\0\x1f", bytes.fromhex("42280000")),
        Point(b"\0\7", b"\x2a"),
        Point(b"\0\x20", bytes(7) + b"\x2a"),
        Point(bytes.fromhex("f0007d30"), b"\x2a"),
    ]
)
others = st.sampled_from([Point(b"\6\0\0", bytes(9)), Point(b"\x09\0\0", b"*"), Point(b"\x09", b"")])


class Enough(Exception):
    """Enough examples are collected."""


def is_finite(cell: Point) -> bool:
    """Whether JSON has all its numbers."""
    found = merge(b"", [StoredCell(*cell, 0)], MergeRules(fix_duplicates=True)).points
    return all(abs(point.number) < float("inf") for point in found)


@st.composite
def rows(draw: st.DrawFn) -> list[StoredCell]:
    """Return cells of a row with different write times: for equal times, OpenTSDB's choice is undefined."""
    kinds = st.one_of(joined, joined, points(), repeating, last_bytes, old, others, appends)
    found = draw(st.lists(kinds.filter(is_finite), min_size=1, max_size=7))
    unique = {cell.qualifier: cell.value for cell in found}
    times = draw(st.permutations(range(len(unique))))
    return [StoredCell(name, unique[name], WRITTEN_MS + time) for name, time in zip(sorted(unique), times, strict=True)]


def generated(count: int, number: int) -> Rows:
    """Return different rows of a seed."""
    found: dict[tuple[StoredCell, ...], None] = {}

    @seed(number)
    @settings(
        max_examples=2 * count,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a smaller example would need its own rows
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    @given(rows())
    def collect(row: list[StoredCell]) -> None:
        found[tuple(row)] = None
        if len(found) >= count:
            raise Enough

    with pytest.raises(Enough):
        collect()
    return [list(row) for row in itertools.islice(found, count)]


@pytest.mark.parametrize("part", range(PARTS))
def test_rows_read_and_compacted_as_by_opentsdb(
    hbase: RunningHbase, opentsdb_shared: Callable[..., Opentsdb], part: int
) -> None:
    peer = opentsdb_shared(**{"tsd.storage.fix_duplicates": "true"})
    assert peer.send(b"put conformance.rows 1000000000 1 host=web01\n") == b""
    (some,) = (key for key in hbase.tables.rows(peer.tables.data) if key[3:7] == base_of(999997200))
    placed = {some[:3] + base_of(next(hours)) + some[7:]: row for row in generated(ROWS, part)}
    place(hbase, peer.tables.data, placed)
    first, last = (int.from_bytes(key[3:7], "big") for key in (min(placed), max(placed)))
    path = f"/api/query?start={first}&end={last + HOUR_S - 1}&ms=true&m=none:conformance.rows{{host=web01}}"
    status, answer = peer.http("GET", path)
    assert status == 200, answer
    peer.settle()
    rules = MergeRules(fix_duplicates=True)
    ours = {
        int.from_bytes(key[3:7], "big") * 1000 + point.offset_ms: float(point.number)
        for key, row in placed.items()
        for point in merge(key, row, rules).points
    }
    shown = answer[0]["dps"] if answer else {}
    assert {int(time_ms): float(number) for time_ms, number in shown.items()} == {
        time_ms: number for time_ms, number in ours.items() if time_ms <= (last + HOUR_S - 1) * 1000
    }
    wanted = {}
    for key, row in placed.items():
        done = compact(key, row, rules)
        wanted[key] = [cell[:2] for cell in applied(row, done.merged, done.obsolete, WRITTEN_MS * 2)]
    stored = settled(lambda: rows_of(hbase, peer, placed), wanted)
    for key, row in placed.items():
        assert stored[key] == wanted[key], row


def place(hbase: RunningHbase, table: str, placed: dict[bytes, list[StoredCell]]) -> None:
    """Write rows to HBase."""
    by_time: dict[int, dict[bytes, dict[bytes, bytes]]] = defaultdict(dict)
    for key, row in placed.items():
        for cell in row:
            by_time[cell.time_ms][key] = {COLUMN + cell.qualifier: cell.value}  # a row's cells have different times
    for time_ms, cells in by_time.items():
        hbase.tables.put_all(table, cells, time_ms=time_ms)


def rows_of(hbase: RunningHbase, peer: Opentsdb, keys: Collection[bytes]) -> Bytes:
    """Return the stored qualifiers and values of rows in order."""
    found = hbase.tables.timed(peer.tables.data, min(keys), max(keys) + b"\0")
    cells = {key: [(column, value, time_ms) for column, (value, time_ms) in found[key].items()] for key in keys}
    return {key: [cell[:2] for cell in sorted(data_cells(row))] for key, row in cells.items()}


def settled(read: Callable[[], Bytes], wanted: Bytes) -> Bytes:
    """Read until the result is `wanted`, or until a deadline: OpenTSDB deletes after HBase has acknowledged the put,
    and does not report it."""
    deadline = time.monotonic() + ANSWER_S
    while (seen := read()) != wanted and time.monotonic() < deadline:  # each request limits the polling rate
        pass
    return seen


def base_of(base: int) -> bytes:
    return base.to_bytes(4, "big")
