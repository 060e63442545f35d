"""The longest step of the event loop, under requests of other writes and of pages, and lines of rollups."""

import gzip
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import trio

from tests.faults.longest_step import BASE, LONGEST_MS, SETTINGS, longest_step, measured, send_synced
from tests.running import Running
from tests.unit.server.web_parts import read_response
from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.annotation import annotation_qualifier, annotation_row, encode_annotation
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.store import Put

POINT = {"metric": "m", "timestamp": BASE, "value": 1, "tags": {"host": "a"}}
ROLLUP = {**POINT, "interval": "1h", "aggregator": "SUM"}
HISTOGRAM = {"metric": "m", "timestamp": BASE, "tags": {"host": "a"}, "buckets": {"0,1": 4}}
MANY_TAGS = {str(n): "v" for n in range(60_000)}
HEAD = "Host: localhost\r\n"


def _request(method: str, target: str, body: bytes = b"", more: str = "") -> bytes:
    return f"{method} {target} HTTP/1.1\r\n{HEAD}{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _post(path: str, value: object) -> bytes:
    return _request("POST", path, json.dumps(value).encode())


def _packed(path: str, body: bytes) -> bytes:
    return _request("POST", path, gzip.compress(body, 1), "Content-Encoding: gzip\r\n")


def _summaries() -> Iterator[tuple[str, bytes]]:
    for path, one in (("/api/rollup", ROLLUP), ("/api/histogram", HISTOGRAM)):
        for flag in ("details", "summary"):
            yield f"{path}?{flag} bad", _post(f"{path}?{flag}", [{**one, "timestamp": -1}] * 10_000)
        yield f"{path} good", _post(path, [one] * 5_000)
        yield f"{path} new names", _post(path, [{**one, "tags": {"host": str(n)}} for n in range(3_000)])
        yield f"{path} many tags", _post(f"{path}?details", {**one, "tags": MANY_TAGS})
        yield (
            f"{path} many tags of some",
            _post(f"{path}?details", [{**one, "tags": dict(list(MANY_TAGS.items())[:2000])}] * 200),
        )
        yield f"{path} long member", _post(f"{path}?details", {**one, "metric": "m" * 4_000_000})
        yield f"{path} nulls", _post(f"{path}?details", [None] * 30_000)
        yield f"{path} empty objects", _post(f"{path}?details", [{}] * 30_000)
        yield f"{path} bomb", _packed(path, b"[" + b" " * ((16 << 20) - 2) + b"]")
    yield "long interval", _post("/api/rollup?details", {**ROLLUP, "interval": "1" * 1_000_000 + "h"})
    yield "long aggregator", _post("/api/rollup?details", [{**ROLLUP, "groupByAggregator": "s" * 1000}] * 5000)
    yield "many buckets", _post("/api/histogram", {**HISTOGRAM, "buckets": {f"{n},{n + 1}": 1 for n in range(100_000)}})
    yield "bad buckets", _post("/api/histogram?details", {**HISTOGRAM, "buckets": {str(n): 1 for n in range(100_000)}})
    yield "long payload", _post("/api/histogram?details", {**HISTOGRAM, "id": 1, "value": "QUFB" * 1_000_000})


def _points() -> Iterator[tuple[str, bytes]]:
    metric = {"name": "m", "tags": {"host": "a"}, "datapoints": [[BASE * 1000, 1]]}
    path = "/api/v1/datapoints"
    yield "points of one metric", _post(path, {**metric, "datapoints": [[BASE * 1000 + n, n] for n in range(50_000)]})
    yield "bad points", _post(path, {**metric, "datapoints": [[BASE * 1000, [n]] for n in range(20_000)]})
    yield "metrics", _post(path, [{**metric, "name": f"m{n}"} for n in range(4_000)])
    yield "bad metrics", _post(path, [{"name": "", "tags": {}}] * 20_000)
    yield "many tags", _post(path, {**metric, "tags": MANY_TAGS})
    yield "empty tags", _post(path, {**metric, "tags": dict.fromkeys(MANY_TAGS, "")})
    yield "long name", _post(path, {**metric, "name": "m" * 4_000_000})
    yield "lenient", _request("POST", path, b"[" + b"{name:'m',}," * 20_000 + b"{}]")
    yield "lenient nesting", _request("POST", path, b"[{a:" + b"[" * 400_000)
    yield "brackets", _request("POST", path, b"[" * 8_000_000)
    yield "text points", _post(path, {**metric, "type": "string", "datapoints": [[BASE * 1000, "x" * 50]] * 20_000})
    yield "packed points", _packed(path, json.dumps([{**metric, "name": f"m{n}"} for n in range(4_000)]).encode())
    tagged = {"metrics": [{"name": "m", "tags": {str(n): ["v"] * 50 for n in range(500)}}] * 500}
    for kind in ("", "/tags"):
        yield f"query{kind}", _post(f"{path}/query{kind}", {"start_absolute": BASE * 1000, **tagged})
    yield "delete", _post(f"{path}/delete", {"start_absolute": BASE * 1000, **tagged})
    yield "names", _request("GET", "/api/v1/metricnames?prefix=" + "m" * 60_000)
    yield "features", _request("GET", "/api/v1/features/" + "a/" * 30_000)
    yield "metadata", _request("GET", "/api/v1/metadata/" + "%41/" * 15_000)
    heroic = {"series": {"key": "m", "tags": {"host": "a"}}, "data": {"type": "points", "data": [[BASE * 1000, 1]]}}
    yield "heroic", _post("/write", {**heroic, "data": {"data": [[BASE * 1000 + n, n] for n in range(40_000)]}})
    yield "heroic bad", _post("/write", {**heroic, "data": {"data": [[-n, n] for n in range(40_000)]}})
    yield "heroic tags", _post("/write", {**heroic, "series": {"key": "m", "tags": MANY_TAGS}})
    both = {"key": "m", "tags": MANY_TAGS, "resource": MANY_TAGS}
    yield "heroic both", _post("/write", {**heroic, "series": both})


def _pages() -> Iterator[tuple[str, bytes]]:
    for path in ("/", "/ui/access", "/ui/" + "../" * 15_000 + "etc/passwd", "/s/" + "%2e%2e/" * 8_000 + "etc/passwd"):
        yield path[:40], _request("GET", path)
    yield "plotly", _request("GET", "/ui/plotly-0/plotly.js", more="Accept-Encoding: gzip\r\n")
    yield "body of a page", _request("POST", "/", b"x" * (8 << 20))
    yield "logs", _request("GET", "/logs?level=" + "x" * 60_000)


LINES = {
    "rollups": b"rollup 1h-sum m %d 1 host=a\n" % BASE * 5_000,
    "rollups of new names": b"".join(b"rollup 1h-sum m %d 1 host=h%d\n" % (BASE, n) for n in range(3_000)),
    "bad rollups": b"rollup 1h-sum m %d x host=a\n" % BASE * 5_000,
    "unknown intervals": b"rollup 17h-sum:max m %d 1 host=a\n" % BASE * 5_000,
    "tags of rollups": (b"rollup 1h-sum m %d 1 " % BASE + b" ".join(b"%d=v" % n for n in range(1500)) + b"\n") * 100,
    "colons": (b"rollup " + b"1h-sum:" * 2000 + b" m 1 1 host=a\n") * 100,
    "histograms": (b"histogram m %d 0 " % BASE + b"QUFB" * 3000 + b" host=a\n") * 100,
}


async def _ask(daemon: Running, request: bytes) -> None:
    """Send a request, and read its answer while it is being sent."""
    async with daemon.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.send, request)
        assert (await read_response(client)).status != 500


async def _slow(folder: Path, named: dict[str, bytes], *, is_http: bool) -> list[tuple[str, float, str]]:
    """Return those that hold the event loop, with the longest step in ms and its task."""
    found = []
    async with measured(folder, {**SETTINGS, "tsd.rollups.enable": "true"}) as daemon:
        await daemon.send_lines(b"put m %d 1 host=a\n" % BASE)
        for name, data in named.items():
            step = await longest_step(partial(_ask if is_http else send_synced, daemon, data))
            if step[0] > LONGEST_MS:
                found.append((name, *step))
    return found


async def test_no_request_of_rollups_or_histograms_holds_the_event_loop(tmp_path: Path) -> None:
    assert not await _slow(tmp_path, dict(_summaries()), is_http=True)


async def test_no_request_of_kairosdb_or_heroic_holds_the_event_loop(tmp_path: Path) -> None:
    assert not await _slow(tmp_path, dict(_points()), is_http=True)


async def test_no_request_for_pages_holds_the_event_loop(tmp_path: Path) -> None:
    assert not await _slow(tmp_path, dict(_pages()), is_http=True)


async def test_no_lines_of_rollups_or_histograms_hold_the_event_loop(tmp_path: Path) -> None:
    assert not await _slow(tmp_path, LINES, is_http=False)


def _stored(tsuid: str, start_time: int) -> Put:
    """Return the cell of an annotation that `/api/annotation/bulk` leaves as it is."""
    value = encode_annotation(Annotation(start_time, notes="n", tsuid=tsuid))
    row = annotation_row(KeyLayout(), start_time, bytes.fromhex(tsuid))
    return Put(row, COLUMN + annotation_qualifier(start_time), value)


async def test_no_annotations_of_many_series_hold_the_event_loop(tmp_path: Path) -> None:
    lines = b"".join(
        b"put m %d %d host=web%d\n" % (BASE + hour * 3600, n, n) for hour in range(20) for n in range(1000)
    )
    async with measured(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(lines)
        await daemon.daemon.ingest.writer.flush()
        async with daemon.client() as client:
            await client.send(_request("GET", f"/api/query?start={BASE}&end={BASE + 9}&m=none:m&show_tsuids"))
            tsuids = [one["tsuids"][0] for one in (await read_response(client)).json]
        assert len(tsuids) == 1000
        notes = [{"tsuid": tsuid, "startTime": BASE + n % 11, "notes": "n"} for n, tsuid in enumerate(tsuids * 9)]
        selected = {"tsuids": tsuids, "global": True, "startTime": "1"}

        async def write_and_delete() -> None:
            stored = [_stored(one["tsuid"], one["startTime"]) for one in notes]
            await daemon.daemon.store.put(daemon.daemon.config.data_table, stored)
            await _ask(daemon, _post("/api/annotation/bulk", notes))
            async with daemon.client() as client:
                await client.send(_request("DELETE", "/api/annotation/bulk", json.dumps(selected).encode()))
                assert (await read_response(client)).json["totalDeleted"] == len(notes)

        assert (longest := await longest_step(write_and_delete))[0] <= LONGEST_MS, longest
