"""Queries during writes: slow and disconnecting clients, and queries that get too large or too slow.

The daemon is a separate process, so that its memory can be measured. `scripts/bench mixed-load` measures times.
"""

import itertools
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.faults.accounting import all_stored, checked_stats
from tests.faults.load import BASE, HOST, PATIENCE_S, Lines, Sender
from tests.faults.process import Served, served
from tests.faults.query_clients import Question, disconnecting, http_request, patient, running, slow
from tests.faults.verification import Contents, check_contents, embedded_contents, stored_points
from tests.running import Client, Running
from tests.running import running as in_process
from tests.unit.server.web_parts import get
from tsd.codec.names import Kind
from tsd.codec.opentsdb.uid import id_column
from tsd.query.registry import GONE

CLIENTS, WRITERS = 200, 100
SEEDS, SLOTS, TURNS = 20, 5, 1000  # hosts, metrics of each, and points of each series, stored before the test
QUERY_BYTES, POINTS_BYTES = 64 << 20, 64 << 20
STORE_BYTES = (64 + 4 * 16) << 20  # RocksDB's cache and memtables
HEAP_BYTES = 64 << 20  # the allocator's free memory, connections, threads
SETTINGS = {
    "tsd.query.memory_limit": str(QUERY_BYTES),
    "tsd.ingest.memory_limit": str(POINTS_BYTES),
    "tsd.storage.flush_interval": "500",
}
RANGE = f"start={BASE - 10}&end={BASE + TURNS}"
SEEDED = "connection=wildcard(s*)"

LISTED = "/api/stats/query"
FUNCTIONS = ("sum", "min", "max", "avg", "dev", "zimsum", "mimmin", "mimmax", "count", "first", "last")
MEMORY_BYTES = 16 << 20  # the minimum of the setting


ALL_POINTS = f"/api/query?{RANGE}&m=none:seed.0{{{SEEDED}}}"
PATHS = [
    ALL_POINTS,
    f"/api/query?{RANGE}&m=sum:seed.2{{}}{{{SEEDED}}}",
    f"/api/query?{RANGE}&ms&m=avg:1m-avg:seed.1{{connection=*}}",
    f"/api/query?{RANGE}&m=p95:rate:seed.4&m=max:10s-max-nan:seed.0{{connection=s1|s2}}",
    f"/api/query?{RANGE}&arrays&m=dev:seed.2{{host=*}}&show_tsuids&show_query&show_stats",
]
WRITTEN = f"/api/query?start={BASE - 10}&end={BASE + 100_000}&m=zimsum:load.0.0{{connection=*}}"  # of the writers


def all_points(functions: int) -> str:
    """A query that reads all points this many times."""
    subs = (f"&m={name}:seed.{slot}{{connection=*}}" for name in FUNCTIONS[:functions] for slot in range(SLOTS))
    return f"/api/query?{RANGE}{''.join(subs)}"


def seeds() -> bytes:
    """Lines with the points that queries read."""
    return b"".join(
        f"put seed.{slot} {time * 1000 + 250 if slot % 2 else time} {connection * turn + slot}.5 "
        f"connection=s{connection} host=h{slot}\n".encode()
        for connection in range(SEEDS)
        for turn in range(TURNS)
        for slot in range(SLOTS)
        for time in [BASE + turn]
    )


async def questions(port: int) -> list[Question]:
    """Queries with the answers that the daemon gives without other load."""
    found = []
    for path in PATHS:
        status, answer = await http_request(port, path)
        assert status == 200, answer
        found.append(Question(path, None if "show_stats" in path else answer))
    return found


async def test_query_clients_with_writers(tmp_path: Path) -> None:
    senders = [Sender(Lines(number), per_s=100, seed=number) for number in range(WRITERS)]
    async with served(tmp_path, SETTINGS) as daemon:
        await daemon.ready()
        async with daemon.client() as client:
            assert await client.send_lines(seeds()) == b"synced %d\n" % (SEEDS * TURNS * SLOTS)
        kinds = await questions(daemon.port)
        before = daemon.resident_bytes()
        async with trio.open_nursery() as nursery:
            for sender in senders:
                nursery.start_soon(sender.run, daemon.port)
            with trio.fail_after(PATIENCE_S):
                await query_concurrently(daemon.port, kinds)
            for sender in senders:
                sender.finish()
        more = peak_bytes(daemon) - before
        assert more < QUERY_BYTES + POINTS_BYTES + STORE_BYTES + HEAP_BYTES, f"{more >> 20} MiB more"
        with trio.fail_after(PATIENCE_S):
            while running((await http_request(daemon.port, LISTED))[1]):  # each request limits the polling rate
                pass
        async with daemon.client() as client:
            await all_stored(client)
            stats = await checked_stats(client)
        assert stats["http.client-disconnects"] > 0
        assert stats["rpc.exceptions"] == 0
        await daemon.terminate()
        assert {event["level"] for event in daemon.events} == {"info"}, daemon.events
    check_contents(without_seeds(await embedded_contents(tmp_path)), senders)


async def query_concurrently(port: int, kinds: list[Question]) -> None:
    """Run all query clients at once. Return when the last has its answer or has disconnected."""
    written = Question(WRITTEN, None)
    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            turned = kinds[number % len(kinds) :] + kinds[: number % len(kinds)]
            match number % 5:
                case 0 | 1:
                    nursery.start_soon(partial(patient, port, [*turned[:2], written], packed=number % 2 > 0))
                case 2:
                    nursery.start_soon(slow, port, turned[0])
                case 3:
                    nursery.start_soon(disconnecting, port, turned[0], 0)
                case 4:
                    nursery.start_soon(disconnecting, port, kinds[0], 1 + number * 100)


def peak_bytes(daemon: Served) -> int:
    """Return the peak memory of the daemon."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    [kib] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kib) << 10


def without_seeds(contents: Contents) -> Contents:
    """Return what the writers wrote."""
    seeded = {
        value
        for row, cells in contents.uids.items()
        for column, value, _ in cells
        if column == id_column(Kind.METRIC) and row.startswith(b"seed.")
    }
    return contents._replace(data={key: cells for key, cells in contents.data.items() if key[:3] not in seeded})


@asynccontextmanager
async def seeded(folder: Path, settings: Mapping[str, str]) -> AsyncIterator[Running]:
    """Run a daemon in this process with the points stored."""
    async with in_process(folder, dict(settings)) as daemon:
        await daemon.send_lines(seeds())
        yield daemon


async def test_disconnected_clients_leave_nothing(tmp_path: Path) -> None:
    async with seeded(tmp_path, {}) as daemon:
        kinds = await questions(daemon.port)
        before = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(disconnecting, daemon.port, kinds[number % len(kinds)], number // 20 * 1000)
        with trio.fail_after(PATIENCE_S):
            while trio.lowlevel.current_statistics().tasks_living > before:
                await trio.lowlevel.checkpoint()
        answer = (await http_request(daemon.port, LISTED))[1]
        assert running(answer) == []
        assert {one["exception"] for one in answer["completed"]} == {"null", GONE}


LIMITS = pytest.mark.parametrize(
    ("key", "limit", "status", "message"),
    [
        ("tsd.query.timeout", 1, 408, r"Sorry, your query timed out\. Time limit: 1 ms, fetch time: \d+ ms\. Please"),
        ("tsd.query.limits.data_points.default", 1000, 413, "fetch more than our limit of 1000 data points"),
        ("tsd.query.limits.bytes.default", 1 << 14, 413, "more than our maximum amount of 0MB from storage"),
        ("tsd.query.memory_limit", MEMORY_BYTES, 413, r"more memory than all queries may hold \(16MB, tsd\.query"),
    ],
)


@LIMITS
async def test_query_over_limit_ends_with_error(
    tmp_path: Path, key: str, limit: int, status: int, message: str
) -> None:
    async with seeded(tmp_path, {key: str(limit)}) as daemon:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(query_over_limit, daemon.port, status, message)
        assert await daemon.send_lines(b"put m 1500000000 1 a=b\n") == b"synced 1\n"


@LIMITS
async def test_puts_continue_during_queries_over_limit(
    tmp_path: Path, key: str, limit: int, status: int, message: str
) -> None:
    """Each put is acknowledged, some of them between a query's request and its error, and all are stored."""
    async with seeded(tmp_path, {key: str(limit)}) as daemon:
        requests = OpenRequests()
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for client in range(3):
                    nursery.start_soon(query_over_limit_repeatedly, requests, client, daemon.port, status, message)
                sent = await put_during(daemon, requests, 5)
                requests.over = True
    stored = stored_points(without_seeds(await embedded_contents(tmp_path)))
    assert sorted((point.line.time, point.value) for point in stored) == [(BASE + n, n) for n in range(sent)]


class OpenRequests:
    """Unanswered requests of clients whose queries exceed a limit."""

    def __init__(self) -> None:
        self.open: set[tuple[int, int]] = set()  # client and number of the request
        self.over = False


async def query_over_limit_repeatedly(
    requests: OpenRequests, client: int, port: int, status: int, message: str
) -> None:
    """Send queries over the limit until cancelled."""
    for number in itertools.count():
        if requests.over:
            return
        requests.open.add((client, number))
        await query_over_limit(port, status, message)
        requests.open.remove((client, number))


async def put_during(daemon: Running, requests: OpenRequests, wanted: int) -> int:
    """Put points one by one, each acknowledged, until this many were put while one request had no answer. Return the
    number of points."""
    sent = overlapping = 0
    async with daemon.client() as client:
        while overlapping < wanted:
            before = set(requests.open)
            reply = await client.send_lines(b"put overlapping %d %d a=b\n" % (BASE + sent, sent))
            sent += 1
            assert reply == b"synced %d\n" % sent
            overlapping += not before.isdisjoint(requests.open)
    return sent


async def query_over_limit(port: int, status: int, message: str) -> None:
    """Query all points and assert that the answer is an error."""
    found, body = await http_request(port, all_points(11))
    assert (found, body["error"]["code"]) == (status, status), body
    assert re.search(message, body["error"]["message"]), body


async def test_unread_answer_counts_and_can_be_cancelled(tmp_path: Path) -> None:
    async with seeded(tmp_path, {"tsd.query.memory_limit": str(MEMORY_BYTES)}) as daemon:
        async with unread(daemon.port) as client:
            with trio.fail_after(PATIENCE_S):
                while not (ids := running((await http_request(daemon.port, LISTED))[1])):
                    pass
                await client.read_until(b"\r\n\r\n")
            status, answer = await http_request(daemon.port, all_points(7))
            assert status == 413, answer
            assert re.search(r"others hold [1-9]\d*MB", answer["error"]["message"])
            assert (await http_request(daemon.port, f"{LISTED}?id={ids[0]}", method="DELETE"))[0] == 204
            text = await client.read_to_end()
            assert not text.endswith(b"0\r\n\r\n")
        assert (await http_request(daemon.port, all_points(7)))[0] == 200
        completed = (await http_request(daemon.port, LISTED))[1]["completed"]
        endings = [one["exception"][:23] for one in completed]
        assert endings == ["null", "The query was cancelled", "Sorry, the answer needs"]  # newest first


@asynccontextmanager
async def unread(port: int) -> AsyncIterator[Client]:
    """A client that queried everything, with a small receive buffer."""
    sock = trio.socket.socket()
    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await sock.connect((HOST, port))
    async with trio.SocketStream(sock) as stream:
        client = Client(stream)
        await client.send(get(all_points(7)))
        yield client
