"""KairosDB's tables on a real Cassandra give the answers of OpenTSDB's rows, in rows of weeks and of an hour."""

import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.peers.cassandra import RunningCassandra
from tests.property.layout_queries import NOW_S, compare
from tests.property.layout_worlds import PLAIN, LayoutForm, made_world, opened_worlds
from tsd.config.loader import Given
from tsd.daemon.settings import now_ms, read_config
from tsd.tables.kairosdb import reader

pytestmark = pytest.mark.slow

HOURLY = "INSERT INTO {}.spec (spec_type, name, value) VALUES ('cluster_config', 'row_width', '3600000')"
KAIROSDB = {"tsd.storage.backend": "cassandra", "tsd.storage.layout": "kairosdb"}


@pytest.mark.parametrize("width", ["weeks", "hour"])
@pytest.mark.parametrize("seed", range(2))
async def test_answers_of_kairosdb_tables_are_equal(
    cassandra: RunningCassandra, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: str, seed: int
) -> None:
    dice = random.Random(f"{seed} {width}")
    monkeypatch.setattr(reader, "READ_POINTS", dice.choice([50, 1000, 40_000]))
    keyspace = cassandra.unused_keyspace()
    settings = {
        **KAIROSDB,
        "tsd.storage.cassandra.keyspace": keyspace,
        "tsd.storage.path": str(tmp_path),
        "tsd.core.auto_create_metrics": "true",
        "tsd.storage.kairosdb.shared": dice.choice(["true", "false"]),
        "tsd.storage.kairosdb.tag_indexed_metrics": dice.choice(["", "*", "m.y"]),
    }
    begun_ms = now_ms()

    def clock_ms() -> int:  # it goes on: writes have timestamps of their own
        return NOW_S * 1000 + now_ms() - begun_ms

    config, _ = read_config(Given("test", key, value) for key, value in settings.items())
    async with AsyncExitStack() as stack:
        worlds = await stack.enter_async_context(opened_worlds({"plain-m.": PLAIN}, tmp_path, lambda: NOW_S * 1000))
        store = cassandra.store(keyspace)
        stack.push_async_callback(store.aclose)
        worlds["kairosdb"] = await stack.enter_async_context(made_world(LayoutForm(settings), config, store, clock_ms))
        if width == "hour":
            await store.cql.command(HOURLY.format(keyspace))
        await compare(worlds, dice, only_doubles=dice.random() < 0.3)
