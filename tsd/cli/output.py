"""Progress of a long command on standard error: a bar on a terminal, otherwise a plain line every few seconds.

Row keys with the names of their UIDs, as commands show them.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click
import trio
from tqdm import tqdm

from tsd.cli.context import Access
from tsd.codec.names import Kind
from tsd.codec.opentsdb.rowkey import SplitKey
from tsd.store import Row

EVERY_S = 10.0  # between two plain lines


class Progress:
    """Counts and shows progress. `total` None: unknown."""

    def __init__(self, unit: str, total: int | None = None) -> None:
        """`unit` is what is counted, e.g. "rows"."""
        self._unit = unit
        self._total = total
        self._done = 0
        self._last_s = trio.current_time()
        self._bar = tqdm(total=total, unit=f" {unit}", disable=None, file=sys.stderr, leave=False)  # None: no terminal

    def add(self, count: int) -> None:
        """Add to the count."""
        self._done += count
        self._bar.update(count)
        now_s = trio.current_time()
        if self._bar.disable and now_s - self._last_s >= EVERY_S:
            self._last_s = now_s
            click.echo(f"tsd: {self._done}{f' of {self._total}' if self._total else ''} {self._unit}", err=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar while the block prints."""
        with tqdm.external_write_mode(file=sys.stdout, nolock=True):
            yield

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


class NamedKey(NamedTuple):
    """A row key with its names."""

    key: bytes
    metric: str
    tags: list[str]  # tagk=tagv
    base: int


async def named(opened: Access, rows: Sequence[tuple[Row, SplitKey]]) -> list[NamedKey]:
    """Return row keys with names. A UID without a name is shown in hex in angle brackets."""
    metrics = await opened.uids.names(Kind.METRIC, {key.series.metric for _, key in rows})
    tagks = await opened.uids.names(Kind.TAGK, {tagk for _, key in rows for tagk, _ in key.series.pairs})
    tagvs = await opened.uids.names(Kind.TAGV, {tagv for _, key in rows for _, tagv in key.series.pairs})

    def shown(names: object, uid: bytes) -> str:
        return names.decode("latin-1") if isinstance(names, bytes) else f"<{uid.hex()}>"

    return [
        NamedKey(
            row.key,
            shown(metrics[key.series.metric], key.series.metric),
            [f"{shown(tagks[k], k)}={shown(tagvs[v], v)}" for k, v in key.series.pairs],
            key.base,
        )
        for row, key in rows
    ]
