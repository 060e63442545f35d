"""A running KairosDB and the daemon on the same tables: each reads what the other writes, and both answer alike."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.command import Served, Tsd, on_cassandra
from tests.kairosdb_series import is_same
from tests.peers.cassandra import RunningCassandra
from tests.peers.kairosdb import QUERY, Kairosdb, ask
from tests.peers.needs import need_peer

pytestmark = [pytest.mark.slow, pytest.mark.cassandra]
T_MS = 1_356_998_400_000
DAY_MS = 86_400_000
PUT, DELETE = "/api/v1/datapoints", "/api/v1/datapoints/delete"
SETTINGS = {
    "tsd.storage.layout": "kairosdb",
    "tsd.storage.flush_interval": "100",
    "tsd.kairosdb.dialect": "true",
    "tsd.http.query.allow_delete": "true",
    "tsd.access.anonymous": "read,write,admin",
}


class Pair:
    """A KairosDB and a daemon on one keyspace."""

    def __init__(self, kairosdb: Kairosdb, served: Served) -> None:
        self.kairosdb = kairosdb
        self.served = served

    def put(self, body: object) -> None:
        """Put points through the daemon, into the tables."""
        assert ask(self.served.port, f"{PUT}?sync", body)[0] == 204

    def answers(self, *metrics: dict[str, Any], **members: Any) -> Any:
        """Return KairosDB's answer to a query, which must be the daemon's too."""
        body = {"start_absolute": T_MS, "end_absolute": T_MS + 60 * DAY_MS, "time_zone": "UTC", "metrics": metrics}
        theirs = ask(self.kairosdb.port, QUERY, body | members)[1]
        ours = ask(self.served.port, QUERY, body | members)[1]
        assert is_same(ours, theirs), (ours, theirs)
        return theirs["queries"][0]


@pytest.fixture(scope="module")
def pair(cassandra: RunningCassandra, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    need_peer("kairosdb")
    folder = tmp_path_factory.mktemp("shared")
    settings = on_cassandra(cassandra, SETTINGS)
    kairosdb = Kairosdb(folder / "kairosdb", cassandra, settings["tsd.storage.cassandra.keyspace"])
    with Tsd(folder / "state", settings).serve() as served:
        yield Pair(kairosdb, served)
    kairosdb.kill()


def metric_of(name: str, *points: Any, **tags: str) -> dict[str, Any]:
    return {"name": name, "tags": tags or {"host": "a"}, "datapoints": points}


def test_kairosdb_reads_points_of_the_daemon(pair: Pair) -> None:
    points = [[T_MS + at * DAY_MS, value] for at, value in enumerate((1, 2.5, -3, 1.5e300, 2**63 - 1, -(2**63), 0, 30))]
    pair.put([metric_of("ours", *points), metric_of("ours", [T_MS + 30 * DAY_MS, 7], host="b", dc="x")])
    lines = b"putm ours %d 8 host=c\nput ours %d 9.5 host=c\n" % (T_MS, T_MS // 1000 + 1)
    assert pair.served.send_lines(lines) == b"synced 2\n"
    pair.served.flush()
    found = pair.answers({"name": "ours", "group_by": [{"name": "tag", "tags": ["host"]}]})
    assert [one["values"] for one in found["results"]] == [
        points,
        [[T_MS + 30 * DAY_MS, 7]],
        [[T_MS, 8], [T_MS + 1000, 9.5]],
    ]


def test_daemon_reads_points_of_kairosdb(pair: Pair) -> None:
    lines = b"".join(b"putm theirs %d %d host=h%d\n" % (T_MS + at * 5_000_000, at, at % 3) for at in range(600))
    lines += b"".join(b"put theirs %d %d.5 host=h1\n" % (T_MS // 1000 + at, at) for at in range(1, 100))
    pair.kairosdb.send(lines)
    pair.kairosdb.await_points("theirs", 699)
    for aggregator in ("sum", "avg", "max", "count", "dev", "last"):
        step = {"name": aggregator, "sampling": {"value": 6, "unit": "hours"}}
        assert pair.answers({"name": "theirs", "aggregators": [step]})["sample_size"] == 699
    assert pair.answers({"name": "theirs", "tags": {"host": ["h1"]}})["sample_size"] == 299
    assert pair.answers({"name": "theirs", "tags": {"host": "regex:h[02]"}, "limit": 5})["sample_size"]


def test_both_write_one_series(pair: Pair) -> None:
    for turn in range(5):
        pair.put(metric_of("both", *([T_MS + at * 1000, turn] for at in range(turn, 100, 10))))
        pair.kairosdb.send(
            b"".join(b"putm both %d %d host=a\n" % (T_MS + at * 1000, turn) for at in range(turn + 5, 100, 10))
        )
    pair.kairosdb.await_points("both", 100)
    assert [value for _, value in pair.answers({"name": "both"})["results"][0]["values"]] == [0, 1, 2, 3, 4] * 20


def test_daemon_deletes_what_kairosdb_shows(pair: Pair) -> None:
    pair.kairosdb.send(b"".join(b"putm gone %d %d host=a\n" % (T_MS + at * 1000, at) for at in range(50)))
    pair.kairosdb.await_points("gone", 50)
    span = {"start_absolute": T_MS + 10_000, "end_absolute": T_MS + 19_000, "metrics": [{"name": "gone"}]}
    assert ask(pair.served.port, DELETE, span)[0] == 204
    assert pair.answers({"name": "gone"})["sample_size"] == 40
    assert ask(pair.served.port, "/api/v1/metric/gone", method="DELETE")[0] == 204
    assert pair.answers({"name": "gone"})["sample_size"] == 0
    pair.kairosdb.send(b"putm gone %d 7 host=a\n" % T_MS)
    pair.kairosdb.await_points("gone", 1)
    assert pair.answers({"name": "gone"})["sample_size"] == 1


def test_kairosdb_deletes_what_the_daemon_shows(pair: Pair) -> None:
    pair.put(metric_of("left", *([T_MS + at * 1000, at] for at in range(50))))
    pair.kairosdb.await_points("left", 50)
    span = {"start_absolute": T_MS, "end_absolute": T_MS + 9_000, "metrics": [{"name": "left"}]}
    assert ask(pair.kairosdb.port, DELETE, span)[0] == 204
    pair.kairosdb.await_points("left", 40)
    assert pair.answers({"name": "left"})["sample_size"] == 40


def test_points_with_a_time_to_live_are_shared(pair: Pair) -> None:
    pair.put(metric_of("lives", [T_MS, 1]) | {"ttl": 1_000_000})
    assert pair.served.send_lines(b"putm lives %d 2 host=a kairos_opt.ttl=1000000\n" % (T_MS + 1)) == b"synced 1\n"
    pair.served.flush()
    found = pair.answers({"name": "lives"})["results"][0]
    assert (found["tags"], found["values"]) == ({"host": ["a"]}, [[T_MS, 1], [T_MS + 1, 2]])


def test_texts_are_shared(pair: Pair) -> None:
    """Texts and numbers of one series and one time are all kept, in both APIs."""
    pair.put([metric_of("texts", [T_MS, "up"], [T_MS, 5], [T_MS + 2, 7, "string"])])
    lines = b'puts texts %d "100%% = \xc3\xa9 b" host=b\nputs texts %d "" host=b\n'
    lines += b"put texts %d 1 host=b\nputs texts %d down host=a\n"
    sent = lines % (T_MS, T_MS + 1, T_MS // 1000, T_MS + 5 * DAY_MS)
    assert pair.served.send_lines(sent) == b"synced 4\n"
    pair.kairosdb.send(b"puts texts %d theirs host=a\n" % (T_MS + 3))
    pair.kairosdb.await_points("texts", 8)
    by_host = {"name": "texts", "group_by": [{"name": "tag", "tags": ["host"]}]}
    results = pair.answers(by_host)["results"]
    texts = [one["values"] for one in results if one["group_by"][-1]["type"] == "text"]
    assert [[text for _, text in values] for values in texts] == [["up", "7", "theirs", "down"], ["100% = é b", ""]]
    assert pair.answers({"name": "texts", "tags": {"host": ["b"]}})["sample_size"] == 3
    count = {"name": "count", "sampling": {"value": 1, "unit": "weeks"}}
    assert pair.answers({"name": "texts", "aggregators": [count]})["sample_size"] == 8
    span = {"start_absolute": T_MS, "end_absolute": T_MS + 1000, "metrics": [{"name": "texts"}]}
    assert ask(pair.served.port, DELETE, span)[0] == 204
    assert [one["values"] for one in pair.answers({"name": "texts"})["results"]] == [[[T_MS + 5 * DAY_MS, "down"]]]


def test_names_are_those_of_kairosdb(pair: Pair) -> None:
    pair.put(metric_of("named.here", [T_MS, 1]))
    theirs = ask(pair.kairosdb.port, "/api/v1/metricnames?prefix=named")[1]
    assert ask(pair.served.port, "/api/v1/metricnames?prefix=named")[1] == theirs == {"results": ["named.here"]}
    body = {"start_absolute": T_MS, "metrics": [{"name": "named.here"}]}
    assert ask(pair.served.port, f"{QUERY}/tags", body) == ask(pair.kairosdb.port, f"{QUERY}/tags", body)


def test_tags_of_texts_are_those_of_kairosdb(pair: Pair) -> None:
    """A series may have texts only, or only in some rows."""
    points = [metric_of("only.texts", [T_MS, "up"], host="a"), metric_of("only.texts", [T_MS, 5], host="b")]
    pair.put([*points, metric_of("only.texts", [T_MS + 30 * DAY_MS, "down"], host="b", dc="x")])
    for start_ms, tags in (
        (T_MS, {"host": {"a", "b"}, "dc": {"x"}}),
        (T_MS + 30 * DAY_MS, {"host": {"b"}, "dc": {"x"}}),
    ):
        body = {"start_absolute": start_ms, "metrics": [{"name": "only.texts"}]}
        for port in (pair.kairosdb.port, pair.served.port):
            [result] = ask(port, f"{QUERY}/tags", body)[1]["queries"][0]["results"]
            assert {name: set(values) for name, values in result["tags"].items()} == tags


def test_last_times_are_answered_as_by_kairosdb(pair: Pair) -> None:
    """Numbers until 2106, as in OpenTSDB's tables, and texts until 2286."""
    last_ms = 9_999_999_999_999
    pair.put([metric_of("at.end", [4_294_969_199_999, 5], host="a"), metric_of("at.end", [last_ms, "up"], host="a")])
    for start_ms in (4_294_965_600_000, 5_000_000_000_000):
        body = {"start_absolute": start_ms, "end_absolute": last_ms, "metrics": [{"name": "at.end"}]}
        answers = [ask(port, QUERY, body) for port in (pair.kairosdb.port, pair.served.port)]
        assert answers[0] == answers[1]
        assert "up" in json.dumps(answers[0][1])


def test_metadata_of_services_is_shared(pair: Pair) -> None:
    path = "/api/v1/metadata/shared/key"
    ports = (pair.kairosdb.port, pair.served.port)
    for writer, reader in (ports, ports[::-1], ports):
        for value in (["later"], [f"by {writer}"]):
            assert ask(writer, f"{path}/a", value)[0] == 204
        assert ask(reader, f"{path}/a") == (200, [f"by {writer}"])
        assert ask(reader, path) == (200, {"results": ["a"]})
    for writer, deleter in (ports, ports[::-1]):
        assert ask(writer, f"{path}/b", ["text"])[0] == 204
        assert ask(deleter, f"{path}/b", method="DELETE")[0] == 204
        assert ask(writer, path) == (200, {"results": ["a"]})
