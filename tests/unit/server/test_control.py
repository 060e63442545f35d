"""The control socket: its answers, its permissions, and sockets of crashed daemons."""

import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from tests.faults.process import command, served
from tests.running import QUIET, Running, running
from tsd.config.loader import Given, Loaded
from tsd.daemon.daemon import Daemon
from tsd.daemon.lifecycle import serve
from tsd.daemon.settings import read_config
from tsd.errors import (
    CorruptJournal,
    CorruptRow,
    DaemonRuns,
    DamagedBlock,
    NewerState,
    NoSuchName,
    NoTable,
    StoreBusy,
    StoreDown,
    StoreError,
    TsdError,
    UidsExhausted,
)
from tsd.server import control
from tsd.store import Cell, Family, Put, Rewrite, Table
from tsd.store.memory import MemoryStore
from tsd.store.remote import ControlClient, RemoteStore

T = 1_500_000_000
STAYS = {"tsd.storage.flush_interval": "3600000"}  # keeps points in memory until a flush


class Unknown(StoreError):
    """An error class that only this process has."""


@asynccontextmanager
async def listening(folder: Path, operations: Mapping[str, control.Operation]) -> AsyncIterator[Path]:
    """A control socket with these operations."""
    path = folder / "control.sock"
    listener = await control.open_listener(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.serve, listener, operations)
        yield path
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def calling(path: Path) -> AsyncIterator[ControlClient]:
    caller = await ControlClient.connect(path)
    try:
        yield caller
    finally:
        await caller.aclose()


async def exchange(path: Path, pieces: list[bytes]) -> list[dict[str, Any]]:
    """Return the answers to bytes that arrive in these pieces."""
    answers = msgpack.Unpacker()
    async with await trio.open_unix_socket(str(path)) as stream:
        for piece in pieces:
            await stream.send_all(piece)
        await stream.send_eof()
        while data := await stream.receive_some():
            answers.feed(data)
    return list(answers)


@pytest.mark.parametrize(
    "kind",
    [TsdError, StoreError, StoreBusy, StoreDown, CorruptRow, CorruptJournal, NoSuchName, UidsExhausted, DaemonRuns],
)
async def test_errors_keep_class_and_message(tmp_path: Path, kind: type[TsdError]) -> None:
    async def fail() -> None:
        raise kind("row 00 of café")

    async with listening(tmp_path, {"fail": fail}) as path, calling(path) as caller:
        for _ in range(2):
            with pytest.raises(TsdError) as caught:
                await caller.call("fail")
            assert type(caught.value) is kind
            assert str(caught.value) == "row 00 of café"


async def test_damaged_blocks_keep_their_prefix(tmp_path: Path) -> None:
    async def fail() -> None:
        raise DamagedBlock("a block", b"\0\1")

    async with listening(tmp_path, {"fail": fail}) as path, calling(path) as caller:
        with pytest.raises(DamagedBlock, match=r"^a block$") as caught:
            await caller.call("fail")
        assert caught.value.prefix == b"\0\1"


async def test_unknown_error_class_is_raised_as_an_error(tmp_path: Path) -> None:
    async def fail() -> None:
        raise Unknown("in words")

    async with listening(tmp_path, {"fail": fail}) as path, calling(path) as caller:
        with pytest.raises(TsdError, match=r"^in words$"):
            await caller.call("fail")


async def test_internal_error_fails_only_its_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("as the test wants")

    async def work() -> str:
        return "worked"

    async with (
        listening(tmp_path, {"fail": fail, "work": work}) as path,
        calling(path) as caller,
        calling(path) as other,
    ):
        with pytest.raises(TsdError, match="ZeroDivisionError"):
            await caller.call("fail")
        assert await caller.call("work") == await other.call("work") == "worked"
    assert "ZeroDivisionError: as the test wants" in "".join(capsys.readouterr())  # out, or err if none is configured


GET = {"verb": "get", "table": "tsdb", "rows": [b"row"], "columns": None}
WRONG: list[Any] = [
    5,
    None,
    "get",
    b"\xff",
    [],
    {},
    {"verb": None},
    {"verb": ["get"]},
    {"verb": "nosuch"},
    {"verb": "get"},
    {**GET, "more": 1},
    {**GET, "table": "nosuch"},
    {**GET, "table": 5},
    {**GET, "table": ["tsdb"]},
    {**GET, "rows": None},
    {**GET, "rows": [7]},
    {**GET, "columns": 5},
    {"verb": "put", "table": "tsdb", "cells": [1], "time_ms": None},
    {"verb": "put", "table": "tsdb", "cells": [[b"r", b"t:q"]], "time_ms": None},
    {"verb": "put", "table": "tsdb", "cells": [["r", "t:q", "v"]], "time_ms": None},
    {"verb": "put", "table": "tsdb", "cells": [[b"r", b"t:q", b"v"]], "time_ms": "now"},
    {"verb": "put", "table": "tsdb", "cells": [[b"", b"t:q", b"v"]], "time_ms": None},
    {"verb": "increment", "table": "tsdb", "row": b"r", "column": b"t:q", "by": "1"},
    {"verb": "page", "table": "tsdb", "start": 1, "stop": None, "limit": 1, "columns": None},
    {"verb": "create_tables", "tables": [["x"]], "compression": "NONE"},
    {"verb": "delete", "table": "tsdb", "columns": [[b"r", 5]], "up_to_ms": None},
]


async def test_invalid_requests_get_errors(tmp_path: Path) -> None:
    """Arguments of the wrong type must not end the daemon."""
    async with running(tmp_path) as daemon:
        assert await daemon.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
        requests = b"".join(map(msgpack.packb, [*WRONG, GET]))
        answers = await exchange(tmp_path / "control.sock", [requests])
        assert len(answers) == len(WRONG) + 1
        for request, answer in zip(WRONG, answers, strict=False):
            assert set(answer) == {"error", "message"}, request
            assert answer["message"], request
        assert answers[-1] == {"result": []}
        assert await daemon.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
    assert daemon.daemon.ingest.ledger.stored == 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xc1",
        b"\xa1\xff",  # text that is not UTF-8
        b"\x81\x05\x05",  # a map with an integer key
        b"\x81\x90\x05",  # a map with a list as key
        b"\xdd\xff\xff\xff\xff",  # a list longer than a message may be
        b"\x91" * 5000,
    ],
)
async def test_invalid_msgpack_gets_an_error_and_is_closed(tmp_path: Path, garbage: bytes) -> None:
    async with listening(tmp_path, control.store_operations(MemoryStore(lambda: 0))) as path:
        [answer] = await exchange(path, [garbage])
        assert answer["error"] == "TsdError"
        async with calling(path) as caller:
            assert await caller.call("tables") == []


async def test_requests_may_be_split_or_pipelined(tmp_path: Path) -> None:
    async with listening(tmp_path, control.store_operations(MemoryStore(lambda: 0))) as path:
        text = msgpack.packb({"verb": "tables"}) + msgpack.packb({"verb": "nosuch"}) + msgpack.packb({"verb": "sync"})
        for pieces in ([text], [bytes([byte]) for byte in text]):
            first, second, third = await exchange(path, pieces)
            assert (first, second["error"], third) == ({"result": []}, "TsdError", {"result": None})
        assert await exchange(path, [text[:-1]]) == [first, second]


async def test_disconnect_during_a_request_fails_only_it(tmp_path: Path) -> None:
    called = trio.Event()
    answer = trio.Event()

    async def wait() -> bytes:
        called.set()
        await answer.wait()
        return b"x" * 10_000_000

    async def work() -> str:
        return "worked"

    async with listening(tmp_path, {"wait": wait, "work": work}) as path, calling(path) as other:
        async with await trio.open_unix_socket(str(path)) as stream:
            await stream.send_all(msgpack.packb({"verb": "wait"}))
            await called.wait()
        answer.set()
        for _ in range(3):
            assert await other.call("work") == "worked"


async def test_answer_after_cancellation_is_not_used_for_the_next(tmp_path: Path) -> None:
    called, answer = trio.Event(), trio.Event()

    async def wait() -> str:
        called.set()
        await answer.wait()
        return "waited"

    async def work() -> str:
        return "worked"

    async with listening(tmp_path, {"wait": wait, "work": work}) as path, calling(path) as caller:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.call, "wait")
            await called.wait()
            nursery.cancel_scope.cancel()
        answer.set()
        assert [await caller.call("work") for _ in range(2)] == ["worked", "worked"]


async def test_client_reconnects_to_restarted_daemon(tmp_path: Path) -> None:
    async with running(tmp_path), calling(tmp_path / "control.sock") as caller:
        assert "tsdb" in await caller.call("tables")
        while_it_ran = caller
    with pytest.raises(StoreDown):
        await while_it_ran.call("tables")
    with pytest.raises(StoreDown, match=str(tmp_path / "control.sock")):
        await while_it_ran.call("tables")
    async with running(tmp_path):
        assert "tsdb" in await while_it_ran.call("tables")
        await while_it_ran.aclose()


async def keep_calling(caller: ControlClient) -> None:
    while True:
        await caller.call("tables")


async def test_ending_daemon_is_distinguished(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon, calling(tmp_path / "control.sock") as caller:
        assert sorted(await caller.call("tables")) == ["tsdb", "tsdb-meta", "tsdb-series", "tsdb-tree", "tsdb-uid"]
        daemon.stop.set()
        await daemon.daemon.server.listener.closed.wait()
        with pytest.raises(StoreDown):
            await keep_calling(caller)


async def test_stats_and_drop_caches(tmp_path: Path) -> None:
    async with running(tmp_path, STAYS) as daemon, calling(tmp_path / "control.sock") as caller:
        assert await daemon.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
        ledger = daemon.daemon.ingest.ledger
        assert (ledger.received, ledger.stored) == (1, 0)
        assert await caller.call("flush") is True
        assert (ledger.received, ledger.stored) == (1, 1)
        stats = (await caller.call("stats")).decode().splitlines()
        assert any(line.startswith("tsd.ledger.stored ") and line.split(" ")[2] == "1" for line in stats)
        assert any(line.startswith("tsd.uid.cache-size ") and line.split(" ")[2] != "0" for line in stats)
        assert await caller.call("drop_caches") is None
        stats = (await caller.call("stats")).decode().splitlines()
        assert {line.split(" ")[2] for line in stats if line.startswith("tsd.uid.cache-size ")} == {"0"}


async def test_store_works_through_the_socket(tmp_path: Path) -> None:
    """tests/property compares all engines with one model; this uses a real daemon."""
    async with running(tmp_path), calling(tmp_path / "control.sock") as caller:
        store = RemoteStore(caller)
        cells = [Put(b"row %05d" % (n // 3), b"t:%d" % (n % 3), b"value") for n in range(20_000)]
        await store.put("tsdb", cells, time_ms=7)
        assert await store.get("tsdb", [b"row 00000", b"nosuch"], columns=[b"t:1"]) == {
            b"row 00000": [Cell(b"t:1", b"value", 7)]
        }
        page = await store.page("tsdb", b"row 00005", b"row 00007", limit=10)
        assert [(row.key, len(row.cells)) for row in page.rows] == [(b"row 00005", 3), (b"row 00006", 3)]
        changes = [
            Rewrite(b"row 00000", [Put(b"row 00000", b"t:3", b"all")], 7, [(b"t:0", 7), (b"t:1", 6)], [(b"t:2", 7)]),
            Rewrite(b"row 00001", [], 7, [(b"t:0", 7)], [(b"t:3", 7)]),
        ]
        assert await store.atomic_rewrites.rewrite("tsdb", changes) == [True, False]
        found = await store.get("tsdb", [b"row 00000", b"row 00001"])
        assert [[cell.column for cell in cells] for cells in found.values()] == [
            [b"t:1", b"t:2", b"t:3"],
            [b"t:0", b"t:1", b"t:2"],
        ]
        with pytest.raises(NoTable, match="nosuch"):
            await store.get("nosuch", [b"row"])


@pytest.mark.parametrize("mask", [0, 0o777])
async def test_socket_is_private_to_the_user(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        listener = await control.open_listener(tmp_path / "control.sock")
    finally:
        assert os.umask(before) == mask
    async with listener:
        found = (tmp_path / "control.sock").stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600


async def test_state_folder_with_a_long_name(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50) / ("é" * 100)
    assert len(os.fsencode(folder)) > 400
    async with running(folder) as daemon, calling(folder / "control.sock") as caller:
        assert await daemon.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
        assert await caller.call("flush") is True
        assert stat.S_IMODE((folder / "control.sock").stat().st_mode) == 0o600
    assert not (folder / "control.sock").exists()


def settings(folder: Path) -> Loaded:
    given = {"tsd.network.port": "0", "tsd.storage.path": str(folder), **QUIET}
    config, ignored = read_config(Given("test", key, value) for key, value in given.items())
    return Loaded(config, None, ignored)


def never(daemon: Daemon, ports: object) -> None:
    raise AssertionError("it serves")


async def test_second_daemon_on_a_folder_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        await works(daemon, tmp_path)
        with pytest.raises(DaemonRuns, match=rf"{tmp_path}\b.*\b{os.getpid()}\b") as refused:
            await serve(settings(tmp_path), trio.Event(), never)
        done = await command("serve", "--data", tmp_path, "--port", "0")
        assert (done.returncode, done.stderr.decode()) == (4, f"tsd: {refused.value}\n")
        await works(daemon, tmp_path)


async def works(daemon: Running, folder: Path) -> None:
    """Check that the daemon accepts points and commands."""
    assert await daemon.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
    async with calling(folder / "control.sock") as caller:
        assert await caller.call("flush") is True


async def test_folder_of_newer_daemon_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("99\n")
    with pytest.raises(NewerState, match=r"\b99\b"):
        await serve(settings(tmp_path), trio.Event(), never)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["format", "lock"]


async def test_socket_of_killed_daemon_is_replaced(tmp_path: Path) -> None:
    async with served(tmp_path, STAYS) as killed:
        await killed.ready()
        async with killed.client() as client:
            assert await client.send_lines(b"put m %d 1 a=b\n" % T) == b"synced 1\n"
        await killed.kill()
    stale = tmp_path / "control.sock"
    with pytest.raises(ConnectionRefusedError):
        await ControlClient.connect(stale)
    async with running(tmp_path) as daemon:
        await works(daemon, tmp_path)
        assert stat.S_IMODE(stale.stat().st_mode) == 0o600
        assert daemon.daemon.ingest.ledger.stored == 2
    assert not stale.exists()


async def test_changes_of_commands_are_reported() -> None:
    changed: list[tuple[str, set[bytes]]] = []
    store = MemoryStore(lambda: 0)
    await store.create_tables([Table("t", (Family(b"t"),))])
    operations = control.store_operations(store, lambda table, rows: changed.append((table, set(rows))))
    await operations["put"]("t", [(b"row", b"t:q", b"v")], None)
    await operations["delete"]("t", [(b"row", [b"t:q"])], None)
    assert await operations["check_and_put"]("t", b"row", b"t:q", b"v", None)
    assert changed == [("t", {b"row"})] * 3


@pytest.mark.parametrize("end", ["end of the process", "a failed sync"])
async def test_changes_of_an_interrupted_command_are_synced(tmp_path: Path, end: str) -> None:
    """Regression: a loss of power undid what it had reported as deleted."""
    calls: list[str] = []

    async def delete() -> None:
        calls.append("delete")

    async def sync() -> None:
        calls.append("sync")
        if end == "a failed sync":
            raise StoreDown("gone")

    async with listening(tmp_path, {"delete": delete, "sync": sync, "get": delete}) as path:
        await exchange(path, [msgpack.packb({"verb": "delete"})])
        assert calls == ["delete", "sync"]
        calls.clear()
        await exchange(path, [msgpack.packb({"verb": verb}) for verb in ("delete", "sync", "get")])
        assert calls == ["delete", "sync", "delete"]
