"""`tsd import`: write files of put lines to the store. The word `put` at the start of a line is optional."""

import gzip
import json
import math
import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from io import BufferedIOBase, BufferedReader
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar, cast

import click
import trio

from tsd.cli.context import Access, access
from tsd.cli.late_rollups import changing
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import Bar, byte_columns, write_above_bar
from tsd.codec.points import Columns, series_ends, series_slices, sorted_parts
from tsd.codec.text import counted, visible
from tsd.config.files import is_file
from tsd.config.loader import Loaded, key_layout, name_rules
from tsd.config.settings import Config
from tsd.daemon.wiring import auto_create, check_keys
from tsd.errors import LINE_TOO_LONG, BadLine, StoreBusy, StoreDown, TsdError
from tsd.ingest.intake import absorb_whole
from tsd.ingest.lines import MAX_LINE_BYTES, LineBuffer, TooLong
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import SeriesTable
from tsd.store import Put
from tsd.store.retry import backoff
from tsd.tables.opentsdb.encode import encode_of
from tsd.tables.opentsdb.layout import make_index
from tsd.tables.opentsdb.resolver import UidResolver
from tsd.tables.opentsdb.rollup_task import hours_of_points
from tsd.tables.opentsdb.series_recorder import make_index_writer

T = TypeVar("T")

READ_BYTES = 1 << 20
WINDOW_POINTS = 1_000_000  # sorted and written together
SHOWN = 100  # refused lines printed one by one
RETRIES = 8  # retries of one call while the store is busy or unavailable
FIRST_PAUSE_S = 0.5


class Unreadable(TsdError):
    """A file that cannot be read completely."""


class Numbered(NamedTuple):
    """Put lines of a file, joined as they would be sent."""

    block: bytes
    numbers: list[int]  # of each line, counted from 1


class Skipped(NamedTuple):
    """A line that exceeds the length limit."""

    number: int
    error: BadLine


class ImportStats:
    """Counts accepted points and refused lines, and prints or stores the refused ones."""

    def __init__(self, keep: BinaryIO | None) -> None:
        self.points = 0
        self.refused: Counter[str] = Counter()
        self._keep = keep

    def refuse(self, source: str, number: int, error: BadLine, line: bytes | None) -> None:
        """Record a refused line (None: too long to keep): write it to the file, or print it, up to SHOWN lines."""
        self.refused[error.reason] += 1
        message = f"{source}:{number}: {error}"
        if self._keep is not None:
            text = b"# %s\n" % message.encode("utf-8", "surrogateescape") + (b"" if line is None else line + b"\n")
            with self._kept(self._keep):
                self._keep.write(text)
        elif self.refused.total() <= SHOWN:
            shown = str(error) if line is None else f"{error}: {line.decode('latin-1')}"
            write_above_bar(f"{source}:{number}: {visible(shown)}")
            if self.refused.total() == SHOWN:
                write_above_bar("more refused lines are only counted: give --rejects FILE to keep them")

    def flush(self) -> None:
        """Write what is buffered for the file."""
        if self._keep is not None and self.refused:
            with self._kept(self._keep):
                self._keep.flush()

    @contextmanager
    def _kept(self, keep: BinaryIO) -> Iterator[None]:
        """Raise TsdError if the file cannot be written in the block."""
        try:
            yield
        except OSError as exc:
            with suppress(OSError):
                keep.close()  # now, as it would write again
            raise TsdError(f"--rejects {keep.name}: {exc.strerror}. Import again: lines may not be stored") from exc


class Importer:
    """Absorbs lines and writes their points, window by window."""

    def __init__(self, config: Config, opened: Access, report: ImportStats) -> None:
        rules = name_rules(config)
        self._config = config
        self._access = opened
        self._report = report
        self._open_window = OpenWindow(SeriesTable(), rules)
        self._resolver = UidResolver(opened.uids, key_layout(config), auto_create(config))
        self._index_writer = make_index_writer(config, opened.store, make_index(config, opened.store))

    async def absorb(self, source: str, lines: Numbered | Skipped) -> None:
        """Absorb lines and record the refused ones."""
        if isinstance(lines, Skipped):
            self._report.refuse(source, lines.number, lines.error, None)
            return
        absorbed = await _retried(lambda: absorb_whole(self._open_window, self._resolver, lines.block))
        self._report.points += absorbed.accepted
        if absorbed.rejects:
            texts = lines.block.split(b"\n")
            for at, error in absorbed.rejects:
                self._report.refuse(source, lines.numbers[at], error, texts[at].removeprefix(b"put "))
        if self._open_window.points >= WINDOW_POINTS:
            await self.write()

    async def flush_daemon(self) -> None:
        """Have the daemon of this state folder write its pending points: written later, they would replace newer
        values."""
        await self._access.require_flush("Written later, these points would replace imported ones: import later")

    async def write(self) -> None:
        """Write the absorbed points."""
        await self.flush_daemon()
        columns, join = self._open_window.take(), self._config.join_points
        late = hours_of_points(columns, self._open_window.table, self._config.salt_width)
        async with changing(self._config, self._access, late):
            for points in series_slices(columns):
                for part in sorted_parts(columns, points, join=join):
                    await self._index(part)
                    await self._put(encode_of(part, self._open_window.table, join=join))
            await _retried(self._access.store.sync)

    async def finish(self) -> None:
        """Write the rest of the absorbed points."""
        await self.write()
        await _retried(self._index_writer.finish)

    async def _index(self, columns: Columns) -> None:
        """Add series to the index before their rows are written, so that an interrupted import leaves it complete."""
        numbers = columns.series[series_ends(columns)]
        await _retried(lambda: self._index_writer.record(numbers, self._open_window.table))

    async def _put(self, puts: list[Put]) -> None:
        await _retried(lambda: self._access.store.put(self._config.data_table, puts))


def import_lines(
    loaded: Loaded, paths: Sequence[str], auto_metric: bool, rejects: BinaryIO | None, skip_errors: bool, as_json: bool
) -> None:
    """Run `tsd import`."""
    del skip_errors
    config = loaded.config
    if auto_metric:
        config = replace(config, auto_create_metrics=True)
    if rejects is not None:
        _check_rejects(rejects.name, paths)
    report = ImportStats(rejects)
    unreadable = {path: error for path in paths if (error := _open_error(path)) is not None}
    readable = [path for path in paths if path not in unreadable]

    async def run() -> None:
        async with access(config) as opened:
            importer = Importer(config, opened, report)
            await importer.flush_daemon()  # first, so that an unavailable store is reported early
            await check_keys(config, opened.store, opened.uids)
            for path in readable:
                try:
                    for lines in _read(path, MAX_LINE_BYTES):
                        await importer.absorb(path, lines)
                except Unreadable as exc:
                    unreadable[path] = exc  # points read before the error are stored nevertheless
            await importer.finish()
            report.flush()

    if readable:  # without one, a store would be made for nothing
        trio.run(run)
    for error in unreadable.values():
        click.echo(f"tsd: {error}", err=True)
    if as_json:
        unread = [str(error) for error in unreadable.values()]
        with closed_output_ignored():
            click.echo(json.dumps({"points": report.points, "refused": dict(report.refused), "unreadable": unread}))
        sys.exit(1 if report.refused or unreadable else 0)
    click.echo(
        f"imported {counted(report.points, 'data point')}, refused {counted(report.refused.total(), 'line')}", err=True
    )
    for reason, count in sorted(report.refused.items()):
        click.echo(f"  {reason}: {count}", err=True)
    sys.exit(1 if report.refused or unreadable else 0)


def _check_rejects(name: str, paths: Sequence[str]) -> None:
    """Raise TsdError if refused lines would replace a file before it is read."""
    for path in paths:
        with suppress(OSError):  # one of them does not exist
            if Path(path).samefile(name) and is_file(Path(path)):
                raise TsdError(f"--rejects {name}: wanted another file than {path}, which is imported")


def _read(path: str, max_line: int) -> Iterator[Numbered | Skipped]:
    """Yield the lines of a file, with a progress bar on a terminal. Memory is limited to READ_BYTES and a line."""
    number = 1
    buffer = LineBuffer(max_line)
    done = 0
    with _opened(path) as source, Bar(source.size, byte_columns, description=path) as bar:
        for data in chain(
            iter(lambda: source.text.read1(READ_BYTES), b""), [b"\n"]
        ):  # the last line may lack its line end
            for piece in buffer.feed(data):
                if isinstance(piece, TooLong):
                    yield Skipped(number, _too_long(piece))
                    number += 1
                else:
                    lines = piece.split(b"\n")[:-1]
                    yield _numbered(lines, number)
                    number += len(lines)
            done = source.raw.tell() if source.size else done + len(data)
            bar.set(done)


def _too_long(piece: TooLong) -> BadLine:
    return BadLine(LINE_TOO_LONG, f"illegal argument: line too long: more than {piece.limit} bytes")


def _open_error(path: str) -> Unreadable | None:
    """Return why a file cannot be opened. A pipe is not opened: it can be read only once."""
    try:
        if path != "-" and not stat.S_ISFIFO(os.stat(path).st_mode):
            with open(path, "rb"):
                pass
    except OSError as exc:
        return _unreadable(path, exc)
    return None


def _unreadable(path: str, error: Exception) -> Unreadable:
    return Unreadable(f"{path}: {getattr(error, 'strerror', None) or error}")


class _Source(NamedTuple):
    text: BufferedIOBase  # to be read with `read1`: `read` would lose what comes before a damaged place
    raw: BufferedReader  # the file whose position is compared with `size`
    size: int | None


@contextmanager
def _opened(path: str) -> Iterator[_Source]:
    """Open a file or standard input; unzip a file whose name ends in .gz."""
    try:
        with ExitStack() as stack:
            raw = cast(BufferedReader, sys.stdin.buffer) if path == "-" else stack.enter_context(open(path, "rb"))
            size = os.fstat(raw.fileno()).st_size if path != "-" else None
            if path.endswith(".gz"):
                if not raw.peek(1):
                    raise EOFError("got 0 bytes, wanted a gzipped file")
                yield _Source(stack.enter_context(gzip.open(raw)), raw, size)
            else:
                yield _Source(raw, raw, size)
    except (OSError, EOFError, zlib.error) as exc:
        raise _unreadable(path, exc) from exc


def _numbered(lines: Sequence[bytes], first: int) -> Numbered:
    """Return lines as put lines, without blank lines and comments."""
    block: list[bytes] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, first):
        if line and not line.startswith(b"#"):
            block.append(line if _has_put(line) else b"put " + line)
            numbers.append(number)
    block.append(b"")
    return Numbered(b"\n".join(block), numbers)


def _has_put(line: bytes) -> bool:
    """Return whether a line starts with the word `put`, and not with a metric of that name, which time, value and tags
    would follow.

    >>> _has_put(b"put m 1700000000 1 a=b"), _has_put(b"put 1700000000 1 a=b"), _has_put(b"m 1700000000 1 a=b")
    (True, False, False)
    >>> _has_put(b"put 123 1700000000 1 a=b")
    True
    """
    if not line.startswith(b"put "):
        return False
    second, _, rest = line[4:].partition(b" ")
    if not second.replace(b".", b"").isdigit():
        return True
    words = rest.split(b" ", 2)
    return len(words) > 1 and b"=" not in words[1]


async def _retried(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `call`, retried with growing pauses while the store is busy or unavailable. Raise
    StoreError."""
    for wait_s in backoff(FIRST_PAUSE_S, math.inf, RETRIES):
        try:
            return await call()
        except (StoreBusy, StoreDown) as exc:
            write_above_bar(f"tsd: {exc}; retrying")
            await trio.sleep(wait_s)
    return await call()
