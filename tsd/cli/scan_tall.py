"""`tsd scan` on rows of events and days: their keys, columns and values, or points as lines or JSON."""

import json
import math
from collections.abc import Iterator
from contextlib import aclosing

import click

from tsd.cli.context import access, flush_pending
from tsd.codec.points import Points
from tsd.codec.putline import Tags
from tsd.codec.tall.fields import COLUMN
from tsd.config.settings import Config
from tsd.errors import NoSuchName
from tsd.tables.filters import make_filter
from tsd.tables.listed_catalog import Names
from tsd.tables.reading import SeriesRequest
from tsd.tables.tall.index import SeriesList
from tsd.tables.tall.reader import TallReader
from tsd.tables.tall.rows import Part, Reading, SeriesCells, decode
from tsd.tables.tall.series import Placing
from tsd.tables.tall.tables import TallTables


async def print_rows(config: Config, start_ms: int, end_ms: int, metric: bytes, tags: Tags, *, form: str) -> int:
    """Print the points of a metric with some tags at some times, both ends included, as `plain`, `lines` or `json`.
    Return how many rows, columns and values could not be read."""
    rules = config.tall_tables()
    wanted = {tagk.decode("latin-1"): tagv.decode("latin-1") for tagk, tagv in tags}
    filters = tuple(make_filter(tagk, "literal_or", tagv) for tagk, tagv in wanted.items() if "|" not in tagv)
    request = SeriesRequest(metric.decode("latin-1"), filters=filters)
    corrupt = 0
    async with access(config, must_exist=True, any_layout=True) as opened:
        await flush_pending(opened, delete=False)
        tables = TallTables(opened.store, rules, config.tall_series)
        index, placing = SeriesList(tables), Placing(rules)
        reader = TallReader(tables, index, placing, is_known=lambda _: False)
        rule = reader.rule(request)
        if rule is None or not await index.has_metric(request.metric):
            raise NoSuchName(f"No such name for 'metrics': '{request.metric}'")
        series: dict[bytes, dict[bytes, Names]] = {}
        for place in await reader.places(request, reader.resolve(request), rule):
            names = placing.names_of(placing.key_at(rule, place))
            if wanted.items() <= names.tags.items():
                series.setdefault(place.prefix, {})[place.field] = names
        async with aclosing(Reading(tables, rule, series, start_ms, end_ms).parts()) as parts:
            async for part in parts:
                corrupt += _print_part(part, form)
    return corrupt


def _print_part(part: Part[Names], form: str) -> int:
    """Print the points of some rows. Return how many rows, columns and values could not be read."""
    rows = [(row, cells) for one in part.series for row, cells in one.by_row()]
    wrong = [*part.wrong]
    shown = None
    for row, cells in sorted(rows, key=lambda pair: (pair[0], str(pair[1].owner))):
        found = decode(cells)
        wrong += found.wrong
        if form == "plain" and row != shown:
            click.echo(row.decode("latin-1"))
            shown = row
        for line in _lines(cells, row, found.points, form):
            click.echo(line)
    for text in wrong:
        click.echo(f"tsd: {text}", err=True)
    return len(wrong)


def _lines(cells: SeriesCells[Names], row: bytes, points: Points, form: str) -> Iterator[str]:
    """Yield the points of a series in a row: as column, time and value; as lines for `tsd import`; or as one JSON
    object."""
    names = cells.owner
    doubles = points.doubles().tolist()
    values = [
        double if is_float else number
        for double, number, is_float in zip(doubles, points.bits.tolist(), points.floats.tolist(), strict=True)
    ]
    found = list(zip(points.times.tolist(), values, strict=True))
    if form == "json":
        shown = [[time_ms, value if math.isfinite(value) else str(value)] for time_ms, value in found]
        series = {"metric": names.metric, "tags": dict(names.tags)}
        yield json.dumps({"row": row.decode("latin-1"), **series, "points": shown})
        return
    shown_columns = [column.removeprefix(COLUMN).decode("latin-1") for column in cells.columns()]
    columns = dict(zip(cells.times_ms, shown_columns, strict=True))
    tags = " ".join(f"{name}={value}" for name, value in names.tags.items())
    for time_ms, value in found:
        if form == "lines":
            yield f"{names.metric} {time_ms} {value!r} {tags}"
        else:
            yield f"  {columns[time_ms]}\t{time_ms}\t{value!r}"
