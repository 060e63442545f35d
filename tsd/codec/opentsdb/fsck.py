"""Findings of OpenTSDB's fsck in a row of the data table, and their repairs (FORMATS.md §11).

The functions work on the cells of one row, without a store. Where OpenTSDB's fsck loses points that a query would
return, this one keeps them.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import APPEND, CellKind, Point, kind_of, split, split_qualifier
from tsd.codec.opentsdb.check import Inspection, Problem, Trouble, inspect, is_infinite, key_problems, narrow
from tsd.codec.opentsdb.columns import CELL_POINTS
from tsd.codec.opentsdb.merge import StoredCell, join_all
from tsd.codec.opentsdb.rowkey import KeyLayout, split_key


class FsckLine(enum.Enum):
    """The lines of fsck's summary, in order: OpenTSDB's, then what it does not count."""

    KEY_VALUES = "Key Values Processed"
    ROWS = "Rows Processed"
    VALID = "Valid Datapoints"
    ANNOTATIONS = "Annotations"
    BAD_KEY = "Invalid Row Keys Found"
    BAD_KEY_DELETED = "Invalid Rows Deleted"
    DUPLICATE = "Duplicate Datapoints"
    DUPLICATE_RESOLVED = "Duplicate Datapoints Resolved"
    ORPHAN = "Orphaned UID Rows"
    ORPHAN_DELETED = "Orphaned UID Rows Deleted"
    FUTURE = "Possible Future Objects"
    UNKNOWN = "Unknown Objects"
    UNKNOWN_DELETED = "Unknown Objects Deleted"
    BAD_VALUE = "Unparseable Datapoint Values"
    BAD_VALUE_DELETED = "Unparseable Datapoint Values Deleted"
    ENCODING = "Improperly Encoded Floating Point Values"
    ENCODING_FIXED = "Improperly Encoded Floating Point Values Fixed"
    BAD_COMPACT = "Unparseable Compacted Columns"
    BAD_COMPACT_DELETED = "Unparseable Compacted Columns Deleted"
    VLE = "Datapoints Qualified for VLE"
    VLE_FIXED = "Datapoints Compressed with VLE"
    VLE_BYTES = "Bytes Saved with VLE"
    FIXABLE = "Fixable Compacted Columns"
    FIXABLE_FIXED = "Fixable Compacted Columns Fixed"
    BAD_APPEND = "Unparseable Append Columns"
    BAD_APPEND_DELETED = "Unparseable Append Columns Deleted"
    OTHER = "Other Problems"  # not errors in OpenTSDB


ERRORS = {  # each with the line that counts its repairs
    FsckLine.BAD_KEY: FsckLine.BAD_KEY_DELETED,
    FsckLine.DUPLICATE: FsckLine.DUPLICATE_RESOLVED,
    FsckLine.ORPHAN: FsckLine.ORPHAN_DELETED,
    FsckLine.UNKNOWN: FsckLine.UNKNOWN_DELETED,
    FsckLine.BAD_VALUE: FsckLine.BAD_VALUE_DELETED,
    FsckLine.ENCODING: FsckLine.ENCODING_FIXED,
    FsckLine.BAD_COMPACT: FsckLine.BAD_COMPACT_DELETED,
    FsckLine.FIXABLE: FsckLine.FIXABLE_FIXED,
    FsckLine.BAD_APPEND: FsckLine.BAD_APPEND_DELETED,
}

_LINES = {
    Trouble.ROW_KEY: FsckLine.BAD_KEY,
    Trouble.UNKNOWN_COLUMN: FsckLine.UNKNOWN,
    Trouble.FUTURE_OBJECT: FsckLine.FUTURE,
    Trouble.BAD_ANNOTATION: FsckLine.BAD_VALUE,
    Trouble.BAD_HISTOGRAM: FsckLine.BAD_VALUE,
    Trouble.BAD_APPEND: FsckLine.BAD_APPEND,
    Trouble.EMPTY_APPEND: FsckLine.BAD_APPEND,
    Trouble.BAD_COMPACT: FsckLine.BAD_COMPACT,
    Trouble.BAD_VALUE: FsckLine.BAD_VALUE,
    Trouble.INFINITE: FsckLine.BAD_VALUE,
    Trouble.OLD_ENCODING: FsckLine.ENCODING,
    Trouble.SIGN_EXTENDED: FsckLine.ENCODING,
    Trouble.LAST_BYTE: FsckLine.FIXABLE,
    Trouble.UNORDERED: FsckLine.FIXABLE,
    Trouble.WIDE_INTEGER: FsckLine.VLE,
}

_BAD_VALUES = {Trouble.BAD_VALUE, Trouble.BAD_ANNOTATION, Trouble.BAD_HISTOGRAM}
_BAD_COMPACTS = {Trouble.BAD_COMPACT, Trouble.BAD_APPEND, Trouble.EMPTY_APPEND}

Resolves = Callable[[Kind, bytes], bool]  # whether a UID of that kind has a name


@dataclass(frozen=True)
class FsckOptions:
    """Allowed repairs, named as fsck's flags; none without `fix`."""

    fix: bool = False
    compact: bool = False
    resolve_duplicates: bool = False
    delete_orphans: bool = False
    delete_unknown_columns: bool = False
    delete_bad_values: bool = False
    delete_bad_rows: bool = False
    delete_bad_compacts: bool = False
    last_write_wins: bool = False  # keep the duplicate of the newest cell instead of the oldest
    use_otsdb_timestamp: bool = False  # as in MergeRules
    cell_points: int = CELL_POINTS

    @property
    def deletes_rows(self) -> bool:
        """Return whether whole rows may be deleted."""
        return self.fix and (self.delete_orphans or self.delete_bad_rows)

    @classmethod
    def fix_all(cls, *, last_write_wins: bool = False) -> "FsckOptions":
        """Return the options of `--fix-all`."""
        return cls(
            fix=True,
            compact=True,
            resolve_duplicates=True,
            delete_orphans=True,
            delete_unknown_columns=True,
            delete_bad_values=True,
            delete_bad_rows=True,
            delete_bad_compacts=True,
            last_write_wins=last_write_wins,
        )


class Finding(NamedTuple):
    """A problem, and the line of the summary that counts it."""

    line: FsckLine
    problem: Problem


class RowCheck(NamedTuple):
    """Findings in one row, and their repair: the puts in one step, then the deletes; or the deletion of the row."""

    findings: list[Finding]
    counts: Counter[FsckLine]  # of this row
    puts: list[Point]
    deletes: list[StoredCell]  # unless they are newer than when they were read
    delete_row: bool = False
    time_ms: int | None = None  # timestamp of the puts; None: set by the store


class _RowRepair(NamedTuple):
    puts: list[Point]
    deletes: list[StoredCell]


NOTHING = _RowRepair([], [])


def check_row(
    key: bytes,
    cells: Iterable[StoredCell],
    options: FsckOptions,
    resolves: Resolves,
    layout: KeyLayout = KeyLayout(),  # noqa: B008
    rollup_ids: frozenset[int] = frozenset(),
) -> RowCheck:
    """Return the findings in a row of the data table, and their repair. Raise nothing, for any bytes.

    `rollup_ids` are the ids of configured aggregators: columns that start with one are known.
    """
    given = sorted(cells)
    counts = Counter({FsckLine.ROWS: 1, FsckLine.KEY_VALUES: len(given)})
    findings = [Finding(_LINES.get(problem.trouble, FsckLine.OTHER), problem) for problem in key_problems(layout, key)]
    whole = FsckLine.BAD_KEY if any(found.line is FsckLine.BAD_KEY for found in findings) else None
    if whole is None and (unnamed := _unnamed(layout, key, resolves)):
        whole = FsckLine.ORPHAN
        findings.append(Finding(whole, Problem(Trouble.ROW_KEY, b"", f"no name for {', '.join(unnamed)}")))
    if whole is not None:
        return _whole_row(whole, findings, counts, options)
    inspected = [(cell, inspect(cell)) for cell in given if not _is_rollup(cell, rollup_ids)]
    findings += _findings(inspected)
    counts += _count(inspected, findings)
    repair = _repair(inspected, options) if options.fix else NOTHING
    deletes = repair.deletes + [cell for cell, seen in inspected if options.fix and _may_delete(seen, options)]
    counts += _count_repaired(inspected, findings, repair, deletes)
    names = {put.qualifier for put in repair.puts}
    return RowCheck(
        findings,
        counts,
        repair.puts,
        [cell for cell in deletes if cell.qualifier not in names],  # a put replaces its column
        time_ms=max(cell.time_ms for cell in given) if options.use_otsdb_timestamp and repair.puts else None,
    )


def totals(counts: Counter[FsckLine]) -> tuple[int, int, int]:
    """Return the numbers of errors, of those that can be repaired, and of those that were."""
    errors = sum(counts[line] for line in ERRORS)
    return errors, errors, sum(counts[repaired] for repaired in ERRORS.values())


def _unnamed(layout: KeyLayout, key: bytes, resolves: Resolves) -> list[str]:
    """Return the UIDs of a valid row key that have no name."""
    metric, pairs = split_key(layout, key).series
    if not pairs:  # global annotations: their metric has no name
        return []
    uids = [(Kind.METRIC, metric)] + [
        (kind, uid) for pair in pairs for kind, uid in zip((Kind.TAGK, Kind.TAGV), pair, strict=True)
    ]
    return [f"{kind.value} {uid.hex()}" for kind, uid in uids if not resolves(kind, uid)]


def _whole_row(line: FsckLine, findings: list[Finding], counts: Counter[FsckLine], options: FsckOptions) -> RowCheck:
    """Return the check of a row without a valid series: unchanged, or deleted."""
    counts[line] += 1
    repaired = ERRORS[line]
    is_deleted = options.fix and (options.delete_orphans if line is FsckLine.ORPHAN else options.delete_bad_rows)
    if is_deleted:
        counts[repaired] += 1
    return RowCheck(findings, counts, [], [], delete_row=is_deleted)


def _is_rollup(cell: StoredCell, ids: frozenset[int]) -> bool:
    return len(cell.qualifier) == 3 and cell.qualifier[0] in ids


def _findings(inspected: list[tuple[StoredCell, Inspection]]) -> list[Finding]:
    found = [
        Finding(_LINES.get(problem.trouble, FsckLine.OTHER), problem)
        for _, seen in inspected
        for problem in seen.problems
    ]
    times = Counter(point.offset_ms for _, seen in _holders(inspected) for point in seen.points)
    return found + [
        Finding(FsckLine.DUPLICATE, Problem(Trouble.REPEATED, b"", f"{time_ms} ms has {times[time_ms]} points"))
        for time_ms in sorted(times)
        for _ in range(times[time_ms] - 1)
    ]


def _holders(inspected: list[tuple[StoredCell, Inspection]]) -> list[tuple[StoredCell, Inspection]]:
    """Return the cells with readable points, without append columns, which fsck never changes."""
    return [(cell, seen) for cell, seen in inspected if seen.points and kind_of(cell.qualifier) is CellKind.POINTS]


def _count(inspected: list[tuple[StoredCell, Inspection]], findings: list[Finding]) -> Counter[FsckLine]:
    counts = Counter(found.line for found in findings)
    counts[FsckLine.VALID] = sum(len(seen.points) for _, seen in inspected)
    counts[FsckLine.ANNOTATIONS] = sum(kind_of(cell.qualifier) is CellKind.ANNOTATION for cell, _ in inspected)
    counts[FsckLine.VLE] = len(_wide(inspected))
    return counts


def _wide(inspected: list[tuple[StoredCell, Inspection]]) -> list[Point]:
    return [point for _, seen in _holders(inspected) for point in seen.points if narrow(point) != point]


def _may_delete(seen: Inspection, options: FsckOptions) -> bool:
    troubles = {problem.trouble for problem in seen.problems}
    return bool(
        (options.delete_unknown_columns and troubles & {Trouble.UNKNOWN_COLUMN})
        or (options.delete_bad_values and troubles & _BAD_VALUES)
        or (options.delete_bad_compacts and troubles & _BAD_COMPACTS)
    )


def _repair(inspected: list[tuple[StoredCell, Inspection]], options: FsckOptions) -> _RowRepair:
    """Return the new cells of the row's readable points, and the old ones that they replace.

    A row is unchanged while it has an undecided problem: duplicates without permission to choose; a broken cell or an
    infinite point without permission to delete it; or an append column, which may have newer points. Broken cells only
    prevent joins; single points in other cells are still repaired.
    """
    holders = _holders(inspected)
    winners, unresolved = _choose(holders, options)
    joined_before = any(len(split_qualifier(cell.qualifier)) > 1 for cell, _ in holders)
    broken = {
        cell.qualifier
        for cell, seen in inspected
        if kind_of(cell.qualifier) is CellKind.POINTS and not seen.points and not _may_delete(seen, options)
    }
    appended = any(
        cell.qualifier[:1] == APPEND[:1] and len(cell.qualifier) % 2 and not _may_delete(seen, options)
        for cell, seen in inspected
    )
    if not holders or unresolved or appended or (broken and joined_before):
        return NOTHING
    cells = winners
    if (options.compact or joined_before) and not broken:
        size = options.cell_points
        cells = [join_all(winners[at : at + size]) for at in range(0, len(winners), size)]
    there = {cell.qualifier: cell.value for cell, _ in holders}
    names = {cell.qualifier for cell in cells}
    if names & broken:
        return NOTHING
    # A compaction may take a cell that stays for a duplicate of one that is deleted, unless it is put again, as newer.
    gone = {point.offset_ms for cell, seen in holders if cell.qualifier not in names for point in seen.points}
    return _RowRepair(
        [cell for cell in cells if there.get(cell.qualifier) != cell.value or gone & _times_of(cell)],
        [cell for cell, _ in holders if cell.qualifier not in names],
    )


def _times_of(cell: Point) -> set[int]:
    """Return the offsets in ms of the points of a well-formed cell."""
    return {point.offset_ms for point in split(*cell)}


def _choose(holders: list[tuple[StoredCell, Inspection]], options: FsckOptions) -> tuple[list[Point], bool]:
    """Return the points to keep in time order, with integers in as few bytes as possible, and whether a choice was not
    allowed.

    Among duplicates the first one is kept, or with `last_write_wins` the last: ordered by timestamp, then by qualifier,
    then within a cell. Infinite points are dropped if they may be deleted.
    """
    entries = sorted(
        (point.offset_ms, cell.time_ms, rank, at, point)
        for rank, (cell, seen) in enumerate(holders)
        for at, point in enumerate(seen.points)
        if not (options.delete_bad_values and is_infinite(point))
    )
    chosen: dict[int, Point] = {}
    for time_ms, _, _, _, point in entries:
        if time_ms not in chosen or options.last_write_wins:
            chosen[time_ms] = narrow(point)
    waits = any(is_infinite(point) for point in chosen.values())
    return list(chosen.values()), waits or (len(chosen) < len(entries) and not options.resolve_duplicates)


def _count_repaired(
    inspected: list[tuple[StoredCell, Inspection]],
    findings: list[Finding],
    repair: _RowRepair,
    deletes: list[StoredCell],
) -> Counter[FsckLine]:
    """Return the number of findings that the puts and deletes repair."""
    gone = {cell.qualifier for cell in deletes}
    changed = gone | {put.qualifier for put in repair.puts}
    counts: Counter[FsckLine] = Counter()
    for line, problem in findings:
        repaired = ERRORS.get(line)
        if line is FsckLine.DUPLICATE:
            counts[FsckLine.DUPLICATE_RESOLVED] += repair != NOTHING
        elif repaired and problem.qualifier in changed:
            counts[repaired] += 1
    if repair != NOTHING:
        wide = _wide(inspected)
        counts[FsckLine.VLE_FIXED] = len(wide)
        counts[FsckLine.VLE_BYTES] = sum(len(point.value) - len(narrow(point).value) for point in wide)
    return counts
