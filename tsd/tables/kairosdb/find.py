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
MOST_AHEAD = 300  # rows of points that are expected before the indexes are read: all are looked at in one step


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
    1970 do, come together. Raise StoreError.

    `expect` is called while the indexes are read, with the rows that come first if the indexes have not changed since
    an earlier request. There is no call if none began at the same row, or if the rows are many."""
    spec = await tables.spec()
    first_row = spec.first_row(first_ms)
    known = tables.found_times.get((metric, first_row), FoundTimes((), complete=False))
    known_times = [time for time in known.times if time <= last_ms]
    calls = []
    tested: dict[bytes, bool] = {}
    if expect is not None and known.complete:
        expected = _expected(tables, spec, metric, known_times, passes, tested)
        calls = [partial(expect, expected)] if expected else []
    listed, ahead, (old, wrong) = await _listed(tables, metric, (first_row, last_ms), known_times, calls)
    if not listed:
        tables.found_times.pop((metric, first_row), None)
    for at, times in enumerate(overlapping(spec, sorted({*listed, *(row.row_ms for row in old)}))):
        found: dict[DataRow, Mapping[str, str]] = {}
        warnings, wrong = list(wrong), []

        async def read(row_ms: int, found: dict[DataRow, Mapping[str, str]] = found) -> None:
            series = ahead.pop(row_ms) if row_ms in ahead else await tables.row_keys(metric, row_ms)
            for kind, tags, encoded in series:
                found[DataRow(metric, row_ms, kind, encoded)] = tags

        await run_bounded([time for time in times if time in listed], read, limit=CONCURRENT)
        others = [row for row in old if times[0] <= row.row_ms <= times[-1] and row not in found]
        if at == 0 and listed:
            tables.found_times[metric, first_row] = FoundTimes(sorted(listed)[:EXPECTED], complete=not others)
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


Listed = tuple[set[int], dict[int, Sequence[ListedSeries]], tuple[list[DataRow], list[str]]]


async def _listed(
    tables: KairosTables,
    metric: str,
    span: tuple[int, int],
    known_times: Sequence[int],
    others: Sequence[Callable[[], Awaitable[None]]],
) -> Listed:
    """Return what `KairosTables.row_times` does for a span, the series of `known_times`, and what `.old_keys` does,
    read side by side, while `others` run. Raise StoreError."""
    times: list[int] = []
    ahead: dict[int, Sequence[ListedSeries]] = {}
    old: tuple[list[DataRow], list[str]] = [], []

    async def read_times() -> None:
        times.extend(await tables.row_times(metric, *span))

    async def read_old() -> None:
        nonlocal old
        old = await tables.old_keys(metric, *span)

    async def read_series(row_ms: int) -> None:
        ahead[row_ms] = await tables.row_keys(metric, row_ms)

    calls: list[Callable[[], Awaitable[None]]] = [
        read_times,
        read_old,
        *(partial(read_series, row_ms) for row_ms in known_times),
        *others,
    ]
    await run_bounded(calls, lambda call: call(), limit=len(calls))
    return set(times), ahead, old


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
