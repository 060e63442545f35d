"""Builds the layout's `Tables`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tsd.codec.tall.rules import TableRule
from tsd.config.retention import RetentionRules
from tsd.store import Store
from tsd.tables import Tables
from tsd.tables.retention_task import RetentionTask
from tsd.tables.tall.catalog import TallCatalog
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.key_ranges import TallKeyRanges
from tsd.tables.tall.reader import TallReader
from tsd.tables.tall.retention import TallRetention
from tsd.tables.tall.series import Placing, TallResolver
from tsd.tables.tall.tables import TallTables
from tsd.tables.tall.tables import partition_widths as partition_widths
from tsd.tables.tall.tables import tall_tables as tall_tables
from tsd.tables.tall.writer import TallWriter


class TallTableSettings(NamedTuple):
    """How the tables are used."""

    rules: Sequence[TableRule]
    series: str  # name of the table that lists the series
    creates_metrics: bool


def build(
    store: Store, settings: TallTableSettings, now_ms: Callable[[], int], retention: RetentionTask | None = None
) -> Tables:
    """Build the layout's `Tables`. `retention` deletes expired points from them."""
    tables = TallTables(store, settings.rules, settings.series)
    index = SeriesList(tables)
    placing = Placing(settings.rules)
    resolver = TallResolver(index, placing, creates_metrics=settings.creates_metrics)
    reader = TallReader(tables, index, placing, is_known=resolver.knows)

    def drop_caches() -> None:
        index.forget()
        resolver.forget()

    observers = [retention.observe] if retention else []
    return Tables(
        TallCatalog(reader, index, placing, now_ms),
        reader,
        series_reader=reader,
        resolver=resolver,
        writer=TallWriter(tables, index, placing, *observers),
        check=tables.check,
        drop_caches=drop_caches,
        statistics=retention.statistics if retention else list,
        deleter=reader,
        text_of=placing.text_of,
        key_ranges=TallKeyRanges(settings.rules),
        tasks={"retention": retention.run} if retention else {},
        operations={"retention": retention.run_now} if retention else {},
        required=tables.names,
    )


def make_retention(store: Store, rules: Sequence[TableRule], series: str, ages: RetentionRules) -> TallRetention:
    """Return the retention of the tables of some rules."""
    return TallRetention(TallTables(store, rules, series), ages)
