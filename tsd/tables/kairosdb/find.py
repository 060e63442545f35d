"""Which rows of points a request reads: filters on tags, and the rows that the indexes list."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import NamedTuple

from tsd.codec.kairosdb.keys import DataRow, parse_tags
from tsd.codec.kairosdb.rows import RowSpec
from tsd.errors import CorruptRow
from tsd.store.retry import run_bounded
from tsd.tables.interned import Passes
from tsd.tables.kairosdb.tables import CONCURRENT, KairosTables


class FoundRow(NamedTuple):
    """A row of points that an index lists."""

    row: DataRow
    tags: Mapping[str, str]


class FoundRows(NamedTuple):
    """Rows whose times may overlap, of all series, and what is wrong with others."""

    times: Sequence[int]  # of rows, ascending
    rows: Sequence[FoundRow]
    warnings: Sequence[str]


async def find_rows(
    tables: KairosTables, metric: str, first_ms: int, last_ms: int, passes: Passes
) -> AsyncGenerator[FoundRows, None]:
    """Yield the rows of a metric that may hold times, both ends included, in order. Rows that overlap, as those before
    1970 do, come together. Raise StoreError."""
    spec = await tables.spec()
    start_ms = spec.first_row(first_ms)
    listed, (old, wrong) = await _listed(tables, metric, start_ms, last_ms)
    tested: dict[bytes, bool] = {}
    for times in overlapping(spec, sorted({*listed, *(row.row_ms for row in old)})):
        found: dict[DataRow, Mapping[str, str]] = {}
        warnings, wrong = list(wrong), []
        old_rows = [row for row in old if times[0] <= row.row_ms <= times[-1]]

        async def read(row_ms: int, found: dict[DataRow, Mapping[str, str]] = found) -> None:
            for kind, tags, encoded in await tables.row_keys(metric, row_ms):
                found[DataRow(metric, row_ms, kind, encoded)] = tags

        await run_bounded([time for time in times if time in set(listed)], read, limit=CONCURRENT)
        for row in old_rows:
            try:
                found.setdefault(row, parse_tags(row.tags))
            except CorruptRow as exc:
                warnings.append(f"metric {metric}: {exc}")
        rows = []
        for row in sorted(found, key=lambda row: (row.tags, row.row_ms, row.type)):
            if row.tags not in tested:
                tested[row.tags] = passes(found[row])
            if tested[row.tags]:
                rows.append(FoundRow(row, found[row]))
        yield FoundRows(times, rows, warnings)
    if wrong:
        yield FoundRows((), (), wrong)


async def _listed(
    tables: KairosTables, metric: str, first_ms: int, last_ms: int
) -> tuple[list[int], tuple[list[DataRow], list[str]]]:
    """Return what `KairosTables.row_times` and `.old_keys` do, read side by side. Raise StoreError."""
    times: list[int] = []
    old: tuple[list[DataRow], list[str]] = [], []

    async def read(is_old: bool) -> None:
        nonlocal times, old
        if is_old:
            old = await tables.old_keys(metric, first_ms, last_ms)
        else:
            times = await tables.row_times(metric, first_ms, last_ms)

    await run_bounded((False, True), read, limit=2)
    return times, old


def overlapping(spec: RowSpec, times: Sequence[int]) -> Iterator[list[int]]:
    """Yield runs of row times, each within a row's width of the one before.

    >>> list(overlapping(RowSpec(width=10), [-4, 0, 10, 20, 25]))
    [[-4, 0], [10], [20, 25]]
    """
    run: list[int] = []
    for time in times:
        if run and time >= run[-1] + spec.width:
            yield run
            run = []
        run.append(time)
    if run:
        yield run
