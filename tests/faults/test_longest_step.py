"""The longest step of the event loop in CPU time, under requests made to be slow."""

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.faults.longest_step import BASE, LONGEST_MS, SETTINGS, longest_step, measured, send_synced
from tests.running import Running
from tests.unit.server.web_parts import HttpResponse, read_response

TIMES = f"start={BASE}&end={BASE + 600}"
Attacks = Iterator[tuple[str, bytes]]  # names, and what is sent


def _get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _packed(path: str, packed: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    return head.encode() + packed


def _json(path: str, value: object) -> bytes:
    return _post(path, json.dumps(value).encode())


def _query(filters: object, **more: object) -> bytes:
    sub = {"aggregator": "sum", "metric": "m", "filters": filters, **more}
    return _json("/api/query", {"start": BASE, "end": BASE + 600, "queries": [sub]})


def _requests() -> Attacks:
    """Yield names and bytes of requests that take long to parse or check."""
    tags = ",".join(f"{n}=v" for n in range(7000))
    for path in ("/api/query", "/q"):
        yield f"{path} many tags", _get(f"{path}?{TIMES}&m=sum:x{{{tags}}}")
        yield f"{path} many others", _get(f"{path}?{TIMES}&m=sum:x{{}}{{{tags}}}")
        yield f"{path} many m", _get(f"{path}?{TIMES}" + "".join(f"&m=sum:m{n}" for n in range(5000)))
        yield f"{path} few filters of each m", _get(f"{path}?{TIMES}" + "&m=sum:m{a=*,b=*,c=*}" * 1900)
        yield f"{path} many parameters", _get(f"{path}?{TIMES}" + "&a" * 30_000)
        yield f"{path} many escapes", _get(f"{path}?{TIMES}&m=sum:" + "%41%C3" * 10_000)
        yield f"{path} long literal", _get(f"{path}?{TIMES}&m=sum:m{{a=literal_or({'a|' * 30_000})}}")
        yield f"{path} many percentiles", _get(f"{path}?{TIMES}&m=sum:percentiles[{'1.5,' * 12_000}1]:m")
    yield "many headers", b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n" + b"a:b\r\n" * 12_000 + b"\r\n"
    yield (
        "many equal headers",
        b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n" + b"Accept-Encoding: a,b\r\n" * 2800 + b"\r\n",
    )
    yield (
        "many codings",
        b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: " + b"a," * 30_000 + b"\r\n\r\n",
    )
    yield "tags of a body", _query([], tags={str(n): "v" for n in range(40_000)})
    one = {"type": "wildcard", "tagk": "a", "filter": "*a*"}
    yield "filters of a body", _query([{**one, "tagk": str(n)} for n in range(12_000)])
    sub = {"aggregator": "sum", "metric": "m", "filters": [one] * 4}
    subs = [{**sub, "metric": f"m{n}"} for n in range(1999)]
    yield "sub queries", _json("/api/query", {"start": BASE, "queries": subs})
    yield "patterns", _query([{**one, "type": "regexp", "filter": f"(a|b{n}+)+c[a-z]{{3}}"} for n in range(300)])
    yield "nested lists", _post("/api/query", b"[" * 500_000)
    yield "small objects", _post("/api/query", b'{"queries":[' + b"{}," * 340_000 + b"{}]}")
    metric = {"id": "a", "metric": "m", "filter": "f"}
    exp = {
        "time": {"start": str(BASE), "end": str(BASE + 600), "aggregator": "sum"},
        "filters": [{"id": "f", "tags": [one] * 3000}],
        "metrics": [{**metric, "id": f"a{n}"} for n in range(1000)],
        "expressions": [{"id": "e", "expr": "+".join(f"a{n}" for n in range(1000))}],
    }
    yield "expressions", _json("/api/query/exp", exp)
    yield "functions", _get(f"/api/query/gexp?{TIMES}&exp=" + "scale(sum:m,2" + ",2" * 4900 + ")")
    yield "many functions", _get(f"/api/query/gexp?{TIMES}" + "&exp=scale(sum:m,2)" * 3000)
    yield "uid names", _json("/api/uid/assign", {"metric": [f"n{n}=" for n in range(9_000)]})
    yield "uid names in a target", _get("/api/uid/assign?metric=" + "=," * 30_000)
    rule = {"treeId": 1, "level": 0, "type": "TAGK", "field": "host", "regex": "(a|b)*c.*d"}
    yield "tree rules", _json("/api/tree/rules", [{**rule, "order": n} for n in range(1000)])
    yield "last", _json("/api/query/last", {"queries": [{"metric": "m", "tags": {"host": "a"}}] * 10_000})
    for name, part in (("lists", b"[],"), ("objects", b'{"a":1},'), ("numbers", b"1,")):
        yield (
            f"small {name} for last",
            _post("/api/query/last", b'{"queries":[' + part * (1_000_000 // len(part)) + b"1]}"),
        )
        allowed = 39_000 if part == b"1," else 9_900
        yield f"as many {name} as allowed", _post("/api/uid/assign", b'{"metric":[' + part * allowed + b"1]}")
    yield "members", _json("/api/annotation", {"custom": {str(n): "v" for n in range(19_000)}})
    yield "lookup", _get("/api/search/lookup?m=m{" + "a=b," * 15_000 + "a=b}")
    yield "annotations", _json("/api/annotation/bulk", [{"tsuid": "00", "description": "x", "custom": {}}] * 9000)
    bad = {"metric": "m", "timestamp": BASE, "value": "x", "tags": {"host": "a"}}
    for flag in ("details", "summary"):
        yield f"bad points with {flag}", _json(f"/api/put?{flag}", [bad] * 40_000)
    yield (
        "point with many tags",
        _json("/api/put?details", {**bad, "value": 1, "tags": {str(n): "v" for n in range(60_000)}}),
    )
    yield "points without tags", _json("/api/put?details", [{**bad, "value": 1, "tags": {}}] * 15_000)
    yield "many registered queries", _get("/api/stats/query")
    yield "hot ranges", _get("/api/stats/hot?since=180m&limit=0")


def _bombs() -> Attacks:
    """Yield names and bytes of requests whose small compressed bodies become large, or take long to unpack."""
    much, limit = gzip.compress(b" " * (32 << 20), 1), gzip.compress(b"[" + b" " * ((16 << 20) - 2) + b"]", 1)
    for path in ("/api/put?details", "/api/query", "/write", "/api/v1/datapoints"):
        yield f"{path} much from little", _packed(path, much)
        yield f"{path} just under the limit", _packed(path, limit)
    yield "many members", _packed("/api/put", gzip.compress(b"", mtime=0) * 50_000)
    yield "zeros between members", _packed("/api/put", gzip.compress(b"", mtime=0) + bytes(8 << 20))
    yield "random bytes", _packed("/api/put", gzip.compress(random.Random(1).randbytes(12 << 20), 0))
    yield "twice packed", _packed("/api/put", gzip.compress(gzip.compress(bytes(64 << 20), 1)))


def _lines() -> Attacks:
    yield "1500 tags", (b"put m %d 1 " % BASE + b" ".join(b"%d=v" % n for n in range(150)) + b"\n") * 300
    yield "bad values", b"put m %d x a=b\n" % BASE * 20_000
    yield "empty lines", b"\n" * 50_000
    yield "unknown commands", b"nosuch\n" * 20_000


METADATA_LINES = {
    "many lines": b"".join(b"meta web%d rack=r1 owner=ops\n" % n for n in range(10_000)),
    "many keys": (b"meta web0 " + b" ".join(b"%d=v" % n for n in range(1000)) + b"\n") * 100,
    "too many keys": (b"meta web0 " + b"a= " * 5000 + b"\n") * 100,
    "bad values": (b"meta web0 a=" + b"%ff" * 5000 + b"\n") * 100,
}


async def _send(daemon: Running, data: bytes) -> HttpResponse:
    async with daemon.client() as client:
        await client.send(data)
        return await read_response(client)


@pytest.mark.parametrize("requests", [_requests, _bombs])
async def test_no_request_holds_the_event_loop(requests: Callable[[], Attacks], tmp_path: Path) -> None:
    async with measured(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(b"put m %d 1 host=a\n" % BASE)
        for name, request in requests():

            async def attack(request: bytes = request) -> None:
                assert (await _send(daemon, request)).status

            assert (longest := await longest_step(attack))[0] <= LONGEST_MS, (name, longest)


ENTITY_REQUESTS = {
    "all series": _get(f"/api/entity/web0?start={BASE}"),
    "many patterns": _get(f"/api/entity/web0?start={BASE}&metrics=" + "*a*b*c," * 100),
    "newest values": _get("/api/entity?limit=10000"),
    "order by values": _get("/api/entity?limit=10000&order=m0:desc"),
    "silent": _get("/api/entity?max_age=1h&stale=true"),
    "metadata": _post("/api/entity/web0", json.dumps({f"k{n}": "v" * 1000 for n in range(1000)}).encode()),
    "bad metadata": _post("/api/entity/web0", json.dumps({str(n): 1 for n in range(60_000)}).encode()),
}


async def test_no_request_for_entities_holds_the_event_loop(tmp_path: Path) -> None:
    lines = [b"put m%d %d 1 host=web0\n" % (n, BASE + at) for at in range(4) for n in range(1500)]
    lines += [b"put m0 %d %d host=web%d\n" % (BASE, n, n) for n in range(1500)]
    async with measured(tmp_path, {**SETTINGS, "tsd.entity.enabled": "true"}) as daemon:
        await daemon.send_lines(b"".join(lines))
        await daemon.daemon.ingest.writer.flush()
        for name, request in ENTITY_REQUESTS.items():

            async def ask(name: str = name, request: bytes = request) -> None:
                assert (await _send(daemon, request)).status in (200, 204, 400, 413), name

            assert (longest := await longest_step(ask))[0] <= LONGEST_MS, (name, longest)
        for name, block in METADATA_LINES.items():

            async def send(block: bytes = block) -> None:
                await send_synced(daemon, block)
                await daemon.daemon.ingest.writer.flush_due()

            assert (longest := await longest_step(send))[0] <= LONGEST_MS, (name, longest)


async def test_no_deletion_of_many_series_of_entities_holds_the_event_loop(tmp_path: Path) -> None:
    series = [b"host=web%d cpu=%d" % divmod(n, 10) for n in range(1000)]
    lines = b"".join(b"put m %d %d %s\n" % (BASE + at, at, tags) for at in (-3600, 0) for tags in series)
    target = f"/api/query?start={BASE}&end={BASE + 60}&m=none:m{{host=*,cpu=*}}"
    settings = {**SETTINGS, "tsd.entity.enabled": "true", "tsd.http.query.allow_delete": "true"}
    async with measured(tmp_path, settings) as daemon:

        async def write_and_delete() -> None:
            await daemon.send_lines(lines)
            await daemon.daemon.ingest.writer.flush()
            assert (await _send(daemon, _get(target).replace(b"GET", b"DELETE", 1))).status == 200

        assert (longest := await longest_step(write_and_delete))[0] <= LONGEST_MS, longest
        newest = json.loads((await _send(daemon, _get("/api/entity?limit=10000"))).body)["entities"]
        assert [one["timestamp"] for each in newest for one in each["series"]] == [(BASE - 3600) * 1000] * len(series)


@pytest.mark.parametrize("layout", ["heroic", "tall"])
async def test_no_list_of_series_holds_the_event_loop(layout: str, tmp_path: Path) -> None:
    """These layouts check the list of a metric's series if a query does not name all tags. It matches few here."""
    lines = b"".join(b"put m %d 1 host=web%d dc=d%d\n" % (BASE, n, n % 50) for n in range(8000))
    settings = {**SETTINGS, "tsd.storage.layout": layout, "tsd.tall.tables": "METRIC {host}#{ts} *"}
    async with measured(tmp_path, settings) as daemon:
        await daemon.send_lines(lines)
        await daemon.daemon.ingest.writer.flush()

        async def ask() -> None:
            answer = await _send(daemon, _get(f"/api/query?{TIMES}&m=sum:m{{host=wildcard(*77)}}{{dc=wildcard(*)}}"))
            assert len(json.loads(answer.body)[0]["dps"]) == 1

        assert (longest := await longest_step(ask))[0] <= LONGEST_MS, longest


async def test_no_lines_hold_the_event_loop(tmp_path: Path) -> None:
    async with measured(tmp_path, SETTINGS) as daemon:
        for name, lines in _lines():
            longest = await longest_step(partial(send_synced, daemon, lines))
            assert longest[0] <= LONGEST_MS, (name, longest)


@pytest.mark.parametrize("pattern", ["(a+)(a+)(a+)!", r"^(\w+)(\w+)(\w+)!", "(?!b)a+a+!", r"(a+)\1b"])
async def test_no_pattern_holds_the_event_loop(pattern: str, tmp_path: Path) -> None:
    values = ["a" * (64 if n % 2 else 200) + str(n) for n in range(2000)]
    lines = "".join(f"put m {BASE} 1 host={value}\n" for value in values).encode()
    request = _query([{"type": "regexp", "tagk": "host", "filter": pattern, "groupBy": True}])
    async with measured(tmp_path, SETTINGS) as daemon:
        await daemon.send_lines(lines)

        async def attack() -> None:
            assert (await _send(daemon, request)).status in (200, 400)

        assert (longest := await longest_step(attack))[0] <= LONGEST_MS, longest


async def test_no_import_holds_the_event_loop(tmp_path: Path) -> None:
    """A command that imports lines, scans them and reads names while the daemon has the store open."""
    file = tmp_path / "lines"
    lines = [b"m%d %d 1 host=h%d\n" % (n % 50, BASE + at, n) for n in range(6000) for at in (0, 60)]
    file.write_bytes(b"".join(lines))
    async with measured(tmp_path / "state", SETTINGS):
        for words in (["import", file], ["scan", str(BASE), "sum", "m1"], ["uid", "grep", "."], ["uid", "fsck"]):
            command = [sys.executable, "-m", "tsd", "--data", tmp_path / "state", *words]
            run = partial(trio.run_process, command, stdout=subprocess.DEVNULL)
            assert (longest := await longest_step(run))[0] <= LONGEST_MS, (words, longest)
