"""Queries of hours in blocks answer what they answered before."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.peers.needs import need_compiled_loops
from tests.running import Client, Running, running
from tests.unit.store.test_rocksdb_blocks import stored_blocks
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.store.cells import prefix_end

START_S = 1_356_998_400
HOURS, HOSTS = 3, 40
MANY_HOSTS, MANY_POINTS = 300, 40  # enough for an hour to stay in memory


def lines(late: int, hosts: int = HOSTS, points: int = 5) -> list[str]:
    """Points of integers, decimals and milliseconds; those of `late` come between the ones before."""
    found = []
    for hour in range(HOURS):
        for host in range(late, hosts, 1 + 6 * late):
            tags = f"host=web{host:02d} dc={'lga' if host % 2 else 'sjc'}"
            for at in range(points):
                time_s = START_S + hour * 3600 + at * (3000 // points) + late * (host + 1)
                value = [str(host * at), f"{host + at / 4}", f"{at}.5" if at % 2 else str(at)][host % 3]
                found.append(f"put sys.cpu {time_s}{'250' if host % 5 == 4 else ''} {value} {tags}")
            if late and not host % 2:
                found.append(f"put sys.cpu {START_S + hour * 3600 + 600} {host}.125 {tags}")
    return found


QUERIES = [
    "sum:sys.cpu",
    "sum:sys.cpu{host=*}",
    "avg:1h-avg:sys.cpu{dc=*}",
    "max:30m-sum:sys.cpu{host=regexp(web0.*)}",
    "none:sys.cpu{host=literal_or(web03|web14)}",
    "zimsum:10m-count:sys.cpu{dc=not_literal_or(lga)}",
]


async def answers(daemon: Running) -> list[Any]:
    """The answers of all queries over parts of the hours."""
    found = []
    async with daemon.client() as client:
        for query in QUERIES:
            for start, end in ((0, HOURS * 3600), (1800, 5000), (3600, 7199)):
                target = f"/api/query?ms&start={START_S + start}&end={START_S + end}&m={query}".replace("|", "%7C")
                found.append(await answer(client, target))
    assert any(found)
    return found


async def answer(client: Client, target: str, status: bytes = b"200") -> Any:
    await client.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await client.read_until(b"\r\n\r\n")
    assert status in head.split(b"\r\n")[0], head
    if b"chunked" not in head.lower():
        [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        return json.loads(await client.read_bytes(int(length.partition(b":")[2])))
    body = b""
    while size := int(await client.read_until(b"\r\n"), 16):
        body += await client.read_bytes(size)
        await client.read_until(b"\r\n")
    await client.read_until(b"\r\n")
    return json.loads(body)


async def fold_all(daemon: Running) -> int:
    """Fold every hour; return the number of cells moved."""
    store, width, moved = daemon.daemon.store, KeyLayout().pairs_start, 0
    start: bytes | None = b""
    while start is not None:
        page = await store.page("tsdb", start, None, limit=1)
        if not page.rows:
            break
        prefix = page.rows[0].key[:width]
        assert store.column_blocks is not None
        moved += (await store.column_blocks.fold("tsdb", prefix)).cells
        start = prefix_end(prefix)
    return moved


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["0", "67108864"])
async def test_folding_changes_no_answer(tmp_path: Path, cache: str) -> None:
    settings = {"tsd.query.cache_memory": cache, "tsd.storage.enable_compaction": "false"}
    async with running(tmp_path, settings) as daemon:
        moved = []
        for late in (0, 1):
            await daemon.send_lines("".join(line + "\n" for line in lines(late)).encode())
            assert await daemon.daemon.flush()
            before = await answers(daemon)
            moved.append(await fold_all(daemon))
            assert await answers(daemon) == before
            await daemon.send_lines(b"put sys.cpu %d 1 host=web00 dc=sjc\n" % (START_S + 7300 + late))
            assert await daemon.daemon.flush()  # drops what is cached of the last hour
            assert (await answers(daemon))[2] == before[2]
            with trio.fail_after(60):
                assert await answers(daemon) == await answers(daemon)
        assert moved[0] == HOURS * HOSTS


@pytest.mark.slow
async def test_hours_in_memory_change_no_answer(tmp_path: Path) -> None:
    need_compiled_loops()
    settings = {"tsd.query.cache_memory": "0", "tsd.storage.enable_compaction": "false"}
    async with running(tmp_path, settings) as daemon:
        await daemon.send_lines("".join(line + "\n" for line in lines(0, MANY_HOSTS, MANY_POINTS)).encode())
        assert await daemon.daemon.flush()
        first = await answers(daemon)
        for _ in range(2):
            assert await answers(daemon) == first
        kept = daemon.daemon.store.statistics()
        assert kept["row_cache.ranges"] == HOURS
        late = lines(1, MANY_HOSTS, MANY_POINTS)
        await daemon.send_lines("".join(line + "\n" for line in late[: len(late) // HOURS]).encode())
        assert await daemon.daemon.flush()
        assert daemon.daemon.store.statistics()["row_cache.ranges"] == HOURS - 1
        changed = await answers(daemon)
        assert changed != first
        for _ in range(2):
            assert await answers(daemon) == changed


async def test_damaged_block_is_named_in_the_error(tmp_path: Path) -> None:
    settings = {"tsd.storage.enable_compaction": "false"}
    async with running(tmp_path, settings) as daemon:
        await daemon.send_lines("".join(line + "\n" for line in lines(0)).encode())
        assert await daemon.daemon.flush()
        await fold_all(daemon)
    *_, damaged = stored_blocks(tmp_path / "store", "tsdb")
    stored_blocks(tmp_path / "store", "tsdb", (damaged, -1))
    async with running(tmp_path, settings) as daemon, daemon.client() as client:
        for tags in ("", "{host=web02,dc=sjc}", "{host=regexp(web0.*)}"):
            target = "/api/query?start=%d&end=%d&m=sum:sys.cpu" + tags
            error = json.dumps(await answer(client, target % (START_S, START_S + 9000), b" 424 "))
            assert "sys.cpu" in error
            assert str(START_S + 7200) in error
            assert await answer(client, target % (START_S, START_S + 3599))
