"""Rows before and after OpenTSDB compacted them or its fsck mended them (`storage_vectors.json`)."""

import pytest

from tests.cases import all_of
from tests.unit.codec.codec_rows import KEY, applied, show
from tests.unit.codec.codec_vectors import Departure, Vector, check, check_names, of_kind, unhex
from tests.unit.codec.row_vectors import FSCK_DEPARTURES, NOTE_JSON, cells_of, fsck_of
from tsd.codec.opentsdb.cell import APPEND, Point, join_append, qualifier_of, split, split_append
from tsd.codec.opentsdb.fsck import FsckOptions, check_row
from tsd.codec.opentsdb.merge import MergeRules, StoredCell, merge
from tsd.codec.opentsdb.row import compact, points
from tsd.codec.putline import NameRules, instant, parse_put
from tsd.errors import CorruptRow

CORRUPT = "a value that does not fit its qualifier is left for the operator, not made to fit"
SORTED = "points out of order are put in order"
TIE = (
    "refused (Duplicate timestamp for key=[0, 0, 28, 80, -30, 39, 0, 0, 0, 1, 0, 0, 1], ms_offset=0, older=[1], "
    "newer={}; set tsd.storage.fix_duplicates=true to fix automatically or run Fsck), "
    "0000=01 0001=0002 000b=40400000"
)
BOTH_WAYS = {  # whatever tsd.storage.fix_duplicates is
    "int 3 byte value": Departure("refused, 0002=010203", "refused, 0000=010203", CORRUPT),
    "compacted out of order inside": Departure("read, 00100000=2b2a00", "read, 00000010=2a2b00", SORTED),
    "compacted out of order + single": Departure("read, 001000000020=2b2a2c00", "read, 000000100020=2a2b2c00", SORTED),
    "compacted value far too short": Departure("read, 0007=2a00000000000000", "refused, 00070017=2a00", CORRUPT),
    "compacted value too long": Departure("read, 00000010=2a2b00", "refused, 00000010=2a2b2c2d00", CORRUPT),
    "4-byte ms qualifier with value+meta": Departure("read, f0007d00=2a00", "refused, f0007d00=2a00", CORRUPT),
    "empty value": Departure("refused, =", "refused, 0000=", CORRUPT),
    "empty value + single": Departure("read, 0010=2b00", "refused, 0000= 0010=2b", CORRUPT),
    "annotation bad json + two ints": Departure(
        f"refused, 0000=2a 0010=2b 010000={NOTE_JSON}",
        f"read, 00000010=2a2b00 010000={NOTE_JSON}",
        "a broken annotation does not make the points of its row unreadable",
    ),
}
COMPACTION_DEPARTURES = {
    f"{name}, fix_duplicates={fix}": departure for name, departure in BOTH_WAYS.items() for fix in (False, True)
} | {
    "dup equal cell ts 3way, fix_duplicates=False": Departure(
        TIE.format("[64, 64, 0, 0]"), TIE.format("[0, 2]"), "of equally new cells the lower qualifier's comes first"
    ),
}
MIXED_LOST = {
    "use_otsdb_timestamp=true, 0000f0007d00=2a2b01": Departure(
        "0000f0007d00=2a2b00", "0000f0007d00=2a2b01", "a cell of both forms says so"
    ),
}
LAST_SHOWN_MS = 3599000  # OpenTSDB was asked for the hour's points up to here


def compacted(key: bytes, row: list[StoredCell], rules: MergeRules) -> list[StoredCell]:
    done = compact(key, row, rules)
    newest = max(cell.time_ms for cell in row)
    return applied(row, done.merged, done.obsolete, newest + 1 if done.time_ms is None else done.time_ms)


def name_of(vector: Vector) -> str:
    return f"{vector['name']}, fix_duplicates={vector['fix_duplicates']}"


@pytest.mark.difference(
    "impossible-values",
    topic="rows",
    theirs=(
        "Values of impossible length, and joined cells that are too short or too long, are read as far as possible "
        "and compacted to less"
    ),
    ours="The row is an error with its key, and it is not rewritten",
)
@pytest.mark.difference(
    "unordered-cells",
    topic="rows",
    theirs="Points out of order inside a cell stay out of order",
    ours="They are sorted",
)
@pytest.mark.difference(
    "malformed-annotations",
    topic="rows",
    theirs="An annotation that is not JSON makes the hour unreadable",
    ours="The points of the hour are read",
)
@pytest.mark.difference(
    "equal-duplicates",
    topic="rows",
    theirs="Of equally new duplicates, the order of a heap decides which is kept",
    ours="The one with the lowest qualifier is kept",
)
@all_of(of_kind("compaction"), name_of)
def test_row_is_compacted_as_by_opentsdb(vector: Vector) -> None:
    key, before = unhex(vector["row_hex"]), cells_of(vector["before"])
    try:
        after = compacted(key, before, MergeRules(fix_duplicates=vector["fix_duplicates"]))
        here = f"read, {show(after)}"
    except CorruptRow as exc:
        message = f" ({exc})" if "Duplicate" in str(exc) else ""
        here = f"refused{message}, {show(before)}"
    error = vector.get("error", "")
    message = f" ({error})" if "Duplicate" in error else ""
    verdict = "read" if vector["read_status"] == 200 else f"refused{message}"
    check(COMPACTION_DEPARTURES, name_of(vector), f"{verdict}, {show(cells_of(vector['after']))}", here)


READ = [vector for vector in of_kind("compaction") if vector["read_status"] == 200 and "points_ms" in vector]


@all_of([v for v in READ if BOTH_WAYS.get(v["name"], Departure("", "read", ""))[1].startswith("read")], name_of)
def test_row_is_read_as_by_opentsdb(vector: Vector) -> None:
    rules = MergeRules(fix_duplicates=vector["fix_duplicates"])
    wanted = {int(time_ms) - 1356998400000: value for time_ms, value in vector["points_ms"].items()}
    before = cells_of(vector["before"])
    times = {cell[:2]: cell.time_ms for cell in before}
    after = [cell._replace(time_ms=times.get(cell[:2], 1 << 60)) for cell in cells_of(vector["after"])]
    for row in (before, after):
        found = points(unhex(vector["row_hex"]), row, rules)
        assert {p.offset_ms: p.number for p in found if p.offset_ms <= LAST_SHOWN_MS} == wanted


def lines_of(vector: Vector) -> str:
    return " / ".join(vector.get("lines", ()))


def written(line: str) -> Point:
    point = parse_put(line.encode(), NameRules())
    return Point(qualifier_of(instant(point.time), point.flags), point.value)


@all_of(of_kind("compaction_of_lines"), lines_of)
def test_lines_are_compacted_as_by_opentsdb(vector: Vector) -> None:
    row: dict[bytes, StoredCell] = {}
    rules = MergeRules(fix_duplicates="fix_duplicates=true" in vector["note"])
    key = unhex(vector["row_hex"])
    for time_ms, line in enumerate(vector["lines"]):
        if line == "(compacted)":
            row = {cell.qualifier: cell for cell in compacted(key, list(row.values()), rules)}
        else:
            point = written(line)
            row[point.qualifier] = StoredCell(*point, time_ms * 2)
    stored = f"{vector['qualifier_hex']}={vector['value_hex']}"
    assert show(compacted(key, list(row.values()), rules)) == stored
    assert sorted(split(unhex(vector["qualifier_hex"]), unhex(vector["value_hex"]))) == sorted(
        {point.offset_ms: point for point in map(written, filter("(compacted)".__ne__, vector["lines"]))}.values()
    )


def tiered_of(vector: Vector) -> str:
    return f"{vector['config']}, {show(cells_of(vector['before']))}"


@pytest.mark.difference(
    "mixed-cells",
    topic="rows",
    theirs="A joined cell of seconds and ms loses its flag for that if `use_otsdb_timestamp` is set",
    ours="It keeps the flag",
)
@all_of(of_kind("date_tiered_compaction"), tiered_of)
def test_row_of_points_own_times_is_compacted_as_by_opentsdb(vector: Vector) -> None:
    rules = MergeRules(use_otsdb_timestamp=True, use_max_value="use_max_value=false" not in vector["config"])
    before, after = cells_of(vector["before"]), cells_of(vector["after"])
    here = compacted(unhex(vector["row_hex"]), before, rules)
    assert [cell.time_ms for cell in here] == [cell.time_ms for cell in after]
    check(MIXED_LOST, tiered_of(vector), show(after), show(here))


@all_of(of_kind("append"), lines_of)
def test_append_column_has_the_points_that_opentsdb_leaves_after_a_repair(vector: Vector) -> None:
    sent = list(map(written, vector["lines"]))
    value = unhex(vector["value_hex"])
    assert join_append(sent) == value
    assert split_append(value) == sent
    repaired = unhex(vector["after_read_with_repair_appends"])
    for stored in (value, repaired):
        assert merge(KEY, [StoredCell(APPEND, stored, 0)]).points == split_append(repaired)


def options_of(vector: Vector) -> FsckOptions:
    flags = vector["options"]
    if "--fix-all" in flags:
        return FsckOptions.fix_all(last_write_wins="--last-write-wins" in flags)
    return FsckOptions(fix="--fix" in flags, resolve_duplicates="--resolve-duplicates" in flags)


@pytest.mark.difference(
    "fsck-readable-points",
    topic="rows",
    theirs="fsck deletes readable points (8-byte integers, wrong length flags, joined cells without the last byte)",
    ours="It repairs them",
)
@all_of(of_kind("fsck"), fsck_of)
def test_row_is_repaired_as_by_opentsdbs_fsck(vector: Vector) -> None:
    key = unhex(vector["row_hex"]) if "row_hex" in vector else KEY
    before, after = cells_of(vector["before"]), cells_of(vector["after"])
    found = check_row(key, before, options_of(vector), lambda kind, uid: True)
    here = applied(before, found.puts, found.deletes, max(cell.time_ms for cell in before) + 1)
    assert not found.delete_row
    check(FSCK_DEPARTURES, fsck_of(vector), show(after), show(here))


def test_departures_name_vectors() -> None:
    check_names(COMPACTION_DEPARTURES, of_kind("compaction"), name_of)
    check_names(MIXED_LOST, of_kind("date_tiered_compaction"), tiered_of)
    check_names(FSCK_DEPARTURES, of_kind("fsck"), fsck_of)


@pytest.mark.parametrize("kind", ["compaction", "fsck"])
def test_names_of_vectors_are_unique(kind: str) -> None:
    """Else a departure could stand for more than one."""
    names = [name_of(v) if kind == "compaction" else fsck_of(v) for v in of_kind(kind)]
    assert len(set(names)) == len(names)
