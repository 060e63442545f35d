"""/health: alive as long as it answers, ready as long as points are taken and can be read."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.running import running
from tests.unit.api.asking import ask
from tests.unit.doors.web_parts import Served, get, serving
from tsd.api.health import PATIENCE_S, STUCK_S, Health, Probe, routes
from tsd.errors import NoTable, StoreDown, StoreError
from tsd.ingest.intake import Gate
from tsd.ingest.journal import Journal
from tsd.settings import Mode

ALL_WELL = {"write": "ok", "read": "ok", "store": "ok"}
AWAY = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": "127.0.0.1:1", "tsd.core.drain_timeout": "0"}


async def test_a_daemon_that_works_is_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        heard = await ask(daemon, "/health/ready")
        assert (heard.status, heard.json) == (200, {"status": "ok", **ALL_WELL})
        assert (await ask(daemon, "/health/live")).json == {"status": "ok"}
        assert (await ask(daemon, "/health/ready", method="HEAD")).status == 200
        assert (await ask(daemon, "/health/else")).status == 404
        for check in ALL_WELL:
            heard = await ask(daemon, f"/health/{check}")
            assert (heard.status, heard.json) == (200, {"status": "ok", check: "ok"})


async def test_without_hbase_points_are_taken_and_cannot_be_read(tmp_path: Path) -> None:
    async with running(tmp_path, AWAY) as daemon:
        heard = await ask(daemon, "/health/ready")
        assert heard.status == 503
        assert (heard.json["status"], heard.json["write"]) == ("not ready", "ok")
        assert "127.0.0.1:1" in heard.json["read"]
        statuses = {which: (await ask(daemon, f"/health/{which}")).status for which in ("live", *ALL_WELL)}
        assert statuses == {"live": 200, "write": 200, "read": 503, "store": 503}


async def test_a_daemon_for_writing_alone_is_ready_without_hbase(tmp_path: Path) -> None:
    async with running(tmp_path, {**AWAY, "tsd.mode": "wo"}) as daemon:
        heard = await ask(daemon, "/health/ready")
        assert (heard.status, heard.json["status"], heard.json["write"]) == (200, "ok", "ok")
        assert heard.json["read"] == "tsd.mode is wo"
        assert "127.0.0.1:1" in heard.json["store"]


async def test_a_daemon_for_reading_alone_is_ready_and_takes_no_points(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.mode": "ro"}) as daemon:
        heard = await ask(daemon, "/health/ready")
        assert (heard.status, heard.json) == (200, {"status": "ok", **ALL_WELL, "write": "tsd.mode is ro"})
        assert (await ask(daemon, "/health/write")).status == 503


class Asked:
    """A store that answers when it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.answers = trio.Event()
        self.error: StoreError | None = None
        self.takes_nothing = ""  # and why
        self.gate = Gate()
        self.journal = Journal(Path("/nowhere"), sync_interval_s=1, max_bytes=1, owner="0" * 32)

    async def __call__(self) -> None:
        self.count += 1
        await self.answers.wait()
        if self.error:
            raise self.error


@pytest.fixture
async def asked(nursery: trio.Nursery) -> AsyncIterator[tuple[Asked, Served]]:
    store = Asked()
    probe = Probe(store)
    nursery.start_soon(probe.run)
    health = Health(Mode.READ_WRITE, store.gate, store.journal, probe, lambda: store.takes_nothing)
    async with serving(routes(health)) as served:
        yield store, served


async def test_many_who_ask_are_one_question(asked: tuple[Asked, Served], autojump_clock: MockClock) -> None:
    store, served = asked
    told: list[object] = []

    async def wait() -> None:
        told.append((await served.ask(get("/health/ready"))).json)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wait)
        await trio.sleep(PATIENCE_S / 2)
        store.answers.set()
    assert told == [{"status": "ok", **ALL_WELL}] * 20
    assert store.count == 1
    await trio.sleep(60)
    assert (await served.ask(get("/health/ready"))).status == 200
    assert store.count == 2


async def test_a_store_that_hangs_is_said_to(asked: tuple[Asked, Served], autojump_clock: MockClock) -> None:
    store, served = asked
    heard = await served.ask(get("/health/ready"))
    assert (heard.status, heard.json["read"], heard.json["store"]) == (503, *["no answer within 3 s"] * 2)
    assert (await served.ask(get("/health/ready"))).status == 503
    assert (await served.ask(get("/health/write"))).status == 200
    assert store.count == 1


async def test_what_is_wrong_is_said(asked: tuple[Asked, Served], autojump_clock: MockClock) -> None:
    store, served = asked
    store.error = StoreDown("no answer")
    store.gate.hold("disk")
    store.answers.set()
    heard = await served.ask(get("/health"))
    wanted = {"write": "no points are taken in: disk", "read": "no answer", "store": "no answer"}
    assert (heard.status, heard.json) == (503, {"status": "not ready", **wanted})


async def test_a_missing_table_is_not_a_store_that_is_away(
    asked: tuple[Asked, Served], autojump_clock: MockClock
) -> None:
    store, served = asked
    store.error = NoTable("there is no table tsdb")
    store.answers.set()
    assert (await served.ask(get("/health/store"))).json == {"status": "ok", "store": "ok"}
    heard = await served.ask(get("/health/read"))
    assert (heard.status, heard.json["read"]) == (503, "there is no table tsdb")


async def test_a_store_that_answers_and_takes_no_cells_is_not_well(
    asked: tuple[Asked, Served], autojump_clock: MockClock
) -> None:
    """Points are taken and read: the daemon is ready. But someone should look."""
    store, served = asked
    store.takes_nothing = "HBase refuses"
    store.answers.set()
    assert (await served.ask(get("/health/ready"))).status == 200
    heard = await served.ask(get("/health/store"))
    assert (heard.status, heard.json["store"]) == (503, "it takes no cells: HBase refuses")


async def test_a_journal_that_fails_or_hangs_takes_no_points(
    asked: tuple[Asked, Served], autojump_clock: MockClock
) -> None:
    store, served = asked
    store.answers.set()
    store.journal.writing_since = trio.current_time()
    assert (await served.ask(get("/health/write"))).status == 200
    await trio.sleep(STUCK_S + 1)
    heard = await served.ask(get("/health/write"))
    assert (heard.status, heard.json["write"]) == (503, "the journal's disk has not answered for 11 s")
    store.journal.trouble = "no space left"
    heard = await served.ask(get("/health/write"))
    assert heard.json["write"] == "the journal cannot be written: no space left"
