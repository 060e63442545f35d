"""`tsd copy` between KairosDB's tables and OpenTSDB's rows."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.command import Tsd, on_cassandra
from tests.peers.cassandra import RunningCassandra
from tests.peers.kairosdb import QUERY, ask
from tests.unit.tables.kairosdb_keyspace import opened_keyspace
from tsd.tables.writing import SeriesText

pytestmark = [pytest.mark.slow, pytest.mark.cassandra]
T_MS = 1_356_998_400_000
WEEK_MS = 7 * 86_400_000
EMBEDDED = {"tsd.kairosdb.enabled": "true", "tsd.core.tag.allow_specialchars": ""}
POINTS = {
    "cpu.load": ({"host": "a"}, [[T_MS + at * WEEK_MS, at * 1000] for at in range(20)]),
    "cpu.user": ({"host": "b", "dc": "x"}, [[T_MS + at * 500, at + 0.25] for at in range(9000)]),
    "odd:name": ({"host": "c"}, [[T_MS, 5]]),
}


def fill(tsd: Tsd) -> None:
    with tsd.serve() as served:
        for name, (tags, points) in POINTS.items():
            body = {"name": name, "tags": tags, "datapoints": points}
            assert ask(served.port, "/api/v1/datapoints?sync", body)[0] == 204


def points_of(tsd: Tsd) -> dict[str, Any]:
    """The points of each metric."""
    with tsd.serve() as served:
        names = ask(served.port, "/api/v1/metricnames")[1]["results"]
        body = {"start_absolute": 0, "metrics": [{"name": name} for name in names]}
        found = [query["results"][0] for query in ask(served.port, QUERY, body)[1]["queries"]]
    return {one["name"]: ({key: each for key, [each] in one["tags"].items()}, one["values"]) for one in found}


@pytest.fixture
def shared(cassandra: RunningCassandra, tmp_path: Path) -> Tsd:
    """Commands on KairosDB's tables."""
    settings = {"tsd.storage.layout": "kairosdb", "tsd.core.tag.allow_specialchars": ":"}
    tsd = Tsd(tmp_path / "shared", on_cassandra(cassandra, settings))
    assert tsd.run("create-tables").status == 0
    return tsd


async def put_text(cassandra: RunningCassandra, keyspace: str) -> None:
    async with opened_keyspace(cassandra, created=False, name=keyspace) as opened:
        await opened.put([(SeriesText(b"a.b", b"host=a"), T_MS + 4, "text")])


def to_embedded(folder: Path) -> list[str | Path]:
    settings = ("tsd.storage.layout=opentsdb", "tsd.core.tag.allow_specialchars=")
    return ["copy", "--to", f"embedded:{folder}", *(word for one in settings for word in ("--to-set", one))]


def test_points_are_copied_to_opentsdbs_rows(shared: Tsd, tmp_path: Path) -> None:
    fill(shared)
    own = Tsd(tmp_path / "own", EMBEDDED)
    refused = shared.run(*to_embedded(own.folder))
    assert refused.status == 1
    assert "odd:name" in refused.err
    assert points_of(own) == {name: POINTS[name] for name in ("cpu.load", "cpu.user")}
    done = shared.run(*to_embedded(own.folder), "--rename", "[:]=_", "--json")
    assert (done.status, json.loads(done.out)["points"]) == (0, 9021), done
    assert points_of(own) == {name.replace(":", "_"): points for name, points in POINTS.items()}


def test_points_are_copied_to_kairosdbs_tables(shared: Tsd, cassandra: RunningCassandra, tmp_path: Path) -> None:
    own = Tsd(tmp_path / "own", EMBEDDED | {"tsd.core.tag.allow_specialchars": ":"})
    fill(own)
    settings = ("tsd.storage.layout", "tsd.storage.cassandra.keyspace")
    words = [word for key in settings for word in ("--to-set", f"{key}={shared.settings[key]}")]
    done = own.run("copy", "--to", f"cassandra:{cassandra.address}", *words)
    assert done.status == 0, done
    assert points_of(shared) == POINTS


def test_points_that_expire_and_texts_are_counted(shared: Tsd, cassandra: RunningCassandra, tmp_path: Path) -> None:
    lines = b"".join(b"putm a.b %d %d host=a kairos_opt.ttl=900000\n" % (T_MS + at, at) for at in range(3))
    lines += b"putm a.b %d 7 host=a\n" % (T_MS + 3)
    with shared.but({"tsd.kairosdb.dialect": "true"}).serve() as served:
        assert served.send_lines(lines) == b"synced 4\n"
        served.flush()
    trio.run(put_text, cassandra, shared.settings["tsd.storage.cassandra.keyspace"])
    own = Tsd(tmp_path / "own", EMBEDDED)
    done = shared.run(*to_embedded(own.folder), "--json")
    counts = json.loads(done.out)
    assert done.status == 1
    assert (counts["points"], counts["expiring_points"], counts["texts"]) == (4, 3, 1)
    assert "time to live" in done.err
    assert points_of(own) == {"a.b": ({"host": "a"}, [[T_MS, 0], [T_MS + 1, 1], [T_MS + 2, 2], [T_MS + 3, 7]])}


def test_points_at_times_that_the_target_lacks_are_reported(
    shared: Tsd, cassandra: RunningCassandra, tmp_path: Path
) -> None:
    """Regression: they were left out in silence, and the exit status was 0."""
    keyspace = shared.settings["tsd.storage.cassandra.keyspace"]

    async def put() -> None:
        async with opened_keyspace(cassandra, created=False, name=keyspace) as opened:
            times = (-(10**14), -1000, T_MS, 32_503_680_000_000)
            await opened.put([(SeriesText(b"cpu.load", b"host=a"), time, 1) for time in times])

    trio.run(put)
    done = shared.run(*to_embedded(tmp_path / "own"), "--json")
    counts = json.loads(done.out)
    assert (done.status, counts["points"], counts["refused_points"]) == (1, 1, 3), done
    assert "cpu.load: 3 points" in done.err
