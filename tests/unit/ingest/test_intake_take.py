"""Blocks that are taken without waiting: a new series of cached names is inserted in the same pass."""

from pathlib import Path

import pytest

from tests.unit.ingest.parts import Parts, going, line, make_store
from tsd.ingest import series
from tsd.server.clients import Client
from tsd.server.peer import Peer

needs_loop = pytest.mark.skipif(not series.HAS_LOOP, reason="no C compiler when tsd was installed: no names are cached")


@needs_loop
async def test_new_series_of_cached_names_is_taken_without_waiting(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        peer = Peer("10.0.0.1", 1, Client("10.0.0.1"))
        await parts.take(line(0, 1, "a", metric="m"), line(0, 2, "b", metric="n"))
        taken = parts.intake.try_take(line(0, 3, "a", metric="n") + b"\n", peer)
        assert taken is not None
        assert (taken.accepted, taken.rejects, peer.client.new_series) == (1, [], 1)
        await parts.writer.flush()
        assert sorted((await parts.stored()).values()) == [1, 2, 3]


async def test_block_with_a_new_name_is_left_untouched(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        peer = Peer("10.0.0.1", 1, Client("10.0.0.1"))
        await parts.take(line(0, 1, "a"))
        assert parts.intake.try_take(line(1, 2, "a") + b"\n" + line(0, 3, "new") + b"\n", peer) is None
        assert (parts.ledger.received, parts.open_window.points, peer.client.lines) == (1, 1, 0)
