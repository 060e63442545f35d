"""Laws of merging, compaction and fsck, for rows of every sort."""

import re
from collections.abc import Iterable
from itertools import filterfalse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.codec_rows import (
    KEY,
    all_rules,
    any_bytes,
    anything,
    deciding,
    in_seconds,
    readable,
    tidy,
    with_appends,
)
from tests.unit.codec.codec_rows import applied
from tsd.codec.opentsdb.cell import Point, split_qualifier
from tsd.codec.opentsdb.check import UNREADABLE, Trouble, inspect, is_infinite
from tsd.codec.opentsdb.fsck import NOTHING, FsckOptions, RowCheck, check_row, totals
from tsd.codec.opentsdb.merge import (
    HAS_MERGE_LOOP,
    DuplicateTimestamp,
    MergedRow,
    MergeRules,
    StoredCell,
    _join_runs,
    _merge_points,
    cell_points,
    measure,
    merge,
    point_cells,
)
from tsd.codec.opentsdb.row import Compaction, compact, points, problems
from tsd.codec.text import show_signed
from tsd.errors import CorruptRow

if HAS_MERGE_LOOP:
    from tsd.codec.opentsdb._merge import join_cells

law = settings(deadline=None)


def outcome(cells: Iterable[StoredCell], rules: MergeRules, *, compiled: bool = HAS_MERGE_LOOP) -> object:
    """What a reader gets of a row: its points and what was dropped, or the error."""
    try:
        row = merge(KEY, cells, rules, compiled=compiled)
    except CorruptRow as exc:
        return type(exc), str(exc)
    return row.joined, row.size, row.identical, row.variant


def after(cells: list[StoredCell], done: Compaction, *, stop_after: str = "delete") -> list[StoredCell]:
    """The row once a compaction, or its first half, is applied."""
    now = 1 + max((cell.time_ms for cell in cells), default=0)
    deletes = done.obsolete if stop_after == "delete" else ()
    return applied(cells, done.merged, deletes, now if done.time_ms is None else done.time_ms)


@law
@given(with_appends, deciding)
def test_merge_follows_its_definition(cells: list[StoredCell], rules: MergeRules) -> None:
    """Point by point: of one time the newest cell's, then the lowest qualifier's, then the first; or by value."""
    best: dict[int, Point] = {}
    dropped = 0
    ranked = sorted(sorted(point_cells(KEY, cells)), key=lambda cell: -cell.time_ms)
    for point in (point for cell in ranked for point in cell_points(cell)):
        kept = best.setdefault(point.offset_ms, point)
        dropped += kept is not point
        if rules.use_otsdb_timestamp:
            better = float(point.number) > float(kept.number)
            if not rules.use_max_value:
                better = float(point.number) < float(kept.number)
            if better:
                best[point.offset_ms] = point
    row = merge(KEY, cells, rules)
    assert row.points == [best[time_ms] for time_ms in sorted(best)]
    assert (row.size, row.identical + row.variant) == (len(best), dropped)


@law
@given(st.one_of(tidy, anything), all_rules)
def test_joining_cells_equals_merging_points(cells: list[StoredCell], rules: MergeRules) -> None:
    try:
        holders = point_cells(KEY, cells)
    except CorruptRow:
        return
    fast = _join_runs(holders)
    if fast is not None:
        assert fast == _merge_points(KEY, holders, rules)


@pytest.mark.skipif(not HAS_MERGE_LOOP, reason="no C compiler when tsd was installed: only Python's way is there")
@law
@given(st.one_of(tidy, in_seconds, anything, any_bytes), all_rules)
def test_compiled_and_pure_merges_are_equal(cells: list[StoredCell], rules: MergeRules) -> None:
    assert outcome(cells, rules, compiled=True) == outcome(cells, rules, compiled=False)


@pytest.mark.skipif(not HAS_MERGE_LOOP, reason="no C compiler when tsd was installed: only Python's way is there")
@law
@given(in_seconds)
def test_cells_of_different_times_are_merged_by_the_loop(cells: list[StoredCell]) -> None:
    times = [point.offset_ms for cell in cells for point in cell_points(cell)]
    joined = join_cells(cells)
    assert (joined is None) == (not cells or len(set(times)) < len(times))
    assert joined is None or joined[2] == len(times)


@pytest.mark.skipif(not HAS_MERGE_LOOP, reason="no C compiler when tsd was installed: only Python's way is there")
@law
@given(st.one_of(tidy, in_seconds, anything, any_bytes))
def test_columns_with_a_family_are_joined_as_qualifiers(cells: list[StoredCell]) -> None:
    columns = [StoredCell(b"t:" + cell.qualifier, cell.value, cell.time_ms) for cell in cells]
    joined, wanted = join_cells(columns, b"t:"), join_cells(cells)
    assert joined == (None if wanted is None else (b"t:" + wanted[0], *wanted[1:]))
    assert join_cells([*columns, StoredCell(b"u:\0\0", b"\x2a", 0)], b"t:") is None
    assert measure(columns, compiled=True) == measure(columns, compiled=False)


@law
@given(tidy)
def test_consecutive_cells_are_joined_directly(cells: list[StoredCell]) -> None:
    """Else rows of the usual sort would take the slow way, unseen."""
    taken: list[StoredCell] = []
    last_ms = -1
    for cell in sorted(cells, key=lambda cell: cell_points(cell)[0].offset_ms):
        times = [point.offset_ms for point in cell_points(cell)]
        if len(times) > 1 and times[0] > last_ms:
            taken.append(cell)
            last_ms = times[-1]
    assert _join_runs(taken) is not None


@law
@given(st.data(), anything, all_rules)
def test_order_of_cells_does_not_matter(data: st.DataObject, cells: list[StoredCell], rules: MergeRules) -> None:
    shuffled = data.draw(st.permutations(cells))
    assert outcome(shuffled, rules) == outcome(cells, rules)


def sizes(row: MergedRow) -> int:
    """Points of its largest cell."""
    return max((len(cell_points(cell)) for cell in row.cells), default=0)


@law
@given(readable, all_rules)
def test_compaction_keeps_points_and_is_idempotent(cells: list[StoredCell], rules: MergeRules) -> None:
    try:
        done = compact(KEY, cells, rules)
    except DuplicateTimestamp:
        return
    compacted = after(cells, done)
    assert points(KEY, compacted, rules) == points(KEY, cells, rules)
    again = compact(KEY, compacted, rules)
    assert not again.changes
    if sizes(again.row) > rules.cell_points:  # it is left to who makes such cells
        assert not done.changes
    else:
        assert again.row.identical == again.row.variant == 0


@law
@given(readable, all_rules)
def test_crash_between_put_and_delete_loses_no_point(cells: list[StoredCell], rules: MergeRules) -> None:
    try:
        done = compact(KEY, cells, rules)
    except DuplicateTimestamp:
        return
    halfway = after(cells, done, stop_after="put")
    deciding_rules = MergeRules(fix_duplicates=True) if not rules.use_otsdb_timestamp else rules
    assert points(KEY, halfway, deciding_rules) == points(KEY, cells, deciding_rules)
    if rules == MergeRules():  # nothing contradicted, so nothing does now
        assert points(KEY, halfway, rules) == points(KEY, cells, rules)
    finished = after(halfway, compact(KEY, halfway, deciding_rules))
    assert points(KEY, finished, deciding_rules) == points(KEY, cells, deciding_rules)


@law
@given(readable, deciding)
def test_compacted_row_has_no_problems(cells: list[StoredCell], rules: MergeRules) -> None:
    done = compact(KEY, cells, rules)
    if sizes(done.row) > rules.cell_points and not done.changes:
        return
    found = {problem.trouble for problem in problems(KEY, after(cells, done))}
    assert found <= NO_ERROR | {Trouble.UNKNOWN_COLUMN}


@law
@given(st.one_of(anything, any_bytes), all_rules)
def test_unreadable_row_is_named_and_unchanged(cells: list[StoredCell], rules: MergeRules) -> None:
    if any(problem.trouble in UNREADABLE for problem in problems(KEY, cells)):
        with pytest.raises(CorruptRow, match=f"row {KEY.hex()}"):
            compact(KEY, cells, rules)
    elif rules == MergeRules() and any(problem.trouble is Trouble.CONFLICT for problem in problems(KEY, cells)):
        with pytest.raises(DuplicateTimestamp, match=re.escape(show_signed(KEY))):
            compact(KEY, cells, rules)
    else:
        assert compact(KEY, cells, rules).row.size == len(points(KEY, cells, rules))


@law
@given(with_appends, all_rules)
def test_row_with_append_column_is_never_rewritten(cells: list[StoredCell], rules: MergeRules) -> None:
    try:
        done = compact(KEY, cells, rules)
    except DuplicateTimestamp:
        return
    if any(cell.qualifier == b"\5\0\0" for cell in cells):
        assert not done.changes


@law
@given(readable, deciding)
def test_compaction_changes_only_cells_of_points(cells: list[StoredCell], rules: MergeRules) -> None:
    done = compact(KEY, cells, rules)
    others = [cell for cell in cells if len(cell.qualifier) % 2 or not cell.qualifier]
    assert [cell for cell in after(cells, done) if cell in others] == others


def mended(cells: list[StoredCell], found: RowCheck) -> list[StoredCell]:
    return applied(cells, found.puts, found.deletes, 1 + max((cell.time_ms for cell in cells), default=0))


def named(_: object, __: bytes) -> bool:
    return True


flags = st.builds(
    FsckOptions,
    fix=st.just(True),
    compact=st.booleans(),
    resolve_duplicates=st.booleans(),
    delete_unknown_columns=st.booleans(),
    delete_bad_values=st.booleans(),
    delete_bad_compacts=st.booleans(),
    last_write_wins=st.booleans(),
)


@law
@given(st.one_of(anything, any_bytes))
def test_fsck_without_permission_changes_nothing(cells: list[StoredCell]) -> None:
    found = check_row(KEY, cells, FsckOptions(compact=True, resolve_duplicates=True, delete_bad_values=True), named)
    assert (found.puts, found.deletes, found.delete_row) == (*NOTHING, False)
    assert totals(found.counts)[2] == 0


@law
@given(st.one_of(anything, any_bytes), st.booleans())
def test_fsck_repairs_everything_repairable(cells: list[StoredCell], last: bool) -> None:
    options = FsckOptions.fix_all(last_write_wins=last)
    found = check_row(KEY, cells, options, named)
    second = check_row(KEY, mended(cells, found), options, named)
    assert (second.puts, second.deletes) == NOTHING
    if not any(cell.qualifier[:1] == b"\5" for cell in cells):
        assert totals(second.counts)[1] == 0
        assert totals(found.counts)[2] == totals(found.counts)[1]


@law
@given(st.one_of(anything, any_bytes), flags)
def test_fsck_loses_no_readable_time(cells: list[StoredCell], options: FsckOptions) -> None:
    """Whatever it deletes, what stood at each readable time of a readable cell stays, but for duplicates of it."""
    found = check_row(KEY, cells, options, named)
    row = mended(cells, found)
    before, now, saved = readable_values(cells), readable_values(row), sign_extended_values(cells)
    assert set(before) <= set(now)
    for time_ms, values in before.items():
        candidates = values | saved.get(time_ms, set())
        assert now[time_ms] <= candidates or not options.resolve_duplicates
        assert now[time_ms] == values or len(candidates) > 1


def readable_values(cells: list[StoredCell]) -> dict[int, set[tuple[str, object]]]:
    """By time, the finite numbers that cells give when each is read by itself."""
    found: dict[int, set[tuple[str, object]]] = {}
    for cell in cells:
        if len(cell.qualifier) % 2 == 0 and cell.qualifier:
            try:
                held = cell_points(cell)
            except CorruptRow:
                continue
            for point in filterfalse(is_infinite, held):
                found.setdefault(point.offset_ms, set()).add(value_of(point))
    return found


def sign_extended_values(cells: list[StoredCell]) -> dict[int, set[tuple[str, object]]]:
    """By time, the numbers of the cells that readers refuse and fsck mends."""
    found: dict[int, set[tuple[str, object]]] = {}
    for seen in map(inspect, cells):
        if any(problem.trouble is Trouble.SIGN_EXTENDED for problem in seen.problems):
            for point in seen.points:
                found.setdefault(point.offset_ms, set()).add(value_of(point))
    return found


def value_of(point: Point) -> tuple[str, object]:
    return type(point.number).__name__, repr(point.number)


NO_ERROR = {
    Trouble.FUTURE_OBJECT,
    Trouble.ODD_ANNOTATION,
    Trouble.BEYOND_HOUR,
    Trouble.WIDE_INTEGER,
}


@law
@given(readable)
def test_fsck_finds_the_errors_of_the_checker(cells: list[StoredCell]) -> None:
    troubles = {problem.trouble for problem in problems(KEY, cells)}
    errors, _, _ = totals(check_row(KEY, cells, FsckOptions(), named).counts)
    assert (errors == 0) == (troubles <= NO_ERROR)


@pytest.mark.parametrize("size", [1, 2, 4095, 4096, 4097, 9000])
def test_long_rows_are_split_in_time_order(size: int) -> None:
    cells = [StoredCell(bytes.fromhex(f"{0xF0000000 | n << 6:08x}"), b"\1", 1) for n in range(size)]
    done = compact(KEY, cells)
    row = after(cells, done)
    assert [len(split_qualifier(cell.qualifier)) for cell in row] == [4096] * (size // 4096) + [size % 4096] * (
        size % 4096 > 0
    )
    assert [point.offset_ms for point in points(KEY, row)] == list(range(size))
    assert not compact(KEY, row).changes
