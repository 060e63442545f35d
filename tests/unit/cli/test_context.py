"""How commands reach the points of a daemon's state folder."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tsd.cli.context import Access, access, flush_pending
from tsd.config.settings import Backend, Config
from tsd.daemon.wiring import configured_reader, make_uids
from tsd.errors import StoreError, TsdError
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.database import Database


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


@pytest.fixture
def ended_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that would have ended this process. A shell ignores Ctrl-C in the background, as here."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    try:
        yield raised
    finally:
        signal.signal(signal.SIGINT, before)


def test_store_that_cannot_be_closed_after_sigterm_is_reported(
    tmp_path: Path, ended_by: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    close = Database.close

    def fail(database: Database) -> None:
        close(database)
        raise StoreError("no space left")

    async def command() -> None:
        async with access(Config(path=str(tmp_path / "state"))):
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep_forever()

    monkeypatch.setattr(Database, "close", fail)
    with pytest.raises(StoreError):
        trio.run(command)
    assert ended_by == [signal.SIGTERM]
    assert "no space left" in capsys.readouterr().err


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
