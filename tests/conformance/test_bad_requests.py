# ruff: noqa: E501 (a request, a line)
"""Bad requests: status and message as in OpenTSDB, and no stack trace. Also odd requests that are answered.

Each row has the answer of a real OpenTSDB; where tsd differs on purpose, it has both.
"""

import http.client
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.conformance.random_queries import BASE_S
from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb, Opentsdbs

LINES = b"".join(b"put bad.m %d %d host=web01 dc=fra\n" % (BASE_S + at * 60, at) for at in range(5))
SPAN = f"start={BASE_S}&end={BASE_S + 600}"
TSUID = "000001000001000001000002000002"


class Bad(NamedTuple):
    """A request with its error."""

    path: str
    status: int
    message: str
    body: Any = None
    method: str = ""
    ours: tuple[int, str] | None = None  # tsd's intentional difference

    @property
    def verb(self) -> str:
        return self.method or ("GET" if self.body is None else "POST")


def m(text: str) -> str:
    return f"/api/query?{SPAN}&m={text}"


def sub(**members: Any) -> dict[str, Any]:
    query = {"metric": "bad.m", "aggregator": "sum", **members}
    return {"start": BASE_S, "end": BASE_S + 600, "queries": [{k: v for k, v in query.items() if v is not None}]}


def one_filter(kind: str, text: str, tagk: str = "host") -> dict[str, Any]:
    return sub(filters=[{"type": kind, "tagk": tagk, "filter": text, "groupBy": False}])


NO_SUCH = "No such name for '{}': '{}'".format
BAD_JSON = "Unable to parse the given JSON"
WIDTH = "Wrong id.length = 1 which is != 3 required for 'metrics'"
SPEC = "Invalid downsampling specifier '{}': ".format
EARLY = "End time [{}] must be greater than the start time [{}]".format
TABLE = [
    Bad("/api/query", 400, "Missing parameter <code>start</code>"),
    Bad("/api/query?m=sum:bad.m", 400, "Missing parameter <code>start</code>"),
    Bad("/api/query?start=1h-ago", 400, "Missing sub queries"),
    Bad(f"/api/query?start={BASE_S}&end={BASE_S}&m=sum:bad.m", 400, EARLY(BASE_S * 1000, BASE_S * 1000)),
    Bad(f"/api/query?start={BASE_S}&end={BASE_S - 1}&m=sum:bad.m", 400, EARLY(BASE_S * 1000 - 1000, BASE_S * 1000)),
    Bad("/api/query?start=x&m=sum:bad.m", 400, "Invalid time: x. Invalid character 'x' in x"),
    Bad("/api/query?start=13x&m=sum:bad.m", 400, "Invalid time: 13x. Invalid character 'x' in 13x"),
    Bad("/api/query?start=-5&m=sum:bad.m", 400, "Invalid time: -5. Negative timestamps are not supported."),
    Bad(
        "/api/query?start=1356998400.1234&m=sum:bad.m", 400,
        "Invalid time: 1356998400.1234. Millisecond timestamps must be in the format <seconds>.<ms> where the "
        "milliseconds are limited to 3 digits",
    ),
    Bad("/api/query?start=2013/01&m=sum:bad.m", 400, "Invalid absolute date: 2013/01"),
    Bad("/api/query?start=1x-ago&m=sum:bad.m", 400, "Invalid duration (suffix): 1x"),
    Bad("/api/query?start=h-ago&m=sum:bad.m", 400, "Invalid duration (number): h"),
    Bad("/api/query?start=0h-ago&m=sum:bad.m", 400, "Zero or negative duration: 0h"),
    Bad(m(""), 400, "The query string was empty"),
    Bad(m("sum"), 400, "Invalid parameter m=sum (not enough :-separated parts)"),
    Bad(m("sum:a:b:c:d:bad.m"), 400, "Invalid parameter m=sum:a:b:c:d:bad.m (too many :-separated parts)"),
    Bad(m("nosuch:bad.m"), 400, "No such aggregation function: nosuch"),
    Bad(m("SUM:bad.m"), 400, "No such aggregation function: SUM"),
    Bad(m("sum:"), 500, "Metric cannot be null or empty"),
    Bad(m("sum:no.such.metric"), 400, NO_SUCH("metrics", "no.such.metric")),
    Bad(m("sum:bad.m{nokey=web01}"), 400, NO_SUCH("tagk", "nokey")),
    Bad(m("sum:bad.m{host=nohost}"), 400, NO_SUCH("tagv", "nohost")),
    Bad(m("sum:bad.m{host=web01|nohost}"), 400, NO_SUCH("tagv", "nohost")),
    Bad(m("sum:bad.m{host=web01"), 500, "Missing '}' at the end of: bad.m{host=web01"),
    Bad(m("sum:bad.m{host}"), 500, "When parsing tag 'host': invalid tag: host"),
    Bad(m("sum:bad.m{host=nokind(x)}"), 500, "When parsing tag 'host=nokind(x)': Could not find a tag value filter of the type: nokind"),
    Bad(m("sum:bad.m{host=wildcard(x)}"), 500, "When parsing tag 'host=wildcard(x)': Filter must contain an asterisk"),
    Bad(m("sum:bad.m{}{host}"), 500, "When parsing filter 'host': invalid tag: host"),
    Bad(m("sum:1m:bad.m"), 400, SPEC("1m") + "must provide at least interval and function"),
    Bad(m("sum:1m-avg-none-x:bad.m"), 400, SPEC("1m-avg-none-x") + "must consist of interval, function, and optional fill policy"),
    Bad(m("sum:1m-nosuch:bad.m"), 400, "No such downsampling function: nosuch"),
    Bad(m("sum:1m-none:bad.m"), 400, "cannot use the NONE aggregator for downsampling"),
    Bad(m("sum:1m-avg-never:bad.m"), 400, "Unrecognized fill policy: never"),
    Bad(m("sum:1x-avg:bad.m"), 400, "Invalid duration (suffix): 1x"),
    Bad(m("sum:0m-avg:bad.m"), 400, "Zero or negative duration: 0m"),
    Bad(m("sum:rate{counter,x}:bad.m"), 400, "Max value of counter was not a number, received 'x'"),
    Bad(m("sum:rate{counter,1,x}:bad.m"), 400, "Reset value of counter was not a number, received 'x'"),
    Bad(
        m("sum:rate{counter,1,2,3}:bad.m"), 400,
        "Incorrect number of values in rate options specification, must be counter[,counter max value,reset value], "
        "recieved: 4 parts",
    ),
    Bad(f"/api/query?{SPAN}&tsuid=", 400, "The tsuid query string was empty"),
    Bad(f"/api/query?{SPAN}&tsuid=sum", 400, "Invalid parameter m=sum (not enough :-separated parts)"),
    Bad(f"/api/query?{SPAN}&tsuid=sum:zz0001000001000001", 400, "contains illegal character for hexBinary: zz0001"),
    Bad("/api/query", 400, "Missing message content", b""),
    Bad("/api/query", 400, BAD_JSON, b"{"),
    Bad("/api/query", 400, BAD_JSON, b"[]"),
    Bad("/api/query", 400, BAD_JSON, {"start": BASE_S, "queries": 5}),
    Bad("/api/query", 400, BAD_JSON, sub(rateOptions={"nosuch": 1})),
    Bad("/api/query", 400, "Missing start time", {"queries": [{"metric": "bad.m", "aggregator": "sum"}]}),
    Bad("/api/query", 400, "Missing queries", {"start": BASE_S, "queries": []}),
    Bad("/api/query", 500, "An internal null pointer exception was thrown", {"start": BASE_S}),
    Bad("/api/query", 400, "Missing the aggregation function", sub(aggregator=None)),
    Bad("/api/query", 400, "No such aggregation function: avgg", sub(aggregator="avgg")),
    Bad("/api/query", 400, "Missing the metric or tsuids, provide at least one", sub(metric=None)),
    Bad("/api/query", 400, NO_SUCH("metrics", "no.such"), sub(metric="no.such")),
    Bad("/api/query", 400, "No such downsampling function: x", sub(downsample="1m-x")),
    Bad("/api/query", 400, SPEC("1m") + "must provide at least interval and function", sub(downsample="1m")),
    Bad("/api/query", 400, NO_SUCH("tagv", "nope"), one_filter("literal_or", "nope")),
    Bad("/api/query", 400, NO_SUCH("tagk", "nope"), one_filter("wildcard", "*", "nope")),
    Bad("/api/query", 400, BAD_JSON, one_filter("nosuch", "x")),
    Bad("/api/query", 400, BAD_JSON, one_filter("wildcard", "x")),
    Bad("/api/query", 400, BAD_JSON, one_filter("literal_or", "")),
    Bad("/api/query", 400, BAD_JSON, one_filter("literal_or", "|")),
    Bad("/api/query", 400, BAD_JSON, one_filter("regexp", "(")),
    Bad("/api/query", 400, "Invalid timezone name: Nowhere", {**sub(), "start": "2013/01/01-00:00", "timezone": "Nowhere"}),
    Bad("/api/query", 400, "The timezone specification could not be found", {**sub(downsample="1h-sum"), "timezone": "Nowhere"}),
    Bad("/api/query", 405, "Method not allowed", method="PUT"),
    Bad(m("sum:bad.m") + "&serializer=nosuch", 400, "Requested serializer was not found"),
    Bad("/api/v2/query?" + SPAN, 501, "Requested API version is greater than the max implemented"),
    Bad("/api/v1x/query?" + SPAN, 400, "Invalid API version format supplied"),
    Bad("/api/nosuch", 404, "Endpoint not found"),
    Bad("/api/query/last", 400, "Missing sub queries"),
    Bad("/api/query/last?timeseries=bad.m&back_scan=x", 400, "Unable to parse back_scan parameter"),
    Bad("/api/query/last?timeseries=no.such{host=a}&back_scan=1", 400, NO_SUCH("metrics", "no.such")),
    Bad("/api/query/gexp", 400, "Missing parameter <code>start</code>"),
    Bad(f"/api/query/gexp?{SPAN}&exp=nosuch(sum:bad.m)", 500, "Function nosuch has not been implemented"),
    Bad(f"/api/query/gexp?{SPAN}&exp=scale(sum:bad.m)", 400, "Missing scaling factor"),
    Bad(f"/api/query/gexp?{SPAN}&exp=alias(sum:bad.m)", 400, "Missing the alias"),
    Bad(f"/api/query/gexp?{SPAN}&exp=movingAverage(sum:bad.m)", 400, "Missing moving average window size"),
    Bad("/api/query/exp", 500, "missing time", {"metrics": []}),
    Bad("/api/query/exp", 400, "Bad request", method="DELETE"),
    Bad("/api/suggest", 400, "Missing parameter <code>type</code>"),
    Bad("/api/search/lookup?m=no.such", 404, "Unable to resolve one or more UIDs"),
    Bad("/api/uid/assign", 400, "Missing values to assign UIDs"),
    Bad("/api/uid/nosuch", 501, "Other UID endpoints have not been implemented yet"),
    Bad("/api/annotation?tsuid=000001000001000001", 400, "Missing start time"),
    Bad("/api/annotation", 400, "Missing start time", method="POST"),
    Bad("/api/annotation?description=x", 400, "Missing start time", method="PUT"),
    Bad("/api/annotation", 400, "Missing start time", method="PATCH"),
    Bad(f"/api/annotation?start_time={BASE_S}", 405, "Method not allowed", method="PATCH"),
    Bad("/api/annotation/bulk?start_time=1&description=x", 400, "Missing message content", method="POST"),
    Bad("/api/uid/uidmeta", 400, "Missing parameter <code>uid</code>", method="POST"),
    Bad("/api/uid/uidmeta?uid=000001", 400, "Missing parameter <code>type</code>", method="PUT"),
    Bad("/api/uid/uidmeta?uid=01&type=metric", 500, f"java.lang.IllegalArgumentException: {WIDTH}"),
    Bad("/api/uid/uidmeta?uid=01&type=metric&notes=n", 400, WIDTH, method="POST"),
    Bad("/api/uid/uidmeta", 400, WIDTH, {"uid": "01", "type": "metric", "notes": "n"}),
    Bad("/api/uid/tsmeta", 400, "Missing parameter <code>m</code>", method="POST"),
    Bad(f"/api/uid/tsmeta?tsuid={TSUID}&units=s", 400, "Requested TSMeta did not exist", method="POST"),
    Bad("/api/uid/assign?metric=x", 400, "Missing message content", method="POST"),
    Bad("/api/uid/rename?metric=x&name=y", 400, "Missing message content", method="POST", ours=(403, "Forbidden")),
    Bad("/api/suggest?type=metrics", 400, "Missing message content", method="POST"),
    Bad("/api/tree", 400, "Tree was missing the name", method="POST"),
    Bad("/api/tree/rule?treeid=77", 400, "Missing parameter <code>level</code>", method="POST"),
    Bad("/api/tree/rules", 400, "Invalid Tree ID", method="POST"),
    Bad("/api/tree/rules?treeid=77", 404, "Unable to locate tree: 77", method="POST"),
    Bad(m("sum:bad.m") + "&method_override=", 405, "Missing method override value"),
    Bad(m("sum:no.such") + "&method_override=patch", 405, "Unknown or unsupported method override value"),
    Bad("/api/query?method_override=patch", 400, "Missing parameter <code>start</code>"),
    Bad(f"/api/query/gexp?{SPAN}&exp=scale(sum:bad.m,2)&method_override=x", 405, "Unknown or unsupported method override value"),
    Bad("/api/search/lookup?m=bad.m&method_override=put", 400, "Unsupported method: PUT"),
    Bad("/api/search/lookup?m=bad.m&method_override=x", 405, "Unknown or unsupported method override value"),
    Bad("/api/put", 405, "Method not allowed", method="GET"),
    Bad("/api/put", 400, BAD_JSON, b"{nope"),
    Bad("/api/put", 400, "The JSON must start as an object or an array", b"5"),
    Bad("/api/put", 400, "One or more data points had errors", {"metric": "bad.m"}),
]  # fmt: skip


class Odd(NamedTuple):
    """An odd request, and parts of its answer."""

    method: str
    path: str
    wanted: Any
    body: Any = None


FOUND = [{"metric": "bad.m", "tags": {"host": "web01", "dc": "fra"}, "aggregateTags": [], "dps": {str(BASE_S): 0}}]
NOTE = f"/api/annotation?start_time={BASE_S}"
NAMED = "/api/uid/uidmeta?uid=000001&type=metric"
SERIES = f"/api/uid/tsmeta?tsuid={TSUID}"
# In order: overrides that are ignored, and parameters in the URI of a POST or PUT without a body.
ODD = [
    Odd("GET", f"/api/query?start={BASE_S}&end={BASE_S + 1}&m=sum:bad.m&method_override=post", FOUND),
    Odd("GET", f"/api/query?start={BASE_S}&end={BASE_S + 1}&m=sum:bad.m&method_override=PUT", FOUND),
    Odd("GET", "/api/suggest?type=metrics&q=bad.m&method_override=post", ["bad.m"]),
    Odd("GET", "/api/suggest?type=metrics&q=bad.m&method_override=x", ["bad.m"]),
    Odd("POST", "/api/search/lookup?m=bad.m&limit=3", {"type": "LOOKUP", "metric": "bad.m", "tags": [], "limit": 3}),
    Odd("GET", "/api/search/lookup?m=bad.m&method_override=post", {"metric": "bad.m", "tags": [], "limit": 25}),
    Odd("GET", "/api/search/lookup?m=no", {"metric": "bad.m", "limit": 4}, {"metric": "bad.m", "limit": 4}),
    Odd("POST", f"{NOTE}&description=x&endTime=5", {"description": "x", "notes": "", "endTime": 0}),
    Odd("POST", f"{NOTE}&notes=y&end_time={BASE_S + 5}", {"description": "x", "notes": "y", "endTime": BASE_S + 5}),
    Odd("PUT", f"{NOTE}&notes=z", {"description": "", "notes": "z", "endTime": 0}),
    Odd("POST", f"{NOTE}&notes=url", {"startTime": BASE_S + 1, "notes": "body"}, {"startTime": BASE_S + 1, "notes": "body"}),
    Odd("POST", f"{NOTE}&tsuid={TSUID}&description=of", {"tsuid": TSUID, "description": "of"}),
    Odd("POST", f"{NOTE}&tsuid={TSUID}&description=", None),
    Odd("POST", f"/api/annotations?start_time={BASE_S + 2}&description=one", {"description": "one", "tsuid": ""}),
    Odd("PUT", "/api/annotations", {"notes": "one"}, {"startTime": BASE_S + 2, "notes": "one"}),
    Odd("PUT", "/api/annotation/bulk", [], [{"startTime": BASE_S + 2}, {"startTime": BASE_S + 3, "notes": ""}]),
    Odd(
        "GET", "/api/annotations",
        [{"tsuid": "", "description": "", "notes": "one", "startTime": BASE_S + 2, "endTime": 0}],
        {"startTime": BASE_S + 2, "endTime": BASE_S + 50},
    ),
    Odd("POST", f"{NAMED}&description=d&custom=c", {"description": "d", "custom": None}),
    Odd("POST", f"{NAMED}&displayName=n", None),
    Odd("PUT", f"{NAMED}&display_name=n", {"description": "", "displayName": "n"}),
    Odd("GET", NAMED, {"displayName": "n"}, {"uid": "000002", "type": "tagk"}),
    Odd("POST", "/api/uid/tsmeta?m=bad.m{host=web01,dc=fra}&create=true&units=s&max=2", {"tsuid": TSUID, "units": "s", "max": 2.0}),
    Odd("PUT", f"{SERIES}&notes=n&data_type=int", {"units": "", "notes": "n", "dataType": "int"}),
    Odd("GET", "/api/uid/assign?metric=odd.m,,&tagk=odd.k&tagv=,", {"metric": {"odd.m": "000002"}, "tagk": {"odd.k": "000003"}}),
    Odd("POST", "/api/tree?name=T&strict_match=true", {"treeId": 1, "name": "T", "strictMatch": True}),
    Odd("PUT", "/api/tree?treeid=1&notes=n", {"name": "", "notes": "n", "strictMatch": False}),
    Odd("PUT", "/api/tree/rule?treeid=1&level=0&order=0&type=tagk&field=a", {"type": "TAGK", "field": "a", "regex": ""}),
]  # fmt: skip


def names() -> list[str]:
    return [f"{number}-{bad.verb}-{bad.path[:40]}" for number, bad in enumerate(TABLE)]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with Tsd(tmp_path_factory.mktemp("bad") / "state").serve() as serving:
        serving.send_lines(LINES)
        yield serving.port


@pytest.fixture(scope="module")
def peer(hbase: RunningHbase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opentsdb]:
    tables = hbase.new_tables()
    peers = Opentsdbs(hbase, tmp_path_factory.mktemp)
    try:
        with Tsd(tmp_path_factory.mktemp("bad-lines") / "state", on_hbase(hbase, tables)).serve() as serving:
            serving.send_lines(LINES)
        yield peers.start(tables, **{"tsd.http.show_stack_trace": "false"})
    finally:
        peers.close()


def test_table_has_enough_cases() -> None:
    assert len(TABLE) >= 60
    assert len({(bad.path, bad.verb, json.dumps(bad.body, default=str)) for bad in TABLE}) == len(TABLE)


@pytest.mark.parametrize("bad", TABLE, ids=names())
def test_bad_request_has_status_and_message(port: int, bad: Bad) -> None:
    status, error = fetch(port, bad)
    assert (status, error["message"]) == (bad.ours or (bad.status, bad.message))
    assert error["code"] == status
    assert "trace" not in error
    assert fetch(port, Bad("/api/version", 200, ""))[0] == 200


@pytest.mark.opentsdb
@pytest.mark.hbase
def test_bad_request_same_in_opentsdb(peer: Opentsdb) -> None:
    answers = [fetch(peer.port, bad) for bad in TABLE]
    others = [
        (bad.path, bad.body, status, error)
        for bad, (status, error) in zip(TABLE, answers, strict=True)
        if (status, error["message"] if isinstance(error, dict) else error) != (bad.status, bad.message)
    ]
    assert not others, "\n".join(map(str, others))


def test_odd_request_is_answered(port: int) -> None:
    for odd in ODD:
        check_odd(port, odd)


@pytest.mark.opentsdb
@pytest.mark.hbase
def test_odd_request_same_in_opentsdb(peer: Opentsdb) -> None:
    for odd in ODD:
        check_odd(peer.port, odd)


def check_odd(port: int, odd: Odd) -> None:
    """Assert that the answer has the table's content; None: that nothing changes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(odd.method, odd.path, odd.body and json.dumps(odd.body))
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    assert response.status == (304 if odd.wanted is None else 200), (odd, text)
    body = json.loads(text) if odd.wanted is not None else None
    shown = {name: body[name] for name in odd.wanted} if isinstance(body, dict) else body
    assert shown == odd.wanted, odd


def fetch(port: int, bad: Bad) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = bad.body if bad.body is None or isinstance(bad.body, bytes) else json.dumps(bad.body)
        connection.request(bad.verb, bad.path, body)
        response = connection.getresponse()
        answer = json.loads(response.read())
        return response.status, answer.get("error", answer) if isinstance(answer, dict) else answer
    finally:
        connection.close()
