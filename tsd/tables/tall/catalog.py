"""Names, series and newest points of rows of events and days: the layout's `SeriesCatalog`."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing

from tsd.codec.putline import HOUR_MS
from tsd.codec.tall.rules import rule_of
from tsd.store.retry import run_bounded
from tsd.tables.catalog import LastPoint
from tsd.tables.listed_catalog import CONCURRENT, ListedCatalog, Names, SeriesIds, look_back
from tsd.tables.reading import SeriesRequest
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.reader import TallReader
from tsd.tables.tall.rows import LAST_EVENT_MS, NOTHING, Reading, decode
from tsd.tables.tall.series import Placing, parse_series_id, series_id

IDS = SeriesIds(series_id, parse_series_id, "latin-1")


class TallCatalog(ListedCatalog):
    """Names, series and their newest points."""

    def __init__(self, reader: TallReader, index: SeriesList, placing: Placing, now_ms: Callable[[], int]) -> None:
        super().__init__(index, IDS, now_ms)
        self._reader = reader
        self._placing = placing

    async def names_of(self, metric: str) -> Iterable[Names]:
        """See ListedCatalog."""
        rule = rule_of(self._placing.rules, metric)
        if rule is None:
            return []
        request = SeriesRequest(metric)
        places = await self._reader.places(request, self._reader.resolve(request), rule)
        return [self._placing.names_of(self._placing.key_at(rule, place)) for place in places]

    async def newest(
        self, series: Mapping[bytes, Names], first_ms: int, warnings: list[str]
    ) -> Mapping[bytes, LastPoint | None]:
        """See ListedCatalog."""
        found: dict[bytes, LastPoint | None] = {}

        async def read(item: tuple[bytes, Names]) -> None:
            found[item[0]] = await self._newest(item[1], first_ms, warnings)

        await run_bounded(list(series.items()), read, limit=CONCURRENT)
        return found

    async def _newest(self, names: Names, first_ms: int, warnings: list[str]) -> LastPoint | None:
        """Return the newest point of a series: look back from the present, further each time."""
        rule = rule_of(self._placing.rules, names[0])
        if rule is None:
            return None
        try:
            place = rule.place(*names)
        except ValueError:
            return None  # of an earlier rule
        wanted = {place.prefix: {place.field: b""}}
        for start_ms, last_ms in look_back(self.now_ms() // HOUR_MS * HOUR_MS, first_ms, LAST_EVENT_MS):
            newest = NOTHING
            async with aclosing(Reading(self._reader.tables, rule, wanted, start_ms, last_ms).parts()) as parts:
                async for part in parts:
                    warnings += part.wrong
                    for one in part.series:
                        decoded = decode(one)
                        warnings += decoded.wrong
                        newest = decoded if len(decoded.points.times) else newest
            points = newest.points
            if len(points.times):
                number = points.doubles()[-1].item() if points.floats[-1] else points.bits[-1].item()
                return LastPoint(int(points.times[-1]), number)
        return None
