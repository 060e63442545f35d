"""Progress of a long command on standard error: a bar on a terminal, otherwise a plain line every few seconds.

Row keys with the names of their UIDs, and sizes, as commands show them.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Self

import click
import trio

from tsd.cli.context import Access
from tsd.codec.names import Kind
from tsd.codec.opentsdb.rowkey import SplitKey
from tsd.codec.text import counted
from tsd.lazy import LazyModule
from tsd.store import Row

if TYPE_CHECKING:
    from rich import console as consoles
    from rich import progress as bars
    from rich import text as texts
else:  # most commands show no bar
    consoles = LazyModule("rich.console")
    bars = LazyModule("rich.progress")
    texts = LazyModule("rich.text")

PLAIN_INTERVAL_S = 10.0  # between two plain lines
_UNITS = ("KiB", "MiB", "GiB", "TiB")


@cache
def stderr() -> "consoles.Console":
    """Return the console that draws on standard error. Without a terminal commands print plain lines instead."""
    return consoles.Console(stderr=True)


def show_date(time_ms: int) -> str:
    """Return a time in UTC as commands show it.

    >>> show_date(1_356_998_400_000), show_date(1_356_998_400_500)
    ('2013/01/01-00:00:00 UTC', '2013/01/01-00:00:00.500 UTC')
    """
    shown = datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y/%m/%d-%H:%M:%S")
    return f"{shown}.{time_ms % 1000:03d} UTC" if time_ms % 1000 else f"{shown} UTC"


def tell_resumed(done: str, since_ms: int, until_ms: int) -> None:
    """Tell that a command goes on where an earlier run of it was interrupted, with the range of that run: words like
    `now` had another meaning then."""
    span = f"{show_date(since_ms)} to {show_date(until_ms)}" if since_ms else f"up to {show_date(until_ms)}"
    click.echo(f"tsd: resuming after {done}, in the time range of the interrupted run: {span}", err=True)


class Bar:
    """A progress bar on standard error, for a block; nothing if that is no terminal."""

    def __init__(
        self, total: int | None, columns: "Callable[[], Iterable[bars.ProgressColumn]]", *, description: str = ""
    ) -> None:
        """Show the bar. `total` None: unknown. `columns` makes those between the bar and the time."""
        self.is_shown = sys.stderr.isatty()
        if not self.is_shown:
            return
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), *columns(),
            bars.TimeElapsedColumn(), console=stderr(), transient=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self._bars.add_task(description, total=total)
        self.show()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()

    def show(self) -> None:
        """Show the bar again."""
        if self.is_shown:
            self._bars.start()

    def hide(self) -> None:
        """Remove the bar from the terminal."""
        if self.is_shown:
            self._bars.stop()

    def set(self, done: int) -> None:
        """Set how much is done."""
        if self.is_shown:
            self._bars.update(self._task, completed=done)


def byte_columns() -> "list[bars.ProgressColumn]":
    """Return the columns of a bar that counts bytes: those done, and the speed."""
    return [bars.DownloadColumn(), bars.TransferSpeedColumn()]


def write_above_bar(message: str) -> None:
    """Print a line on standard error, above a bar that is shown."""
    if sys.stderr.isatty():
        stderr().print(texts.Text(message), soft_wrap=True)
    else:
        click.echo(message, err=True)


class Progress:
    """Counts and shows progress, for a block. `total` None: unknown."""

    def __init__(self, unit: str, total: int | None = None) -> None:
        """`unit` is what is counted, e.g. "rows"."""
        self._unit = unit
        self._total = total
        self._done = 0
        self._last_s = trio.current_time()
        self._bar = Bar(total, lambda: (bars.MofNCompleteColumn(), bars.TextColumn(unit)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.hide()

    def add(self, count: int) -> None:
        """Add to the count."""
        self._done += count
        self._bar.set(self._done)
        now_s = trio.current_time()
        if not self._bar.is_shown and now_s - self._last_s >= PLAIN_INTERVAL_S:
            self._last_s = now_s
            click.echo(f"tsd: {self._done}{f' of {self._total}' if self._total else ''} {self._unit}", err=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar while the block prints."""
        self._bar.hide()
        try:
            yield
        finally:
            self._bar.show()


class NamedKey(NamedTuple):
    """A row key with its names."""

    key: bytes
    metric: str
    tags: list[str]  # tagk=tagv
    base: int
    is_named: bool = True  # all of its UIDs have names


async def named(opened: Access, rows: Sequence[tuple[Row, SplitKey]]) -> list[NamedKey]:
    """Return row keys with names. A UID without a name is shown in hex in angle brackets."""
    metrics = await opened.uids.names(Kind.METRIC, {key.series.metric for _, key in rows})
    tagks = await opened.uids.names(Kind.TAGK, {tagk for _, key in rows for tagk, _ in key.series.pairs})
    tagvs = await opened.uids.names(Kind.TAGV, {tagv for _, key in rows for _, tagv in key.series.pairs})

    def shown(name: object, uid: bytes) -> str:
        return name.decode("latin-1") if isinstance(name, bytes) else f"<{uid.hex()}>"

    found = []
    for row, key in rows:
        metric, pairs = key.series.metric, key.series.pairs
        tags = [f"{shown(tagks[k], k)}={shown(tagvs[v], v)}" for k, v in pairs]
        own = metrics[metric], *(name for k, v in pairs for name in (tagks[k], tagvs[v]))
        is_named = all(isinstance(name, bytes) for name in own)
        found.append(NamedKey(row.key, shown(metrics[metric], metric), tags, key.base, is_named))
    return found


def show_size(size: int) -> str:
    """Return a number of bytes in the largest unit of which it is one or more.

    >>> show_size(1), show_size(1023), show_size(1536), show_size(10_743_813_734)
    ('1 byte', '1,023 bytes', '1.5 KiB', '10.0 GiB')
    """
    if size < 1024:
        return counted(size, "byte")
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / 1024**power:,.1f} {_UNITS[power - 1]}"
