"""Merging and compacting rows: what vectors do not show."""

import math
import struct

import pytest

from tests.unit.codec.codec_rows import KEY, applied, cells, show
from tsd.codec.opentsdb.cell import Point, join, ms_qualifier, seconds_qualifier
from tsd.codec.opentsdb.merge import (
    DuplicateTimestamp,
    MergeRules,
    StoredCell,
    _join_runs,
    merge,
    point_cells,
)
from tsd.codec.opentsdb.row import compact, data_cells, points
from tsd.codec.text import FLOAT
from tsd.errors import CorruptRow

FIX = MergeRules(fix_duplicates=True)
TIERED = MergeRules(use_otsdb_timestamp=True)


def second(at: int) -> Point:
    return Point(seconds_qualifier(at * 10, FLOAT | 3), struct.pack(">f", at * 1.5))


def milli(at: int) -> Point:
    return Point(ms_qualifier(at * 10000 + 3, 0), bytes((at % 128,)))


def stored(points_of_cells: list[list[Point]]) -> list[StoredCell]:
    return [StoredCell(*join(found), time_ms) for time_ms, found in enumerate(points_of_cells)]


USUAL = {
    "360 single cells": stored([[second(at)] for at in range(360)]),
    "360 single cells in ms": stored([[milli(at)] for at in range(360)]),
    "6 cells of 60 points": stored([[second(at) for at in range(n, n + 60)] for n in range(0, 360, 60)]),
    "6 cells of 60 points in ms": stored([[milli(at) for at in range(n, n + 60)] for n in range(0, 360, 60)]),
    "3 cells of both forms": stored([[second(n), milli(n), second(n + 1)] for n in range(0, 9, 3)]),
    "a compacted cell and later ones": stored([[second(0), second(1)], [second(2)], [second(3)], [milli(4)]]),
    "a compacted cell and late ones": stored(
        [[second(at) for at in (0, 1, 3, 7)], [second(5)], [second(2), second(4)]]
    ),
    "a compacted cell and late ones in ms": stored([[milli(0), milli(2), milli(4)], [milli(1), milli(3)]]),
    "one cell": stored([[second(at) for at in range(360)]]),
    "one point": stored([[second(7)]]),
    "nothing": [],
}


@pytest.mark.parametrize("name", USUAL)
def test_simple_rows_are_joined_without_decoding_points(name: str) -> None:
    row = USUAL[name]
    assert _join_runs(point_cells(KEY, row)) == merge(KEY, row)
    wanted = sum(len(cell.qualifier) // (4 if cell.qualifier[0] >= 0xF0 else 2) for cell in row)
    assert len(points(KEY, row)) == wanted or name == "3 cells of both forms"


@pytest.mark.parametrize(
    "row",
    [
        "0000=2a@1 0001=002a@2",  # one time
        "00000010=2a2b00@1 0010=2b@2",  # a time in two cells
        "00000020=2a2c00@1 f0007d00=2b@2",  # in ms, between the points of another cell
        "00000020=2a2c00@1 00100020=2b2d00@2",  # between the points of another cell, and at one time
        "00100000=2b2a00@1",  # out of order
        "0000=2a@1 f0000000=2a@2",  # one time in two forms
        "f0007d00=2a@1 f0007d30=2b@2",  # one time, distinguished by bits without a meaning
        "0007=2a@1 0010=2b@2",  # an old encoding
        "050000=00002a@1",
    ],
)
def test_other_rows_are_merged_point_by_point(row: str) -> None:
    assert _join_runs(point_cells(KEY, cells(row))) is None
    assert merge(KEY, cells(row), FIX).size > 0


@pytest.mark.difference(
    "differing-duplicates",
    topic="rows",
    theirs="Duplicates that differ are an error unless `fix_duplicates` is set",
    ours="The value of the newest cell counts, unless `fix_duplicates = false`",
)
@pytest.mark.parametrize(
    ("row", "compacted", "identical", "variant"),
    [
        ("0000=2a@1 0001=002a@1", "0000=2a", 0, 1),  # equally new: the lower qualifier
        ("0000=2a@1 0001=002a@2", "0001=002a", 0, 1),
        ("0000=2a@2 f0000000=2a@1", "0000=2a", 1, 0),
        ("00000010=2a2b00@3 0010=2c@2 0011=002d@1", "00000010=2a2b00", 0, 2),
        ("00000010=2a2b00@1 0010=2c@2", "00000010=2a2c00", 0, 1),
        ("000000000010=01020300@1", "00000010=010300", 0, 1),  # in one cell the first
        ("00100000=2b2a00@1 0000=2c@2", "00000010=2c2b00", 0, 1),
        ("0000=2a@1 0010=2b@1 010000=7b@1 060000=00@1", "00000010=2a2b00 010000=7b 060000=00", 0, 0),
    ],
)
def test_duplicate_choice_follows_the_rules(row: str, compacted: str, identical: int, variant: int) -> None:
    done = compact(KEY, cells(row), FIX)
    assert show(applied(cells(row), done.merged, done.obsolete, 9)) == compacted
    assert (done.row.identical, done.row.variant) == (identical, variant)


def test_duplicate_error_names_the_kept_point() -> None:
    with pytest.raises(DuplicateTimestamp) as refused:
        merge(KEY, cells("0000=2a@1 0010=01@1 0011=0001@2"))
    error = refused.value
    assert (error.key, error.kept, error.dropped) == (KEY, Point(b"\0\x11", b"\0\1"), Point(b"\0\x10", b"\1"))
    assert str(error) == (
        "Duplicate timestamp for key=[0, 0, 1, 80, -30, 39, 0, 0, 0, 1, 0, 0, 1], ms_offset=1000, older=[0, 1], "
        "newer=[1]; set tsd.storage.fix_duplicates=true to fix automatically or run Fsck"
    )


def test_obsolete_cells_keep_their_timestamps() -> None:
    done = compact(KEY, cells("0000=2a@5 0010=2b@7 00200030=010200@6"))
    assert show(done.merged) == "0000001000200030=2a2b010200"
    assert done.obsolete == tuple(cells("0000=2a@5 0010=2b@7 00200030=010200@6"))
    assert done.time_ms is None


def test_rewritten_cell_is_not_deleted() -> None:
    done = compact(KEY, cells("00000010=2a2b00@1 0010=2c@2"), FIX)
    assert (show(done.merged), show(done.obsolete)) == ("00000010=2a2c00", "0010=2c")


def test_compacted_row_is_unchanged() -> None:
    for row in ("00000010=2a2b00@1", "0000=2a@1", "f0007d00=2a@1", "050000=00002a@1 0000=2a@1", "010000=7b7d@1", ""):
        assert not compact(KEY, cells(row)).changes


def test_choice_by_value_never_raises() -> None:
    row = cells("0020=03@2 002b=40b00000@2 f001f400=04@2 0030=01@3")
    done = compact(KEY, row, TIERED)
    assert (show(done.merged), done.time_ms) == ("002b0030=40b000000100", 3)
    assert (
        show(compact(KEY, row, MergeRules(use_otsdb_timestamp=True, use_max_value=False)).merged) == "00200030=030100"
    )


def test_choice_by_value_compares_doubles() -> None:
    high, higher = (1 << 53).to_bytes(8, "big").hex(), ((1 << 53) + 1).to_bytes(8, "big").hex()
    (kept,) = points(KEY, cells(f"0007={high}@2 f0000007={higher}@1"), TIERED)
    assert kept.number == 1 << 53


def test_choice_by_value_ignores_nan() -> None:
    nan = struct.pack(">f", math.nan).hex()
    (kept,) = points(KEY, cells(f"0000=01@1 000b={nan}@2"), TIERED)
    assert math.isnan(kept.number)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0000=", "got 0 bytes, wanted 1"),
        ("0000=010203", "got 3 bytes, wanted 1"),
        ("0002=010203", "no number has the flags 0x2"),
        ("0008=2a", "no number has the flags 0x8"),
        ("00020010=01020304", "no number has the flags 0x2"),
        ("00020010=2a00", "got 2 bytes, wanted 4 for 2 points and one more"),
        ("000b=ffffffff42280000", "must start with four zeros"),
        ("00070017=2a00", "got 2 bytes, wanted 16 for 2 points and one more"),
        ("00000010=2a2b2c2d00", "got 5 bytes, wanted 2"),
        ("fff0=2a", "got 2 bytes at 0, wanted 4"),
        ("0000f000=2a2b", "got 2 bytes at 2, wanted 4"),
        ("f0007d07=2a", "got 1 bytes, wanted 8"),
        ("050000=0007002a", "the record at 0 needs 10 bytes"),
        ("050000=0002010203", "no number has the flags 0x2"),
        ("0500000000=00002a", "an append column has 3 bytes, got 0500000000"),
    ],
)
def test_unreadable_cell_makes_the_row_corrupt(row: str, message: str) -> None:
    for others in ("", " 0030=01", " 0030=01 f0000000=02"):
        with pytest.raises(CorruptRow, match=f"^row {KEY.hex()}: .*{message}"):
            compact(KEY, cells(row + others), FIX)


def test_data_cells_have_no_family() -> None:
    assert data_cells([(b"t:", b"", 1), (b"t:\0:", b"\1", 2)]) == [
        StoredCell(b"", b"", 1),
        StoredCell(b"\0:", b"\1", 2),
    ]


def test_empty_append_column_has_no_points() -> None:
    assert merge(KEY, cells("050000=@1")).size == 0


@pytest.mark.difference(
    "cell-size",
    topic="rows",
    theirs="A row becomes one cell of any size",
    ours="It becomes cells of at most 4,096 points",
)
@pytest.mark.parametrize(
    ("size", "compacted"),
    [
        (1, "00000010=010200 0050=05 f0012c000020=030401"),  # who made such cells knows no size, and may be at it
        (2, "00000010=010200 0050=05 f0012c000020=030401"),
        (3, "00000010f0012c00=01020301 00200050=040500"),
        (5, "00000010f0012c0000200050=010203040501"),
    ],
)
def test_long_row_is_split_into_several_cells(size: int, compacted: str) -> None:
    row = cells("00000010=010200@1 f0012c000020=030401@1 0050=05@1")
    done = compact(KEY, row, MergeRules(cell_points=size))
    after = applied(row, done.merged, done.obsolete, 9)
    assert show(after) == compacted
    assert points(KEY, after) == points(KEY, row)
