"""The contents of a table by row, from two readers that are independent of the compactor.

One uses the decoder of the conformance tests; the other queries a real OpenTSDB for every metric and hour. Each keeps a
digest per row, or per series and hour: equal digests mean equal points.
"""

import hashlib
import json
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import NamedTuple

import trio

from bench.lines import METRICS_A_HOST, Load, series_text
from tests.conformance.hbase_points import pieces
from tsd.config.settings import Config
from tsd.daemon.wiring import opened_store
from tsd.store import scan

HOUR_S = 3600
ANSWER_S = 300


class Contents(NamedTuple):
    """Contents of a table."""

    rows: int
    cells: int
    points: int
    inner_cells: int  # without the first and the last of each row
    inner_points: int
    digests: dict[str, str]


def stored(config: Config) -> Contents:
    """Read all rows of the data table. No daemon may have an embedded store open. Fails on duplicate points."""
    return trio.run(_stored, config)


async def _stored(config: Config) -> Contents:
    sizes: list[list[int]] = []
    digests: dict[str, str] = {}
    async with opened_store(config) as store:
        async for page in scan(store, config.data_table):
            for row in page:
                split = [pieces(cell.column.removeprefix(b"t:"), cell.value) for cell in row.cells]
                found = sorted((piece for cell in split for piece in cell), key=lambda piece: piece.offset_ms)
                assert len({piece.offset_ms for piece in found}) == len(found), f"{row.key.hex()} holds points twice"
                sizes.append([len(cell) for cell in split])
                digests[row.key.hex()] = _digest(f"{p.offset_ms} {p.flags} {p.value.hex()}" for p in found)
    inner = [row[1:-1] for row in sizes]
    return Contents(*(len(sizes), *_sums(sizes), *_sums(inner)), digests)


def _sums(rows: Iterable[list[int]]) -> tuple[int, int]:
    """Return numbers of cells and points of rows."""
    cells = [size for row in rows for size in row]
    return len(cells), sum(cells)


def answered(port: int, load: Load) -> Contents:
    """Read a load through the OpenTSDB at `port`."""
    digests: dict[str, str] = {}
    points = 0
    for metric in sorted({series_text(number)[0] for number in range(min(load.series, METRICS_A_HOST))}):
        for start_s in range(load.start_s, load.start_s + load.points * load.round_s, HOUR_S):
            for result in _query(port, metric, start_s):
                name = f"{metric} {start_s} {sorted(result['tags'].items())}"
                assert name not in digests, name
                digests[name] = _digest(f"{time} {number}" for time, number in sorted(result["dps"].items()))
                points += len(result["dps"])
    return Contents(len(digests), 0, points, 0, 0, digests)


def _query(port: int, metric: str, start_s: int) -> list[dict[str, dict[str, str | float]]]:
    words = urllib.parse.urlencode({"start": start_s, "end": start_s + HOUR_S - 1, "m": f"none:{metric}"})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/query?{words}", timeout=ANSWER_S) as answer:
        found: list[dict[str, dict[str, str | float]]] = json.load(answer)
        return found


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
