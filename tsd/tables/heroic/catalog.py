"""Names, series and newest points of Heroic's table: the layout's `SeriesCatalog`."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tsd.codec.heroic.values import PERIOD_MS
from tsd.codec.putline import HOUR_MS
from tsd.store.retry import run_bounded
from tsd.tables.catalog import LastPoint
from tsd.tables.heroic.index import ListedSeries, SeriesList
from tsd.tables.heroic.reader import HeroicReader
from tsd.tables.heroic.series import names_of, parse_series_id, series_id
from tsd.tables.heroic.slices import decode_rows, read_slice
from tsd.tables.listed_catalog import CONCURRENT, ListedCatalog, Names, SeriesIds, look_back

IDS = SeriesIds(series_id, parse_series_id, "utf-8")


class HeroicCatalog(ListedCatalog):
    """Names, series and their newest points."""

    def __init__(self, reader: HeroicReader, index: SeriesList, now_ms: Callable[[], int]) -> None:
        super().__init__(index, IDS, now_ms)
        self._reader = reader
        self._list = index

    async def names_of(self, metric: str) -> Iterable[Names]:
        """See ListedCatalog."""
        return [names_of(one.key) for one in await self._list.series(metric)]

    async def newest(
        self, series: Mapping[bytes, Names], first_ms: int, warnings: list[str]
    ) -> Mapping[bytes, LastPoint | None]:
        """See ListedCatalog."""
        places: dict[bytes, list[ListedSeries]] = {}
        for metric in {metric for metric, _ in series.values()}:
            for one in await self._reader.listed(metric):
                places.setdefault(series_id(*names_of(one.key)), []).append(one)
        found: dict[bytes, LastPoint | None] = {}

        async def read(one: bytes) -> None:
            found[one] = await self._newest(places.get(one, []), first_ms, warnings)

        await run_bounded(series, read, limit=CONCURRENT)
        return found

    async def _newest(self, places: Sequence[ListedSeries], first_ms: int, warnings: list[str]) -> LastPoint | None:
        """Return the newest point of a series: look back from the present, further each time."""
        if not places:
            return None
        oldest_ms = max(first_ms, min(one.first_ms for one in places))
        newest_ms = max(one.last_ms for one in places) + PERIOD_MS - 1
        start_ms = min(self.now_ms() // HOUR_MS * HOUR_MS, newest_ms)  # what is newer comes first, in one piece
        for first, last in look_back(start_ms, oldest_ms, newest_ms):
            found = await read_slice(self._reader.tables, places, first, last)
            decoded = decode_rows([row for rows in found.values() for row in rows])
            warnings += decoded.wrong
            if len(decoded.points.times):
                return LastPoint(int(decoded.points.times[-1]), float(decoded.points.doubles()[-1]))
        return None
