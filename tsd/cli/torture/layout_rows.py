"""Read the stored points of KairosDB's, Heroic's and tall tables with the layout's own reader.

Rows of OpenTSDB's tables are read in `tsd.cli.torture.verify`, cell by cell.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import numpy as np

from tsd.cli.torture.senders import BASE_S, Numbers, SentSeries, Values
from tsd.codec.points import Columns, Points, wide_values
from tsd.config.settings import Config
from tsd.daemon.layouts import build_configured_tables
from tsd.daemon.settings import now_ms
from tsd.store import Store
from tsd.store.retry import run_bounded
from tsd.tables.stored_windows import OnWindow, TextLookup, TimeRange, read_metric

METRICS_AT_ONCE = 16
SENT_MS = TimeRange((BASE_S - 86_400) * 1000, (BASE_S + 30 * 86_400) * 1000)  # all sent times are in it


class StoredRow(NamedTuple):
    """Points of a series: of one hour, where the tables have rows by hour."""

    series: SentSeries
    times: Numbers  # as in the lines: in seconds or ms
    values: Values


class DecodedPage(NamedTuple):
    """A page of rows."""

    rows: list[StoredRow]
    corrupt: list[str]  # errors of rows that cannot be read


async def layout_rows(store: Store, config: Config, metrics: Sequence[str] | None) -> AsyncIterator[DecodedPage]:
    """Yield the points of these metrics, or of all, some metrics at a time. Raise StoreError."""
    tables = build_configured_tables(config, store, now_ms)
    known = await tables.catalog.metrics()
    wanted = known if metrics is None else sorted(set(known).intersection(metrics))
    for at in range(0, len(wanted), METRICS_AT_ONCE):
        found = DecodedPage([], [])

        async def take(points: Columns, lookup: TextLookup, found: DecodedPage = found) -> None:
            found.rows.extend(_rows(points, lookup))

        async def read(metric: str, take: OnWindow = take, found: DecodedPage = found) -> None:
            await read_metric(tables.reader, metric, SENT_MS, take, found.corrupt.append)

        await run_bounded(wanted[at : at + METRICS_AT_ONCE], read, limit=METRICS_AT_ONCE)
        yield found


def _rows(points: Columns, lookup: TextLookup) -> list[StoredRow]:
    """Return the points of each series, with times as in the lines: whole seconds in seconds, others in ms."""
    times = points.instants >> 1
    times = np.where(times % 1000, times, times // 1000)
    values = Points(times, *wide_values(points)).doubles()
    rows = []
    for number in np.unique(points.series).tolist():
        own = points.series == number
        text = lookup.text(number)
        assert text is not None
        tags = sorted(tuple(word.decode("latin-1").split("=", 1)) for word in text.tags.split(b" "))
        series = SentSeries(text.metric.decode("latin-1"), tuple((name, value) for name, value in tags))
        rows.append(StoredRow(series, times[own], values[own]))
    return rows
