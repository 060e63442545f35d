"""What a table holds, row by row, as two readers see it that share nothing with the compactor.

One decodes cells with the code that the conformance tests judge ours by; the other is a real OpenTSDB, which answers a
query for every metric and hour. Of each row, or series and hour, a digest is kept: equal ones hold equal points.
"""

import hashlib
import json
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import NamedTuple

import trio

from bench.lines import METRICS_A_HOST, ROUND_S, Load, series_text
from tests.conformance.stored import pieces
from tsd.assembly import opened_store
from tsd.config import Config
from tsd.store import scan

HOUR_S = 3600
ANSWER_S = 300


class Contents(NamedTuple):
    """Of a table."""

    rows: int
    cells: int
    points: int
    inner_cells: int  # but for the first and the last of each row
    inner_points: int
    digests: dict[str, str]


def stored(config: Config) -> Contents:
    """Of all rows of the data table. No daemon may have an embedded store open. Fails on points that occur twice."""
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
    """Of the points of cells, by row: how many cells, and how many points."""
    cells = [size for row in rows for size in row]
    return len(cells), sum(cells)


def answered(port: int, load: Load) -> Contents:
    """What the OpenTSDB at `port` answers of a load."""
    digests: dict[str, str] = {}
    points = 0
    for metric in sorted({series_text(number)[0] for number in range(min(load.series, METRICS_A_HOST))}):
        for start_s in range(load.start_s, load.start_s + load.points * ROUND_S, HOUR_S):
            for result in _ask(port, metric, start_s):
                name = f"{metric} {start_s} {sorted(result['tags'].items())}"
                assert name not in digests, name
                digests[name] = _digest(f"{time} {number}" for time, number in sorted(result["dps"].items()))
                points += len(result["dps"])
    return Contents(len(digests), 0, points, 0, 0, digests)


def _ask(port: int, metric: str, start_s: int) -> list[dict[str, dict[str, str | float]]]:
    words = urllib.parse.urlencode({"start": start_s, "end": start_s + HOUR_S - 1, "m": f"none:{metric}"})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/query?{words}", timeout=ANSWER_S) as answer:
        found: list[dict[str, dict[str, str | float]]] = json.load(answer)
        return found


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
