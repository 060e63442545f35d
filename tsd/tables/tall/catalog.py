"""Names, series and newest points: the layout's `SeriesCatalog`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing

from tsd.codec.names import Kind, parse_uid
from tsd.codec.tall.rules import rule_of
from tsd.errors import CorruptRow, NoSuchName
from tsd.store.retry import run_bounded
from tsd.tables.catalog import LastPoint, LastPoints, SeriesName, SeriesSelector
from tsd.tables.interned import HOUR_MS, SelectedKeys, exact_tags, selector_test
from tsd.tables.reading import SeriesRequest
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.reader import TallReader
from tsd.tables.tall.rows import CONCURRENT, GROWTH, LAST_EVENT_MS, NOTHING, Reading, decode
from tsd.tables.tall.series import Names, Placing, parse_series_id, series_id

MOST_METRICS = 10_000  # that one request looks at


class TallCatalog:
    """Names, series and their newest points."""

    def __init__(self, reader: TallReader, index: SeriesList, placing: Placing, now_ms: Callable[[], int]) -> None:
        self._reader = reader
        self._index = index
        self._placing = placing
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
            names = await self._series_of(metric)
            keys.update(series_id(*one) for one in names if passes(one.tags))
        exact = exact_tags(selector)
        return SelectedKeys(sorted(keys), None if exact is None else series_id(selector.metric, exact))

    async def _series_of(self, metric: str) -> list[Names]:
        """Return the listed series of a metric. Raise StoreError."""
        rule = rule_of(self._placing.rules, metric)
        if rule is None:
            return []
        request = SeriesRequest(metric)
        places = await self._reader.places(request, self._reader.resolve(request), rule)
        return [self._placing.names_of(self._placing.key_at(rule, place)) for place in places]

    async def describe(self, series: Sequence[bytes]) -> list[SeriesName]:
        """Return the names of series, in their order."""
        return [SeriesName(one, *names) for one, names in _named(series)]

    async def metrics_of(self, series: Iterable[bytes]) -> set[bytes]:
        """Return the metrics of series."""
        return {names.metric.encode("latin-1") for _, names in _named(series)}

    async def last_points(self, series: Sequence[bytes], back_h: int | None) -> LastPoints:
        """Return the newest point of each series."""
        now_ms = self._now_ms()
        first_ms = 0 if back_h is None else (now_ms // HOUR_MS - back_h) * HOUR_MS
        found: dict[bytes, LastPoint | None] = {}
        warnings: list[str] = []

        async def read(item: tuple[bytes, Names]) -> None:
            found[item[0]] = await self._last_point(item[1], first_ms, warnings)

        await run_bounded(list(_named(dict.fromkeys(series))), read, limit=CONCURRENT)
        self.warnings += len(warnings)
        return LastPoints([found.get(one) for one in series], warnings)

    async def _last_point(self, names: Names, first_ms: int, warnings: list[str]) -> LastPoint | None:
        """Return the newest point: look back from the present, further each time."""
        rule = rule_of(self._placing.rules, names.metric)
        if rule is None:
            return None
        try:
            place = rule.place(*names)
        except ValueError:
            return None  # of an earlier rule
        wanted = {place.prefix: {place.field: b""}}
        start, last_ms, width = self._now_ms() // HOUR_MS * HOUR_MS, LAST_EVENT_MS, HOUR_MS
        while last_ms >= first_ms:
            start = max(start, first_ms)
            newest = NOTHING
            async with aclosing(Reading(self._reader.tables, rule, wanted, start, last_ms).parts()) as parts:
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
