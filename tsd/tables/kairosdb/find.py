"""Which rows of points a request reads: filters on tags, and the rows that the indexes list."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from tsd.codec.kairosdb.keys import DataRow, parse_tags
from tsd.codec.kairosdb.rows import RowSpec
from tsd.errors import CorruptRow
from tsd.store.retry import run_bounded
from tsd.tables.interned import Passes
from tsd.tables.kairosdb.tables import CONCURRENT, FoundTimes, KairosTables, ListedSeries

EXPECTED = 4  # first row times of a request, whose index rows are read along with the list of row times
MOST_AHEAD = 300  # most rows that are expected before the indexes are read: all are tested in one step


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
    tables: KairosTables,
    metric: str,
    first_ms: int,
    last_ms: int,
    passes: Passes,
    *,
    expect: Callable[[Sequence[FoundRow]], Awaitable[None]] | None = None,
) -> AsyncGenerator[FoundRows, None]:
    """Yield the rows of a metric that may hold times, both ends included, in order. Rows that overlap, as those before
    1970 do, are yielded together. Raise StoreError.

    `expect` is called while the indexes are read, with the rows that an earlier request for the same first row found
    first: the indexes seldom change. It is not called without such a request, or if the rows are many."""
    spec = await tables.spec()
    first_row = spec.first_row(first_ms)
    known = tables.found_times.get((metric, first_row), FoundTimes((), complete=False))
    known_times = [time for time in known.times if time <= last_ms]
    calls = []
    tested: dict[bytes, bool] = {}
    if expect is not None and known.complete:
        expected = _expected(tables, spec, metric, known_times, passes, tested)
        calls = [partial(expect, expected)] if expected else []
    listed = await _read_indexes(tables, metric, (first_row, last_ms), known_times, calls)
    wrong: Sequence[str] = listed.warnings
    if not listed.times:
        tables.found_times.pop((metric, first_row), None)
    for at, times in enumerate(overlapping(spec, sorted({*listed.times, *(row.row_ms for row in listed.old)}))):
        found: dict[DataRow, Mapping[str, str]] = {}
        warnings, wrong = list(wrong), ()  # only the first rows have those of the indexes

        async def read(row_ms: int, found: dict[DataRow, Mapping[str, str]] = found) -> None:
            ahead = listed.series.pop(row_ms, None)
            for kind, tags, encoded in await tables.row_keys(metric, row_ms) if ahead is None else ahead:
                found[DataRow(metric, row_ms, kind, encoded)] = tags

        await run_bounded([time for time in times if time in listed.times], read, limit=CONCURRENT)
        others = [row for row in listed.old if times[0] <= row.row_ms <= times[-1] and row not in found]
        if at == 0 and listed.times:
            tables.found_times[metric, first_row] = FoundTimes(sorted(listed.times)[:EXPECTED], complete=not others)
        for row in others:
            try:
                found[row] = parse_tags(row.tags)
            except CorruptRow as exc:
                warnings.append(f"metric {metric}: {exc}")
        yield FoundRows(times, _passing(found, passes, tested), warnings)
    if wrong:
        yield FoundRows((), (), wrong)


def _passing(found: Mapping[DataRow, Mapping[str, str]], passes: Passes, tested: dict[bytes, bool]) -> list[FoundRow]:
    """Return the rows that pass, in order. `tested` has the results of `passes` by encoded tags."""
    rows = []
    for row in sorted(found, key=lambda row: (row.tags, row.row_ms, row.type)):
        if row.tags not in tested:
            tested[row.tags] = passes(found[row])
        if tested[row.tags]:
            rows.append(FoundRow(row, found[row]))
    return rows


def _expected(
    tables: KairosTables,
    spec: RowSpec,
    metric: str,
    times: Sequence[int],
    passes: Passes,
    tested: dict[bytes, bool],
) -> list[FoundRow]:
    """Return the rows of the first of some row times and of those that overlap, as the indexes had them at an earlier
    request; empty if they are many."""
    first = next(overlapping(spec, times), [])
    if len(first) == EXPECTED:  # there may be more
        return []
    found: dict[DataRow, Mapping[str, str]] = {}
    for row_ms in first:
        series = tables.known_row_keys(metric, row_ms)
        if len(found) + len(series) > MOST_AHEAD:
            return []
        for kind, tags, encoded in series:
            found[DataRow(metric, row_ms, kind, encoded)] = tags
    return _passing(found, passes, tested)


class _Listed(NamedTuple):
    """What the indexes list for a span."""

    times: set[int]  # of rows, from the list of row times
    series: dict[int, Sequence[ListedSeries]]  # of those row times that were known before
    old: Sequence[DataRow]  # from the index of KairosDB 1.2 and older
    warnings: Sequence[str]  # about rows of the old index


async def _read_indexes(
    tables: KairosTables,
    metric: str,
    span: tuple[int, int],
    known_times: Sequence[int],
    others: Sequence[Callable[[], Awaitable[None]]],
) -> _Listed:
    """Read the row times of a span, the series of `known_times`, and the old index concurrently, while `others` run.
    Raise StoreError."""
    times: list[int] = []
    ahead: dict[int, Sequence[ListedSeries]] = {}
    old: list[DataRow] = []
    warnings: list[str] = []

    async def read_times() -> None:
        times.extend(await tables.row_times(metric, *span))

    async def read_old() -> None:
        nonlocal old, warnings
        old, warnings = await tables.old_keys(metric, *span)

    async def read_series(row_ms: int) -> None:
        ahead[row_ms] = await tables.row_keys(metric, row_ms)

    calls: list[Callable[[], Awaitable[None]]] = [
        read_times,
        read_old,
        *(partial(read_series, row_ms) for row_ms in known_times),
        *others,
    ]
    await run_bounded(calls, lambda call: call(), limit=len(calls))
    return _Listed(set(times), ahead, old, warnings)


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
