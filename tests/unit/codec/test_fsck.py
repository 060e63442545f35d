"""What fsck counts, what each flag lets it mend, and what it leaves alone."""

from dataclasses import replace

import pytest

from tests.unit.codec.codec_rows import KEY, applied, cells, show
from tsd.codec.names import Kind
from tsd.codec.opentsdb.fsck import ERRORS, FsckLine, FsckOptions, RowCheck, check_row, totals
from tsd.codec.opentsdb.rowkey import KeyLayout

FIX = FsckOptions(fix=True)
ALL = FsckOptions.fix_all()


def named(kind: Kind, uid: bytes) -> bool:
    return True


def checked(row: str, options: FsckOptions) -> RowCheck:
    return check_row(KEY, cells(row), options, named)


def mended(row: str, options: FsckOptions) -> str:
    found = checked(row, options)
    return show(applied(cells(row), found.puts, found.deletes, 99))


COUNTED = {  # row → lines of the summary other than how much there was
    "0000=01 0010=02": {FsckLine.VALID: 2},
    "00000010=010200": {FsckLine.VALID: 2},
    "010000=7b6f6f7073": {FsckLine.ANNOTATIONS: 1, FsckLine.BAD_VALUE: 1},
    "010000=7b7d": {FsckLine.ANNOTATIONS: 1, FsckLine.OTHER: 1},
    "060000=2a0001000000": {},
    "060000=2a": {FsckLine.BAD_VALUE: 1},
    "090000=2a": {FsckLine.FUTURE: 1},
    "09=2a": {FsckLine.UNKNOWN: 1},
    "=": {FsckLine.UNKNOWN: 1},
    "050000=000001001002": {FsckLine.VALID: 2},
    "050000=00": {FsckLine.BAD_APPEND: 1},
    "050000=": {FsckLine.BAD_APPEND: 1},
    "000b0010=7f8000000100": {FsckLine.VALID: 2, FsckLine.BAD_VALUE: 1},
    "0000=01 0001=0002 f0000000=03": {FsckLine.VALID: 3, FsckLine.DUPLICATE: 2},
    "0000=010203": {FsckLine.BAD_VALUE: 1},
    "000b=ffffffff42280000": {FsckLine.VALID: 1, FsckLine.ENCODING: 1},
    "0007=2a": {FsckLine.VALID: 1, FsckLine.ENCODING: 1},
    "00070017=2a00": {FsckLine.BAD_COMPACT: 1},
    "00100000=2b2a02": {FsckLine.VALID: 2, FsckLine.FIXABLE: 2},
    "0007=000000000000002a": {FsckLine.VALID: 1, FsckLine.VLE: 1},
    "e100=01": {FsckLine.VALID: 1, FsckLine.OTHER: 1},
}


@pytest.mark.parametrize("row", COUNTED)
def test_summary_counts(row: str) -> None:
    found = checked(row, FsckOptions())
    amounts = {FsckLine.ROWS: 1, FsckLine.KEY_VALUES: len(cells(row))}
    assert +found.counts == amounts | COUNTED[row]
    assert (found.puts, found.deletes) == ([], [])
    assert totals(found.counts)[0] == sum(number for line, number in COUNTED[row].items() if line in ERRORS)


REPAIRED = [  # row, the flag that repairs it together with --fix, the result, the line that counts it
    ("0000=01 0010=02", "compact", "00000010=010200", None),
    ("0000=01@1 0001=0002@2", "resolve_duplicates", "0000=01", FsckLine.DUPLICATE_RESOLVED),
    ("09=2a 0000=01", "delete_unknown_columns", "0000=01", FsckLine.UNKNOWN_DELETED),
    ("0000=010203 0010=02", "delete_bad_values", "0010=02", FsckLine.BAD_VALUE_DELETED),
    ("010000=6f6f7073 0010=02", "delete_bad_values", "0010=02", FsckLine.BAD_VALUE_DELETED),
    ("060000=2a 0010=02", "delete_bad_values", "0010=02", FsckLine.BAD_VALUE_DELETED),
    ("000b=7f800000 0010=02", "delete_bad_values", "0010=02", FsckLine.BAD_VALUE_DELETED),
    ("000b00100020=ff800000010200", "delete_bad_values", "00100020=010200", FsckLine.BAD_VALUE_DELETED),
    ("050000=00 0010=02", "delete_bad_compacts", "0010=02", FsckLine.BAD_APPEND_DELETED),
    ("050000= 0010=02", "delete_bad_compacts", "0010=02", FsckLine.BAD_APPEND_DELETED),
    ("0500000000=00002a 0010=02", "delete_bad_compacts", "0010=02", FsckLine.BAD_APPEND_DELETED),
    ("00070017=2a00 0010=02", "delete_bad_compacts", "0010=02", FsckLine.BAD_COMPACT_DELETED),
]


@pytest.mark.difference(
    "fsck-unreadable-cells",
    topic="rows",
    theirs=(
        "fsck accepts cells that queries fail on: infinite values, and malformed annotations, histograms and "
        "append columns"
    ),
    ours="They are errors, which `--delete-bad-values` and `--delete-bad-compacts` delete",
)
@pytest.mark.parametrize(("row", "flag", "after", "line"), REPAIRED)
def test_each_flag_repairs_only_its_problem(row: str, flag: str, after: str, line: FsckLine | None) -> None:
    assert mended(row, replace(FIX, **{flag: True})) == after
    assert mended(row, replace(ALL, **{flag: False})) == show(cells(row))
    assert mended(row, replace(ALL, fix=False)) == show(cells(row))
    errors, correctable, fixed = totals(checked(row, replace(FIX, **{flag: True})).counts)
    assert (errors, correctable, fixed) == ((1, 1, 1) if line else (0, 0, 0))
    if line:
        assert checked(row, replace(FIX, **{flag: True})).counts[line] == 1


@pytest.mark.parametrize(
    ("row", "after"),
    [
        ("000b=0000000042280000", "000b=42280000"),
        ("000b=ffffffff42280000", "000b=42280000"),
        ("000f=42280000", "000b=42280000"),
        ("0007=2a", "0000=2a"),
        ("0007=000000000000002a", "0000=2a"),
        ("0000=2a 0017=000000000000012c", "0000=2a 0011=012c"),
        ("00100000=2b2a00", "00000010=2a2b00"),
        ("00000010=2a2b", "00000010=2a2b00"),
        ("00000010=2a2b02 0020=2c", "000000100020=2a2b2c00"),
        ("00000017=01000000000000000200", "00000010=010200"),
    ],
)
def test_repairs_with_fix_alone(row: str, after: str) -> None:
    found = checked(row, FIX)
    assert mended(row, FIX) == after
    assert totals(found.counts)[2] == totals(found.counts)[0]
    assert found.counts[FsckLine.VLE] == found.counts[FsckLine.VLE_FIXED]


def test_saved_bytes_are_counted() -> None:
    assert checked("0007=000000000000002a 0017=000000000000012c", FIX).counts[FsckLine.VLE_BYTES] == 7 + 6


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ("0007=2a 0010=02@1 0011=0002@2", FIX),  # no choice between two points
        ("0000=01 0010=02 050000=002003", ALL),  # the append column may hold newer points
        ("0000=01 0010=02 0500000000=", replace(ALL, delete_bad_compacts=False)),
        ("00000010=2b2a02 00070017=2a00", replace(ALL, delete_bad_compacts=False)),
        ("0000=012c 0001=010203", replace(ALL, delete_bad_values=False)),  # its place is taken
    ],
)
def test_undecided_row_is_unchanged(row: str, options: FsckOptions) -> None:
    assert mended(row, options) == show(cells(row))


def test_single_point_is_repaired_despite_broken_cell() -> None:
    assert mended("0007=2a 0010=010203 0020=01", replace(ALL, delete_bad_values=False)) == "0000=2a 0010=010203 0020=01"


def test_put_cell_is_not_deleted() -> None:
    """The broken cell's name is the one that the joined points get."""
    found = checked("00000010=2a2b2c2d2e 0000=01 0010=02", ALL)
    assert (show(found.puts), show(found.deletes)) == ("00000010=010200", "0000=01 0010=02")


def test_rows_are_split_and_stamped_as_in_compaction() -> None:
    options = replace(ALL, cell_points=2, use_otsdb_timestamp=True)
    found = checked("0000=01@5 0010=02@7 0020=03@6", options)
    assert (show(found.puts), found.time_ms) == ("00000010=010200", 7)
    assert checked("0000=01@5", options).time_ms is None


def test_invalid_row_key_is_found() -> None:
    for key in ("000001", "00000150e22700", "00000150e227000000010000"):
        found = check_row(bytes.fromhex(key), cells("0000=010203 09=2a"), ALL, named)
        assert (found.delete_row, found.counts[FsckLine.BAD_KEY], found.counts[FsckLine.BAD_KEY_DELETED]) == (
            True,
            1,
            1,
        )
        assert (found.puts, found.deletes, found.counts[FsckLine.BAD_VALUE]) == ([], [], 0)
        kept = check_row(bytes.fromhex(key), [], replace(ALL, delete_bad_rows=False), named)
        assert (kept.delete_row, totals(kept.counts)) == (False, (1, 1, 0))


def test_row_with_unnamed_uids_is_an_orphan() -> None:
    lookups: list[tuple[Kind, str]] = []

    def only_the_metric(kind: Kind, uid: bytes) -> bool:
        lookups.append((kind, uid.hex()))
        return kind is Kind.METRIC

    found = check_row(KEY, cells("0000=010203"), ALL, only_the_metric)
    assert lookups == [(Kind.METRIC, "000001"), (Kind.TAGK, "000001"), (Kind.TAGV, "000001")]
    assert (found.delete_row, found.counts[FsckLine.ORPHAN], found.counts[FsckLine.ORPHAN_DELETED]) == (True, 1, 1)
    assert "tagk 000001, tagv 000001" in found.findings[0].problem.detail
    assert not check_row(KEY, [], replace(ALL, delete_orphans=False), only_the_metric).delete_row


def test_row_of_global_annotations_is_valid() -> None:
    for layout, key in ((KeyLayout(), "00000050e22700"), (KeyLayout(salt_width=1), "0000000050e22700")):
        found = check_row(bytes.fromhex(key), cells("010000=7b7d"), ALL, lambda kind, uid: False, layout)
        assert not found.delete_row
        assert totals(found.counts)[0] == 0


def test_rollups_among_raw_points_are_known() -> None:
    row = cells("000010=2a 030020=2b")
    assert check_row(KEY, row, ALL, named).counts[FsckLine.FUTURE] == 2
    found = check_row(KEY, row, ALL, named, rollup_ids=frozenset((0, 3)))
    assert (found.counts[FsckLine.FUTURE], found.findings, found.deletes) == (0, [], [])
