"""What OpenTSDB's fsck finds in a row of the data table, and how it mends it (FORMATS.md §11).

Judges one row, from its cells and what may be done; reads and writes nothing. Where OpenTSDB's fsck loses points that
a read would have shown, this one keeps them.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tsd.codec.cell import APPEND, CellKind, Point, kind_of, split_qualifier
from tsd.codec.checks import Inspection, Problem, Trouble, inspect, is_infinite, key_problems, narrow
from tsd.codec.columns import CELL_POINTS
from tsd.codec.merge import StoredCell, join_all
from tsd.codec.rowkey import Layout, split_key
from tsd.codec.uid import Kind


class Line(enum.Enum):
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
    OTHER = "Other Problems"  # worth a look, and no error to OpenTSDB


ERRORS = {  # each with the line that counts what was mended of it
    Line.BAD_KEY: Line.BAD_KEY_DELETED,
    Line.DUPLICATE: Line.DUPLICATE_RESOLVED,
    Line.ORPHAN: Line.ORPHAN_DELETED,
    Line.UNKNOWN: Line.UNKNOWN_DELETED,
    Line.BAD_VALUE: Line.BAD_VALUE_DELETED,
    Line.ENCODING: Line.ENCODING_FIXED,
    Line.BAD_COMPACT: Line.BAD_COMPACT_DELETED,
    Line.FIXABLE: Line.FIXABLE_FIXED,
    Line.BAD_APPEND: Line.BAD_APPEND_DELETED,
}

_LINES = {
    Trouble.ROW_KEY: Line.BAD_KEY,
    Trouble.UNKNOWN_COLUMN: Line.UNKNOWN,
    Trouble.FUTURE_OBJECT: Line.FUTURE,
    Trouble.BAD_ANNOTATION: Line.BAD_VALUE,
    Trouble.BAD_HISTOGRAM: Line.BAD_VALUE,
    Trouble.BAD_APPEND: Line.BAD_APPEND,
    Trouble.EMPTY_APPEND: Line.BAD_APPEND,
    Trouble.BAD_COMPACT: Line.BAD_COMPACT,
    Trouble.BAD_VALUE: Line.BAD_VALUE,
    Trouble.INFINITE: Line.BAD_VALUE,
    Trouble.OLD_ENCODING: Line.ENCODING,
    Trouble.SIGN_EXTENDED: Line.ENCODING,
    Trouble.LAST_BYTE: Line.FIXABLE,
    Trouble.UNORDERED: Line.FIXABLE,
    Trouble.WIDE_INTEGER: Line.VLE,
}

_BAD_VALUES = {Trouble.BAD_VALUE, Trouble.BAD_ANNOTATION, Trouble.BAD_HISTOGRAM}
_BAD_COMPACTS = {Trouble.BAD_COMPACT, Trouble.BAD_APPEND, Trouble.EMPTY_APPEND}

Resolves = Callable[[Kind, bytes], bool]  # whether a UID of that kind has a name


@dataclass(frozen=True)
class FsckOptions:
    """What may be mended, named as fsck's flags. Without `fix` nothing is."""

    fix: bool = False
    compact: bool = False
    resolve_duplicates: bool = False
    delete_orphans: bool = False
    delete_unknown_columns: bool = False
    delete_bad_values: bool = False
    delete_bad_rows: bool = False
    delete_bad_compacts: bool = False
    last_write_wins: bool = False  # of duplicates keep the newest cell's, else the oldest's
    use_otsdb_timestamp: bool = False  # as in MergeRules
    cell_points: int = CELL_POINTS

    @property
    def deletes_rows(self) -> bool:
        """Whether whole rows may go."""
        return self.fix and (self.delete_orphans or self.delete_bad_rows)

    @classmethod
    def fix_all(cls, *, last_write_wins: bool = False) -> "FsckOptions":
        """What `--fix-all` stands for."""
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
    """One thing found, and the line of the summary that counts it."""

    line: Line
    problem: Problem


class RowCheck(NamedTuple):
    """What fsck finds in one row and would do: the puts in one step, then the deletes; or the row goes whole."""

    findings: list[Finding]
    counts: Counter[Line]  # of this row; those of many rows add up
    puts: list[Point]
    deletes: list[StoredCell]  # each where it is no newer than it was read
    delete_row: bool = False
    time_ms: int | None = None  # write time to give the puts; None: the store's own


class _Mending(NamedTuple):
    puts: list[Point]
    deletes: list[StoredCell]


NOTHING = _Mending([], [])


def check_row(
    key: bytes,
    cells: Iterable[StoredCell],
    options: FsckOptions,
    resolves: Resolves,
    layout: Layout = Layout(),  # noqa: B008
    rollup_ids: frozenset[int] = frozenset(),
) -> RowCheck:
    """What is wrong with a row of the data table, and its mending. Raises nothing: bytes of any kind are findings.

    `rollup_ids` are the aggregators' ids where rollups are configured: columns that start with one are no strangers.
    """
    given = sorted(cells)
    counts = Counter({Line.ROWS: 1, Line.KEY_VALUES: len(given)})
    findings = [Finding(_LINES.get(problem.trouble, Line.OTHER), problem) for problem in key_problems(layout, key)]
    whole = Line.BAD_KEY if any(found.line is Line.BAD_KEY for found in findings) else None
    if whole is None and (unnamed := _unnamed(layout, key, resolves)):
        whole = Line.ORPHAN
        findings.append(Finding(whole, Problem(Trouble.ROW_KEY, b"", f"no name for {', '.join(unnamed)}")))
    if whole is not None:
        return _whole_row(whole, findings, counts, options)
    looked_at = [(cell, inspect(cell)) for cell in given if not _is_rollup(cell, rollup_ids)]
    findings += _findings(looked_at)
    counts += _count(looked_at, findings)
    mending = _mend(looked_at, options) if options.fix else NOTHING
    deletes = mending.deletes + [cell for cell, seen in looked_at if options.fix and _may_delete(seen, options)]
    counts += _count_mended(looked_at, findings, mending, deletes)
    names = {put.qualifier for put in mending.puts}
    return RowCheck(
        findings,
        counts,
        mending.puts,
        [cell for cell in deletes if cell.qualifier not in names],  # a put replaces what it stands on
        time_ms=max(cell.time_ms for cell in given) if options.use_otsdb_timestamp and mending.puts else None,
    )


def totals(counts: Counter[Line]) -> tuple[int, int, int]:
    """Errors, those that can be mended, those that were: the last lines of the summary."""
    errors = sum(counts[line] for line in ERRORS)
    return errors, errors, sum(counts[mended] for mended in ERRORS.values())


def _unnamed(layout: Layout, key: bytes, resolves: Resolves) -> list[str]:
    """The UIDs of a good row key that have no name."""
    metric, pairs = split_key(layout, key).series
    if not pairs:  # global annotations: their metric has no name
        return []
    uids = [(Kind.METRIC, metric)] + [
        (kind, uid) for pair in pairs for kind, uid in zip((Kind.TAGK, Kind.TAGV), pair, strict=True)
    ]
    return [f"{kind.value} {uid.hex()}" for kind, uid in uids if not resolves(kind, uid)]


def _whole_row(line: Line, findings: list[Finding], counts: Counter[Line], options: FsckOptions) -> RowCheck:
    """A row that nobody can read as a series': it is left alone, or goes whole."""
    counts[line] += 1
    mended = ERRORS[line]
    doomed = options.fix and (options.delete_orphans if line is Line.ORPHAN else options.delete_bad_rows)
    if doomed:
        counts[mended] += 1
    return RowCheck(findings, counts, [], [], delete_row=doomed)


def _is_rollup(cell: StoredCell, ids: frozenset[int]) -> bool:
    return len(cell.qualifier) == 3 and cell.qualifier[0] in ids


def _findings(looked_at: list[tuple[StoredCell, Inspection]]) -> list[Finding]:
    found = [
        Finding(_LINES.get(problem.trouble, Line.OTHER), problem) for _, seen in looked_at for problem in seen.problems
    ]
    times = Counter(point.offset_ms for _, seen in _holders(looked_at) for point in seen.points)
    return found + [
        Finding(Line.DUPLICATE, Problem(Trouble.REPEATED, b"", f"{time_ms} ms stands there {times[time_ms]} times"))
        for time_ms in sorted(times)
        for _ in range(times[time_ms] - 1)
    ]


def _holders(looked_at: list[tuple[StoredCell, Inspection]]) -> list[tuple[StoredCell, Inspection]]:
    """The cells of readable points, append columns left out: fsck never changes those."""
    return [(cell, seen) for cell, seen in looked_at if seen.points and kind_of(cell.qualifier) is CellKind.POINTS]


def _count(looked_at: list[tuple[StoredCell, Inspection]], findings: list[Finding]) -> Counter[Line]:
    counts = Counter(found.line for found in findings)
    counts[Line.VALID] = sum(len(seen.points) for _, seen in looked_at)
    counts[Line.ANNOTATIONS] = sum(kind_of(cell.qualifier) is CellKind.ANNOTATION for cell, _ in looked_at)
    counts[Line.VLE] = len(_wide(looked_at))
    return counts


def _wide(looked_at: list[tuple[StoredCell, Inspection]]) -> list[Point]:
    return [point for _, seen in _holders(looked_at) for point in seen.points if narrow(point) != point]


def _may_delete(seen: Inspection, options: FsckOptions) -> bool:
    troubles = {problem.trouble for problem in seen.problems}
    return bool(
        (options.delete_unknown_columns and troubles & {Trouble.UNKNOWN_COLUMN})
        or (options.delete_bad_values and troubles & _BAD_VALUES)
        or (options.delete_bad_compacts and troubles & _BAD_COMPACTS)
    )


def _mend(looked_at: list[tuple[StoredCell, Inspection]], options: FsckOptions) -> _Mending:
    """The new cells of the row's readable points, and the old ones they replace.

    A row keeps all its cells while something in it waits for a decision: points of one time with nobody to choose,
    a broken cell or an infinite point that may not go, or an append column, which may hold the newer points. Broken
    cells block only what would be joined; a lone point beside them is still mended.
    """
    holders = _holders(looked_at)
    winners, unresolved = _choose(holders, options)
    joined_before = any(len(split_qualifier(cell.qualifier)) > 1 for cell, _ in holders)
    broken = {
        cell.qualifier
        for cell, seen in looked_at
        if kind_of(cell.qualifier) is CellKind.POINTS and not seen.points and not _may_delete(seen, options)
    }
    appended = any(
        cell.qualifier[:1] == APPEND[:1] and len(cell.qualifier) % 2 and not _may_delete(seen, options)
        for cell, seen in looked_at
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
    return _Mending(
        [cell for cell in cells if there.get(cell.qualifier) != cell.value],
        [cell for cell, _ in holders if cell.qualifier not in names],
    )


def _choose(holders: list[tuple[StoredCell, Inspection]], options: FsckOptions) -> tuple[list[Point], bool]:
    """The points to keep in time order, integers on as few bytes as hold them; and whether a choice was not allowed.

    Of one time: the oldest cell's, of equally old ones the lowest qualifier's, within a cell the first; or the last
    of that order. Infinite ones are left out if they may go.
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


def _count_mended(
    looked_at: list[tuple[StoredCell, Inspection]],
    findings: list[Finding],
    mending: _Mending,
    deletes: list[StoredCell],
) -> Counter[Line]:
    """How much of what was found the puts and deletes mend."""
    gone = {cell.qualifier for cell in deletes}
    changed = gone | {put.qualifier for put in mending.puts}
    counts: Counter[Line] = Counter()
    for line, problem in findings:
        mended = ERRORS.get(line)
        if line is Line.DUPLICATE:
            counts[Line.DUPLICATE_RESOLVED] += mending != NOTHING
        elif mended and problem.qualifier in changed:
            counts[mended] += 1
    if mending != NOTHING:
        wide = _wide(looked_at)
        counts[Line.VLE_FIXED] = len(wide)
        counts[Line.VLE_BYTES] = sum(len(point.value) - len(narrow(point).value) for point in wide)
    return counts
