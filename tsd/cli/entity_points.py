"""Deletes points from the tables of entities, for commands that delete rows of the data table afterwards."""

from collections.abc import Iterator, Sequence

from tsd.cli.context import Access
from tsd.cli.output import NamedKey
from tsd.codec.entity.records import entity_series, series_column
from tsd.codec.putline import HOUR_S, Tags, split_tags
from tsd.config.settings import Config
from tsd.daemon.wiring import versioned_cells
from tsd.errors import BadLine
from tsd.tables.entity.newest import EntityColumn
from tsd.tables.entity.removal import EntityRemoval, with_tags
from tsd.tables.stored_windows import TimeRange


async def delete_range(
    config: Config, opened: Access, series: tuple[bytes, Tags], span: TimeRange, *, yes: bool
) -> int | None:
    """Find the points of a metric's series with some tags in the tables of entities, and with `yes` delete them. Return
    how many there are, None without these tables. Raise StoreError."""
    if not config.entity:
        return None
    removal = EntityRemoval(versioned_cells(config, opened.store))
    chosen = with_tags(*series, config.entity_tag.encode("latin-1"))
    return await (removal.remove_chosen(chosen, span) if yes else removal.count_chosen(chosen, span))


async def delete_hours(config: Config, opened: Access, rows: Sequence[NamedKey]) -> None:
    """Delete the points of rows. Raise StoreError."""
    if config.entity:
        tag = config.entity_tag.encode("latin-1")
        await EntityRemoval(versioned_cells(config, opened.store)).remove(list(_hours(rows, tag)))


def _hours(rows: Sequence[NamedKey], tag: bytes) -> Iterator[tuple[EntityColumn, TimeRange]]:
    """Yield the hours of rows of entities, those that follow each other as one range."""
    bases: dict[EntityColumn, list[int]] = {}
    for row in rows:
        if (place := _place(row, tag)) is not None:
            bases.setdefault(place, []).append(row.base)
    for place, of_series in bases.items():
        start = end = min(of_series)
        for base in sorted(of_series):
            if base > end:
                yield place, TimeRange(start * 1000, end * 1000)
                start = base
            end = base + HOUR_S
        yield place, TimeRange(start * 1000, end * 1000)


def _place(row: NamedKey, tag: bytes) -> EntityColumn | None:
    """Return the place of a row's series, None if the tables have none for it."""
    try:
        tags = split_tags(" ".join(row.tags).encode("latin-1"))
        found = entity_series(row.metric.encode("latin-1"), tags, tag)
        return None if found is None else EntityColumn(found[0], series_column(found[1]))
    except BadLine:
        return None
