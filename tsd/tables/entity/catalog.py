"""Answers of a layout's catalog from the table of newest values, where it has them.

The newest points of series of an entity are one read of `tsdb-current`, however old they are. So are the series of an
entity, whatever their metrics.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from tsd.codec.entity.records import EntitySeries, entity_series, series_column
from tsd.codec.names import Kind
from tsd.codec.putline import HOUR_MS
from tsd.codec.text import encode_name
from tsd.errors import BadLine, NoSuchName
from tsd.tables.catalog import LastPoint, LastPoints, SelectedSeries, SeriesCatalog, SeriesName, SeriesSelector
from tsd.tables.entity.tables import EntityTables

ANY = ("", "*")
MOST_ENTITIES = 100  # that a selector names
PAGE_SERIES = 1000


class EntityCatalog(SeriesCatalog):
    """The catalog of a layout, with newest points from the tables of entities."""

    def __init__(self, inner: SeriesCatalog, entities: EntityTables, tag: str, now_ms: Callable[[], int]) -> None:
        """`tag` names the entity. `now_ms` is the wall clock."""
        self._inner = inner
        self._entities = entities
        self._tag = tag
        self._now_ms = now_ms

    @property
    def warnings(self) -> int:
        """See SeriesCatalog."""
        return self._inner.warnings

    async def suggest(self, kind: Kind, prefix: str, limit: int) -> list[str]:
        """See SeriesCatalog."""
        return await self._inner.suggest(kind, prefix, limit)

    async def metrics(self) -> list[str]:
        """See SeriesCatalog."""
        return await self._inner.metrics()

    async def describe(self, series: Sequence[bytes]) -> list[SeriesName]:
        """See SeriesCatalog."""
        return await self._inner.describe(series)

    async def metrics_of(self, series: Iterable[bytes]) -> set[bytes]:
        """See SeriesCatalog."""
        return await self._inner.metrics_of(series)

    def parse_series(self, text: str) -> bytes:
        """See SeriesCatalog."""
        return self._inner.parse_series(text)

    async def select(self, selector: SeriesSelector) -> SelectedSeries:
        """See SeriesCatalog. Series that named entities have are read from their rows, those of one metric also as the
        layout finds them."""
        selected = await self._inner.select(selector)
        names = {tagv for tagk, tagv in selector.tags if tagk == self._tag}
        if not names or names & set(_any_of(selector)):
            return selected
        return selected if len(names) > MOST_ENTITIES else _OfEntities(self, selected, selector, names)

    async def last_points(self, series: Sequence[bytes], back_h: int | None) -> LastPoints:
        """See SeriesCatalog. Without a range, points of entities are of any age."""
        first_ms = 0 if back_h is None else (self._now_ms() // HOUR_MS - back_h) * HOUR_MS
        newest = await self._newest(series)
        rest = [one for one in series if one not in newest]
        found = await self._inner.last_points(rest, back_h) if rest else LastPoints([], [])
        points = dict(zip(rest, found.points, strict=True))
        points.update((one, point if point.time_ms >= first_ms else None) for one, point in newest.items())
        return LastPoints([points[one] for one in series], found.warnings)

    async def _newest(self, series: Sequence[bytes]) -> dict[bytes, LastPoint]:
        """Return the newest points of those series whose entities have them."""
        places: dict[bytes, tuple[bytes, EntitySeries]] = {}
        for name in await self._inner.describe(series):
            try:
                tags = tuple((encode_name(tagk), encode_name(tagv)) for tagk, tagv in name.tags.items())
                place = entity_series(encode_name(name.metric), tags, encode_name(self._tag))
                if place is not None:
                    series_column(place[1])
                    places[name.series] = place
            except BadLine:  # the tables have no place for such a name
                continue
        found = await self._entities.newest_of(places.values())
        return {one: LastPoint(*found[place]) for one, place in places.items() if place in found}

    async def series_of(self, names: Iterable[str], selector: SeriesSelector) -> set[bytes] | None:
        """Return the series of entities that have the tags of a selector, None if an entity has none: the tables may
        not be filled."""
        found: set[bytes] = set()
        for name in names:
            page = await self._entities.newest(encode_name(name), encode_name(name) + b"\0", limit=1)
            if not page.entities:
                return None
            for one in page.entities[0].series:
                if selector.metric not in (*_any_of(selector), one.metric.decode("latin-1")):
                    continue
                tags = [(tagk.decode("latin-1"), tagv.decode("latin-1")) for tagk, tagv in one.tags]
                tags.append((self._tag, name))
                if _has_tags(dict(tags), selector):
                    found.update(await self._exact(one.metric.decode("latin-1"), tags))
        return found

    async def _exact(self, metric: str, tags: list[tuple[str, str]]) -> list[bytes]:
        """Return the series with these names, none if one has been deleted."""
        try:
            exact = (await self._inner.select(SeriesSelector(metric, tags, is_literal=True))).exact()
        except NoSuchName:
            return []
        return [] if exact is None else [exact]


class _OfEntities(SelectedSeries):
    """The series of some entities that a selector matches."""

    def __init__(
        self, catalog: EntityCatalog, selected: SelectedSeries, selector: SeriesSelector, names: Iterable[str]
    ) -> None:
        self._catalog = catalog
        self._selected = selected
        self._selector = selector
        self._names = sorted(names)

    async def pages(self, limit: int | None = None) -> AsyncGenerator[list[bytes], None]:
        """See SelectedSeries."""
        found = await self._catalog.series_of(self._names, self._selector)
        of_metric = self._selector.metric not in _any_of(self._selector)
        if found is None or (of_metric and not found):
            async with aclosing(self._selected.pages(limit)) as pages:
                async for page in pages:
                    yield page
            return
        if of_metric:  # the tables may lack some of them
            async with aclosing(self._selected.pages(limit)) as pages:
                async for page in pages:
                    found.update(page)
        series = sorted(found)[:limit]
        for at in range(0, len(series), PAGE_SERIES):
            yield series[at : at + PAGE_SERIES]

    def exact(self) -> bytes | None:
        """See SelectedSeries."""
        return self._selected.exact()


def _any_of(selector: SeriesSelector) -> tuple[str, ...]:
    """Return the names that match every one."""
    return () if selector.is_literal else ANY


def _has_tags(tags: dict[str, str], selector: SeriesSelector) -> bool:
    """Return whether a series matches the tags of a selector."""
    wanted: dict[str, set[str]] = {}
    any_name = _any_of(selector)
    for tagk, tagv in selector.tags:
        wanted.setdefault("" if tagk in any_name else tagk, set()).add("" if tagv in any_name else tagv)
    for tagk, values in wanted.items():
        has = tags.values() if not tagk else [tags[tagk]] if tagk in tags else []
        if not has or not ("" in values or values.intersection(has)):
            return False
    return True
