"""The daemon on rows of events and days: puts and queries of OpenTSDB's and KairosDB's APIs, deletes, kills, errors."""

import json
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.e2e.command import Tsd, on_bigtable, on_cassandra, on_hbase
from tests.e2e.layout_answers import T, kairos_values, query

pytestmark = pytest.mark.slow
RULES = "{0}SENSOR {{meter:010=ID}}#{{day}} meter.kwh; {0}METRIC {{host:24}}#{{ts}} *"
LAYOUT = {
    "tsd.storage.layout": "tall",
    "tsd.storage.flush_interval": "100",
    "tsd.kairosdb.enabled": "true",
    "tsd.http.query.allow_delete": "true",
    "tsd.access.anonymous": "read,write,admin",
}
SERVERS = ("hbase", "cassandra", "bigtable")
ENGINES = ["embedded", *(pytest.param(name, marks=getattr(pytest.mark, name)) for name in SERVERS)]
SETTINGS: dict[str, Callable[..., dict[str, str]]] = {"cassandra": on_cassandra, "bigtable": on_bigtable}


@pytest.fixture(params=ENGINES)
def tsd(request: pytest.FixtureRequest, tmp_path: Path) -> Tsd:
    """A daemon's folder and settings, with its tables."""
    prefix, settings = "", LAYOUT
    if request.param == "hbase":
        hbase = request.getfixturevalue("hbase")
        tables = hbase.unused_tables()
        prefix, settings = f"{tables.data}-", on_hbase(hbase, tables, LAYOUT)
    elif request.param != "embedded":
        settings = SETTINGS[request.param](request.getfixturevalue(request.param), LAYOUT)
    own = {"tsd.tall.tables": RULES.format(prefix), "tsd.tall.series_table": f"{prefix}listed"}
    made = Tsd(tmp_path / "state", {**settings, **own})
    assert made.run("create-tables").status == 0
    return made


def embedded(folder: Path, settings: Mapping[str, str] | None = None) -> Tsd:
    """A daemon's folder and settings on the embedded store."""
    return Tsd(folder / "state", {**LAYOUT, "tsd.tall.tables": RULES.format(""), **(settings or {})})


def test_points_are_put_queried_kept_and_deleted(tsd: Tsd) -> None:
    wanted = {"a": {str(T): 1, str(T + 7200): -3}, "b": {str(T + 1): 2.5}}
    day = {str(T + 900 * number): number / 4 for number in range(100)}
    with tsd.serve() as served:
        lines = f"put a.b {T} 1 host=a\nput a.b {T + 7200} -3 host=a\nput a.b {T + 1} 2.5 host=b\nput c {T} 1 dc=x\n"
        answer = served.send_lines(lines.encode())
        assert b"got no tag host" in answer
        assert answer.endswith(b"synced 3\n")
        body = [
            {"metric": "meter.kwh", "timestamp": int(at), "value": value, "tags": {"meter": "42"}}
            for at, value in day.items()
        ]
        url = f"http://127.0.0.1:{served.port}/api/put?sync"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as done:
            assert done.status == 204
        assert query(served, "m=sum:a.b{host=*}") == wanted
    with tsd.serve() as served:
        assert query(served, "m=sum:a.b{host=*}") == wanted
        assert query(served, "m=sum:a.b{host=b}&m=max:a.b{host=a}") == wanted  # one read for both
        assert query(served, "m=sum:1h-count:a.b") == {"": {str(T): 2, str(T + 7200): 1}}
        assert query(served, "m=sum:meter.kwh{meter=42}") == {"42": day}
        assert kairos_values(served, "a.b") == [[T * 1000, 1], [T * 1000 + 1000, 2.5], [T * 1000 + 7_200_000, -3]]
        assert query(served, "m=sum:a.b{host=b}", "DELETE") == {"b": wanted["b"]}
        assert query(served, "m=sum:a.b{host=*}") == {"a": wanted["a"]}
        found = json.loads(tsd.run("export", "--day", "20130101", "--json").out)
        assert (found["rows"], found["cells"], found["changed"]) == (1, 97, 97)
    done = tsd.run("export", "--day", "20130101", "--keep", "1", "--json")
    again = json.loads(done.out)
    assert (again["cells"], again["changed"], again["dropped"]) == (97, 0, [found["table"]]), done
    aging = tsd.but({"tsd.retention.rules": "meter.*=forever; *=7d"})
    preview = json.loads(aging.run("retention", "--dry-run", "--json").out)["rules"]
    assert preview == json.loads(aging.run("retention", "--trust-clock", "--json").out)["rules"]
    assert (preview["*=7d"]["rows"], preview["*=7d"]["points"]) == (2, 2)
    with aging.serve() as served:
        assert query(served, "m=sum:meter.kwh{meter=42}") == {"42": day}
        assert query(served, "m=sum:a.b{host=*}") == {}
        assert "nothing has expired" in aging.run("retention", "--trust-clock").out


def test_scan_index_and_copy(tmp_path: Path) -> None:
    tsd = embedded(tmp_path)
    with tsd.serve() as served:
        lines = f"put a.b {T} 1 host=a dc=x\nput c.d {T} 0.5 host=a\n"
        lines += f"put meter.kwh {T} 1.5 meter=42\nput meter.kwh {T + 900} 2 meter=42\n"
        assert served.send_lines(lines.encode()) == b"synced 4\n"
    assert tsd.run("scan", "1", "sum", "meter.kwh").out.splitlines() == [
        "0000000042#20130101",
        f"  0000\t{T}000\t1.5",
        f"  0015\t{T + 900}000\t2",
    ]
    key = f"{'a':24}#{T}000"
    assert tsd.run("scan", "1", "sum", "a.b", "dc=x").out == f"{key}\n  a.b dc=x\t{T}000\t1\n"
    assert tsd.run("scan", "1", "sum", "a.b", "dc=y").out == ""
    assert tsd.run("scan", "--import", "1", "sum", "c.d").out == f"c.d {T}000 0.5 host=a\n"
    row = json.loads(tsd.run("scan", "--json", "1", "sum", "c.d").out)
    assert (row["row"], row["points"]) == (key, [[T * 1000, 0.5]])
    assert "tsd.storage.layout is tall" in tsd.run("scan", "--delete", "1", "sum", "c.d").err
    assert "No such name" in tsd.run("scan", "1", "sum", "absent").err

    lost = tsd.but({"tsd.tall.series_table": "rebuilt"})
    assert lost.run("create-tables").status == 0
    done = lost.run("index", "build", "--json")
    assert (done.status, json.loads(done.out)) == (0, {"rows": 2, "unreadable": 0}), done
    assert lost.run("scan", "--import", "1", "sum", "c.d").out == f"c.d {T}000 0.5 host=a\n"

    plain = Tsd(tmp_path / "plain")
    done = tsd.run("copy", "--to", f"embedded:{plain.folder}", "--to-set", "tsd.storage.layout=opentsdb", "--json")
    assert (done.status, json.loads(done.out)["points"]) == (0, 4), done
    assert plain.lines("c.d") == [f"c.d {T} 0.5 host=a"]


def test_copy_from_an_absent_store_is_an_error(tmp_path: Path) -> None:
    """Regression: with a mistyped state folder nothing was copied, with exit status 0."""
    absent = embedded(tmp_path)
    to = f"embedded:{tmp_path / 'plain'}"
    done = absent.run("copy", "--to", to, "--to-set", "tsd.storage.layout=opentsdb")
    assert (done.status, done.out) == (1, "")
    assert f"no embedded store in {absent.folder}" in done.err
    assert not absent.folder.exists()


def test_acknowledged_points_survive_kills(tmp_path: Path) -> None:
    tsd = embedded(tmp_path)
    for number in range(3):
        with tsd.spawn() as served:
            assert served.send_lines(f"put a.b {T + number} {number} host=a\n".encode()) == b"synced 1\n"
            served.kill()
    with tsd.serve() as served:
        assert query(served, "m=sum:a.b{host=*}") == {"a": {str(T + number): number for number in range(3)}}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tsd.tall.tables": "METRIC {ts}#{host} *"}, "tsd.tall.tables: METRIC: got '{ts}#{host}', wanted {ts}"),
        ({"tsd.tall.tables": "METRIC {host}{dc}#{ts} *"}, "wanted a width or a text after {host}"),
        ({"tsd.tall.series_table": "METRIC"}, "tsd.tall.series_table: got 'METRIC', wanted another name"),
        ({"tsd.retention.rollups": "*=7d"}, "tsd.retention.rollups: has no effect on tall tables, wanted"),
        ({"tsd.storage.backend": "cassandra", "tsd.tall.tables": "M {host}#{ts} *"}, "wanted a width of each tag"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, str], named: str, tmp_path: Path) -> None:
    tsd = embedded(tmp_path)
    assert tsd.run("check-config").status == 0
    done = tsd.but(settings).run("check-config")
    assert (done.status, named in done.err) == (2, True), done.err
    assert len(done.err.splitlines()) == 1, done.err


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--day", "2013"], "wanted a day as YYYYMMDD"),
        (["--day", "20990101"], "which is not over"),
        (["--table", "METRIC"], "wanted one of: SENSOR"),
    ],
)
def test_bad_exports_are_named(words: list[str], wanted: str, tmp_path: Path) -> None:
    done = embedded(tmp_path).run("export", *words)
    assert done.status != 0
    assert wanted in done.err
    plain = embedded(tmp_path, {"tsd.storage.layout": "opentsdb"}).run("export")
    assert "tsd.storage.layout is opentsdb" in plain.err


def test_commands_on_other_rows_refuse_the_layout(tmp_path: Path) -> None:
    for words in (["compact"], ["fsck", "--full-scan"], ["uid", "grep", "x"], ["import", "-"]):
        done = embedded(tmp_path).run(*words)
        assert done.status != 0
        assert "tsd.storage.layout is tall" in done.err, words
