"""`tsd delete`: points of a metric out of the store, shown before anything is done."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import click
import trio

from tsd.assembly import now_ms
from tsd.cli.access import Access, access, settle
from tsd.cli.named import named
from tsd.cli.options import with_config
from tsd.codec.removal import Span, removal
from tsd.codec.row import data_cells
from tsd.codec.rowkey import SplitKey, split_key
from tsd.config import Config, Loaded, layout
from tsd.errors import CorruptRow
from tsd.query.dates import BadDate, parse_date
from tsd.query.removal import Part, remove_parts
from tsd.query.scanning import BadRequest, ScanRequest, parse_selection, selected_rows
from tsd.store import Row


@dataclass
class Doomed:
    """What goes of a series."""

    points: int = 0
    rows: int = 0
    first_ms: int = sys.maxsize
    last_ms: int = 0


@dataclass
class Found:
    """What was found of a metric, and what could not be done."""

    series: dict[str, Doomed] = field(default_factory=dict)
    left: int = 0  # rows in which something was to go, and nothing did

    @property
    def points(self) -> int:
        """In all."""
        return sum(doomed.points for doomed in self.series.values())

    @property
    def rows(self) -> int:
        """In all."""
        return sum(doomed.rows for doomed in self.series.values())

    def note(self, name: str, base_ms: int, points: Sequence[int]) -> None:
        """Count a row; `points` are ms after its base, in order."""
        doomed = self.series.setdefault(name, Doomed())
        doomed.rows += 1
        doomed.points += len(points)
        if points:
            doomed.first_ms = min(doomed.first_ms, base_ms + points[0])
            doomed.last_ms = max(doomed.last_ms, base_ms + points[-1])


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="METRIC [TAGK=TAGV]...")
@click.option(
    "--since", required=True, help="The first time that goes, e.g. 2023/11/14-22:13:20, 1700000000 or 30d-ago."
)
@click.option("--until", required=True, help="The first time that stays; `now` for all that there is.")
@click.option("--yes", is_flag=True, help="Delete; without it nothing is changed.")
@with_config
def delete(loaded: Loaded, words: Sequence[str], since: str, until: str, yes: bool) -> None:
    """Show what points a metric has in a span of time, and with --yes delete them.

    All series that have at least these tags are meant. Of an hour that lies in the span only in part, the other points
    stay as they are; with a whole hour go its annotations and what cannot be read. Names keep their UIDs. Exit status 1
    where something is left: an hour to be cut that cannot be read, or points that came meanwhile.
    """
    request = _request(words, since, until)
    found = trio.run(_delete, loaded.config, request, yes)
    for name, doomed in found.series.items():
        times = f", {_date(doomed.first_ms)} to {_date(doomed.last_ms)}" if doomed.points else ""
        click.echo(f"{name}: {doomed.points} points in {doomed.rows} rows{times}")
    total = f"{found.points} points in {found.rows} rows of {len(found.series)} series"
    click.echo(f"deleted {total}" if yes else f"{total} would be deleted; nothing was: --yes deletes", err=True)
    left = trio.run(_delete, loaded.config, request, False) if yes and found.rows else Found()
    if left.points:
        click.echo(
            f"tsd: {left.points} points are there all the same: they came meanwhile, or a compaction wrote them again. "
            "Delete once more",
            err=True,
        )
    sys.exit(1 if found.left or left.points else 0)


def _request(words: Sequence[str], since: str, until: str) -> ScanRequest:
    """The rows to be looked at, and the span, its last ms included."""
    try:
        now = now_ms()
        start_ms, end_ms = parse_date(since, now), parse_date(until, now)
        if end_ms <= start_ms:
            raise BadRequest(f"--until {until} is not after --since {since}")
        return ScanRequest(start_ms, end_ms - 1, [parse_selection(words[0], words[1:])])
    except (BadDate, BadRequest) as exc:
        raise click.UsageError(str(exc)) from exc


async def _delete(config: Config, request: ScanRequest, yes: bool) -> Found:
    found = Found()
    async with access(config, must_exist=True, writes=yes) as ways:
        await settle(ways, delete=yes)
        [selection] = request.selections
        read_ms = now_ms()
        async for rows in selected_rows(ways.store, config.data_table, ways.uids, layout(config), request, selection):
            await _go_through(ways, config, _judged(config, request, rows, found), found, read_ms if yes else None)
            read_ms = now_ms()
        if yes:
            await ways.store.sync()
    return found


def _judged(config: Config, request: ScanRequest, rows: Sequence[Row], found: Found) -> list[tuple[Part, SplitKey]]:
    """Those of some rows in which something goes; the rest is told of where it cannot be read."""
    judged = []
    for row in rows:
        try:
            key = split_key(layout(config), row.key)
            span = Span(request.start_ms - key.base * 1000, request.end_ms + 1 - key.base * 1000)
            part = removal(row.key, data_cells(row.cells), span)
        except CorruptRow as exc:
            found.left += 1
            click.echo(f"tsd: a row is left as it is: {exc}", err=True)
            continue
        if part.changes:
            judged.append((Part(row, part), key))
    return judged


async def _go_through(
    ways: Access, config: Config, judged: Sequence[tuple[Part, SplitKey]], found: Found, read_ms: int | None
) -> None:
    """Note what goes of these rows, and have it go; to read them was begun at `read_ms` (None: nothing is to go)."""
    names = await named(ways, [(part.row, key) for part, key in judged])
    left: set[bytes] = set()
    if read_ms is not None:
        parts = [part for part, _ in judged]
        left = await remove_parts(ways.store, config.data_table, parts, read_ms=read_ms)
    for name, (part, _) in zip(names, judged, strict=True):
        if name.key not in left:
            found.note(" ".join([name.metric, *name.tags]), name.base * 1000, part.removal.points)
            continue
        found.left += 1
        click.echo(
            f"tsd: a row is left as it is: row {name.key.hex()}: it is being written to, or what would stay of it does "
            "not show: delete once more",
            err=True,
        )


def _date(time_ms: int) -> str:
    shown = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y/%m/%d-%H:%M:%S")
    return f"{shown}.{time_ms % 1000:03d} UTC" if time_ms % 1000 else f"{shown} UTC"
