"""/health: alive as long as it answers, ready as long as points are taken and can be read."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.running import running
from tests.unit.api.asking import ask
from tests.unit.doors.web_parts import Served, get, serving
from tsd.api.health import PATIENCE_S, Probe, routes
from tsd.errors import StoreDown


async def test_a_daemon_that_works_is_ready(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        heard = await ask(daemon, "/health/ready")
        assert (heard.status, heard.json) == (200, {"status": "ok", "write": "ok", "read": "ok"})
        assert (await ask(daemon, "/health/live")).json == {"status": "ok"}
        assert (await ask(daemon, "/health/ready", method="HEAD")).status == 200
        assert (await ask(daemon, "/health/else")).status == 404


async def test_without_hbase_points_are_taken_and_cannot_be_read(tmp_path: Path) -> None:
    settings = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": "127.0.0.1:1"}
    async with running(tmp_path, {**settings, "tsd.core.drain_timeout": "0"}) as daemon:
        heard = await ask(daemon, "/health/ready")
        assert heard.status == 503
        assert (heard.json["status"], heard.json["write"]) == ("not ready", "ok")
        assert "127.0.0.1:1" in heard.json["read"]
        assert (await ask(daemon, "/health/live")).status == 200


class Asked:
    """A store that answers when it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.answers = trio.Event()
        self.down = False

    async def __call__(self) -> None:
        self.count += 1
        await self.answers.wait()
        if self.down:
            raise StoreDown("no answer")


@pytest.fixture
async def asked(nursery: trio.Nursery) -> AsyncIterator[tuple[Asked, Served]]:
    store = Asked()
    probe = Probe(store)
    nursery.start_soon(probe.run)
    async with serving(routes(probe, lambda: store.down * ["disk"], lambda: "")) as served:
        yield store, served


async def test_many_who_ask_are_one_question(asked: tuple[Asked, Served], autojump_clock: trio.abc.Clock) -> None:
    store, served = asked
    told: list[object] = []

    async def wait() -> None:
        told.append((await served.ask(get("/health/ready"))).json)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wait)
        await trio.sleep(PATIENCE_S / 2)
        store.answers.set()
    assert told == [{"status": "ok", "write": "ok", "read": "ok"}] * 20
    assert store.count == 1
    await trio.sleep(60)
    assert (await served.ask(get("/health/ready"))).status == 200
    assert store.count == 2


async def test_a_store_that_hangs_is_said_to(asked: tuple[Asked, Served], autojump_clock: trio.abc.Clock) -> None:
    store, served = asked
    heard = await served.ask(get("/health/ready"))
    assert (heard.status, heard.json["read"]) == (503, "no answer within 3 s")
    assert (await served.ask(get("/health/ready"))).status == 503
    assert store.count == 1


async def test_what_is_wrong_is_said(asked: tuple[Asked, Served], autojump_clock: trio.abc.Clock) -> None:
    store, served = asked
    store.down = True
    store.answers.set()
    heard = await served.ask(get("/health"))
    wanted = {"status": "not ready", "write": "no points are taken in: disk", "read": "no answer"}
    assert (heard.status, heard.json) == (503, wanted)
