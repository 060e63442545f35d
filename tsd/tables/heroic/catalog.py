"""Names, series and newest points of Heroic's table: the layout's `SeriesCatalog`."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from tsd.codec.heroic.values import PERIOD_MS
from tsd.codec.names import Kind, parse_uid
from tsd.errors import CorruptRow, NoSuchName
from tsd.store.retry import run_bounded
from tsd.tables.catalog import LastPoint, LastPoints, SeriesName, SeriesSelector
from tsd.tables.heroic.index import ListedSeries, SeriesList
from tsd.tables.heroic.reader import HeroicReader
from tsd.tables.heroic.series import Names, names_of, parse_series_id, series_id
from tsd.tables.heroic.slices import GROWTH, decode_rows, read_slice
from tsd.tables.interned import HOUR_MS, SelectedKeys, exact_tags, selector_test

MOST_METRICS = 10_000  # that one request looks at
CONCURRENT = 16


class HeroicCatalog:
    """Names, series and their newest points."""

    def __init__(self, reader: HeroicReader, index: SeriesList, now_ms: Callable[[], int]) -> None:
        self._reader = reader
        self._index = index
        self._now_ms = now_ms
        self.warnings = 0

    async def suggest(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """Return the first names of a kind with a prefix."""
        return await self._index.names(kind, prefix, limit)

    async def select(self, selector: SeriesSelector) -> SelectedKeys:
        """Return the series that a selector matches, see `SeriesCatalog`."""
        if not selector.is_literal and selector.metric in ("*", ""):
            metrics = await self._index.names(Kind.METRIC, "", MOST_METRICS)
        elif await self._index.has_metric(selector.metric):
            metrics = [selector.metric]
        else:
            raise NoSuchName(f"No such name for '{Kind.METRIC.value}': '{selector.metric}'")
        passes = selector_test(selector)
        keys: set[bytes] = set()
        for metric in metrics:
            found = (names_of(one.key) for one in await self._index.series(metric))
            keys.update(series_id(*names) for names in found if passes(names.tags))
        exact = exact_tags(selector)
        return SelectedKeys(sorted(keys), None if exact is None else series_id(selector.metric, exact))

    async def describe(self, series: Sequence[bytes]) -> list[SeriesName]:
        """Return the names of series, in their order."""
        return [SeriesName(one, *names) for one, names in _named(series)]

    async def metrics_of(self, series: Iterable[bytes]) -> set[bytes]:
        """Return the metrics of series."""
        return {names.metric.encode() for _, names in _named(series)}

    async def last_points(self, series: Sequence[bytes], back_h: int | None) -> LastPoints:
        """Return the newest point of each series."""
        now_ms = self._now_ms()
        first_ms = 0 if back_h is None else (now_ms // HOUR_MS - back_h) * HOUR_MS
        places: dict[bytes, list[ListedSeries]] = {}
        for metric in {names.metric for _, names in _named(series)}:
            for one in await self._reader.listed(metric):
                places.setdefault(series_id(*names_of(one.key)), []).append(one)
        found: dict[bytes, LastPoint | None] = {}
        warnings: list[str] = []

        async def read(one: bytes) -> None:
            found[one] = await self._last_point(places.get(one, []), first_ms, warnings)

        await run_bounded(dict.fromkeys(series), read, limit=CONCURRENT)
        self.warnings += len(warnings)
        return LastPoints([found.get(one) for one in series], warnings)

    async def _last_point(self, places: Sequence[ListedSeries], first_ms: int, warnings: list[str]) -> LastPoint | None:
        """Return the newest point: look back from the present, further each time."""
        if not places:
            return None
        first_ms = max(first_ms, min(one.first_ms for one in places))
        last_ms = max(one.last_ms for one in places) + PERIOD_MS - 1
        width = HOUR_MS
        start = min(self._now_ms() // HOUR_MS * HOUR_MS, last_ms)  # what is newer comes first, in one piece
        while last_ms >= first_ms:
            start = max(start, first_ms)
            found = await read_slice(self._reader.tables, places, start, last_ms)
            decoded = decode_rows([row for rows in found.values() for row in rows])
            warnings += decoded.wrong
            if len(decoded.points.times):
                return LastPoint(int(decoded.points.times[-1]), float(decoded.points.doubles()[-1]))
            last_ms, start, width = start - 1, start - width, width * GROWTH
        return None

    def parse_series(self, text: str) -> bytes:
        """Return the series that a text in hex names. Raise BadLine."""
        return parse_uid(text)


def _named(series: Iterable[bytes]) -> Iterator[tuple[bytes, Names]]:
    """Yield series with their names, without those that have none."""
    for one in series:
        try:
            yield one, parse_series_id(one)
        except CorruptRow:
            continue
