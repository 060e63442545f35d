"""Names, series and newest points of KairosDB's tables: the layout's `SeriesCatalog`.

KairosDB lists metrics, but no tag names and values since 1.3. Those come from the index rows of the newest row times.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from tsd.codec.kairosdb.index import METRIC_NAMES, TAG_NAMES, TAG_VALUES
from tsd.codec.kairosdb.keys import DOUBLE, LONG, DataRow, encode_tags
from tsd.codec.kairosdb.rows import FIRST_MS, LAST_MS
from tsd.codec.names import Kind, parse_uid
from tsd.codec.putline import HOUR_MS
from tsd.errors import CorruptRow, NoSuchName
from tsd.store.retry import run_bounded
from tsd.tables.catalog import LastPoint, LastPoints, SeriesName, SeriesSelector
from tsd.tables.interned import SelectedKeys, exact_tags, selector_test
from tsd.tables.kairosdb.decode import StoredRow, decode_numbers
from tsd.tables.kairosdb.series import names_id, parse_series_id, series_id
from tsd.tables.kairosdb.tables import CONCURRENT, KairosTables

MOST_METRICS = 10_000  # that one request looks at
MOST_NAMES = 1 << 30
TAGGED_METRICS = 500  # whose tags are suggested


class KairosCatalog:
    """Names, series and their newest points."""

    def __init__(self, tables: KairosTables, now_ms: Callable[[], int]) -> None:
        self._tables = tables
        self._now_ms = now_ms
        self.warnings = 0

    async def suggest(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """Return the first names of a kind with a prefix."""
        await self._tables.spec()
        if kind is Kind.METRIC:
            return await self._tables.strings(METRIC_NAMES, prefix, limit)
        old = TAG_NAMES if kind is Kind.TAGK else TAG_VALUES
        found = set(await self._tables.strings(old, prefix, limit))

        async def read(metric: str) -> None:
            for row_ms in (await self._tables.row_times(metric, FIRST_MS, LAST_MS))[-1:]:
                for row in await self._tables.row_keys(metric, row_ms):
                    names = row.tags if kind is Kind.TAGK else row.tags.values()
                    found.update(name for name in names if name.startswith(prefix))

        metrics = await self._tables.strings(METRIC_NAMES, "", TAGGED_METRICS)
        await run_bounded(metrics, read, limit=CONCURRENT)
        return sorted(found, key=lambda name: name.encode("utf-8", "surrogatepass"))[:limit]

    async def metrics(self) -> list[str]:
        """Return all metrics in order of their bytes."""
        return await self.suggest(Kind.METRIC, "", MOST_NAMES)

    async def select(self, selector: SeriesSelector) -> SelectedKeys:
        """Return the series that a selector matches, see `SeriesCatalog`."""
        await self._tables.spec()
        any_name = set[str]() if selector.is_literal else {"*", ""}
        if selector.metric in any_name:
            metrics = await self._tables.strings(METRIC_NAMES, "", MOST_METRICS)
        elif await self._tables.metric_exists(selector.metric):
            metrics = [selector.metric]
        else:
            raise NoSuchName(f"No such name for '{Kind.METRIC.value}': '{selector.metric}'")
        selects = selector_test(selector)
        keys: set[bytes] = set()

        async def read(metric: str) -> None:
            found = await self._series(metric, FIRST_MS, LAST_MS)
            keys.update(series for series in found if selects(parse_series_id(series)[1]))

        await run_bounded(metrics, read, limit=CONCURRENT)
        exact = exact_tags(selector)
        return SelectedKeys(sorted(keys), None if exact is None else names_id(selector.metric, exact))

    async def _series(self, metric: str, first_ms: int, last_ms: int) -> set[bytes]:
        """Return the series of a metric that are listed in some row times."""
        found: set[bytes] = set()
        for row_ms in await self._tables.row_times(metric, first_ms, last_ms):
            rows = await self._tables.row_keys(metric, row_ms)
            found.update(series_id(metric, row.encoded) for row in rows)
        rows_of_old, _ = await self._tables.old_keys(metric, first_ms, last_ms)
        found.update(series_id(metric, row.tags) for row in rows_of_old)
        return found

    async def describe(self, series: Sequence[bytes]) -> list[SeriesName]:
        """Return the names of series, in their order."""
        return [SeriesName(one, *names) for one, names in _named(series)]

    async def metrics_of(self, series: Iterable[bytes]) -> set[bytes]:
        """Return the metrics of series."""
        return {metric.encode() for _, (metric, _) in _named(series)}

    async def last_points(self, series: Sequence[bytes], back_h: int | None) -> LastPoints:
        """Return the newest number of each series."""
        last_ms = self._now_ms()
        first_ms = 0 if back_h is None else (last_ms // HOUR_MS - back_h) * HOUR_MS
        found: dict[bytes, LastPoint | None] = {}
        warnings: list[str] = []

        async def read(one: bytes) -> None:
            found[one] = await self._last_point(one, first_ms, warnings)

        await run_bounded(dict.fromkeys(series), read, limit=CONCURRENT)
        self.warnings += len(warnings)
        return LastPoints([found.get(one) for one in series], warnings)

    async def _last_point(self, series: bytes, first_ms: int, warnings: list[str]) -> LastPoint | None:
        spec = await self._tables.spec()
        [(_, (metric, tags))] = list(_named([series])) or [(series, ("", {}))]
        for row_ms in reversed(await self._tables.row_times(metric, spec.first_row(first_ms), LAST_MS)):
            rows = [DataRow(metric, row_ms, kind, encode_tags(tags)) for kind in (LONG, DOUBLE)]
            stored = [StoredRow(row, await self._tables.newest(row.encode())) for row in rows]
            points = decode_numbers(stored, spec, first_ms, LAST_MS, warnings.append).points
            if len(points.times):
                last = points.at(slice(-1, None))
                number = float(last.doubles()[0]) if last.floats[0] else int(last.bits[0])
                return LastPoint(int(last.times[0]), number)
        return None

    def parse_series(self, text: str) -> bytes:
        """Return the series that a text in hex names. Raise BadLine."""
        return parse_uid(text)


def _named(series: Iterable[bytes]) -> Iterator[tuple[bytes, tuple[str, dict[str, str]]]]:
    """Yield series with their names, without those that have none."""
    for one in series:
        try:
            yield one, parse_series_id(one)
        except (CorruptRow, UnicodeDecodeError):
            continue
