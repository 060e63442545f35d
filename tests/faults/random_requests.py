"""Random HTTP requests, valid and broken."""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

REQUESTS = 20  # maximum per connection
SETTINGS = {
    "tsd.core.auto_create_metrics": "true",
    "tsd.no_diediedie": "true",
    "tsd.http.request.max_chunk": str(1 << 20),
    "tsd.http.request.timeout": "1",  # for incomplete requests
    "tsd.http.request.cors_domains": "*",
    "tsd.http.query.allow_delete": "false",
    "tsd.core.histograms.config": '{"net.opentsdb.core.SimpleHistogramDecoder": 42}',
    "tsd.query.memory_limit": str(64 << 20),
    "tsd.kairosdb.enabled": "true",
    "tsd.heroic.enabled": "true",
    "tsd.entity.enabled": "true",
}
BASE = 1_356_998_400
POINT = {"metric": "m", "timestamp": BASE, "value": 1, "tags": {"host": "a"}}
SUB = {
    "aggregator": "sum",
    "metric": "m",
    "downsample": "1m-avg-nan",
    "rate": True,
    "rateOptions": {"counter": True, "counterMax": 100, "resetValue": 1},
    "filters": [{"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}],
    "explicitTags": False,
    "percentiles": [99.0],
}
EXP = {
    "time": {"start": str(BASE), "end": str(BASE + 600), "aggregator": "sum", "downsampler": {"interval": "1m"}},
    "filters": [{"id": "f", "tags": [{"type": "wildcard", "tagk": "host", "filter": "*", "groupBy": True}]}],
    "metrics": [{"id": "a", "metric": "m", "filter": "f", "fillPolicy": {"policy": "nan"}}],
    "expressions": [{"id": "e", "expr": "a + 1", "join": {"operator": "union", "useQueryTags": False}}],
    "outputs": [{"id": "e", "alias": "x"}],
}
NOTE = {"tsuid": "000001000001000001", "startTime": BASE, "endTime": 0, "description": "d", "custom": {"a": "b"}}
META = {"uid": "000001", "type": "metric", "displayName": "x", "custom": {"a": "b"}, "tsuid": "000001000001000001"}
TREE = {"treeId": 1, "name": "t", "enabled": True, "strictMatch": False, "tsuids": ["000001000001000001"]}
RULE = {"treeId": 1, "level": 0, "order": 0, "type": "TAGK", "field": "host", "regex": "(.*)", "regexGroupIdx": 1}
MINUTE = {"value": 1, "unit": "minutes"}
KAIROS_POINTS = {"name": "m", "datapoints": [[BASE * 1000, 1], [BASE * 1000 + 1, 2.5]], "tags": {"host": "a"}, "ttl": 0}
KAIROS_QUERY = {
    "start_absolute": BASE * 1000,
    "end_absolute": (BASE + 600) * 1000,
    "time_zone": "UTC",
    "metrics": [
        {
            "name": "m",
            "tags": {"host": ["a"]},
            "limit": 10,
            "group_by": [{"name": "tag", "tags": ["host"]}, {"name": "time", "range_size": MINUTE, "group_count": 2}],
            "aggregators": [
                {"name": "sum", "sampling": MINUTE, "align_sampling": True},
                {"name": "rate", "unit": "seconds"},
            ],
        }
    ],
}
HEROIC = {
    "series": {"key": "m", "tags": {"host": "a"}, "resource": {"r": "b"}},
    "data": {"type": "points", "data": [[BASE * 1000, 1.0]]},
}
# Paths, each with a valid body.
BODIES: Sequence[tuple[str, Any]] = (
    ("/api/put", [POINT, POINT]),
    ("/api/put", POINT),
    ("/api/rollup", {**POINT, "interval": "1h", "aggregator": "SUM", "groupByAggregator": "SUM"}),
    ("/api/histogram", {**POINT, "id": 42, "value": None, "buckets": {"0,1": 3}, "underflow": 1, "overflow": 2}),
    ("/api/query", {"start": BASE, "end": BASE + 600, "timezone": "UTC", "queries": [SUB], "msResolution": True}),
    ("/api/query/last", {"queries": [{"metric": "m", "tags": {"host": "a"}}], "resolveNames": True, "backScan": 1}),
    ("/api/query/exp", EXP),
    ("/api/annotation", NOTE),
    ("/api/annotation/bulk", [NOTE, NOTE]),
    ("/api/annotations", {"tsuids": ["000001000001000001"], "startTime": BASE, "endTime": BASE + 1, "global": True}),
    ("/api/search/lookup", {"metric": "m", "tags": [{"key": "host", "value": "*"}], "limit": 5, "useMeta": True}),
    ("/api/suggest", {"type": "metrics", "q": "m", "max": 5}),
    ("/api/uid/assign", {"metric": ["a", "b"], "tagk": ["c"], "tagv": ["d"]}),
    ("/api/uid/rename", {"metric": "a", "name": "b"}),
    ("/api/uid/uidmeta", META),
    ("/api/uid/tsmeta", {**META, "retention": 1, "max": 5.5, "min": "1"}),
    ("/api/tree", TREE),
    ("/api/tree/rule", RULE),
    ("/api/tree/rules", [RULE, RULE]),
    ("/api/tree/test", TREE),
    ("/api/tree/collisions", TREE),
    ("/api/v1/datapoints", [KAIROS_POINTS, KAIROS_POINTS]),
    ("/api/v1/datapoints/query", KAIROS_QUERY),
    ("/api/v1/datapoints/query/tags", KAIROS_QUERY),
    ("/api/v1/datapoints/delete", KAIROS_QUERY),
    ("/write", HEROIC),
    ("/api/entity/a", {"rack": "r1"}),
)
TIMES = f"start={BASE}&end={BASE + 600}"
URLS = (
    f"/api/query?{TIMES}&m=sum:1m-avg-nan:rate{{counter,10,1}}:m{{host=*}}{{dc=wildcard(*)}}&tz=UTC&ms&show_query",
    f"/api/query?{TIMES}&tsuid=sum:000001000001000001,000001000001000002&show_tsuids&arrays&show_summary",
    f"/api/query/gexp?{TIMES}&exp=scale(movingAverage(sum:m{{host=*}},'5'),2)",
    "/api/query/last?timeseries=m{host=a}&resolve&back_scan=1&tsuids=000001000001000001",
    f"/q?{TIMES}&m=sum:m&ascii&tz=Europe/Berlin&nocache",
    f"/q?{TIMES}&m=sum:m&wxh=100x100&yrange=[0:1]&o=axis x1y2&key=out&yformat=%25f",
    "/api/search/lookup?m=m{host=*}&limit=5",
    "/api/suggest?type=metrics&q=m&max=3&jsonp=f",
    "/suggest?type=tagv&q=a&max=3",
    "/api/uid/assign?metric=x,y&tagk=z",
    "/api/uid/rename?metric=x&name=y&method_override=post",
    "/api/uid/uidmeta?uid=000001&type=metric",
    "/api/uid/tsmeta?m=m{host=a}&create=true&tsuid=000001000001000001",
    f"/api/annotation?start_time={BASE}&end_time={BASE + 1}&tsuid=000001000001000001&method_override=delete",
    f"/api/annotations?start_time={BASE}&end_time=1h-ago&global=true",
    "/api/tree?treeid=1&method_override=delete&definition=true",
    "/api/tree/branch?treeid=1&branch=0001",
    "/api/tree/rule?treeid=1&level=0&order=0",
    "/api/tree/test?treeid=1&tsuids=000001000001000001",
    "/api/stats/query?id=1",
    "/api/stats/jvm",
    "/api/stats/threads",
    "/api/stats/region_clients",
    "/api/stats",
    "/stats?json",
    "/api/config/filters",
    "/api/aggregators",
    "/api/serializers",
    "/api/version?serializer=json",
    "/api/v1/version",
    "/api/v1/metricnames?prefix=m",
    "/api/v1/metadata/s/k",
    f"/api/entity/a?start={BASE}&end={BASE + 600}&metrics=m,k*&versions=3&limit=5",
    "/api/entity?prefix=a&metrics=m&max_age=10m&stale=true&order=m:asc&limit=5&from=a",
    "/api/entity/a?keys=rack,x&method_override=delete",
    "/api/stats/hot?since=10m&sort=writes&limit=20",
    "/api/stats/clients?sort=lines&limit=1",
    "/api/stats/rejected?limit=5",
    "/ui/main.js",
    "/api/dropcaches",
    "/version?json",
    "/logs?json",
    "/metrics",
    "/health/ready",
    "/health/live",
    "/s/../../etc/passwd",
    "/favicon.ico",
    "/",
    "/diediedie",
)
TEXTS = (
    "", " ", "\0", "\n", "\r\nX: y", "a" * 5000, "é", "\u2028", "😀", "\ud800", "%", "%00", "..", "../../etc/passwd",
    "<script>alert(1)</script>", "</script>", "'", '"', "\\", "*", "(a+)+$", "regexp((a|a)*b)", "regexp([)", "{", "}",
    "{host=*", "sum:m", ":", "::::::", "1h-ago", "0", "-1", "now", "99999999999999999999", "1e400", "NaN", "Infinity",
    "-0", "0x10", "١", "1_0", "1.5", "true", "null", "1n-avg", "0all-sum", "0s-sum", "1ms-sum-nan", "99999999999y-sum",
    "1000000000000000000000", "Europe/Berlin", "percentiles[", "percentiles[99,1000]", "rate{", "tagk", "metrics",
    "7" * 5000, "a/b" * 50, "literal_or(" + "a|" * 300 + ")", "(" * 3000, "sum(" * 500, "a" + "+a" * 2000,
    "1" + "%1" * 30,
)  # fmt: skip
NUMBERS = (0, -1, 1, 1.5, -0.0, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, 1e300, BASE, BASE * 1000)
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "LOCK")
HEADERS = (
    "Origin: https://a.example",
    "Origin: null",
    "Origin: \xe9\xff",
    "Accept-Encoding: gzip",
    "Accept-Encoding: *;q=x, deflate;q=nan",
    "Content-Encoding: gzip",
    "Content-Encoding: deflate",
    "Content-Encoding: br",
    "Content-Type: application/json; charset=utf-16",
    "Content-Type: text/plain; charset=punycode",
    "Content-Type: text/plain; charset=../../x",
    "Content-Type: text/plain; charset=rot13",
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "Upgrade: websocket",
    "Expect: 100-continue",
    "Expect: nothing",
    "Connection: close",
    "Connection: keep-alive",
    "Cookie: \xe9",
    "X: " + "x" * 3000,
    "Host: other",
    "Content-Length: 5",
    "Content-Length: -5",
    "Content-Length: 99999999999999999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding : chunked",
    " folded",
)


class RandomRequests:
    """Generates requests."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def requests(self) -> Iterator[bytes]:
        """Return the requests of one connection."""
        for _ in range(self._rng.randint(1, REQUESTS)):
            yield self.one()

    def one(self) -> bytes:
        """Return a request."""
        rng = self._rng
        headers = ["Host: localhost", *(rng.choice(HEADERS) for _ in range(rng.choice((0, 0, 0, 1, 2))))]
        if rng.random() < 0.5:
            path, good = rng.choice(BODIES)
            method = rng.choice(METHODS) if rng.random() < 0.2 else rng.choice(("POST", "POST", "PUT"))
            return self._with_body(method, self._path(path), headers, self._body(good))
        path, _, query = rng.choice(URLS).partition("?")
        method = rng.choice(METHODS) if rng.random() < 0.2 else "GET"
        target = self._path(path) + ("?" + self._query(query) if query else "")
        return self._text(method, target, headers)

    def _path(self, path: str) -> str:
        if self._rng.random() < 0.9:
            return path
        parts = path.split("/")
        parts[self._rng.randrange(len(parts))] = self._escaped(self._rng.choice(TEXTS))
        return "/".join(parts)

    def _query(self, query: str) -> str:
        pairs = [pair.partition("=")[::2] for pair in query.split("&")]
        for _ in range(self._rng.choice((0, 1, 1, 2))):
            at = self._rng.randrange(len(pairs))
            name, value = pairs[at]
            kind = self._rng.random()
            if kind < 0.4:
                pairs[at] = name, self._rng.choice(TEXTS)
            elif kind < 0.7:
                pairs[at] = name, self._spoiled(value)
            elif kind < 0.8:
                pairs.pop(at)
                pairs.append((name, ""))
            else:
                pairs.append((self._rng.choice(("jsonp", "tz", "m", "serializer", "corrected")), value))
        return "&".join(f"{name}={self._escaped(value)}" for name, value in pairs)

    def _spoiled(self, text: str) -> str:
        at = self._rng.randint(0, len(text))
        return text[:at] + self._rng.choice(TEXTS) + text[at + self._rng.randint(0, 2) :]

    def _escaped(self, text: str) -> str:
        if self._rng.random() < 0.05:
            return text.encode("ascii", "ignore").decode().translate({32: None, 10: None, 13: None, 0: None})
        return quote(text, safe="/:,*'", errors="replace")

    def _body(self, good: Any) -> bytes:
        rng = self._rng
        value = json.loads(json.dumps(good))
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            value = self._changed(value)
        body = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        kind = rng.random()
        if kind < 0.05:
            return body[: rng.randint(0, len(body))]
        if kind < 0.1:
            at = rng.randint(0, len(body))
            return body[:at] + rng.randbytes(3) + body[at:]
        if kind < 0.12:
            return (b"[" if rng.random() < 0.5 else b'{"a":') * rng.choice((100, 100_000))
        if kind < 0.14:
            return body[:1] + b" " * 200_000 + body[1:]
        return body

    def _changed(self, value: Any) -> Any:
        """Replace one part of a JSON value with something odd."""
        if isinstance(value, dict) and value and self._rng.random() < 0.9:
            name = self._rng.choice(list(value))
            if self._rng.random() < 0.1:
                return {**value, self._rng.choice(TEXTS): value[name]}
            return {**value, name: self._changed(value[name])}
        if isinstance(value, list) and value and self._rng.random() < 0.8:
            at = self._rng.randrange(len(value))
            return [*value[:at], self._changed(value[at]), *value[at + 1 :]]
        return self._odd(value)

    def _odd(self, value: Any) -> Any:
        rng = self._rng
        nested: Any = value
        for _ in range(rng.choice((1, 3, 200))):
            nested = [nested] if rng.random() < 0.5 else {"a": nested}
        odd: tuple[Any, ...] = (None, True, False, [], {}, [None], [[]], {"": None}, nested, [value] * 50)
        return rng.choice((rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice(odd)))

    def _with_body(self, method: str, target: str, headers: list[str], body: bytes) -> bytes:
        rng = self._rng
        kind = rng.random()
        if kind < 0.1:
            packed = gzip.compress(body)
            if rng.random() < 0.3:
                packed = packed[: rng.randint(0, len(packed))]
            return self._text(method, target, [*headers, "Content-Encoding: gzip"], packed)
        if kind < 0.3:
            size = rng.choice((b"%x", b"%X;a=b", b"0%x", b"-%x", b"%xg", b"fffffffffffffffff%x")) % len(body)
            sent = size + b"\r\n" + body + b"\r\n0\r\n" + rng.choice((b"\r\n", b"A: b\r\n\r\n", b"\0\r\n\r\n", b""))
            return self._text(method, target, [*headers, "Transfer-Encoding: chunked"], sent, counted=False)
        if kind < 0.35:
            return self._text(method, target, [*headers, f"Content-Length: {len(body) + rng.randint(-3, 3)}"], body)
        return self._text(method, target, headers, body)

    def _text(self, method: str, target: str, headers: list[str], body: bytes = b"", *, counted: bool = True) -> bytes:
        if body and counted:
            headers = [*headers, f"Content-Length: {len(body)}"]
        version = "HTTP/1.1" if self._rng.random() < 0.95 else "HTTP/1.0"
        head = "\r\n".join([f"{method} {target} {version}", *headers, "", ""])
        return head.encode("latin-1", "replace") + body
