"""`tsd delete`: delete points of a metric, after a dry run that shows them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import click
import trio

from tsd.cli.context import Access, access, flush_pending, tell_of_others
from tsd.cli.entity_points import delete_range
from tsd.cli.late_rollups import changing, names_left, show_left
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import named, show_date
from tsd.cli.scan import BadRequest, RowSelection, ScanRequest, parse_selection, selected_rows
from tsd.codec.dates import BadDate, parse_date
from tsd.codec.opentsdb.row import Span, data_cells, removal
from tsd.codec.opentsdb.rowkey import SplitKey, split_key
from tsd.codec.text import counted
from tsd.config.loader import Loaded, key_layout
from tsd.config.settings import Config
from tsd.daemon.settings import now_ms
from tsd.errors import CorruptRow, NoSuchName
from tsd.store import Row
from tsd.tables.opentsdb.data_table import configured_data_table
from tsd.tables.opentsdb.delete import RowRemoval, busy_ms, remove_parts
from tsd.tables.opentsdb.rollup_progress import days_of
from tsd.tables.stored_windows import TimeRange

BUSY_TRIES = 5  # of rows that are being written to
BUSY_ROWS = 500  # read again at once


@dataclass
class _SeriesPoints:
    """The points of a series to delete."""

    points: int = 0
    rows: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass
class Found:
    """The points of a metric to delete, by series."""

    series: dict[str, _SeriesPoints] = field(default_factory=dict)
    left: int = 0  # rows with points to delete that were left unchanged
    rollups_left: bool = False  # rollups keep deleted points
    entity_points: int | None = None  # in the tables of entities; None: these are not kept

    @property
    def points(self) -> int:
        """Points of all series."""
        return sum(counts.points for counts in self.series.values())

    @property
    def rows(self) -> int:
        """Rows of all series."""
        return sum(counts.rows for counts in self.series.values())

    def report(self) -> dict[str, object]:
        """Return the counts as JSON members."""
        series = [{"series": name, **asdict(counts)} for name, counts in sorted(self.series.items())]
        counts = {"series": series, "points": self.points, "rows": self.rows, "rows_left": self.left}
        return counts if self.entity_points is None else {**counts, "entity_points": self.entity_points}

    def total(self) -> str:
        """Return the totals as a text."""
        points, rows = counted(self.points, "point"), counted(self.rows, "row")
        text = f"{points} in {rows} of {counted(len(self.series), 'series', 'series')}"
        return text if self.entity_points is None else f"{text}, and {counted(self.entity_points, 'point')} of entities"

    def count_row(self, name: str, base_ms: int, points: Sequence[int]) -> None:
        """Count a row. `points` has the ascending offsets of its points from the base time, in ms."""
        counts = self.series.setdefault(name, _SeriesPoints())
        counts.rows += 1
        counts.points += len(points)
        if points:
            first_ms, last_ms = base_ms + points[0], base_ms + points[-1]
            counts.first_ms = first_ms if counts.first_ms is None else min(counts.first_ms, first_ms)
            counts.last_ms = last_ms if counts.last_ms is None else max(counts.last_ms, last_ms)


def delete(loaded: Loaded, words: Sequence[str], since: str, until: str, yes: bool, as_json: bool) -> None:
    """Run `tsd delete`."""
    request = _request(words, since, until)
    found = trio.run(partial(_delete, loaded.config, request, yes=yes))
    left = Found()
    if yes and (found.rows or found.entity_points):
        left = trio.run(partial(_delete, loaded.config, request, yes=False, may_be_unknown=not found.rows))
    remaining = max(left.points, left.entity_points or 0)
    with closed_output_ignored():
        if as_json:
            click.echo(json.dumps({**found.report(), "deleted": yes, "remaining": remaining}))
        else:
            for name, counts in sorted(found.series.items()):
                times = ""
                if counts.first_ms is not None and counts.last_ms is not None:
                    times = f", {show_date(counts.first_ms)} to {show_date(counts.last_ms)}"
                click.echo(f"{name}: {counted(counts.points, 'point')} in {counted(counts.rows, 'row')}{times}")
    if not as_json:
        total = found.total()
        click.echo(f"deleted {total}" if yes else f"{total} would be deleted; add --yes to delete them", err=True)
    if remaining:
        click.echo(
            f"tsd: remaining: {counted(remaining, 'point')}, written meanwhile or written again by a compaction. "
            "Run the command again",
            err=True,
        )
    if yes:
        tell_of_others(loaded.config, request.end_ms)
    if found.rollups_left:
        show_left(loaded.config, words[0], request.start_ms, request.end_ms + 1)
    sys.exit(1 if found.left or remaining else 0)


def _request(words: Sequence[str], since: str, until: str) -> ScanRequest:
    """Return the rows to read and the time range, whose last ms is included."""
    try:
        now = now_ms()
        start_ms, end_ms = parse_date(since, now), parse_date(until, now)
        if end_ms <= start_ms:
            raise BadRequest(f"--until {until} is not after --since {since}")
        return ScanRequest(start_ms, end_ms - 1, [parse_selection(words[0], words[1:])])
    except (BadDate, BadRequest) as exc:
        raise click.UsageError(str(exc)) from exc


async def _delete(config: Config, request: ScanRequest, *, yes: bool, may_be_unknown: bool = False) -> Found:
    """Return the points to delete, and with `yes` delete them. Those of entities go first: if the rest fails, the same
    command finds it again. Raise NoSuchName, unless there are points of entities or names `may_be_unknown`."""
    found = Found()
    async with access(config, must_exist=True) as opened:
        await flush_pending(opened, delete=yes)
        [selection] = request.selections
        span = TimeRange(request.start_ms, request.end_ms + 1)
        found.entity_points = await delete_range(config, opened, selection, span, yes=yes)
        try:
            await _delete_rows(opened, config, request, selection, found, yes=yes)
        except NoSuchName:
            if not (found.entity_points or may_be_unknown):
                raise
        if yes:
            await opened.store.sync()
        if yes and found.rows:
            found.rollups_left = bool(await names_left(config, opened, [selection.metric.decode("latin-1")]))
    return found


async def _delete_rows(
    opened: Access, config: Config, request: ScanRequest, selection: RowSelection, found: Found, *, yes: bool
) -> None:
    """Count the points to delete, and with `yes` delete them. Rows that are being written to are tried again."""
    read_ms = now_ms()
    left: list[bytes] = []
    table = configured_data_table(config, opened.store)
    async for rows in selected_rows(table, opened.uids, request, selection):
        left += await _remove(opened, config, _removals(config, request, rows, found), found, read_ms if yes else None)
        read_ms = now_ms()
    for _ in range(BUSY_TRIES):
        if not left:
            return
        await trio.sleep(busy_ms(opened.store) / 1000)
        keys, left = left, []
        for at in range(0, len(keys), BUSY_ROWS):
            read_ms = now_ms()
            again = await opened.store.get(table.name, keys[at : at + BUSY_ROWS])
            rows = [Row(*row) for row in again.items()]
            left += await _remove(opened, config, _removals(config, request, rows, found), found, read_ms)
    found.left += len(left)
    for key in left:
        click.echo(
            f"tsd: row {key.hex()} left unchanged: it is being written to, or its remaining points would not be "
            "visible. Run the command again",
            err=True,
        )


def _removals(
    config: Config, request: ScanRequest, rows: Sequence[Row], found: Found
) -> list[tuple[RowRemoval, SplitKey]]:
    """Return the rows with points to delete. Print those that cannot be read."""
    removals = []
    for row in rows:
        try:
            key = split_key(key_layout(config), row.key)
            span = Span(request.start_ms - key.base * 1000, request.end_ms + 1 - key.base * 1000)
            part = removal(row.key, data_cells(row.cells), span)
        except CorruptRow as exc:
            found.left += 1
            click.echo(f"tsd: row left unchanged: {exc}", err=True)
            continue
        if part.changes:
            removals.append((RowRemoval(row, part), key))
    return removals


async def _remove(
    opened: Access, config: Config, removals: Sequence[tuple[RowRemoval, SplitKey]], found: Found, read_ms: int | None
) -> set[bytes]:
    """Count the points to delete in these rows, and delete them unless `read_ms`, when reading started, is None. Return
    the keys of rows that were left unchanged and not counted."""
    names = await named(opened, [(part.row, key) for part, key in removals])
    left: set[bytes] = set()
    if read_ms is not None and removals:
        parts = [part for part, _ in removals]
        days = days_of(key_layout(config), [part.row.key for part in parts])
        async with changing(config, opened, days, deleted=True):
            left = await remove_parts(opened.store, config.data_table, parts, read_ms=read_ms)
    for name, (part, _) in zip(names, removals, strict=True):
        if name.key not in left:
            found.count_row(" ".join([name.metric, *name.tags]), name.base * 1000, part.removal.points)
    return left
