"""A daemon compacts what it wrote itself."""

from pathlib import Path

import trio

from tests.running import running
from tsd.codec.opentsdb.row import data_cells

SETTINGS = {"tsd.storage.compaction.flush_interval": "1", "tsd.storage.compaction.min_flush_threshold": "0"}
LATE = [f"put a.load {1356998400 + n} {n} host=web01\n".encode() for n in range(3)]


async def test_row_of_several_flushes_becomes_one_cell(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as daemon, daemon.client() as client:
        for line in LATE:
            await client.send_lines(line)
            assert await daemon.daemon.flush()
        joined = [[(bytes.fromhex("000000100020"), bytes([0, 1, 2, 0]))]]
        found: list[list[tuple[bytes, ...]]] = []
        with trio.fail_after(60):
            while found != joined or (await client.stats())["compaction.queue.size"]:
                page = await daemon.daemon.store.page("tsdb", b"", None, limit=9)
                found = [[cell[:2] for cell in data_cells(row.cells)] for row in page.rows]
        stats = await client.stats()
        assert stats["compaction.count"] >= 1
        assert stats["compaction.writes"] >= 1
        assert stats["compaction.deletes"] >= 3
        assert stats["compaction.errors rpc=put"] == stats["compaction.duplicates type=variant"] == 0


async def test_disabled_compaction_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, {"tsd.storage.enable_compaction": "false"}) as daemon, daemon.client() as client:
        assert not daemon.daemon.tables.fatal_tasks
        stats = await client.stats()
        assert stats["compaction.count"] == 0
        assert "compaction.queue.size" not in stats


async def test_folded_hour_is_read_as_before(tmp_path: Path) -> None:
    settings = SETTINGS | {"tsd.storage.blocks": "true"}
    async with running(tmp_path, settings) as daemon, daemon.client() as client:
        await client.send_lines(b"".join(LATE))
        assert await daemon.daemon.flush()
        before = await daemon.daemon.store.page("tsdb", b"", None, limit=9)
        blocks = daemon.daemon.store.column_blocks
        assert blocks is not None
        assert (await client.stats())["compactor.folded-points"] == 0
        assert await blocks.fold("tsdb", before.rows[0].key[:7]) == (1, 3)
        assert await daemon.daemon.store.page("tsdb", b"", None, limit=9) == before
