"""`tsd import`: files of put lines → the store. The word `put` at a line's start may be there or not."""

import gzip
import os
import random
import sys
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from typing import BinaryIO, NamedTuple, TypeVar, cast

import click
import trio
from tqdm import tqdm

from tsd.assembly import creates, name_rules
from tsd.cli.access import Access, access
from tsd.cli.options import with_config
from tsd.codec.columns import Columns, series_ends
from tsd.config import Config, Loaded, layout
from tsd.errors import LINE_TOO_LONG, BadLine, StoreBusy, StoreDown, StoreError, TsdError
from tsd.ingest.cells import encode, series_slices, sorted_parts
from tsd.ingest.indexing import Indexer
from tsd.ingest.intake import absorb_whole
from tsd.ingest.lines import LineBuffer, TooLong
from tsd.ingest.names import SeriesNames
from tsd.ingest.rows import OpenRows
from tsd.ingest.series import SeriesTable
from tsd.query.configured import make_index
from tsd.store import Put

T = TypeVar("T")

READ_BYTES = 1 << 20
WINDOW_POINTS = 1_000_000  # sorted and joined together
SHOWN = 100  # refused lines told one by one
TRIES = 8  # of one put, while the store does not take it
FIRST_PAUSE_S = 0.5


class Unreadable(TsdError):
    """A file that cannot be read, or not to its end."""


class Numbered(NamedTuple):
    """Lines of a file, in the form that a socket has."""

    block: bytes
    numbers: list[int]  # of each line, counted from 1


class Skipped(NamedTuple):
    """A line that was too long to be read."""

    number: int
    error: BadLine


class Account:
    """What became of the lines."""

    def __init__(self, keep: BinaryIO | None) -> None:
        self.points = 0
        self.refused: Counter[str] = Counter()
        self._keep = keep

    def refuse(self, source: str, number: int, error: BadLine, line: bytes | None) -> None:
        """Tell of a refused line (None: nobody has it), unless there are too many of them."""
        self.refused[error.reason] += 1
        told = f"{source}:{number}: {error}"
        if self._keep is not None:
            self._keep.write(b"# %s\n" % told.encode() + (b"" if line is None else line + b"\n"))
        elif self.refused.total() <= SHOWN:
            tqdm.write(told if line is None else f"{told}: {line.decode('latin-1')}", file=sys.stderr)
            if self.refused.total() == SHOWN:
                tqdm.write("more refused lines are only counted: give --rejects FILE to keep them", file=sys.stderr)


class Importer:
    """Takes lines in and writes them, window by window."""

    def __init__(self, config: Config, ways: Access, account: Account) -> None:
        rules = name_rules(config)
        self._config = config
        self._ways = ways
        self._account = account
        self._rows = OpenRows(SeriesTable(), rules)
        self._names = SeriesNames(ways.uids, layout(config), rules, creates(config))
        index = make_index(config, ways.store)
        self._indexer = Indexer(index, config.salt_width) if index else None

    async def take_in(self, source: str, lines: Numbered | Skipped) -> None:
        """Take lines in; the refused ones go to the account."""
        if isinstance(lines, Skipped):
            self._account.refuse(source, lines.number, lines.error, None)
            return
        absorbed = await _patiently(lambda: absorb_whole(self._rows, self._names, lines.block))
        self._account.points += absorbed.accepted
        if absorbed.rejects:
            texts = lines.block.split(b"\n")
            for at, error in absorbed.rejects:
                self._account.refuse(source, lines.numbers[at], error, texts[at].removeprefix(b"put "))
        if self._rows.points >= WINDOW_POINTS:
            await self.write()

    async def settle_daemon(self) -> None:
        """Have a daemon of this state folder write what it holds: written later, its older values would count."""
        if why := await self._ways.unwritten():
            raise StoreError(f"{why}. Written later, they would count more than imported ones: import after that")

    async def write(self) -> None:
        """Write what was taken in."""
        await self.settle_daemon()
        columns, join = self._rows.take(), self._config.join_points
        for points in series_slices(columns):
            for part in sorted_parts(columns, points, join=join):
                await self._enter(part)
                await self._put(encode(part, self._rows.table, join))
        await _patiently(self._ways.store.sync)

    async def _enter(self, columns: Columns) -> None:
        """Enter series into the index before they have rows: what comes in between finds them."""
        if (indexer := self._indexer) is not None:
            await _patiently(lambda: indexer.note(columns.series[series_ends(columns)], self._rows.table))

    async def _put(self, puts: list[Put]) -> None:
        await _patiently(lambda: self._ways.store.put(self._config.data_table, puts))


@click.command("import")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option("--auto-metric", is_flag=True, help="Give unknown metrics a UID.")
@click.option("--rejects", type=click.File("wb"), help="Keep refused lines in this file, each below its reason.")
@click.option("--skip-errors", is_flag=True, hidden=True, help="For OpenTSDB's sake: errors are always skipped.")
@with_config
def import_lines(
    loaded: Loaded, paths: Sequence[str], auto_metric: bool, rejects: BinaryIO | None, skip_errors: bool
) -> None:
    """Store the points of files: `METRIC TIME VALUE TAGK=TAGV…` a line; gzip by its name's end; - is standard input.

    Blank lines and lines that start with # are passed over. Every refused line is told with its reason, and every file
    that cannot be read; the rest is stored, and the exit status is 1.
    """
    del skip_errors
    config = loaded.config
    if auto_metric:
        config = replace(config, auto_create_metrics=True)
    account = Account(rejects)
    unreadable: list[Unreadable] = []

    async def run() -> None:
        async with access(config) as ways:
            importer = Importer(config, ways, account)
            await importer.settle_daemon()  # before anything is read: while the store is away, that it is is said soon
            for path in paths:
                try:
                    for lines in _read(path, config.max_line):
                        await importer.take_in(path, lines)
                except Unreadable as exc:
                    unreadable.append(exc)  # what came before is stored all the same
            await importer.write()

    trio.run(run)
    for error in unreadable:
        click.echo(f"tsd: {error}", err=True)
    click.echo(f"imported {account.points} data points, refused {account.refused.total()} lines", err=True)
    for reason, count in sorted(account.refused.items()):
        click.echo(f"  {reason}: {count}", err=True)
    sys.exit(1 if account.refused or unreadable else 0)


def _read(path: str, max_line: int) -> Iterator[Numbered | Skipped]:
    """A file's lines, with a progress bar where somebody looks. No more than READ_BYTES and a line are held."""
    number = 1
    buffer = LineBuffer(max_line)
    with _opened(path) as source, tqdm(total=source.size, unit="B", unit_scale=True, desc=path, disable=None) as bar:
        for data in chain(iter(lambda: source.text.read(READ_BYTES), b""), [b"\n"]):  # a file's last line is whole
            for piece in buffer.feed(data):
                if isinstance(piece, TooLong):
                    yield Skipped(number, _too_long(piece))
                    number += 1
                else:
                    lines = piece.split(b"\n")[:-1]
                    yield _numbered(lines, number)
                    number += len(lines)
            bar.update((source.raw.tell() if source.size else bar.n + len(data)) - bar.n)


def _too_long(piece: TooLong) -> BadLine:
    return BadLine(LINE_TOO_LONG, f"illegal argument: line too long: more than {piece.limit} bytes")


class _Source(NamedTuple):
    text: BinaryIO
    raw: BinaryIO  # where `size` is counted
    size: int | None


@contextmanager
def _opened(path: str) -> Iterator[_Source]:
    """A file or standard input, gunzipped by its name's end."""
    try:
        with ExitStack() as stack:
            raw = sys.stdin.buffer if path == "-" else stack.enter_context(open(path, "rb"))
            size = os.fstat(raw.fileno()).st_size if path != "-" else None
            if path.endswith(".gz"):
                yield _Source(cast(BinaryIO, stack.enter_context(gzip.open(raw))), raw, size)
            else:
                yield _Source(raw, raw, size)
    except (OSError, EOFError, zlib.error) as exc:
        raise Unreadable(f"{path}: {getattr(exc, 'strerror', None) or exc}") from exc


def _numbered(lines: Sequence[bytes], first: int) -> Numbered:
    """Lines as put lines, those that say nothing left out."""
    block: list[bytes] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, first):
        if line and not line.startswith(b"#"):
            block.append(line if _has_put(line) else b"put " + line)
            numbers.append(number)
    block.append(b"")
    return Numbered(b"\n".join(block), numbers)


def _has_put(line: bytes) -> bool:
    """Whether a line carries the word `put`, and is not of a metric of that name: then a time would follow.

    >>> _has_put(b"put m 1700000000 1 a=b"), _has_put(b"put 1700000000 1 a=b"), _has_put(b"m 1700000000 1 a=b")
    (True, False, False)
    """
    return line.startswith(b"put ") and not line.split(b" ", 2)[1].replace(b".", b"").isdigit()


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What the store answers, asked again with growing pauses while it is busy or away; then its StoreError."""
    pause = FIRST_PAUSE_S
    for _ in range(TRIES):
        try:
            return await ask()
        except (StoreBusy, StoreDown) as exc:
            tqdm.write(f"tsd: {exc}; trying again", file=sys.stderr)
            await trio.sleep(pause * (0.5 + random.random() / 2))  # noqa: S311 - jitter
            pause *= 2
    return await ask()
