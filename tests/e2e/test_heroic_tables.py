"""The daemon on Heroic's table: puts and queries of OpenTSDB's and KairosDB's APIs, kills, and clear errors."""

import json
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_bigtable
from tests.e2e.layout_answers import T, kairos_values, query
from tests.peers.bigtable import RunningBigtable

pytestmark = pytest.mark.slow
LAYOUT = {
    "tsd.storage.layout": "heroic",
    "tsd.storage.flush_interval": "100",
    "tsd.heroic.resource_tags": "host",
    "tsd.kairosdb.enabled": "true",
}
ENGINES = ["embedded", pytest.param("bigtable", marks=pytest.mark.bigtable)]


@pytest.fixture(params=ENGINES)
def tsd(request: pytest.FixtureRequest, tmp_path: Path) -> Tsd:
    """A daemon's folder and settings, with its tables."""
    if request.param == "embedded":
        return Tsd(tmp_path / "state", LAYOUT)
    bigtable: RunningBigtable = request.getfixturevalue("bigtable")
    made = Tsd(tmp_path / "state", on_bigtable(bigtable, LAYOUT))
    assert made.run("create-tables").status == 0
    return made


def test_points_are_put_queried_and_kept(tsd: Tsd) -> None:
    assert "metrics: exists" in tsd.run("create-tables").out
    wanted = {"a": {str(T): 1, str(T + 7200): -3}, "b": {str(T + 1): 2.5}}
    with tsd.serve() as served:
        lines = f"put a.b {T} 1 host=a\nput a.b {T + 7200} -3 host=a\nput a.b {T + 1} 2.5 host=b\n"
        assert served.send_lines(lines.encode()) == b"synced 3\n"
        assert query(served, "m=sum:a.b{host=*}") == wanted
    with tsd.serve() as served:
        assert query(served, "m=sum:a.b{host=*}") == wanted
        assert query(served, "m=sum:1h-count:a.b") == {"": {str(T): 2, str(T + 7200): 1}}
        assert query(served, "m=none:a.b{host=a}") == {"a": wanted["a"]}
        assert kairos_values(served, "a.b") == [[T * 1000, 1], [T * 1000 + 1000, 2.5], [T * 1000 + 7_200_000, -3]]
    aging = tsd.but({"tsd.retention.rules": "*=7d"})
    preview = json.loads(aging.run("retention", "--dry-run", "--json").out)["rules"]
    assert preview == json.loads(aging.run("retention", "--trust-clock", "--json").out)["rules"]
    assert (preview["*=7d"]["rows"], preview["*=7d"]["points"]) == (2, 3)
    with aging.serve() as served:
        assert query(served, "m=sum:a.b{host=*}") == {}


def test_acknowledged_points_survive_kills(tsd: Tsd) -> None:
    for number in range(3):
        with tsd.spawn() as served:
            assert served.send_lines(f"put a.b {T + number} {number} host=a\n".encode()) == b"synced 1\n"
            served.kill()
    with tsd.serve() as served:
        assert query(served, "m=sum:a.b{host=*}") == {"a": {str(T + number): number for number in range(3)}}


def test_a_long_key_is_refused_with_its_size(tsd: Tsd) -> None:
    with tsd.serve() as served:
        answer = served.send_lines(f"put m {T} 1 a={'v' * 4000}\nput m {T} 1 unit=%\n".encode())
        assert b"wanted up to 3999" in answer
        assert answer.endswith(b"synced 1\n")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tsd.retention.series": "7d"}, "tsd.retention.series"),
        ({"tsd.rollups.enable": "true", "tsd.rollups.config": "{}"}, "tsd.rollups.enable"),
        ({"tsd.heroic.series_table": "metrics"}, "tsd.heroic.series_table"),
    ],
)
def test_settings_without_a_place_are_named(settings: dict[str, str], named: str, tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", LAYOUT)
    assert tsd.run("check-config").status == 0
    done = tsd.but(settings).run("check-config")
    assert (done.status, named in done.err) == (2, True)


def test_commands_on_other_rows_refuse_the_layout(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", LAYOUT)
    for words in (["compact"], ["fsck", "--full-scan"], ["uid", "grep", "x"], ["import", "-"]):
        done = tsd.run(*words)
        assert done.status != 0
        assert "tsd.storage.layout is heroic" in done.err, words


SEED = "system {} {} cpu-type=idle host=database.example.com podname=pod-example-123-abc site=gew unit=%"
POD = {"tsd.heroic.resource_tags": "host,podname"}


def put_seed(tsd: Tsd) -> None:
    """Put the two points of Heroic's documentation, with fewer tags."""
    with tsd.serve() as served:
        lines = [f"put {SEED.format(1_300_000_000_000, 42)}\n", f"put {SEED.format(1_300_001_000_000, 84.0)}\n"]
        assert served.send_lines("".join(lines).encode()) == b"synced 2\n"


def test_scan_prints_readable_keys_and_lines(tsd: Tsd) -> None:
    tsd = tsd.but(POD)
    put_seed(tsd)
    done = tsd.run("scan", "1", "sum", "system", "podname=pod-example-123-abc")
    assert done.status == 0, done
    key, *points = done.out.splitlines()
    assert key == "system,cpu-type=idle,site=gew,unit=%,1297080123392,database.example.com,pod-example-123-abc"
    assert [line.split() for line in points] == [
        ["2919876608", "1300000000000", "42.0"],
        ["2920876608", "1300001000000", "84.0"],
    ]
    assert tsd.run("scan", "1", "sum", "system", "podname=other").out == ""
    lines = tsd.run("scan", "--import", "1", "sum", "system").out.splitlines()
    assert [line.split()[:3] for line in lines] == [["system", t, v] for _, t, v in map(str.split, points)]
    rows = [json.loads(line) for line in tsd.run("scan", "--json", "1", "sum", "system").out.splitlines()]
    assert rows[0]["resource"]["host"] == "database.example.com"
    assert [point for row in rows for point in row["points"]] == [[1_300_000_000_000, 42.0], [1_300_001_000_000, 84.0]]
    assert "tsd.storage.layout is heroic" in tsd.run("scan", "--delete", "1", "sum", "system").err


def test_lost_index_is_built_from_rows(tsd: Tsd) -> None:
    tsd = tsd.but(POD)
    put_seed(tsd)
    lost = tsd.but({"tsd.heroic.series_table": "rebuilt"})
    assert lost.run("create-tables").status == 0
    done = lost.run("index", "build", "--json")
    assert (done.status, json.loads(done.out)) == (0, {"rows": 1, "unreadable": 0}), done
    with lost.serve() as served:
        url = f"http://127.0.0.1:{served.port}/api/query?start=1299999999&end=1300002000&m=sum:system%7Bhost=*%7D"
        with urllib.request.urlopen(url, timeout=60) as answer:
            [group] = json.load(answer)
    assert group["dps"] == {"1300000000": 42.0, "1300001000": 84.0}
    assert group["tags"]["podname"] == "pod-example-123-abc"
    other = tsd.but({"tsd.storage.layout": "opentsdb"}).run("index", "build")
    assert "tsd.storage.layout is opentsdb" in other.err


def by_value(lines: Iterable[str]) -> set[tuple[str, int, float, frozenset[str]]]:
    """Return lines of `tsd scan --import` by value: metric, time in ms, value, tags."""
    found = set()
    for metric, time, value, *tags in map(str.split, lines):
        found.add((metric, int(time) * (1 if len(time) > 10 else 1000), float(value), frozenset(tags)))
    return found


def test_points_are_copied_there_and_back(tsd: Tsd, tmp_path: Path) -> None:
    own = Tsd(tmp_path / "own", {"tsd.core.tag.allow_specialchars": "%"})
    with own.serve() as served:
        lines = [f"put {SEED.format(1_300_000_000 + 3_600_000 * at, at)}\n" for at in range(50)]
        lines += [f"put other {1_300_000_000_123 + at} {at}.5 host=b dc=x\n" for at in range(50)]
        lines.append("put été 1300000000 1 host=b\n")  # beyond the names that OpenTSDB suggests
        assert served.send_lines("".join(lines).encode("latin-1")) == b"synced 101\n"
    wanted = by_value(own.lines("system", "other", "été"))
    assert len(wanted) == 101
    target = tsd.but(POD)
    to = tmp_path / "target.conf"
    settings = {**target.settings, "tsd.storage.path": str(target.folder)}
    to.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    done = own.run("copy", "--to", to, "--json")
    assert (done.status, json.loads(done.out)["points"]) == (0, 101), done
    words = ["1", "sum", "system", "sum", "other", "sum", "été"]
    found = target.run("scan", "--import", *words).out.splitlines()
    assert by_value(found) == wanted
    back = Tsd(tmp_path / "back", {"tsd.core.tag.allow_specialchars": "%"})
    given = ("tsd.storage.layout=opentsdb", "tsd.core.tag.allow_specialchars=%")
    for _ in range(2):  # a copy may be repeated
        words = [word for each in given for word in ("--to-set", each)]
        done = target.run("copy", "--to", f"embedded:{back.folder}", *words)
        assert done.status == 0, done
    assert by_value(back.lines("system", "other", "été")) == wanted
