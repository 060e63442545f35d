"""Builds the layout's `Tables`."""

from collections.abc import Callable
from typing import NamedTuple

from tsd.config.retention import RetentionRules
from tsd.store import Store
from tsd.tables import Tables
from tsd.tables.heroic.catalog import HeroicCatalog
from tsd.tables.heroic.index import SeriesList
from tsd.tables.heroic.key_ranges import HeroicKeyRanges
from tsd.tables.heroic.reader import HeroicReader
from tsd.tables.heroic.retention import HeroicRetention
from tsd.tables.heroic.series import HeroicResolver
from tsd.tables.heroic.tables import HeroicTables
from tsd.tables.heroic.tables import heroic_tables as heroic_tables
from tsd.tables.heroic.writer import HeroicWriter
from tsd.tables.retention_task import RetentionTask


class HeroicTableSettings(NamedTuple):
    """How the tables are used."""

    points: str  # names of the tables
    series: str
    resource_tags: frozenset[str]
    creates_metrics: bool


def build(
    store: Store, settings: HeroicTableSettings, now_ms: Callable[[], int], retention: RetentionTask | None = None
) -> Tables:
    """Build the layout's `Tables`. `retention` deletes expired points from them."""
    tables = HeroicTables(store, settings.points, settings.series)
    index = SeriesList(tables)
    resolver = HeroicResolver(index, settings.resource_tags, creates_metrics=settings.creates_metrics)
    reader = HeroicReader(tables, index, is_known=resolver.knows, now_ms=now_ms)

    def drop_caches() -> None:
        index.forget()
        resolver.forget()

    observers = [retention.observe] if retention else []
    return Tables(
        HeroicCatalog(reader, index, now_ms),
        reader,
        series_reader=reader,
        resolver=resolver,
        writer=HeroicWriter(tables, index, *observers),
        check=tables.check,
        drop_caches=drop_caches,
        statistics=retention.statistics if retention else list,
        deleter=reader,
        key_ranges=HeroicKeyRanges(settings.points),
        tasks={"retention": retention.run} if retention else {},
        operations={"retention": retention.run_now} if retention else {},
        required=(settings.points, settings.series),
    )


def make_retention(store: Store, points: str, series: str, ages: RetentionRules) -> HeroicRetention:
    """Return the retention of the two tables."""
    tables = HeroicTables(store, points, series)
    return HeroicRetention(tables, SeriesList(tables), ages)
