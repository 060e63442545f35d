"""A heavy day: queries beside writers, clients that read slowly or hang up, and queries that get too large or too long.

The daemon is a process of its own, so that its memory is its own; what is said of time is in `scripts/bench beside`.
"""

import itertools
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.faults.account import Contents, check_contents, embedded_contents, stored_points
from tests.faults.askers import Question, asked, fleeting, patient, running, slow
from tests.faults.ledger import all_stored, checked_stats
from tests.faults.load import BASE, HOST, PATIENCE_S, Lines, Sender
from tests.faults.process import Served, served
from tests.running import Client, Running
from tests.running import running as in_process
from tests.unit.doors.web_parts import get
from tsd.codec.uid import Kind
from tsd.query.running import GONE

ASKERS, WRITERS = 200, 100
SEEDS, SLOTS, TURNS = 20, 5, 1000  # hosts, metrics of each, and points of each series, that are there before
QUERY_BYTES, POINTS_BYTES = 64 << 20, 64 << 20
STORE_BYTES = (64 + 4 * 32) << 20  # RocksDB's cache and tables in memory
HEAP_BYTES = 64 << 20  # what the allocator keeps, connections, threads
SETTINGS = {
    "tsd.query.memory_limit": str(QUERY_BYTES),
    "tsd.ingest.memory_limit": str(POINTS_BYTES),
    "tsd.storage.flush_interval": "500",
}
RANGE = f"start={BASE - 10}&end={BASE + TURNS}"
SEEDED = "connection=wildcard(s*)"

LISTED = "/api/stats/query"
FUNCTIONS = ("sum", "min", "max", "avg", "dev", "zimsum", "mimmin", "mimmax", "count", "first", "last")
MEMORY_BYTES = 16 << 20  # the least that can be set


ALL_POINTS = f"/api/query?{RANGE}&m=none:seed.0{{{SEEDED}}}"
PATHS = [
    ALL_POINTS,
    f"/api/query?{RANGE}&m=sum:seed.2{{}}{{{SEEDED}}}",
    f"/api/query?{RANGE}&ms&m=avg:1m-avg:seed.1{{connection=*}}",
    f"/api/query?{RANGE}&m=p95:rate:seed.4&m=max:10s-max-nan:seed.0{{connection=s1|s2}}",
    f"/api/query?{RANGE}&arrays&m=dev:seed.2{{host=*}}&show_tsuids&show_query&show_stats",
]
WRITTEN = f"/api/query?start={BASE - 10}&end={BASE + 100_000}&m=zimsum:load.0.0{{connection=*}}"  # of the writers


def much(functions: int) -> str:
    """A query for all points, so many times over."""
    subs = (f"&m={name}:seed.{slot}{{connection=*}}" for name in FUNCTIONS[:functions] for slot in range(SLOTS))
    return f"/api/query?{RANGE}{''.join(subs)}"


def seeds() -> bytes:
    """Lines whose points the questions are about."""
    return b"".join(
        f"put seed.{slot} {time * 1000 + 250 if slot % 2 else time} {connection * turn + slot}.5 "
        f"connection=s{connection} host=h{slot}\n".encode()
        for connection in range(SEEDS)
        for turn in range(TURNS)
        for slot in range(SLOTS)
        for time in [BASE + turn]
    )


async def questions(port: int) -> list[Question]:
    """What is asked; the daemon's answers while nobody disturbs it are the right ones."""
    found = []
    for path in PATHS:
        status, answer = await asked(port, path)
        assert status == 200, answer
        found.append(Question(path, None if "show_stats" in path else answer))
    return found


async def test_askers_beside_writers(tmp_path: Path) -> None:
    senders = [Sender(Lines(number), per_s=100, seed=number) for number in range(WRITERS)]
    async with served(tmp_path, SETTINGS) as daemon:
        await daemon.ready()
        async with daemon.client() as client:
            assert await client.ask(seeds()) == b"synced %d\n" % (SEEDS * TURNS * SLOTS)
        kinds = await questions(daemon.port)
        before = daemon.resident_bytes()
        async with trio.open_nursery() as nursery:
            for sender in senders:
                nursery.start_soon(sender.run, daemon.port)
            with trio.fail_after(PATIENCE_S):
                await ask_all(daemon.port, kinds)
            for sender in senders:
                sender.finish()
        more = peak_bytes(daemon) - before
        assert more < QUERY_BYTES + POINTS_BYTES + STORE_BYTES + HEAP_BYTES, f"{more >> 20} MiB more"
        with trio.fail_after(PATIENCE_S):
            while running((await asked(daemon.port, LISTED))[1]):  # each look is a request: it paces itself
                pass
        async with daemon.client() as client:
            await all_stored(client)
            stats = await checked_stats(client)
        assert stats["http.hung-up"] > 0
        assert stats["rpc.exceptions"] == 0
        await daemon.terminate()
        assert {event["level"] for event in daemon.events} == {"info"}, daemon.events
    check_contents(without_seeds(await embedded_contents(tmp_path)), senders)


async def ask_all(port: int, kinds: list[Question]) -> None:
    """Have all askers ask at once, and return when the last has its answer, or has gone."""
    written = Question(WRITTEN, None)
    async with trio.open_nursery() as nursery:
        for number in range(ASKERS):
            turned = kinds[number % len(kinds) :] + kinds[: number % len(kinds)]
            match number % 5:
                case 0 | 1:
                    nursery.start_soon(partial(patient, port, [*turned[:2], written], packed=number % 2 > 0))
                case 2:
                    nursery.start_soon(slow, port, turned[0])
                case 3:
                    nursery.start_soon(fleeting, port, turned[0], 0)
                case 4:
                    nursery.start_soon(fleeting, port, kinds[0], 1 + number * 100)


def peak_bytes(daemon: Served) -> int:
    """The most memory that it held at any time."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    [kib] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kib) << 10


def without_seeds(contents: Contents) -> Contents:
    """What the writers wrote."""
    seeded = {
        value
        for row, cells in contents.uids.items()
        for column, value, _ in cells
        if column == Kind.METRIC.id_column and row.startswith(b"seed.")
    }
    return contents._replace(data={key: cells for key, cells in contents.data.items() if key[:3] not in seeded})


@asynccontextmanager
async def seeded(folder: Path, settings: Mapping[str, str]) -> AsyncIterator[Running]:
    """A daemon inside the test that has the points."""
    async with in_process(folder, dict(settings)) as daemon:
        await daemon.tell(seeds())
        yield daemon


async def test_nothing_is_left_of_clients_that_hang_up(tmp_path: Path) -> None:
    async with seeded(tmp_path, {}) as daemon:
        kinds = await questions(daemon.port)
        before = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(fleeting, daemon.port, kinds[number % len(kinds)], number // 20 * 1000)
        with trio.fail_after(PATIENCE_S):
            while trio.lowlevel.current_statistics().tasks_living > before:
                await trio.lowlevel.checkpoint()
        told = (await asked(daemon.port, LISTED))[1]
        assert running(told) == []
        assert {one["exception"] for one in told["completed"]} == {"null", GONE}


LIMITS = pytest.mark.parametrize(
    ("key", "limit", "status", "message"),
    [
        ("tsd.query.timeout", 1, 408, r"Sorry, your query timed out\. Time limit: 1 ms, fetch time: \d+ ms\. Please"),
        ("tsd.query.limits.data_points.default", 1000, 413, "fetch more than our limit of 1000 data points"),
        ("tsd.query.limits.bytes.default", 2 << 20 >> 4, 413, "more than our maximum amount of 0MB from storage"),
        ("tsd.query.memory_limit", MEMORY_BYTES, 413, r"more memory than queries may have together \(16MB, tsd\.query"),
    ],
)


@LIMITS
async def test_what_is_too_much_ends_with_an_error(
    tmp_path: Path, key: str, limit: int, status: int, message: str
) -> None:
    async with seeded(tmp_path, {key: str(limit)}) as daemon:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask_too_much, daemon.port, status, message)
        assert await daemon.tell(b"put m 1500000000 1 a=b\n") == b"synced 1\n"


@LIMITS
async def test_puts_go_on_beside_such_queries(tmp_path: Path, key: str, limit: int, status: int, message: str) -> None:
    """Each is acknowledged, some between a query's request and its error, and all are stored."""
    async with seeded(tmp_path, {key: str(limit)}) as daemon:
        asking = Asking()
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for asker in range(3):
                    nursery.start_soon(ask_over_and_over, asking, asker, daemon.port, status, message)
                sent = await put_beside(daemon, asking, 5)
                asking.over = True
    stored = stored_points(without_seeds(await embedded_contents(tmp_path)))
    assert sorted((point.line.time, point.value) for point in stored) == [(BASE + n, n) for n in range(sent)]


class Asking:
    """Clients that ask for too much, and which of their requests has no answer yet."""

    def __init__(self) -> None:
        self.open: set[tuple[int, int]] = set()  # asker and number of the request
        self.over = False


async def ask_over_and_over(asking: Asking, asker: int, port: int, status: int, message: str) -> None:
    """Ask for too much until it is over."""
    for number in itertools.count():
        if asking.over:
            return
        asking.open.add((asker, number))
        await ask_too_much(port, status, message)
        asking.open.remove((asker, number))


async def put_beside(daemon: Running, asking: Asking, wanted: int) -> int:
    """Put points one by one, each acknowledged, until of so many one request had no answer all that time; how many
    were put."""
    sent = beside = 0
    async with daemon.client() as client:
        while beside < wanted:
            before = set(asking.open)
            reply = await client.ask(b"put beside %d %d a=b\n" % (BASE + sent, sent))
            sent += 1
            assert reply == b"synced %d\n" % sent
            beside += not before.isdisjoint(asking.open)
    return sent


async def ask_too_much(port: int, status: int, message: str) -> None:
    """Ask for all points, and be told that they are too many."""
    found, body = await asked(port, much(11))
    assert (found, body["error"]["code"]) == (status, status), body
    assert re.search(message, body["error"]["message"]), body


async def test_an_answer_that_nobody_reads_counts_and_can_be_cancelled(tmp_path: Path) -> None:
    async with seeded(tmp_path, {"tsd.query.memory_limit": str(MEMORY_BYTES)}) as daemon:
        async with unread(daemon.port) as client:
            with trio.fail_after(PATIENCE_S):
                while not (ids := running((await asked(daemon.port, LISTED))[1])):
                    pass
                await client.read_until(b"\r\n\r\n")
            status, told = await asked(daemon.port, much(7))
            assert status == 413, told
            assert "of which others hold 1" in told["error"]["message"]
            assert (await asked(daemon.port, f"{LISTED}?id={ids[0]}", method="DELETE"))[0] == 204
            text = await client.read_to_end()
            assert not text.endswith(b"0\r\n\r\n")
        assert (await asked(daemon.port, much(7)))[0] == 200
        completed = (await asked(daemon.port, LISTED))[1]["completed"]
        endings = [one["exception"][:23] for one in completed]
        assert endings == ["null", "The query was cancelled", "Sorry, the answer needs"]  # newest first


@asynccontextmanager
async def unread(port: int) -> AsyncIterator[Client]:
    """A client that has asked for everything and has hardly any room for it."""
    sock = trio.socket.socket()
    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await sock.connect((HOST, port))
    async with trio.SocketStream(sock) as stream:
        client = Client(stream)
        await client.send(get(much(7)))
        yield client
