"""`tsd scan`: rows as they are stored, in the form of OpenTSDB's own tool, or as lines that `tsd import` takes back."""

import math
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import click
import trio

from tsd.assembly import now_ms
from tsd.cli.access import Access, access, settle
from tsd.cli.named import NamedKey, named
from tsd.cli.options import with_config
from tsd.codec.annotation import decode_annotation, encode_annotation
from tsd.codec.cell import CellKind, Point, kind_of, offset_ms, split, split_append
from tsd.codec.merge import MergeRules, StoredCell
from tsd.codec.row import data_cells, points
from tsd.codec.rowkey import SplitKey, split_key
from tsd.codec.times import FIRST_MS
from tsd.codec.words import FLOAT, show_signed
from tsd.config import Config, Loaded, layout
from tsd.errors import CorruptRow
from tsd.query.removal import remove_rows
from tsd.query.scanning import BadRequest, parse_request, selected_rows
from tsd.store import Row

NEWEST = MergeRules(fix_duplicates=True)


class Scanned(NamedTuple):
    """What became of some rows."""

    printed: list[Row]
    corrupt: int


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="START [END] FUNC METRIC [TAGK=TAGV]...")
@click.option("--import", "as_lines", is_flag=True, help="Print lines that `tsd import` takes.")
@click.option("--delete", is_flag=True, help="The same, and delete each row that was printed, with all that is in it.")
@with_config
def scan(loaded: Loaded, words: Sequence[str], as_lines: bool, delete: bool) -> None:
    """Print the rows of a metric, whole hours. FUNC is there for OpenTSDB's sake and has no effect.

    START and END are e.g. 1h-ago, 1700000000 or 2023/11/14-22:13:20. Exit status 1 where a row cannot be read; such a
    row is not deleted either. `tsd delete` removes points to the second, and shows first what would go.
    """
    try:
        request = parse_request(words, now_ms())
    except BadRequest as exc:
        raise click.UsageError(str(exc)) from exc
    config = loaded.config
    corrupt = deleted = 0

    async def run() -> None:
        nonlocal corrupt, deleted
        async with access(config, must_exist=True, writes=delete) as ways:
            await settle(ways, delete=delete)
            for selection in request.selections:
                read_ms = now_ms()
                async for rows in selected_rows(
                    ways.store, config.data_table, ways.uids, layout(config), request, selection
                ):
                    done = await _print_rows(ways, config, rows, as_lines or delete)
                    corrupt += done.corrupt
                    if delete:
                        sys.stdout.flush()  # what was not written, to a full disk say, is not deleted
                        await remove_rows(ways.store, config.data_table, done.printed, read_ms=read_ms)
                        deleted += len(done.printed)
                    read_ms = now_ms()

    trio.run(run)
    if delete:
        click.echo(f"deleted {deleted} rows", err=True)
    sys.exit(1 if corrupt else 0)


async def _print_rows(ways: Access, config: Config, rows: Sequence[Row], as_lines: bool) -> Scanned:
    """Print rows; which, and how many could not be read."""
    printed: list[Row] = []
    readable: list[tuple[Row, SplitKey]] = []
    for row in rows:
        try:
            readable.append((row, split_key(layout(config), row.key)))
        except CorruptRow as exc:
            click.echo(f"tsd: a row cannot be read: {exc}", err=True)
    names = await named(ways, readable)
    for key, (row, _) in zip(names, readable, strict=True):
        cells = data_cells(row.cells)
        try:
            text = "".join(line + "\n" for line in (lines_of(key, cells) if as_lines else _dump(key, cells)))
        except CorruptRow as exc:
            click.echo(f"tsd: row {key.key.hex()} of {key.metric} cannot be read: {exc}", err=True)
        else:
            click.echo(text.encode("latin-1") if as_lines else text, nl=False)  # lines are bytes, whatever the locale
            printed.append(row)
    return Scanned(printed, len(rows) - len(printed))


def lines_of(row: NamedKey, cells: Sequence[StoredCell]) -> Iterator[str]:
    """A row's points as lines; what is no point has no line. Raises CorruptRow where one would be read otherwise."""
    for point in points(row.key, cells, NEWEST):
        time = row.base * 1000 + point.offset_ms if point.in_ms else row.base + point.offset_ms // 1000
        number = point.number
        if isinstance(number, float) and not math.isfinite(number):
            raise CorruptRow(f"the value at {time} is {number}, which no line can carry")
        if not time or point.in_ms != (time >= FIRST_MS):
            raise CorruptRow(f"a time of {time} {'ms' if point.in_ms else 's'}, which no line can carry")
        yield f"{row.metric} {time} {number!r} {' '.join(row.tags)}"


def _dump(row: NamedKey, cells: Sequence[StoredCell]) -> Iterator[str]:
    """A row cell by cell."""
    yield f"{show_signed(row.key)} {row.metric} {row.base} ({_date(row.base)}) {{{', '.join(row.tags)}}}"
    for cell in cells:
        head = f"  {show_signed(cell.qualifier)}\t{show_signed(cell.value)}"
        match kind_of(cell.qualifier):
            case CellKind.POINTS if len(parts := split(cell.qualifier, cell.value)) == 1:
                yield "  " + _point(row, parts[0])
            case CellKind.POINTS:
                yield from _many(row, head, parts)
            case CellKind.APPEND:
                yield from _many(row, head, split_append(cell.value))
            case CellKind.ANNOTATION:
                note = decode_annotation(cell.value)
                after = int.from_bytes(cell.qualifier[1:], "big")
                text = encode_annotation(note).decode()
                date = _date(note.start_time // 1000 if note.start_time >= FIRST_MS else note.start_time)
                yield f"{head}\t{after}\t{text}\t{note.start_time}\t({date})"
            case _:
                yield f"  {show_signed(cell.value)}\t[Not a data point]"


def _many(row: NamedKey, head: str, parts: Sequence[Point]) -> Iterator[str]:
    yield f"{head} = {len(parts)} values:"
    for part in parts:
        yield "    " + _point(row, part)


def _point(row: NamedKey, point: Point) -> str:
    after = offset_ms(point.qualifier)
    offset, time = (after, row.base * 1000 + after) if point.in_ms else (after // 1000, row.base + after // 1000)
    kind = "f" if point.flags & FLOAT else "l"
    date = _date(row.base + after // 1000)
    return f"{show_signed(point.qualifier)}\t{show_signed(point.value)}\t{offset}\t{kind}\t{time}\t({date})"


def _date(seconds: int) -> str:
    """As Java prints a date."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
