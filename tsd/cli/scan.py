"""`tsd scan`: print stored rows in the format of OpenTSDB's tool, or as lines for `tsd import`.

Parses OpenTSDB's `scan START [END] FUNC METRIC [k=v …] …` and reads the selected rows; other commands use this too.
"""

import json
import math
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click
import trio

from tsd.cli.context import Access, access, flush_pending, tell_of_others
from tsd.cli.late_rollups import changing, names_left, show_left
from tsd.cli.options import drop_output
from tsd.cli.output import NamedKey, named
from tsd.cli.scan_heroic import print_rows as print_heroic_rows
from tsd.cli.scan_tall import print_rows as print_tall_rows
from tsd.codec.dates import BadDate, parse_date
from tsd.codec.names import Kind
from tsd.codec.opentsdb.annotation import decode_annotation, encode_annotation
from tsd.codec.opentsdb.cell import CellKind, Point, kind_of, offset_ms, split, split_append
from tsd.codec.opentsdb.merge import MergeRules, StoredCell
from tsd.codec.opentsdb.row import data_cells, points
from tsd.codec.opentsdb.rowkey import KeyLayout, SplitKey, base_bytes, salts, split_key
from tsd.codec.putline import FIRST_MS, HOUR_S, split_tags
from tsd.codec.text import FLOAT, counted, encode_name, show_signed
from tsd.config.loader import Loaded, key_layout
from tsd.config.settings import Config
from tsd.daemon.settings import now_ms
from tsd.errors import BadLine, CorruptRow, NoSuchName, TsdError
from tsd.ingest.lines import MAX_LINE_BYTES
from tsd.lazy import LazyModule
from tsd.query.model import AGGREGATORS
from tsd.store import Row, Store
from tsd.store import scan as scan_store
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.data_table import DataTable, configured_data_table
from tsd.tables.opentsdb.delete import remove_rows
from tsd.tables.opentsdb.rollup_progress import days_of
from tsd.tables.opentsdb.uids import Uids

if TYPE_CHECKING:
    from tsd.cli import entity_points as entity_points
else:  # only to delete
    entity_points = LazyModule("tsd.cli.entity_points")

_SPACE = re.compile("[ \r\n]")
_END = re.compile(r".*[:/-].*|\d+(ms)?|now")


class RowSelection(NamedTuple):
    """Rows of one metric."""

    metric: bytes
    tags: tuple[tuple[bytes, bytes], ...]  # tags that the series must have, others allowed


class ScanRequest(NamedTuple):
    """Request of a command line: whole hours that overlap a time range, in ms."""

    start_ms: int
    end_ms: int
    selections: list[RowSelection]


class BadRequest(TsdError):
    """Invalid arguments of a scan."""


def parse_request(words: Sequence[str], now_ms: int) -> ScanRequest:
    """Return the request of a command line. Raise BadRequest.

    >>> parse_request(["1356998400", "1356998500", "sum", "sys.cpu", "host=a"], 0).selections
    [RowSelection(metric=b'sys.cpu', tags=((b'host', b'a'),))]
    """
    if len(words) < 3:
        raise BadRequest("not enough arguments: wanted START [END] FUNC METRIC [TAGK=TAGV …]")
    try:
        start = parse_date(words[0], now_ms)
        at = 1
        end = now_ms
        if len(words) > 3 and _END.fullmatch(words[1].lower()):
            end = parse_date(words[1], now_ms)
            at = 2
    except BadDate as exc:
        raise BadRequest(str(exc)) from exc
    if end < start:
        raise BadRequest(f"the end {words[1] if at == 2 else 'now'!r} is before the start {words[0]!r}")
    selections = list(_selections(list(words[at:])))
    if not selections:
        raise BadRequest("no metric: wanted START [END] FUNC METRIC [TAGK=TAGV …]")
    return ScanRequest(start, end, selections)


def _selections(words: list[str]) -> list[RowSelection]:
    """Parse FUNC [rate [counter,max,reset]] [downsample MS FUNC] METRIC [k=v …], once or more. Only metric and tags
    have an effect; the rest is for queries."""
    found = []
    while words:
        function = words.pop(0)
        if function not in AGGREGATORS:
            raise BadRequest(f"No such aggregator: {function}")
        if words[:1] == ["rate"]:
            words.pop(0)
            if words and words[0].startswith("counter"):
                words.pop(0)
        if words[:1] == ["downsample"]:
            del words[:3]
        if not words:
            raise BadRequest("a function without a metric: wanted FUNC METRIC [TAGK=TAGV …]")
        metric = words.pop(0)
        tags = []
        while words and "=" in words[0]:
            tags.append(words.pop(0))
        found.append(parse_selection(metric, tags))
    return found


def parse_selection(metric: str, tags: Sequence[str]) -> RowSelection:
    """Return the rows of `metric` whose series have at least `tags`, each TAGK=TAGV. Raise BadRequest."""
    try:
        return RowSelection(encode_name(metric), split_tags(b" ".join(map(encode_name, tags))))
    except BadLine as exc:
        raise BadRequest(str(exc)) from exc


ScanRows = Callable[[Store, str, bytes, bytes | None], AsyncIterator[list[Row]]]


async def selected_rows(
    table: DataTable, uids: Uids, request: ScanRequest, selection: RowSelection, scan: ScanRows = scan_store
) -> AsyncIterator[list[Row]]:
    """Yield the rows of a selection in key order, salt by salt, including rows of the metric and time with invalid
    keys. `scan` reads them. Raise NoSuchName, StoreError."""
    store, name, layout = table
    metric = _known(await uids.find(Kind.METRIC, [selection.metric]), selection.metric)
    tagks = await uids.find(Kind.TAGK, [tagk for tagk, _ in selection.tags])
    tagvs = await uids.find(Kind.TAGV, [tagv for _, tagv in selection.tags])
    wanted = {(_known(tagks, tagk), _known(tagvs, tagv)) for tagk, tagv in selection.tags}
    first = request.start_ms // 1000 // HOUR_S * HOUR_S
    last = request.end_ms // 1000
    for salt in salts(layout):
        prefix = salt + metric
        start = prefix + base_bytes(first)
        stop = prefix_end(prefix + base_bytes(last))
        async for page in scan(store, name, start, stop):
            rows = [row for row in page if _has_tags(layout, row.key, wanted)] if wanted else page
            if rows:
                yield rows


def _has_tags(layout: KeyLayout, key: bytes, wanted: Set[tuple[bytes, bytes]]) -> bool:
    """Return whether a row has these tags. True for an invalid key, so that the caller can report it."""
    try:
        return wanted <= set(split_key(layout, key).series.pairs)
    except CorruptRow:
        return True


def _known(found: Mapping[bytes, object], name: bytes) -> bytes:
    uid = found[name]
    if isinstance(uid, bytes):
        return uid
    raise uid if isinstance(uid, TsdError) else NoSuchName(name.decode("latin-1"))


NEWEST = MergeRules(fix_duplicates=True)


RowForm = Callable[[NamedKey, Sequence[StoredCell]], Iterator[str]]  # how to print a row, line by line


class Scanned(NamedTuple):
    """Result of printing rows."""

    printed: list[Row]
    names: list[NamedKey]  # of the printed ones
    corrupt: int


def scan(loaded: Loaded, words: Sequence[str], as_lines: bool, delete: bool, as_json: bool) -> None:
    """Run `tsd scan`."""
    if as_json and (as_lines or delete):
        raise click.UsageError("one of --import, --delete and --json")
    form = json_of if as_json else lines_of if as_lines or delete else _dump
    try:
        request = parse_request(words, now_ms())
    except BadRequest as exc:
        raise click.UsageError(str(exc)) from exc
    config = loaded.config
    if config.has_heroic_tables or config.has_tall_tables:
        _scan_layout(config, request, "json" if as_json else "lines" if as_lines else "plain", delete=delete)
    corrupt = deleted = 0
    metrics: dict[str, None] = {}  # whose points were deleted
    left: list[str] = []

    async def run() -> None:
        nonlocal corrupt, deleted, metrics
        async with access(config, must_exist=True) as opened:
            await flush_pending(opened, delete=delete)
            table = configured_data_table(config, opened.store)
            for selection in request.selections:
                read_ms = now_ms()
                async for rows in selected_rows(table, opened.uids, request, selection):
                    done = await _print_rows(opened, config, rows, form)
                    corrupt += done.corrupt
                    if delete:
                        sys.stdout.flush()  # if this fails, for example on a full disk, nothing is deleted
                        await entity_points.delete_hours(config, opened, done.names)
                        days = days_of(key_layout(config), [row.key for row in done.printed])
                        async with changing(config, opened, days, deleted=True):
                            await remove_rows(opened.store, config.data_table, done.printed, read_ms=read_ms)
                        deleted += len(done.printed)
                        metrics |= dict.fromkeys(name.metric for name in done.names)
                    read_ms = now_ms()
            if delete:
                await opened.store.sync()
            left.extend(await names_left(config, opened, metrics))

    try:
        trio.run(run)
    except BrokenPipeError as exc:
        if not delete:
            raise
        drop_output()
        rows = counted(deleted, "row")
        raise TsdError(
            f"the output has no reader any more: deleted {rows}, and the rest stays. The last ones may be unread"
        ) from exc
    if delete:
        click.echo(f"deleted {counted(deleted, 'row')}", err=True)
        tell_of_others(config, request.end_ms)
    for metric in left:
        show_left(config, metric, request.start_ms, request.end_ms + 1)
    sys.exit(1 if corrupt else 0)


def _scan_layout(config: Config, request: ScanRequest, form: str, *, delete: bool) -> NoReturn:
    """Print rows of Heroic's table, or of events and days, and exit."""
    if delete:
        raise TsdError(f"--delete works on OpenTSDB's tables, and tsd.storage.layout is {config.layout}")
    show = print_heroic_rows if config.has_heroic_tables else print_tall_rows

    async def run() -> int:
        span = request.start_ms, request.end_ms
        return sum([await show(config, *span, *each, form=form) for each in request.selections])

    sys.exit(1 if trio.run(run) else 0)


async def _print_rows(opened: Access, config: Config, rows: Sequence[Row], form: RowForm) -> Scanned:
    """Print rows. Return the printed ones and the number of unreadable ones."""
    printed: list[Row] = []
    printed_names: list[NamedKey] = []
    readable: list[tuple[Row, SplitKey]] = []
    for row in rows:
        try:
            readable.append((row, split_key(key_layout(config), row.key)))
        except CorruptRow as exc:
            click.echo(f"tsd: a row cannot be read: {exc}", err=True)
    names = await named(opened, readable)
    for key, (row, _) in zip(names, readable, strict=True):
        cells = data_cells(row.cells)
        try:
            text = "".join(line + "\n" for line in form(key, cells))
        except CorruptRow as exc:
            click.echo(f"tsd: row {key.key.hex()} of {key.metric} cannot be read: {exc}", err=True)
        else:
            click.echo(
                text.encode("latin-1") if form is lines_of else text, nl=False
            )  # lines are bytes, whatever the locale
            printed.append(row)
            printed_names.append(key)
    return Scanned(printed, printed_names, len(rows) - len(printed))


def lines_of(row: NamedKey, cells: Sequence[StoredCell]) -> Iterator[str]:
    """Yield the points of a row as lines. Raise CorruptRow for a name or a point that a line cannot express."""
    metric, tags = _line_ends(row)
    for point in points(row.key, cells, NEWEST):
        time = row.base * 1000 + point.offset_ms if point.in_ms else row.base + point.offset_ms // 1000
        number = point.number
        if isinstance(number, float) and not math.isfinite(number):
            raise CorruptRow(f"the value at {time} is {number}, which a line cannot express")
        if not time or point.in_ms != (time >= FIRST_MS):
            raise CorruptRow(f"a time of {time} {'ms' if point.in_ms else 's'}, which a line cannot express")
        line = f"{metric} {time} {number!r} {tags}"
        if len(line) > MAX_LINE_BYTES:
            raise CorruptRow(f"a line of {len(line)} bytes, of which {MAX_LINE_BYTES} can be imported")
        yield line


def _line_ends(row: NamedKey) -> tuple[str, str]:
    """Return what a line has before and after time and value. Raise CorruptRow for names that would be read as others.

    >>> _line_ends(NamedKey(b"", "#m", ["a=b", "c=d"], 0))
    ('put #m', 'a=b c=d')
    """
    tags = " ".join(row.tags)
    if not row.is_named:
        raise CorruptRow(f"a UID of {row.metric} {tags} has no name, which a line needs")
    if _SPACE.search(row.metric) or any(_SPACE.search(tag) or tag.count("=") != 1 for tag in row.tags):
        raise CorruptRow(f"a name in {row.metric!r} {row.tags} has a space or =, which a line cannot express")
    return f"put {row.metric}" if row.metric.startswith("#") else row.metric, tags  # alone, # begins a comment


def json_of(row: NamedKey, cells: Sequence[StoredCell]) -> Iterator[str]:
    """Yield a row as one JSON object: names, and points as time in ms and value, a text for NaN or an infinity."""
    found = [
        [row.base * 1000 + point.offset_ms, point.number if math.isfinite(point.number) else str(point.number)]
        for point in points(row.key, cells, NEWEST)
    ]
    tags = dict(tag.split("=", 1) for tag in row.tags)
    yield json.dumps({"row": row.key.hex(), "metric": row.metric, "base": row.base, "tags": tags, "points": found})


def _dump(row: NamedKey, cells: Sequence[StoredCell]) -> Iterator[str]:
    """Yield a row cell by cell, in the format of OpenTSDB's tool."""
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
    """Format a date like Java."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
