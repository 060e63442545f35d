"""The tables of entities on HBase with a gateway of Thrift 2 and on Bigtable's emulator: created, written and read."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.e2e.command import Tsd, on_bigtable, on_hbase
from tests.e2e.entities import stored_entities
from tests.peers.hbase import RunningHbase
from tsd.config.loader import Given
from tsd.daemon.settings import read_config
from tsd.daemon.wiring import opened_store, versioned_cells
from tsd.store import Family, Table
from tsd.store.bigtable.engine import BigtableStore
from tsd.store.versions import UNBOUNDED
from tsd.tables.entity.tables import ENTITIES, NEWEST

pytestmark = pytest.mark.slow

PAST_S = 1_500_000_000
YEAR_S = 31_556_952


ON_HBASE = pytest.param("hbase", marks=pytest.mark.hbase)
ENGINES = [ON_HBASE, pytest.param("bigtable", marks=pytest.mark.bigtable)]
SETTINGS = {"tsd.entity.enabled": "true", "tsd.storage.flush_interval": "40"}


@pytest.fixture
def tsd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tsd]:
    """Commands on an engine, with tables of the test's own. On HBase, those of entities have fixed names."""
    if request.param == "bigtable":
        yield Tsd(tmp_path / "state", on_bigtable(request.getfixturevalue("bigtable"), SETTINGS))
        return
    hbase: RunningHbase = request.getfixturevalue("hbase")
    settings = {**SETTINGS, "tsd.storage.hbase.thrift2": f"{hbase.host}:{hbase.thrift2_port}"}
    yield Tsd(tmp_path / "state", on_hbase(hbase, hbase.unused_tables(), settings))
    for name in {ENTITIES.name, NEWEST.name} & set(hbase.tables.tables()):
        hbase.tables.drop(name)


def kept_versions(tsd: Tsd) -> dict[str, dict[bytes, int]]:
    """Return how many versions the families of both tables keep."""
    config, _ = read_config(
        Given("test", key, value) for key, value in {"tsd.storage.path": str(tsd.folder), **tsd.settings}.items()
    )

    async def read() -> dict[str, dict[bytes, int]]:
        async with opened_store(config) as store:
            cells = versioned_cells(config, store)
            return {table.name: dict(await cells.families(table.name)) for table in (ENTITIES, NEWEST)}

    return trio.run(read)


@pytest.mark.parametrize("tsd", ENGINES, indirect=True)
def test_years_of_points_and_the_newest_are_stored(tsd: Tsd) -> None:
    made = tsd.run("create-tables", "--json")
    assert (made.status, made.err) == (0, "")
    assert {ENTITIES.name, NEWEST.name} <= set(json.loads(made.out)["created"])
    assert kept_versions(tsd) == {ENTITIES.name: {b"t": UNBOUNDED, b"m": 1}, NEWEST.name: {b"t": 1}}
    with tsd.serve() as daemon:
        times = [PAST_S, PAST_S - 2 * YEAR_S, PAST_S - YEAR_S, PAST_S - 3 * YEAR_S]
        for at_s in times:  # the newest first: older points never replace it
            assert daemon.send_lines(b"put house.size %d %d host=one\n" % (at_s, at_s % 1000)) == b"synced 1\n"
            daemon.flush()
        assert daemon.stats()["ledger.stored"] == len(times)
    found = stored_entities(tsd.folder, tsd.settings)
    points = [(at_s * 1000, at_s % 1000) for at_s in sorted(times)]
    assert found.points == {("one", "house.size"): points}
    assert found.newest == {("one", "house.size"): points[-1:]}
    assert len(tsd.lines("house.size")) == len(times)
    late = [PAST_S - years * YEAR_S for years in (5, 9)]  # imported without a daemon
    lines = b"".join(b"house.size %d %d host=one\n" % (at_s, at_s % 1000) for at_s in late)
    assert tsd.run("import", "-", stdin=lines).status == 0
    assert tsd.run("entity", "build", "--until", str(PAST_S - 4 * YEAR_S)).status == 0
    assert tsd.run("entity", "check").status == 0
    found = stored_entities(tsd.folder, tsd.settings)
    imported = [(at_s * 1000, at_s % 1000) for at_s in sorted(late)]
    assert found.points == {("one", "house.size"): imported + points}
    assert found.newest == {("one", "house.size"): points[-1:]}


@pytest.mark.parametrize("tsd", [ON_HBASE], indirect=True)
def test_points_and_metadata_wait_while_thrift_2_is_away(tsd: Tsd, hbase: RunningHbase) -> None:
    assert tsd.run("create-tables").status == 0
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        away = tsd.but({"tsd.storage.hbase.thrift2": f"127.0.0.1:{closed.getsockname()[1]}"})
        with away.serve() as daemon:
            lines = b"".join(b"put m %d %d host=h\n" % (PAST_S + at, at) for at in range(20))
            assert daemon.send_lines(lines + b"meta h rack=r1\n") == b"synced 21\n"
            daemon.await_event("store.unavailable")
            stats = daemon.stats()
            assert (stats["ledger.received"], stats["ledger.stored"]) == (21, 0)
            daemon.kill()
    with tsd.serve() as daemon:
        daemon.flush()
        assert daemon.stats()["ledger.stored"] == 21
        hbase.thrift_kill()  # both gateways
        assert daemon.send_lines(b"put m %d 20 host=h\nmeta h rack=r2\n" % (PAST_S + 20)) == b"synced 2\n"
        daemon.await_event("store.unavailable")
        hbase.thrift_start()
        daemon.await_event("store.available")
    found = stored_entities(tsd.folder, tsd.settings)
    assert found.points == {("h", "m"): [((PAST_S + at) * 1000, at) for at in range(21)]}
    assert found.newest == {("h", "m"): [((PAST_S + 20) * 1000, 20)]}
    assert found.metadata == {"h": {"rack": "r2"}}


@pytest.mark.parametrize("tsd", ENGINES, indirect=True)
def test_tables_are_filled_and_checked_by_commands(tsd: Tsd) -> None:
    before = tsd.but({"tsd.entity.enabled": "false"})
    assert before.run("create-tables").status == 0
    with before.serve() as daemon:
        daemon.send_lines(b"".join(b"put m %d %d host=h%d\n" % (PAST_S + at, at, at % 3) for at in range(300)))
        daemon.flush()
    missing = tsd.run("check-config")
    assert missing.status != 0
    assert ENTITIES.name in missing.err
    made = tsd.run("create-tables")
    assert (made.status, made.err) == (0, "")
    assert all(line.endswith((": exists", ": created")) for line in made.out.splitlines()), made.out
    assert tsd.run("check-config").status == 0
    salted = tsd.but({"tsd.entity.salt": "3"}).run("check-config")
    assert salted.status != 0
    assert "tsd.entity.salt: got '3', wanted '0'" in salted.err
    assert json.loads(tsd.run("entity", "check", "--json").out)["differences"] == 303
    with tsd.serve() as daemon:
        assert json.loads(tsd.run("entity", "build", "--json").out) == {"points": 300, "warnings": 0}
        assert daemon.send_lines(b"meta h0 rack=r1\n") == b"synced 1\n"
        assert tsd.run("entity", "set", "h0", "owner=ops").status == 0
        assert tsd.run("entity", "unset", "h0", "rack").status == 0
        assert daemon.send_lines(b"meta h0 rack=r2\n") == b"synced 1\n"
        shown = json.loads(tsd.run("entity", "h0", "--start", str(PAST_S), "--json").out)
    assert shown["metadata"] == {"owner": "ops", "rack": "r2"}
    assert len(shown["series"][0]["dps"]) == 100
    assert json.loads(tsd.run("entity", "check", "--json").out) == {"points": 300, "differences": 0, "warnings": 0}
    ruled = tsd.but({"tsd.retention.rules": "*=1000d"})
    told = json.loads(ruled.run("retention", "--dry-run", "--exact", "--json").out)["rules"]
    assert json.loads(ruled.run("retention", "--trust-clock", "--json").out)["rules"] == told
    points = {rule: amount["points"] for rule, amount in told.items()}
    assert points == {"*=1000d": 300, "*=1000d in tsdb-entity": 300, "*=1000d in tsdb-current": 3}
    found = stored_entities(tsd.folder, tsd.settings)
    assert (found.points, found.newest) == ({}, {})


@pytest.mark.parametrize("tsd", ENGINES[1:], indirect=True)
def test_a_table_that_keeps_too_few_versions_is_refused(tsd: Tsd) -> None:
    assert tsd.run("create-tables").status == 0
    config, _ = read_config(
        Given("test", key, value) for key, value in {"tsd.storage.path": str(tsd.folder), **tsd.settings}.items()
    )

    async def remake(table: Table) -> None:
        async with opened_store(config) as store:
            assert isinstance(store, BigtableStore)
            await store.drop_tables([ENTITIES.name])
            await versioned_cells(config, store).create_tables([table])

    trio.run(remake, Table(ENTITIES.name, (Family(b"t"), Family(b"m"))))
    with tsd.serve() as daemon:
        daemon.await_event("tables.unfit")
        assert daemon.send_lines(b"put m %d 1 host=h\nput m %d 2 host=h\n" % (PAST_S, PAST_S + 1)) == b"synced 2\n"
        assert "VERSIONS" in daemon.await_event("store.unavailable")["error"]
        trio.run(remake, ENTITIES)
        daemon.await_event("store.available")
    found = stored_entities(tsd.folder, tsd.settings)
    assert found.points == {("h", "m"): [(PAST_S * 1000, 1), ((PAST_S + 1) * 1000, 2)]}


@pytest.mark.parametrize("tsd", ENGINES, indirect=True)
def test_deleted_points_leave_both_tables(tsd: Tsd) -> None:
    assert tsd.run("create-tables").status == 0
    with tsd.serve() as daemon:
        for start in range(0, 90, 30):  # several windows: the store may still have superseded newest values
            lines = (b"put m %d %d host=h%d\n" % (PAST_S + at, at, at % 3) for at in range(start, start + 30))
            daemon.send_lines(b"".join(lines))
            daemon.flush()
        span = ("--since", str(PAST_S + 20), "--until", str(PAST_S + 90), "--json")
        told = json.loads(tsd.run("delete", "m", "host=h0", *span).out)
        assert (told["points"], told["entity_points"]) == (23, 23)
        done = json.loads(tsd.run("delete", "m", "host=h0", *span, "--yes").out)
        assert (done["points"], done["entity_points"], done["remaining"]) == (23, 23, 0)
        assert json.loads(tsd.run("entity", "check", "--json").out)["differences"] == 0
    found = stored_entities(tsd.folder, tsd.settings)
    assert found.points["h0", "m"] == [((PAST_S + at) * 1000, at) for at in range(0, 20, 3)]
    assert found.newest == {series: points[-1:] for series, points in found.points.items()}
    everything = json.loads(tsd.run("delete", "m", "--since", "0", "--until", "now", "--yes", "--json").out)
    assert (everything["entity_points"], everything["remaining"]) == (67, 0)
    found = stored_entities(tsd.folder, tsd.settings)
    assert (found.points, found.newest) == ({}, {})


@pytest.mark.parametrize("tsd", ENGINES, indirect=True)
def test_points_that_are_older_than_all_deleted_ones_are_newest(tsd: Tsd) -> None:
    assert tsd.run("create-tables").status == 0
    assert tsd.run("import", "--auto-metric", "-", stdin=b"m %d 1 host=h\n" % PAST_S).status == 0
    assert tsd.run("entity", "build").status == 0
    assert tsd.run("delete", "m", "--since", str(PAST_S), "--until", str(PAST_S + 1), "--yes").status == 0
    assert tsd.run("import", "-", stdin=b"m %d 7 host=h\n" % (PAST_S - YEAR_S)).status == 0
    assert tsd.run("entity", "build").status == 0
    found = stored_entities(tsd.folder, tsd.settings)
    assert found.newest == found.points == {("h", "m"): [((PAST_S - YEAR_S) * 1000, 7)]}
