"""How commands reach the points of a daemon's state folder."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tsd.cli.context import Access, flush_pending
from tsd.config.settings import Backend, Config
from tsd.daemon.wiring import configured_reader, make_uids
from tsd.errors import TsdError
from tsd.store.memory import MemoryStore


@pytest.fixture
def others_folder() -> Iterator[Path]:
    """A state folder that only another user may read."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0)
        if user == 0:
            os.seteuid(65534)
        try:
            yield Path(made)
        finally:
            os.seteuid(user)
            Path(made).chmod(0o700)


async def test_shared_tables_are_read_without_access_to_the_state_folder(
    others_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a query of another user than the daemon's ended with an error."""
    config = Config(path=str(others_folder), backend=Backend.HBASE, rollups_build=True)
    store = MemoryStore(lambda: 1)
    opened = Access(store, make_uids(config, store), None, config)
    await flush_pending(opened, delete=False)
    assert str(others_folder) in capsys.readouterr().err
    warnings: list[str] = []
    assert await configured_reader(config, store, opened.uids, warnings.append)
    [warning] = warnings
    assert str(others_folder) in warning
    with pytest.raises(TsdError, match=str(others_folder)):
        await flush_pending(opened, delete=True)
