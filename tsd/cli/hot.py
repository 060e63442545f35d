"""`tsd hot`: the ranges of row keys with most writes and reads of a running daemon."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from tsd.cli.control import connect
from tsd.cli.settings import with_config
from tsd.codec.dates import BadDate, duration_ms
from tsd.config.loader import Loaded

SORTS = ("writes", "bytes", "reads")
HEAD = f"{'WRITES':>7}  {'BYTES':>7}  {'READS':>7}  RANGE"


@click.command()
@click.option("--since", default="10m", show_default=True, metavar="DURATION", help="Length of time, up to 180m.")
@click.option("--sort", type=click.Choice(SORTS), default="writes", show_default=True)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Number of ranges.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def hot(loaded: Loaded, since: str, sort: str, limit: int, as_json: bool) -> None:
    """Show which ranges of row keys the running daemon writes and reads most, each with its share of all cells.

    A range is an hour of a metric (and salt), a metric, or the rest of a table. The load of one is not counted again in
    a wider one. The numbers are estimates from samples; GET /api/stats/hot has them, too.
    """
    try:
        duration_ms(since)  # before a daemon is asked: there may be none
    except BadDate as exc:
        raise click.BadParameter(str(exc), param_hint="'--since'") from exc
    with connect(loaded.config) as daemon:
        found = daemon.call("hot", since=since, sort=sort, limit=limit)
    click.echo(msgspec.json.encode(found) if as_json else "\n".join(table(found)))


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{_date(found['since'])} to {_date(found['until'])}: about {found['cellsWritten']:,} cells "
        f"({found['bytesWritten']:,} bytes) written, {found['cellsRead']:,} read"
    )
    if not found["ranges"]:
        return
    yield HEAD
    for row in found["ranges"]:
        shares = "  ".join(f"{row[share]:>7.1%}" for share in ("writeShare", "byteShare", "readShare"))
        yield f"{shares}  {shown_range(row)}"


def shown_range(row: Mapping[str, Any]) -> str:
    """Return the table, then the names of a range, or its prefix in hex.

    >>> shown_range({"table": "tsdb", "start": "0400000150e22700", "metric": "cpu", "salt": 4, "time": 1356998400})
    'tsdb metric=cpu salt=4 time=2013-01-01T00:00:00Z'
    >>> shown_range({"table": "tsdb-uid", "start": "00"}), shown_range({"table": "tsdb", "start": ""})
    ('tsdb-uid start=00', 'tsdb others')
    >>> shown_range({"table": "SENSOR", "start": "3132", "tags": "meter=12"})
    'SENSOR meter=12'
    """
    if not row["start"]:
        return f"{row['table']} others"
    words = [f"{key}={row[key]}" for key in ("metric", "salt") if key in row]
    if "tags" in row:
        words.append(row["tags"])
    if not words:
        words.append(f"start={row['start']}")
    if "time" in row:
        words.append(f"time={_date(row['time'])}")
    return " ".join([row["table"], *words])


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
