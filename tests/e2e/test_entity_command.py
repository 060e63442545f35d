"""`tsd entity` on the embedded store, with and without a daemon."""

import json
import signal
from pathlib import Path

import pytest
import trio

from tests.e2e.command import Tsd
from tests.e2e.entities import stored_entities
from tsd.config.loader import Given
from tsd.daemon.settings import now_ms, read_config
from tsd.daemon.wiring import opened_store, versioned_cells
from tsd.store.versions import VersionPut
from tsd.tables.entity.tables import ENTITIES, NEWEST

pytestmark = pytest.mark.slow

PAST_S = 1_500_000_000
LINES = b"".join(
    [
        b"put sys.cpu %d 7 cpu=0 host=web01\n" % PAST_S,
        b"put sys.cpu %d 2.5 cpu=0 host=web01\n" % (PAST_S + 60),
        b"put sys.cpu %d 0.1 cpu=0 host=web02\n" % PAST_S,
        b"put sys.mem %d -300 host=web01\n" % (PAST_S + 90_000),
        b"put sys.mem %d 1 dc=eu\n" % PAST_S,
    ]
)
SETTINGS = {"tsd.core.auto_create_metrics": "true", "tsd.entity.enabled": "true"}


@pytest.fixture
def tsd(tmp_path: Path) -> Tsd:
    """A folder with points and no tables of entities."""
    plain = Tsd(tmp_path / "state", {**SETTINGS, "tsd.entity.enabled": "false"})
    with plain.serve() as daemon:
        daemon.send_lines(LINES)
    return plain.but(SETTINGS)


def run(tsd: Tsd, *words: str) -> dict[str, object]:
    done = tsd.run("entity", *words, "--json")
    assert done.status in (0, 1), done
    found: dict[str, object] = json.loads(done.out)
    return found


def damage(tsd: Tsd) -> None:
    """Delete one point, change one, add one, make a newest value old, and add a series. No daemon runs."""
    config, _ = read_config(
        Given("test", key, value) for key, value in {"tsd.storage.path": str(tsd.folder), **tsd.settings}.items()
    )

    async def edit() -> None:
        async with opened_store(config) as store:
            cells = versioned_cells(config, store)
            cpu, mem = b"t:sys.cpu cpu=0", b"t:sys.mem"
            await cells.delete(ENTITIES.name, b"web01", [mem])
            await cells.put(
                ENTITIES.name,
                [
                    VersionPut(b"web02", cpu, b"\0\x07", PAST_S * 1000),
                    VersionPut(b"web01", cpu, b"\0\x07", PAST_S * 1000 + 1),
                    VersionPut(b"web03", b"t:gone", b"\0\x07", PAST_S * 1000),
                ],
            )
            await cells.delete(NEWEST.name, b"web01", [cpu])
            await cells.put(NEWEST.name, [VersionPut(b"web01", cpu, b"\0\x07", PAST_S * 1000)])

    trio.run(edit)


@pytest.mark.parametrize("with_daemon", [False, True])
def test_tables_are_built_from_stored_points_and_checked(tsd: Tsd, with_daemon: bool) -> None:
    assert run(tsd, "check")["differences"] == 7  # four points and three newest values
    assert run(tsd, "build") == {"points": 5, "warnings": 0}
    found = stored_entities(tsd.folder, tsd.settings)
    assert found.points == {
        ("web01", "sys.cpu"): [(PAST_S * 1000, 7), ((PAST_S + 60) * 1000, 2.5)],
        ("web01", "sys.mem"): [((PAST_S + 90_000) * 1000, -300)],
        ("web02", "sys.cpu"): [(PAST_S * 1000, pytest.approx(0.1))],
    }
    assert found.newest == {series: points[-1:] for series, points in found.points.items()}
    damage(tsd)
    done = tsd.run("entity", "check")
    assert done.status == 1
    kinds = sorted(line.split()[1] for line in done.err.splitlines() if line.startswith("tsd: "))
    assert kinds == ["different:", "extra:", "extra:", "missing:", "newest:"]
    if with_daemon:
        with tsd.serve():
            repaired(tsd)
    else:
        repaired(tsd)


def repaired(tsd: Tsd) -> None:
    """Assert that building repairs all but extra points."""
    assert run(tsd, "build", "--since", str(PAST_S), "--until", str(PAST_S + 86_400)) == {"points": 4, "warnings": 0}
    assert run(tsd, "check", "sys.mem")["differences"] == 1
    assert run(tsd, "build", "sys.mem") == {"points": 2, "warnings": 0}
    assert run(tsd, "check", "sys.mem") == {"points": 2, "differences": 0, "warnings": 0}
    assert run(tsd, "check") == {"points": 5, "differences": 2, "warnings": 0}


def test_an_interrupted_build_resumes(tsd: Tsd) -> None:
    file = tsd.folder / "entity-build.json"
    with tsd.but({"tsd.entity.enabled": "false"}).serve() as daemon:
        daemon.send_lines(b"".join(b"put m%04d %d 1 host=web03\n" % (n, PAST_S) for n in range(300)))
    with tsd.popen("entity", "build") as process:
        while not file.exists():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    done = tsd.run("entity", "build", "--json")
    assert "resuming after the metric m" in done.err
    assert json.loads(done.out) == {"points": 305, "warnings": 0}
    assert not file.exists()
    assert run(tsd, "check") == {"points": 305, "differences": 0, "warnings": 0}


@pytest.mark.parametrize("with_daemon", [False, True])
def test_metadata_and_lists(tsd: Tsd, with_daemon: bool) -> None:
    if with_daemon:
        with tsd.serve() as daemon:
            assert daemon.send_lines(LINES + b"meta web01 owner=ops\n") == b"synced 6\n"
            edited(tsd)
    else:
        assert tsd.run("entity", "build").status == 0
        assert tsd.run("entity", "set", "web01", "owner=ops").status == 0
        edited(tsd)


def test_metadata_is_not_changed_while_lines_wait_in_the_journal(tsd: Tsd) -> None:
    """Regression: the error spoke of points that would reappear after a deletion."""
    with tsd.serve() as daemon:
        daemon.send_lines(b"put sys.cpu %d 1 host=web01\n" % (now_ms() // 1000))
        daemon.kill()
    done = tsd.run("entity", "set", "web01", "rack=r1")
    assert done.status == 3
    assert "nothing changed" in done.err
    assert "delet" not in done.err


def edited(tsd: Tsd) -> None:
    assert tsd.run("entity", "set", "web01", "rack=r1 ü", "dc=").status == 0
    shown = run(tsd, "web01")
    assert (shown["metadata"], shown["series"]) == ({"dc": "", "owner": "ops", "rack": "r1 ü"}, [])
    assert run(tsd, "unset", "web01", "owner") == {"entity": "web01", "metadata": {"dc": "", "rack": "r1 ü"}}
    assert run(tsd, "show", "web01")["metadata"] == {"dc": "", "rack": "r1 ü"}
    assert tsd.run("entity", "unset", "web01", "--all").status == 0
    assert run(tsd, "web01")["metadata"] == {}
    table = tsd.run("entity", "web01", "--start", "2017/01/01-00:00:00", "--metrics", "sys.c*").out.splitlines()
    assert [line.split()[:4] for line in table] == [["sys.cpu", "cpu=0", "2", "points"]]
    assert [one["entity"] for one in run(tsd, "list")["entities"]] == ["web01", "web02"]
    assert [one["entity"] for one in run(tsd, "list", "--prefix", "web02", "--silent", "1d")["entities"]] == ["web02"]
    assert [line.split()[0] for line in tsd.run("entity", "list").out.splitlines()] == ["web01", "web02"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nosuch"], 1, "unknown entity: nosuch"),
        (["web01", "--start", "20", "--end", "10"], 2, "--end 10"),
        (["set", "web01", "rack"], 2, "'rack'"),
        (["set", "web01", "a b=1"], 2, "'a b'"),
        (["set", "web:01", "a=1"], 2, "'web:01'"),
        (["set", "web01", "a=" + "x" * 65_537], 2, "65537 bytes"),
        (["unset", "web01"], 2, "--all"),
        (["unset", "web01", "rack"], 1, "rack"),
        (["list", "--silent", "old"], 2, "'old'"),
        (["build", "--since", "20", "--until", "10"], 2, "--until 10"),
    ],
)
def test_bad_words(words: list[str], status: int, said: str, tsd: Tsd) -> None:
    done = tsd.run("entity", *words)
    assert (done.status, said in done.err) == (status, True), done


def test_refused_where_entities_are_not_kept(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.entity.enabled": "false"})
    done = tsd.run("entity", "list")
    assert done.status == 1
    assert "tsd.entity.enabled" in done.err


@pytest.mark.parametrize("with_daemon", [False, True])
def test_retention_tells_and_deletes_what_has_expired(tmp_path: Path, with_daemon: bool) -> None:
    now_s = now_ms() // 1000
    tsd = Tsd(tmp_path / "state", {**SETTINGS, "tsd.retention.rules": "sys.*=10d"})
    with tsd.serve() as daemon:
        lines = [
            f"put {metric} {now_s - days * 86_400} {days} host=a\n" for metric in ("sys.x", "y") for days in (1, 20)
        ]
        daemon.send_lines("".join([*lines, f"put sys.z {PAST_S} 1 host=b\n", "meta b rack=r1\n"]).encode())
        daemon.flush()
        if with_daemon:
            told = json.loads(tsd.run("retention", "--dry-run", "--exact", "--json").out)
            done = json.loads(tsd.run("retention", "--trust-clock", "--json").out)
    if not with_daemon:
        told = json.loads(tsd.run("retention", "--dry-run", "--exact", "--json").out)
        done = json.loads(tsd.run("retention", "--trust-clock", "--json").out)
    points = {rule: amount["points"] for rule, amount in told["rules"].items()}
    assert points == {"sys.*=10d": 2, "sys.*=10d in tsdb-entity": 2, "sys.*=10d in tsdb-current": 1}
    assert all(done["rules"][rule] == told["rules"][rule] for rule in points if " in " in rule)
    found = stored_entities(tsd.folder, tsd.settings)
    assert {series: len(of_series) for series, of_series in found.points.items()} == {("a", "sys.x"): 1, ("a", "y"): 2}
    assert set(found.newest) == {("a", "sys.x"), ("a", "y")}


def test_metrics_of_all_names_are_built_and_entities_without_rows_left_out(tmp_path: Path) -> None:
    odd = {**SETTINGS, "tsd.core.tag.allow_specialchars": "!", "tsd.entity.period": "1d"}
    plain = Tsd(tmp_path / "state", {**odd, "tsd.entity.enabled": "false"})
    with plain.serve() as daemon:
        lines = (
            f"put été {PAST_S} 1 host=a\nput été {PAST_S} 2 host=a!\nput ÿ {PAST_S} 3 host=a\nput m {PAST_S} 4 host=a\n"
        )
        daemon.send_lines(lines.encode("latin-1"))
    tsd = plain.but(odd)
    assert run(tsd, "check")["differences"] == 6  # each point, and each newest value
    assert run(tsd, "build") == {"points": 4, "warnings": 0}
    assert run(tsd, "check") == {"points": 4, "differences": 0, "warnings": 0}
    listed = run(tsd, "list")["entities"]
    assert isinstance(listed, list)
    assert [(one["entity"], len(one["series"])) for one in listed] == [("a", 3)]


def test_build_and_check_work_with_heroic_tables(tmp_path: Path) -> None:
    heroic = {**SETTINGS, "tsd.storage.layout": "heroic"}
    plain = Tsd(tmp_path / "state", {**heroic, "tsd.entity.enabled": "false"})
    with plain.serve() as daemon:
        daemon.send_lines(LINES)
    tsd = plain.but(heroic)
    assert run(tsd, "check")["differences"] == 7
    assert run(tsd, "build") == {"points": 5, "warnings": 0}
    assert run(tsd, "check") == {"points": 5, "differences": 0, "warnings": 0}
    assert stored_entities(tsd.folder, tsd.settings).newest["web01", "sys.cpu"] == [((PAST_S + 60) * 1000, 2.5)]
