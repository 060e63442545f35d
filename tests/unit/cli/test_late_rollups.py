"""What commands tell a daemon that builds rollups."""

from pathlib import Path

from tests.unit.tables.test_rollup_builder import BUILT, rollups
from tests.unit.tables.test_rollup_changes import LEFT, built, delete_others, others, served
from tsd.cli.context import Access
from tsd.cli.late_rollups import changing
from tsd.config.loader import Config
from tsd.config.settings import Backend


async def test_daemon_that_starts_during_a_command_is_told(tmp_path: Path) -> None:
    """Regression: the command wrote the days to a file that the daemon of shared tables had read before."""
    rolled = await built(tmp_path)
    config = Config(path=str(tmp_path), backend=Backend.HBASE)
    opened = Access(rolled.env.store, rolled.env.uids, None, config)
    async with served(tmp_path, rolled):
        async with changing(config, opened, await others(rolled), deleted=True):
            await delete_others(rolled)
            await rolled.task.round()
            assert await rollups(rolled.env) == BUILT
        await rolled.task.round()
        assert await rollups(rolled.env) == LEFT
