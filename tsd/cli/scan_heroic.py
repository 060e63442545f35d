"""`tsd scan` on Heroic's table: rows with the keys of Heroic's documentation, or points as lines or JSON."""

import json
import math
from collections.abc import Iterator
from contextlib import aclosing

import click

from tsd.cli.context import access, flush_pending
from tsd.codec.heroic.digest import parse_digest
from tsd.codec.heroic.keys import HeroicKey, metric_prefix, parse_heroic_key
from tsd.codec.heroic.values import DISTRIBUTIONS, OFFSET_BYTES, PERIOD_MS
from tsd.codec.points import Points
from tsd.codec.putline import Tags
from tsd.config.settings import Config
from tsd.errors import CorruptRow
from tsd.store import Cell
from tsd.tables.heroic.index import ListedSeries, entry_of
from tsd.tables.heroic.series import merged
from tsd.tables.heroic.slices import base_times, decode_rows, row_key, slices
from tsd.tables.heroic.tables import HeroicTables


async def print_rows(config: Config, start_ms: int, end_ms: int, metric: bytes, tags: Tags, *, form: str) -> int:
    """Print the rows of a metric with some tags at some times, both ends included, as `plain`, `lines` or `json`. The
    index is not used. Return how many rows could not be read whole."""
    corrupt = 0
    wanted = {tagk.decode("latin-1"): tagv.decode("latin-1") for tagk, tagv in tags}
    async with access(config, must_exist=True, any_layout=True) as opened:
        await flush_pending(opened, delete=False)
        tables = HeroicTables(opened.store, config.heroic_table, config.heroic_series)
        async with aclosing(tables.keys(metric_prefix(metric.decode("latin-1")))) as rows:
            async for row in rows:
                try:
                    key = parse_heroic_key(row)
                    entry = entry_of(row)
                except CorruptRow as exc:
                    click.echo(f"tsd: {exc}", err=True)
                    corrupt += 1
                    continue
                found = merged(key.tags, key.resource)
                if key.base_ms in base_times(start_ms, end_ms) and wanted.items() <= found.items():
                    listed = ListedSeries(entry.key, key.base_ms, key.base_ms)
                    span = max(start_ms, key.base_ms), min(end_ms, key.base_ms + PERIOD_MS - 1)
                    corrupt += await _print_row(tables, key, listed, span, form)
    return corrupt


async def _print_row(
    tables: HeroicTables, key: HeroicKey, listed: ListedSeries, span: tuple[int, int], form: str
) -> bool:
    """Print a row that has points at some times. Return whether something of it could not be read."""
    is_wrong = False
    head = [key.shown()] if form == "plain" else []
    async with aclosing(slices(tables, [listed], *span)) as parts:
        async for part in parts:
            decoded = decode_rows([row for rows in part.values() for row in rows])
            for text in decoded.wrong:
                is_wrong = True
                click.echo(f"tsd: {text}", err=True)
            for line in (*head, *_lines(key, decoded.points, form)):
                click.echo(line)
            head = []
    if form == "plain":
        row = row_key(listed.key, key.base_ms)
        found = await tables.read([row], span[0] - key.base_ms, span[1] - key.base_ms, DISTRIBUTIONS)
        for cell in found.get(row, []):
            for line in (*head, _distribution(key, cell)):
                click.echo(line)
            head = []
    return is_wrong


def _lines(key: HeroicKey, points: Points, form: str) -> Iterator[str]:
    """Yield points: as offset, time and value; as lines for `tsd import`; or as one JSON object."""
    found = list(zip(points.times.tolist(), points.doubles().tolist(), strict=True))
    tags = merged(key.tags, key.resource)
    if form == "json":
        shown = [[time_ms, value if math.isfinite(value) else str(value)] for time_ms, value in found]
        names = {"metric": key.metric, "tags": dict(key.tags), "resource": dict(key.resource)}
        yield json.dumps({"row": key.shown(), **names, "base": key.base_ms, "points": shown})
        return
    for time_ms, value in found:
        if form == "lines":
            words = " ".join(f"{name}={each}" for name, each in tags.items())
            yield f"{key.metric} {time_ms} {value} {words}"
        else:
            yield f"  {time_ms - key.base_ms}\t{time_ms}\t{value}"


def _distribution(key: HeroicKey, cell: Cell) -> str:
    """Return a line for a distribution."""
    offset = int.from_bytes(cell.column[-OFFSET_BYTES:], "big")
    try:
        found = parse_digest(cell.value)
    except CorruptRow as exc:
        return f"  {offset}\t{key.base_ms + offset}\t{exc}"
    count = sum(weight for weight, _ in found.centroids)
    return f"  {offset}\t{key.base_ms + offset}\tdistribution of {count:g} values, {found.least} to {found.largest}"
