"""`tsd copy` between engines: what is copied, what is refused, and the work of a daemon meanwhile."""

import json
import shutil
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.conformance.put_lines import Generator, block, series
from tests.e2e.command import Tsd, on_hbase, until
from tests.peers.hbase import RunningHbase
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.row import compact, data_cells
from tsd.store import Put

pytestmark = pytest.mark.slow
T = 1356998400
HOURS = [T, T + 3600]
SERIES = [series(b"sys.cpu", b"host=web01 cpu=0"), series(b"temp.caf\xe9", b"lieu=\xe9tage")]
NEWEST = MergeRules(fix_duplicates=True)
KILLED_ROWS = 30_000  # thirty pages: the copy is killed after the first checkpoint
METRICS = ("sys.cpu", "temp.café")


def filled(tsd: Tsd, seed: int = 1) -> list[str]:
    """Store points in several cells per row. Return what a scan prints."""
    for part in range(3):
        lines = Generator(seed + part, SERIES, HOURS).lines(100)
        assert tsd.run("import", "-", stdin=block(lines)).status == 0
    return tsd.lines(*METRICS)


def to(tsd: Tsd) -> list[str]:
    """Options that name a store as the target."""
    words = [word for key, value in tsd.settings.items() for word in ("--to-set", f"{key}={value}")]
    backend = tsd.settings.get("tsd.storage.backend", "embedded")
    where = tsd.folder if backend == "embedded" else tsd.settings["tsd.storage.hbase.thrift"]
    return ["--to", f"{backend}:{where}", *words]


def test_copy_from_embedded_to_hbase_and_back(hbase: RunningHbase, tmp_path: Path) -> None:
    home, back = Tsd(tmp_path / "home"), Tsd(tmp_path / "back")
    cluster = Tsd(tmp_path / "cluster", on_hbase(hbase, hbase.unused_tables()))
    wanted = filled(home)
    done = home.run("copy", *to(cluster))
    assert (done.status, done.out) == (0, "")
    assert done.err.startswith("created ")
    assert cluster.lines(*METRICS) == wanted
    named = {key: value for key, value in cluster.settings.items() if key.endswith("_table")}
    assert cluster.run("copy", *to(back.but(named))).status == 0
    assert back.but(named).lines(*METRICS) == wanted
    assert back.but(named).run("mkmetric", "new").out == "metrics new: [0, 0, 3]\n"
    for again in (home.run("copy", *to(cluster)), cluster.run("copy", *to(back.but(named)))):
        assert (again.status, again.err.split("; ")[1].split(" of ")[0]) == (0, "0")


def test_copy_keeps_write_times(hbase: RunningHbase, tmp_path: Path) -> None:
    home = Tsd(tmp_path / "home")
    tables = hbase.new_tables()
    filled(home)
    row = bytes.fromhex("00000150e22700000001000001")
    home.put_directly("tsdb", Put(row, b"t:\x0f\0", b"\1"))
    cluster = Tsd(tmp_path / "cluster", on_hbase(hbase, tables))
    assert home.run("copy", *to(cluster)).status == 0
    assert hbase.tables.timed(tables.data) == times_of(home)


def times_of(tsd: Tsd) -> dict[bytes, dict[bytes, tuple[bytes, int]]]:
    """Return all rows of the data table of a closed embedded store in happybase's form."""
    return {
        row.key: {cell.column: (cell.value, cell.time_ms) for cell in row.cells} for row in tsd.read_directly("tsdb")
    }


def test_copy_refuses_conflicting_uids(tmp_path: Path) -> None:
    home, other = Tsd(tmp_path / "home"), Tsd(tmp_path / "other")
    filled(home)
    assert other.run("mkmetric", "another").status == 0
    done = home.run("copy", *to(other))
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(
        "tsd: the target has other names under the same UIDs: metrics [0, 0, 1] is sys.cpu in the source"
    )
    assert other.run("uid", "grep", ".").out == "metrics another: [0, 0, 1]\n"


def test_copy_refuses_unsuitable_stores(tmp_path: Path) -> None:
    home, other = Tsd(tmp_path / "home"), Tsd(tmp_path / "other")
    nowhere = home.run("copy", *to(other))
    assert (nowhere.status, nowhere.err.startswith("tsd: no embedded store in ")) == (1, True)
    filled(home)
    same = home.run("copy", *to(home))
    assert (same.status, same.err) == (1, f"tsd: source and target are the same: embedded:{home.folder}\n")
    salted = home.run("copy", *to(other.but({"tsd.storage.salt.width": "1"})))
    assert (salted.status, "tsd.storage.uid.width.* and tsd.storage.salt.*" in salted.err) == (1, True)
    assert home.run("copy", "--to", tmp_path / "nosuch.conf").status == 2
    assert home.run("copy", *to(other), "--to-set", "tsd.network.prt=1").status == 2
    for nothing in ("embedded:", "embedded", "hbase", "hbase:"):  # the first one once meant the working folder
        done = home.run("copy", "--to", nothing)
        assert (done.status, "wanted " in done.err, list(tmp_path.iterdir())) == (2, True, [home.folder])
    assert not other.folder.exists()


def test_copy_names_the_option_with_a_wrong_target(tmp_path: Path) -> None:
    """Regression: some errors named --set, or no option."""
    home, wrong = Tsd(tmp_path / "home"), tmp_path / "wrong.conf"
    wrong.write_text("tsd.storage.hbase.thrift = gateway\n")
    good = f"embedded:{tmp_path / 'other'}"
    setting = "tsd.storage.uid.width.metric=99"
    assert home.run("mkmetric", "m").status == 0
    unusable = home.run("copy", "--to", f"embedded:{wrong}")
    assert (unusable.status, unusable.err.count(str(wrong)), "--data" in unusable.err) == (1, 1, False), unusable
    assert "--to" in unusable.err
    for options, words in (
        (("--to", "embedded:"), ("--to: ", "'embedded:'")),
        (("--to", "bigtable:project"), ("--to: ", "'bigtable:project'")),
        (("--to", "hbas:gateway:9090"), ("--to: ", "'hbas:gateway:9090'")),
        (("--to", f"{tmp_path}"), ("--to: ", f"'{tmp_path}'")),
        (("--to", "hbase:gateway"), ("--to: ", "'gateway'")),
        (("--to", f"{wrong}"), (f"{wrong}, line 1: ", "'gateway'")),
        (("--to", good, "--to-set", setting), ("--to-set: ", "99")),
        (("--to", good, "--to-set", "width"), ("--to-set width: ",)),
        (("--to", "hbase:gateway:9090", "--to-set", "tsd.storage.hbase.thrift=gate"), ("--to-set: ", "'gate'")),
        (("--to", good, "--to-set", "tsd.storage.layout=kairosdb"), ("--to-set: ", "kairosdb")),
    ):
        done = home.run("copy", *options)
        assert (done.status, [word for word in words if word not in done.err]) == (2, []), done.err


def test_copy_target_from_configuration_file(tmp_path: Path) -> None:
    home, other = Tsd(tmp_path / "home"), Tsd(tmp_path / "other")
    wanted = filled(home)
    file = tmp_path / "other.conf"
    file.write_text(f"tsd.storage.path = {other.folder}\n")
    assert home.run("copy", "--to", file).status == 0
    assert other.lines(*METRICS) == wanted


def test_next_copy_includes_points_sent_meanwhile(tmp_path: Path) -> None:
    settings = {"tsd.storage.flush_interval": "3600000"}
    home, other = Tsd(tmp_path / "home", settings), Tsd(tmp_path / "other", settings)
    with home.serve() as daemon, other.serve() as theirs:
        first = Generator(1, SERIES, HOURS).lines(100)
        daemon.send_lines(block(first))
        assert home.run("copy", *to(other)).status == 0
        wanted = home.lines(*METRICS)
        assert len(wanted) > 50
        assert other.lines(*METRICS) == wanted
        daemon.send_lines(block(Generator(2, [*SERIES, series(b"new", b"host=new")], HOURS).lines(100)))
        theirs.send_lines(b"put sys.cpu %d 1 host=web01 cpu=0\n" % (T + 7200))
    assert home.run("copy", *to(other)).status == 0
    wanted = [*home.lines(*METRICS, "new"), f"sys.cpu {T + 7200} 1 host=web01 cpu=0"]
    assert sorted(other.lines(*METRICS, "new")) == sorted(wanted)


def test_killed_copy_resumes_and_includes_new_points(tmp_path: Path) -> None:
    """Regression: rows before the checkpoint were not copied again."""
    home, other = Tsd(tmp_path / "home"), Tsd(tmp_path / "other")
    lines = [f"m {T + 3600 * hour} 1 a=b" for hour in range(KILLED_ROWS)]
    assert home.run("import", "-", stdin="".join(line + "\n" for line in lines).encode()).status == 0
    with home.popen("copy", *to(other)) as process:
        until(lambda: bool(list(home.folder.glob("copy-*.json"))) or process.poll() is not None, "a checkpoint")
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert len(other.lines("m")) < len(lines)
    late = f"m {T + 1} 2 a=b"
    assert home.run("import", "-", stdin=late.encode()).status == 0
    done = home.run("copy", *to(other))
    assert (done.status, done.err.split("\n")[0].startswith("continuing after row 000001")) == (0, True), done
    assert other.lines("m") == [lines[0], late, *lines[1:]] == home.lines("m")
    assert other.run("uid", "fsck").status == 0
    assert list(home.folder.glob("copy-*.json")) == []


def test_killed_copy_to_another_layout_starts_over_for_a_new_target(tmp_path: Path) -> None:
    """Regression: metrics that only a target had that is gone were not copied."""
    home, other = Tsd(tmp_path / "home"), Tsd(tmp_path / "other", {"tsd.storage.layout": "tall"})
    names = [f"m.{number:04d}" for number in range(300)]
    assert home.run("import", "-", stdin="".join(f"{name} {T} 1 host=a\n" for name in names).encode()).status == 0
    with home.popen("copy", *to(other)) as process:
        until(lambda: bool(list(home.folder.glob("copy-*.json"))) or process.poll() is not None, "a checkpoint")
        process.kill()
        assert process.wait() == -signal.SIGKILL
    shutil.copytree(other.folder, tmp_path / "kept")
    [checkpoint] = home.folder.glob("copy-*.json")
    shutil.copy(checkpoint, tmp_path)
    shutil.rmtree(other.folder)
    for is_new in (True, False):
        if not is_new:
            shutil.rmtree(other.folder)
            (tmp_path / "kept").rename(other.folder)
            shutil.copy(tmp_path / checkpoint.name, checkpoint)
        done = home.run("copy", *to(other), "--json")
        assert (done.status, json.loads(done.out)["metrics"]) == (0, len(names)), done.err[-500:]
        assert ("continuing after metric m." in done.err) != is_new
        assert other.lines(names[0], names[-1]) == [f"{name} {T}000 1 host=a" for name in (names[0], names[-1])]


def test_copy_to_another_layout_counts_what_it_leaves_out(tmp_path: Path) -> None:
    codecs = {"tsd.core.histograms.config": '{"net.opentsdb.core.SimpleHistogramDecoder": 42}'}
    home, other = Tsd(tmp_path / "home", codecs), Tsd(tmp_path / "other", {"tsd.storage.layout": "heroic"})
    place = {"metric": "m", "tags": {"host": "a"}, "timestamp": T}
    sent = [
        ("put", {**place, "value": 1}),
        ("histogram", {**place, "overflow": 0, "underflow": 0, "buckets": {"0,1.75": 12}}),
        ("annotation", {"startTime": T, "description": "of a series", "tsuid": "000001000001000001"}),
        ("annotation", {"startTime": T, "description": "global"}),
    ]
    with home.serve() as daemon:
        for endpoint, body in sent:
            url = f"http://127.0.0.1:{daemon.port}/api/{endpoint}"
            with urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
                assert answer.status in (200, 204)
    done = home.run("copy", *to(other), "--json")
    counts = json.loads(done.out)
    assert (done.status, counts["points"], counts["annotations"], counts["histograms"]) == (1, 1, 2, 1), done
    assert "2 annotations, 1 histogram" in done.err


def test_unreachable_copy_target_keeps_progress(hbase: RunningHbase, tmp_path: Path) -> None:
    home = Tsd(tmp_path / "home")
    cluster = Tsd(tmp_path / "cluster", on_hbase(hbase, hbase.new_tables()))
    wanted = filled(home)
    hbase.thrift_kill()
    assert home.run("copy", *to(cluster)).status == 3
    hbase.thrift_start()
    assert home.run("copy", *to(cluster)).status == 0
    assert cluster.lines(*METRICS) == wanted


def test_hidden_cells_reported_unless_points_exist(hbase: RunningHbase, tmp_path: Path) -> None:
    """A delete in HBase hides puts with an older time. After a compaction in the target that does no harm. After a
    deletion of points it does."""
    home, tables = Tsd(tmp_path / "home"), hbase.new_tables()
    cluster = Tsd(tmp_path / "cluster", on_hbase(hbase, tables))
    wanted = filled(home)
    assert home.run("copy", *to(cluster)).status == 0
    for key, cells in hbase.tables.timed(tables.data).items():
        row = compact(key, data_cells((column, *cell) for column, cell in cells.items()), NEWEST)
        assert row.obsolete
        hbase.tables.put(tables.data, key, {COLUMN + point.qualifier: point.value for point in row.merged})
        hbase.tables.delete(tables.data, key, [COLUMN + cell.qualifier for cell in row.obsolete])
    assert home.run("copy", *to(cluster)).status == 0
    assert cluster.lines(*METRICS) == wanted
    assert cluster.run("delete", "sys.cpu", "--since", "1", "--until", "now", "--yes").status == 0
    done = home.run("copy", *to(cluster))
    assert (done.status, "2 rows written cannot be read back" in done.err) == (1, True)


@pytest.mark.parametrize("layout", ["opentsdb", "tall"])
def test_metadata_of_entities_is_copied(layout: str, tmp_path: Path) -> None:
    kept = {"tsd.entity.enabled": "true"}
    home = Tsd(tmp_path / "home", {**kept, "tsd.core.tag.allow_specialchars": "#"})
    target = Tsd(tmp_path / "target", {**kept, "tsd.entity.period": "30d", "tsd.storage.layout": layout})
    assert home.run("import", "--auto-metric", "-", stdin=b"m %d 1 host=a\n" % T).status == 0
    for name in ("a", "b#1", "c"):
        assert home.run("entity", "set", name, f"rack=r-{name}").status == 0
    done = home.run("copy", *to(target))
    assert (done.status, done.err.splitlines()[-1]) == (
        1, "tsd: not copied: 1 value of metadata of entities of the source"  # of a name that the target cannot have
    )  # fmt: skip
    assert target.run("entity", "set", "a", "rack=later").status == 0
    assert home.run("copy", *to(target)).status == 1
    shown = [json.loads(target.run("entity", name, "--json").out)["metadata"] for name in ("a", "c")]
    assert shown == [{"rack": "later"}, {"rack": "r-c"}]


def test_copy_tells_of_metadata_of_entities_that_it_leaves(tmp_path: Path) -> None:
    home = Tsd(tmp_path / "home", {"tsd.entity.enabled": "true"})
    plain = Tsd(tmp_path / "plain", {"tsd.entity.enabled": "false"})
    assert home.run("import", "--auto-metric", "-", stdin=b"m %d 1 host=a\n" % T).status == 0
    assert home.run("copy", *to(plain)).status == 0
    assert home.run("entity", "set", "a", "rack=r1").status == 0
    done = home.run("copy", *to(plain))
    assert (done.status, "not copied: 1 value of metadata of entities" in done.err) == (1, True)
