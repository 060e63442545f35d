"""/health: liveness, readiness and the single checks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.running import running
from tests.unit.api.http_requests import http_request
from tests.unit.server.web_parts import Served, get, serving
from tsd.api.health import Health, StoreProbe, routes
from tsd.config.settings import Mode
from tsd.errors import NoTable, StoreDown, StoreError
from tsd.ingest.accepted import Backpressure
from tsd.ingest.journal.journal import Journal, JournalSettings

ALL_OK = {"write": "ok", "read": "ok", "store": "ok"}
NO_HBASE = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": "127.0.0.1:1", "tsd.core.drain_timeout": "0"}


async def test_working_daemon_is_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        response = await http_request(daemon, "/health/ready")
        assert (response.status, response.json) == (200, {"status": "ok", **ALL_OK})
        assert (await http_request(daemon, "/health/live")).json == {"status": "ok"}
        assert (await http_request(daemon, "/health/ready", method="HEAD")).status == 200
        assert (await http_request(daemon, "/health/else")).status == 404
        for check in ALL_OK:
            response = await http_request(daemon, f"/health/{check}")
            assert (response.status, response.json) == (200, {"status": "ok", check: "ok"})


async def test_without_hbase_only_the_write_check_passes(tmp_path: Path) -> None:
    async with running(tmp_path, NO_HBASE) as daemon:
        response = await http_request(daemon, "/health/ready")
        assert response.status == 503
        assert (response.json["status"], response.json["write"]) == ("not ready", "ok")
        assert "127.0.0.1:1" in response.json["read"]
        statuses = {which: (await http_request(daemon, f"/health/{which}")).status for which in ("live", *ALL_OK)}
        assert statuses == {"live": 200, "write": 200, "read": 503, "store": 503}


async def test_write_only_daemon_is_ready_without_hbase(tmp_path: Path) -> None:
    async with running(tmp_path, {**NO_HBASE, "tsd.mode": "wo"}) as daemon:
        response = await http_request(daemon, "/health/ready")
        assert (response.status, response.json["status"], response.json["write"]) == (200, "ok", "ok")
        assert response.json["read"] == "tsd.mode is wo"
        assert "127.0.0.1:1" in response.json["store"]


async def test_read_only_daemon_is_ready_but_fails_the_write_check(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.mode": "ro"}) as daemon:
        response = await http_request(daemon, "/health/ready")
        assert (response.status, response.json) == (200, {"status": "ok", **ALL_OK, "write": "tsd.mode is ro"})
        assert (await http_request(daemon, "/health/write")).status == 503


class ProbedStore:
    """A store that answers once `answers` is set."""

    def __init__(self) -> None:
        self.count = 0
        self.answers = trio.Event()
        self.error: StoreError | None = None
        self.trouble = ""  # why it refuses writes
        self.backpressure = Backpressure()
        self.journal = Journal(Path("/nowhere"), JournalSettings(1, max_bytes=1), owner="0" * 32)

    async def __call__(self) -> None:
        self.count += 1
        await self.answers.wait()
        if self.error:
            raise self.error


@pytest.fixture
async def probed(nursery: trio.Nursery) -> AsyncIterator[tuple[ProbedStore, Served]]:
    store = ProbedStore()
    probe = StoreProbe(store)
    nursery.start_soon(probe.run)
    health = Health(Mode.READ_WRITE, store.backpressure, store.journal, probe, lambda: store.trouble)
    async with serving(routes(health)) as served:
        yield store, served


async def test_concurrent_requests_share_one_probe(
    probed: tuple[ProbedStore, Served], autojump_clock: MockClock
) -> None:
    store, served = probed
    replies: list[object] = []

    async def wait() -> None:
        replies.append((await served.request(get("/health/ready"))).json)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wait)
        await trio.sleep(0.5)
        store.answers.set()
    assert replies == [{"status": "ok", **ALL_OK}] * 20
    assert store.count == 1
    await trio.sleep(60)
    assert (await served.request(get("/health/ready"))).status == 200
    assert store.count == 2


async def test_store_that_hangs_fails_read_and_store(
    probed: tuple[ProbedStore, Served], autojump_clock: MockClock
) -> None:
    store, served = probed
    response = await served.request(get("/health/ready"))
    assert (response.status, response.json["read"] != "ok", response.json["store"] != "ok") == (503, True, True)
    assert (await served.request(get("/health/ready"))).status == 503
    assert (await served.request(get("/health/write"))).status == 200
    assert store.count == 1


async def test_failed_checks_give_their_reasons(probed: tuple[ProbedStore, Served], autojump_clock: MockClock) -> None:
    store, served = probed
    store.error = StoreDown("no answer")
    store.backpressure.hold("disk")
    store.answers.set()
    response = await served.request(get("/health"))
    assert (response.status, response.json["status"]) == (503, "not ready")
    assert "disk" in response.json["write"]
    assert (response.json["read"], response.json["store"]) == ("no answer", "no answer")


async def test_missing_table_fails_read_but_not_store(
    probed: tuple[ProbedStore, Served], autojump_clock: MockClock
) -> None:
    store, served = probed
    store.error = NoTable("there is no table tsdb")
    store.answers.set()
    assert (await served.request(get("/health/store"))).json == {"status": "ok", "store": "ok"}
    response = await served.request(get("/health/read"))
    assert (response.status, response.json["read"]) == (503, "there is no table tsdb")


async def test_store_that_refuses_writes_fails_the_store_check(
    probed: tuple[ProbedStore, Served], autojump_clock: MockClock
) -> None:
    """Points are accepted and read: the daemon stays ready."""
    store, served = probed
    store.trouble = "HBase refuses"
    store.answers.set()
    assert (await served.request(get("/health/ready"))).status == 200
    response = await served.request(get("/health/store"))
    assert (response.status, "HBase refuses" in response.json["store"]) == (503, True)


async def test_journal_that_fails_or_hangs_fails_the_write_check(
    probed: tuple[ProbedStore, Served], autojump_clock: MockClock
) -> None:
    store, served = probed
    store.answers.set()
    store.journal.writing_since = trio.current_time()
    assert (await served.request(get("/health/write"))).status == 200
    await trio.sleep(60)
    response = await served.request(get("/health/write"))
    assert (response.status, response.json["write"] != "ok") == (503, True)
    store.journal.trouble = "no space left"
    response = await served.request(get("/health/write"))
    assert "no space left" in response.json["write"]
