"""/api/stats/hot: the ranges of row keys with most writes and reads of the last minutes or hours."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import trio

from tsd.api.messages import answer, check_method, limit_in, missing_part
from tsd.codec.dates import BadDate, duration_ms
from tsd.errors import Refused, TsdError
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.store.key_load import MINUTE_MS, MINUTES, HotRange, HotRanges, KeyLoad
from tsd.tables.key_ranges import KeyRanges, RangeName

LEAST_SHARE = 0.01  # of all writes or reads: ranges with less count in a wider one
LONGEST_MS = MINUTES * MINUTE_MS
LONGEST_DURATION = 20  # characters
DEFAULT_SINCE, DEFAULT_LIMIT = "10m", 20
NAMES_TIMEOUT_S = 1.0  # of the store; without names a range is shown by its prefix
METRIC_RANGES = 10  # of each kind in /metrics
METRIC_MS = 10 * MINUTE_MS
SORTS = {"writes": "writeShare", "bytes": "byteShare", "reads": "readShare"}


class HotRequest(NamedTuple):
    """Which ranges to list."""

    length_ms: int
    sort: str
    limit: int  # 0: all


class HotKeys:
    """Lists ranges of row keys with their names."""

    def __init__(self, load: KeyLoad, ranges: KeyRanges) -> None:
        self._load = load
        self._ranges = ranges

    async def listed(self, wanted: HotRequest) -> dict[str, Any]:
        """Return the answer of the endpoint."""
        hot = await self._load.hot_ranges(wanted.length_ms, least_share=LEAST_SHARE)
        rows = await self._rows(hot)
        by = SORTS[wanted.sort]
        rows.sort(key=lambda row: (-row[by], row["table"], row["start"]))
        return {
            "since": hot.since_ms // 1000,
            "until": hot.until_ms // 1000,
            "cellsWritten": round(hot.cells_written),
            "bytesWritten": round(hot.bytes_written),
            "cellsRead": round(hot.cells_read),
            "ranges": rows[: wanted.limit] if wanted.limit else rows,
        }

    async def wide_ranges(self, sort: str) -> list[dict[str, Any]]:
        """Return the first ranges by a share, for /metrics: in tables of points those of metrics and salts, as a range
        of an hour would be a new one each hour."""
        hot = await self._load.hot_ranges(METRIC_MS, least_share=LEAST_SHARE, widths=1)
        rows = [row for row in await self._rows(hot) if row["start"] and row[SORTS[sort]]]
        return sorted(rows, key=lambda row: (-row[SORTS[sort]], row["table"], row["start"]))[:METRIC_RANGES]

    async def _rows(self, hot: HotRanges) -> list[dict[str, Any]]:
        names = await self._names([(one.table, one.prefix) for one in hot.ranges])
        return [_row(one, hot, name) for one, name in zip(hot.ranges, names, strict=True)]

    async def _names(self, places: Sequence[tuple[str, bytes]]) -> Sequence[RangeName]:
        """Return the names of ranges; none if the store cannot tell."""
        with trio.move_on_after(NAMES_TIMEOUT_S):
            try:
                return await self._ranges.names(places)
            except TsdError:
                pass
        return [{}] * len(places)


def _row(one: HotRange, hot: HotRanges, name: RangeName) -> dict[str, Any]:
    return {
        "table": one.table,
        "start": one.prefix.hex(),
        **name,
        "cellsWritten": round(one.cells_written),
        "bytesWritten": round(one.bytes_written),
        "cellsRead": round(one.cells_read),
        "writeShare": _share(one.cells_written, hot.cells_written),
        "byteShare": _share(one.bytes_written, hot.bytes_written),
        "readShare": _share(one.cells_read, hot.cells_read),
    }


def _share(part: float, whole: float) -> float:
    return round(min(part / whole, 1.0), 4) if whole else 0.0


def read_request(since: str, sort: str, limit: str) -> HotRequest:
    """Return the request of texts. Raise Refused."""
    try:
        length_ms = duration_ms(since) if len(since) <= LONGEST_DURATION else 0
    except BadDate as exc:
        raise Refused(400, "Unable to parse 'since'", str(exc)) from exc
    if not 0 < length_ms <= LONGEST_MS:
        got = since[:LONGEST_DURATION]
        raise Refused(400, "'since' is out of range", f"got {got!r}, wanted more than 0 and up to {MINUTES}m")
    if sort not in SORTS:
        raise Refused(400, f"Cannot sort by {sort[:LONGEST_DURATION]!r}", f"Sort by one of {', '.join(SORTS)}")
    return HotRequest(length_ms, sort, limit_in(limit))


def routes(hot: HotKeys | None) -> Mapping[str, Endpoint]:
    """/api/stats/hot?since=10m&sort=writes&limit=20. None: the table layout counts nothing."""
    if hot is None:
        return {"api/stats/hot": missing_part("counted ranges of row keys")}

    async def endpoint(request: Request) -> Response:
        check_method(request, "GET")
        since, sort = request.param("since") or DEFAULT_SINCE, request.param("sort") or "writes"
        return answer(await hot.listed(read_request(since, sort, request.param("limit") or str(DEFAULT_LIMIT))))

    return {"api/stats/hot": endpoint}
